"""Operators at shapes: one question, or a table of them at once."""

from __future__ import annotations

import difflib
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields, replace
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from torchledger.errors import PredictError, SampleError
from torchledger.expecting.generations import FIRST_WITH
from torchledger.expecting.operator_features import operator_features
from torchledger.fitting.carrying import answer
from torchledger.fitting.learning import COVERAGE
from torchledger.fitting.regressors import EDGE
from torchledger.fitting.replays import bytes_of_direction, copies_slowly, kernels_of, replayed_over_warm
from torchledger.fitting.state_entries import PREFIX, replay_columns, rest_of_state, turn_columns
from torchledger.fitting.time_model import Entry, TimeModel
from torchledger.fitting.timing_states import State, family_of_operator, swept_over_warm
from torchledger.fitting.turns import between_turns, turns_over_warm
from torchledger.nouns import Prediction
from torchledger.operators import Operator, find_operator
from torchledger.operators.declaration import dtype_name
from torchledger.printable import ended
from torchledger.work.element_sizes import ELEMENT_SIZES

Array = NDArray[np.float64]

Range = Literal["inside", "edge", "extrapolated"]
_Asked = tuple[Operator, Mapping[str, NDArray[Any]]]

ROOFLINE = "roofline"
"""What ``Prediction.model`` says where nothing was learned."""

_WIDE = 2.0
"""Half the interval of a time that no regressor covers: a factor of two either way."""

_ROWS_AT_ONCE = 8192
"""So many rows of a table have columns that stay in the processor's cache."""

_KEPT_BYTES = 24 << 20

FAR = 0.25
"""How far beyond the measured range (in logarithms) a question is still called at its edge."""


@dataclass(frozen=True)
class PredictionTable:
    """Predicted times of many shapes, in microseconds; one entry per row.

    ``distance`` is how far a row lies beyond the measured range, in logarithms; 0 inside. ``doubt`` is why every row is
    extrapolated, whatever its shape: an element type that was not measured, say.
    """

    duration_us: Array
    low_us: Array
    high_us: Array
    roofline_us: Array
    distance: Array
    doubt: str | None = None

    @property
    def ranges(self) -> list[Range]:
        """Where each row lies relative to what was measured."""
        if self.doubt is not None:
            return ["extrapolated"] * len(self.distance)
        return [range_of(float(distance)) for distance in self.distance]


def range_of(distance: float) -> Range:
    """The word for a distance from the measured range."""
    if distance <= EDGE:
        return "inside"
    return "edge" if distance <= FAR else "extrapolated"


def half_width_us(found: Prediction) -> float:
    """How much a prediction widens a sum that it is part of, in microseconds: the larger side, at most its own time.

    Of few measurements, or far from them, an interval's upper end may be a thousand times the time: that says that
    nothing is known, and is no width of a sum.
    """
    return min(max(found.high_us - found.duration_us, found.duration_us - found.low_us), found.duration_us)


_NINE_OF_TEN, _WIDEST = 1.645, 0.4
"""Standard deviations within which nine of ten of a normal distribution lie, and the widest that counts as chance: of
wider ones most is what nobody knows."""


def tail_us(found: Prediction) -> float:
    """How much longer a launch takes in the mean than in the middle, which ``duration_us`` is, in microseconds.

    A kernel may take three times what it is likely to, and never a third: sums of many are sums of means. By a
    log-normal distribution through the upper end of the interval; none of what rests on a roofline.
    """
    if found.model == ROOFLINE or found.duration_us <= 0:
        return 0.0
    spread = min(math.log(max(found.high_us / found.duration_us, 1.0)) / _NINE_OF_TEN, _WIDEST)
    return found.duration_us * math.expm1(spread**2 / 2)


def by_roofline(model: TimeModel, subject: str, time_us: float, roofline_us: float | None, reason: str) -> Prediction:
    """What the model has not learned, for a ``reason``: ``time_us`` is its roofline plus the launch floor."""
    return Prediction(
        subject=subject,
        duration_us=time_us,
        low_us=time_us / _WIDE,
        high_us=time_us * _WIDE,
        coverage=COVERAGE,
        range="extrapolated",
        device=model.device,
        model=ROOFLINE,
        roofline_us=roofline_us,
        note=f"roofline and launch floor only: {reason}",
    )


def predict(
    model: TimeModel,
    operator: str,
    parameters: Mapping[str, int],
    *,
    direction: str = "forward",
    dtype: str = "bfloat16",
    state: State = "warm",
) -> Prediction:
    """The time of one operator at one shape: just after its own repeats, after other work has swept the cache, with
    forward and backward in turns, or in the replay of a CUDA graph.

    Raises ``PredictError`` for an operator, parameter, dtype or direction that is unknown (naming the nearest known),
    for sizes that are not positive, for tensors beyond the device's memory, and for a state that the model has not
    learned.
    """
    entry, declared, name = _find(model, operator, direction, dtype)
    checked = _check(declared, parameters)
    if reason := declared.check(declared.resolve(checked)):
        raise PredictError(f"{declared.name}: {ended(reason)}")
    doubt = _doubt(model, entry, name)
    needed = _memory_needed(declared, checked, name)
    if model.total_memory_bytes and needed and needed > model.total_memory_bytes:
        raise PredictError(
            f"{declared.name} at this shape needs {needed / 1e9:,.1f} GB for its tensors; {model.device} has "
            f"{model.total_memory_bytes / 1e9:,.1f} GB."
        )
    arrays = {key: np.array([value]) for key, value in checked.items()}
    table = _answer(model, entry, _as_entry(entry, declared, arrays), (declared, arrays), direction, name, state)
    table = replace(table, doubt=doubt)
    where = table.ranges[0]
    if doubt is None and where != "inside":
        doubt = "outside the shapes that were measured: the time and its interval are extrapolated"
    shape = " ".join(f"{key}={value}" for key, value in checked.items() if key in declared.parameters)
    return Prediction(
        subject=f"{declared.name} {direction} {name} {shape}",
        duration_us=float(table.duration_us[0]),
        low_us=float(table.low_us[0]),
        high_us=float(table.high_us[0]),
        coverage=COVERAGE,
        range=where,
        device=model.device,
        model=_made_of(entry),
        roofline_us=float(table.roofline_us[0]) if declared.counts_work else None,
        note=doubt,
        state=state,
    )


def _doubt(model: TimeModel, entry: Entry, dtype: str) -> str | None:
    """Why no time of this element type is inside what was measured. Raises ``PredictError`` as ``_lacks``."""
    lacks = _lacks(model, dtype)
    if dtype not in entry.dtypes:
        return f"{dtype} was not measured, only {', '.join(entry.dtypes)}: the time and its interval are extrapolated"
    if lacks:
        return f"{model.device} has no tensor cores for {dtype}, and torch is slower there than this time"
    return None


def _made_of(entry: Entry) -> str:
    """What answered: the entry, what it learned from, and where, if not on the device that was asked about."""
    learned = f"{entry.n_shapes} shapes, held-out error {entry.mape:.1f} %"
    if entry.n_rows or not entry.origins:
        return f"{entry.key} ({learned})"
    measured = entry.origins[0]
    for origin in entry.origins[1:]:
        measured = origin if origin.corrections > measured.corrections else measured
    return f"{entry.key} transferred from {measured.machine.name} (there {learned})"


def _lacks(model: TimeModel, dtype: str) -> bool:
    """Whether the device's tensor cores cannot multiply elements of this type. Raises ``PredictError`` for a type that
    torch refuses then."""
    has = model.machine.device.compute_capability
    if has is None or has >= FIRST_WITH.get(dtype, (0, 0)):
        return False
    if ELEMENT_SIZES[dtype] == 1:
        first = ".".join(map(str, FIRST_WITH[dtype]))
        raise PredictError(
            f"torch multiplies {dtype} on compute capability {first} and later; {model.device} has "
            f"{'.'.join(map(str, has))}."
        )
    return True


def predict_table(
    model: TimeModel,
    operator: str,
    parameters: Mapping[str, Any],
    *,
    direction: str = "forward",
    dtype: str = "bfloat16",
    state: State = "warm",
) -> PredictionTable:
    """The times of one operator at many shapes: each parameter is an array, or one number for all rows.

    Raises ``PredictError`` as ``predict`` does, except that memory is not checked.
    """
    entry, declared, name = _find(model, operator, direction, dtype)
    doubt = _doubt(model, entry, name)
    checked = _check(declared, parameters)
    arrays = np.broadcast_arrays(*[np.atleast_1d(np.asarray(value)) for value in checked.values()])
    given = dict(zip(checked, arrays, strict=True))
    general, columns = _as_entry(entry, declared, given)

    def piece(start: int) -> PredictionTable:
        of_entry, of_asked = (
            {key: column[start : start + _ROWS_AT_ONCE] for key, column in each.items()} for each in (columns, given)
        )
        return _answer(model, entry, (general, of_entry), (declared, of_asked), direction, name, state)

    if len(arrays[0]) > _ROWS_AT_ONCE:
        # A freed block of this size is what glibc's allocator takes as a sign to keep what a piece gives back for the
        # next one, instead of asking the system for new pages each time: a sixth of all time.
        np.empty(_KEPT_BYTES, np.uint8)
    pieces = [piece(start) for start in range(0, max(len(arrays[0]), 1), _ROWS_AT_ONCE)]
    columns_of = [field.name for field in fields(PredictionTable) if field.name != "doubt"]
    joined = {name: np.concatenate([getattr(piece, name) for piece in pieces]) for name in columns_of}
    return PredictionTable(**joined, doubt=doubt)


def _answer(
    model: TimeModel, entry: Entry, of_entry: _Asked, asked: _Asked, direction: str, dtype: str, state: State
) -> PredictionTable:
    """Times by an entry, which may be of a general form; what a state costs goes by the operator that was asked, whose
    other direction may be another."""
    operator, parameters = of_entry
    count = len(next(iter(parameters.values())))
    dtypes = np.full(count, dtype)
    features, residual, width, distance = answer(
        entry, model.machine, lambda machine: operator_features(operator, parameters, direction, dtypes, machine)
    )
    log_us = features.log_baseline + residual
    if state != "warm":
        shift, spread = _over_warm(model, asked, direction, float(ELEMENT_SIZES[dtype]), state, np.exp(log_us))
        log_us, width = log_us + shift, np.hypot(width, spread)
    return PredictionTable(
        duration_us=np.exp(log_us),
        low_us=np.exp(log_us - width),
        high_us=np.exp(log_us + width),
        roofline_us=features.roofline_us,
        distance=distance,
    )


def _over_warm(
    model: TimeModel, asked: _Asked, direction: str, item_size: float, state: State, warm_us: Array
) -> tuple[Array, Array]:
    """The logarithm of times in a state over those warm, and what half an interval of it is."""
    operator, parameters = asked
    count = len(warm_us)
    family = family_of_operator(operator, parameters, direction, item_size)
    if state == "swept":
        return swept_over_warm(model, family, warm_us)
    if state == "graph":
        kernels = kernels_of(operator, parameters, direction, item_size, count)
        slow = copies_slowly(operator, parameters, direction, item_size, count)
        shift, width = replayed_over_warm(model, family, kernels, warm_us, slow)
        moved = bytes_of_direction(operator, parameters, direction, item_size, count)
        columns = replay_columns(*moved, kernels, warm_us)
    else:
        between = between_turns(operator, parameters, direction, item_size, family, count)
        if between is None:
            return np.zeros(count), np.zeros(count)
        shift, width = turns_over_warm(model, between, warm_us)
        columns = turn_columns(between, warm_us)
    own = rest_of_state(model, state, operator.key, direction, columns)
    return (shift, width) if own is None else (shift + own[0], own[1])


def _find(model: TimeModel, operator: str, direction: str, dtype: str) -> tuple[Entry, Operator, str]:
    """The entry that answers: of the operator itself, or else of the general form that it amounts to."""
    try:
        name = dtype_name(dtype)
    except ValueError as error:
        raise PredictError(ended(str(error))) from error
    try:
        candidates = [find_operator(operator), find_operator(operator, prefer_guide=True)]
    except SampleError as error:
        raise PredictError(str(error)) from error
    for declared in candidates:
        key = f"{declared.key}/{direction}"
        if key in model.entries:
            return model.entries[key], declared, name
    for declared in candidates:
        # Operators that run a general one's kernels were learned together with it.
        if (general := _general_key(declared)) is not None and f"{general}/{direction}" in model.entries:
            return model.entries[f"{general}/{direction}"], declared, name
    known = sorted({key.split("/")[0] for key in model.entries if not key.startswith(("launch:", PREFIX))})
    keys = {c.key for c in candidates} | {_general_key(c) for c in candidates}
    directions = sorted({key.split("/")[1] for key in model.entries if key.split("/")[0] in keys})
    if directions:
        raise PredictError(f"{operator} has no direction {direction!r} in this model; it has {', '.join(directions)}.")
    near = difflib.get_close_matches(operator, [key.removeprefix("guide.") for key in known], n=3)
    hint = f"nearest: {', '.join(near)}" if near else f"there are {', '.join(known)}"
    raise PredictError(f"the model of {model.device} knows no operator {operator!r}; {hint}.")


def _general_key(operator: Operator) -> str | None:
    ones = operator.resolve(dict.fromkeys(operator.parameters, 1))
    form = operator.general_form(ones)
    return None if form is None else find_operator(form[0]).key


def _as_entry(
    entry: Entry, operator: Operator, parameters: Mapping[str, NDArray[Any]]
) -> tuple[Operator, dict[str, NDArray[Any]]]:
    """The operator that an entry is of, and the parameters under its names."""
    if entry.key.startswith(f"{operator.key}/"):
        return operator, dict(parameters)
    form = operator.general_form(operator.resolve(parameters))
    assert form is not None
    count = len(next(iter(parameters.values())))
    return find_operator(form[0]), {name: np.broadcast_to(value, (count,)) for name, value in form[1].items()}


def _check(operator: Operator, parameters: Mapping[str, Any]) -> dict[str, Any]:
    known = [*operator.parameters, *operator.defaults]
    for key in parameters:
        if key not in known:
            near = difflib.get_close_matches(key, known, n=1)
            hint = f"nearest: {near[0]}" if near else f"there are {', '.join(known)}"
            raise PredictError(f"{operator.name} has no parameter {key!r}; {hint}.")
    if missing := [key for key in operator.parameters if key not in parameters]:
        raise PredictError(f"{operator.name} needs {', '.join(missing)}; its parameters are {', '.join(known)}.")
    values = dict(operator.resolve(parameters))
    for key, value in values.items():
        try:
            array = np.asarray(value, dtype=np.int64)
            whole = np.array_equal(array, np.asarray(value, dtype=np.float64))
        except (ValueError, TypeError, OverflowError) as error:
            raise PredictError(f"{operator.name}: {key}={value} is no whole number.") from error
        if not whole:
            raise PredictError(f"{operator.name}: {key}={value} is no whole number.")
        least = 0 if key in operator.defaults else 1
        if (array < least).any():
            raise PredictError(f"{operator.name}: {key}={value} must be at least {least}: an empty tensor has no time.")
        values[key] = array if array.ndim else int(array)
    return values


def _memory_needed(operator: Operator, parameters: Mapping[str, int], dtype: str) -> int | None:
    try:
        return int(operator.input_bytes(parameters, dtype))
    except NotImplementedError:
        return None


def predict_directions(
    model: TimeModel,
    operator: str,
    parameters: Mapping[str, int],
    *,
    direction: str | None = None,
    dtype: str = "bfloat16",
    state: State = "warm",
) -> list[Prediction]:
    """``predict`` for one direction, or for all that the model knows of the operator."""
    if direction is not None:
        return [predict(model, operator, parameters, direction=direction, dtype=dtype, state=state)]
    found, refusal = [], None
    for each in ("forward", "backward", "step"):
        try:
            _find(model, operator, each, dtype)
        except PredictError as error:
            refusal = refusal or error
            continue
        found.append(predict(model, operator, parameters, direction=each, dtype=dtype, state=state))
    if refusal is not None and not found:
        raise refusal
    return found


def parse_parameters(texts: Iterable[str]) -> dict[str, int]:
    """``["b=4", "l=2048"]`` as numbers by name. Raises ``PredictError`` for anything else."""
    parameters: dict[str, int] = {}
    for text in texts:
        name, equals, value = text.partition("=")
        if name in parameters:
            raise PredictError(f"{name} is given twice, as {parameters[name]} and in {text!r}. Give it once.")
        try:
            parameters[name] = int(value)
        except ValueError as error:
            raise PredictError(f"{text!r} is not NAME=VALUE with a whole number, such as b=4.") from error
        if not equals or not name:
            raise PredictError(f"{text!r} is not NAME=VALUE with a whole number, such as b=4.")
    return parameters
