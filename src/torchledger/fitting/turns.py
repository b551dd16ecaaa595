"""What a direction takes in turns with its operator's other one: forward, backward, and the forward again.

Labels are of a direction repeated over the same tensors, which the cache may hold. In turns the other direction's
traffic lies between: where both together are more than the cache keeps, what was read warm comes from memory, which
costs a miss and the bytes. What both touch was touched half as long ago. What a direction wrote last is in the cache
alone, and the next one that needs the room writes it to memory: a direction that ends with writing, between ones that
end with reading (the gradient of a norm's weights), takes less time than repeated, and they take more. Besides, a
kernel that did not run just before starts somewhat later, and takes some share of its time longer.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from torchledger.errors import PredictError
from torchledger.expecting.rounding import as_column
from torchledger.fitting.learning import COVERAGE
from torchledger.fitting.time_model import TimeModel
from torchledger.operators import Operator

Array = NDArray[np.float64]

_KEPT, _SOFT = "turns kept MB", "turns soft MB"
_LEFT, _WRITTEN = "turns left MB", "turns written MB us"
_OF_ALL = (_KEPT, _SOFT, _LEFT, _WRITTEN)
_COSTS = ("miss us", "MB us", "forward us", "backward us", "forward share", "backward share")
_KEPT_FROM, _SOFT_FROM = (35.0, 45.0, 60.0), (4.0, 10.0)  # where fits begin: what is kept or not has steps
_FIRST = {
    _KEPT: 45.0,
    _SOFT: 4.0,
    _LEFT: 12.0,
    _WRITTEN: 0.2,
    "miss us": 0.6,
    "MB us": 0.05,
    "forward us": 0.1,
    "backward us": 0.05,
}
_FIRST |= {"forward share": 0.005, "backward share": 0.003}
BYTES = ("own_bytes", "read_bytes", "shared_bytes", "both_bytes", "own_left_bytes", "other_left_bytes")
"""What a ``Between`` says of bytes."""
_LAST_BYTES = 45e6
"""What a direction moved last: so much is in a cache at its end."""
_MEGABYTE = 1e6
_FARTHEST = 40.0
_SMALL = 1e-4
_MOST_SPARED = 0.3
"""Of a direction's time, at most, that it is quicker in turns."""


@dataclass(frozen=True)
class Between:
    """Of one operator's direction at many shapes: its family (``timing_states.family_of_operator``), whether it is the
    forward, the bytes that it moves, those that it reads, those of them that the other direction touches too, the bytes
    that both move, those of both alike once, and what each of both wrote last (of ``_LAST_BYTES``)."""

    family: str
    is_forward: bool
    own_bytes: Array
    read_bytes: Array
    shared_bytes: Array
    both_bytes: Array
    own_left_bytes: Array
    other_left_bytes: Array


@dataclass(frozen=True)
class Turns:
    """A direction that was timed both ways, at one shape: microseconds repeated and in turns; ``name`` is its key."""

    name: str
    between: Between
    warm_us: float
    turns_us: float


def between_turns(
    operator: Operator, parameters: Mapping[str, Any], direction: str, item_size: float, family: str, count: int = 1
) -> Between | None:
    """What lies between two runs of a direction at ``count`` shapes; ``None`` where the operator has no other one."""
    if direction not in ("forward", "backward") or not {"forward", "backward"} <= set(operator.directions):
        return None
    resolved = operator.resolve(parameters)
    other = "backward" if direction == "forward" else "forward"
    moved = {
        each: [
            (as_column(work.bytes_read, count), as_column(work.bytes_written, count))
            for work in operator.work(resolved, each, item_size)  # type: ignore[arg-type]
        ]
        for each in (direction, other)
    }
    read, written = (
        {each: sum((one[side] for one in works), np.zeros(count)) for each, works in moved.items()} for side in (0, 1)
    )
    # A backward reads the gradient of what its forward wrote, and what that kept for it.
    kept = np.maximum(read["backward"] - written["forward"], 0.0)
    shared = np.minimum(kept, read[direction])
    own, of_other = (read[each] + written[each] for each in (direction, other))
    if direction == "forward" and operator.keeps_result:
        touched = np.zeros(count)
    else:
        touched = shared
    left, other_left = (_left_bytes(moved[each], count) for each in (direction, other))
    return Between(
        family, direction == "forward", own, read[direction], touched, own + of_other - shared, left, other_left
    )


def _left_bytes(kernels: Sequence[tuple[Array, Array]], count: int) -> Array:
    """Of the ``_LAST_BYTES`` that a direction's kernels moved, by bytes read and written of each, those written."""
    room, left = np.full(count, _LAST_BYTES), np.zeros(count)
    for read, written in reversed(kernels):
        share = np.minimum(room / np.maximum(read + written, 1.0), 1.0)
        left = left + share * written
        room = room - share * (read + written)
    return left


def turns_over_warm(model: TimeModel, between: Between, warm_us: Array) -> tuple[Array, Array]:
    """The logarithm of the time in turns over that repeated, and what half an interval of it is. Raises
    ``PredictError`` where the model has not learned it."""
    if not all(name in model.extras for name in (*_OF_ALL, *(f"turns {between.family} {name}" for name in _COSTS))):
        raise PredictError(
            f"the model of {model.device} does not know how long {between.family} kernels take in turns with their "
            "other direction: leave out --state."
        )
    width = np.full(len(warm_us), model.extras[f"turns width {between.family}"])
    return np.log1p(_later_us(between, warm_us, model.extras) / warm_us), width


def _later_us(between: Between, warm_us: Array, costs: Mapping[str, float]) -> Array:
    """Microseconds that a direction takes longer in turns."""
    kept, soft, most_left = (costs[name] * _MEGABYTE for name in (_KEPT, _SOFT, _LEFT))
    miss, byte, *of_direction = (costs[f"turns {between.family} {name}"] for name in _COSTS)
    start, share = of_direction[0 if between.is_forward else 1], of_direction[2 if between.is_forward else 3]
    held = _share((kept - between.own_bytes) / soft)
    gone, gone_of_shared = (_share((between.both_bytes * part - kept) / soft) for part in (1.0, 0.5))
    missed = held * ((between.read_bytes - between.shared_bytes) * gone + between.shared_bytes * gone_of_shared)
    missed_share = missed / np.maximum(between.read_bytes, 1.0)
    # What does not fit beside what was left there drives it out; repeated, it drives out what it left itself.
    left, other_left = (np.minimum(each, most_left) for each in (between.own_left_bytes, between.other_left_bytes))
    written = (1 - held) * (other_left - left)
    later = start + share * warm_us + missed_share * miss + missed / _MEGABYTE * byte
    return np.asarray(np.maximum(later + written / _MEGABYTE * costs[_WRITTEN], -_MOST_SPARED * warm_us))


def _share(away: Array) -> Array:
    """From 0 to 1, a half at nothing."""
    return np.asarray(1 / (1 + np.exp(-np.clip(away, -_FARTHEST, _FARTHEST))))


def fit_turns(rows: Sequence[Turns]) -> dict[str, float]:
    """The numbers that ``turns_over_warm`` reads, each operator's direction counting alike."""
    from scipy.optimize import minimize

    families = sorted({row.between.family for row in rows})
    names = [*_OF_ALL, *(f"turns {family} {name}" for family in families for name in _COSTS)]
    first = np.log([_FIRST.get(name) or _FIRST[" ".join(name.split(" ")[2:])] for name in names])
    groups: dict[tuple[str, bool], list[Turns]] = {}
    for row in rows:
        groups.setdefault((row.between.family, row.between.is_forward), []).append(row)
    often = {name: sum(row.name == name for row in rows) for name in {row.name for row in rows}}
    columns = [
        (
            Between(
                family,
                is_forward,
                *(np.concatenate([getattr(row.between, name) for row in some]) for name in BYTES),
            ),
            np.array([row.warm_us for row in some]),
            np.array([row.turns_us for row in some]),
            np.array([1 / often[row.name] for row in some]),
        )
        for (family, is_forward), some in groups.items()
    ]

    def loss(logarithms: Array) -> float:
        costs = dict(zip(names, np.exp(logarithms), strict=True))
        total = 0.0
        for between, warm_us, turns_us, weight in columns:
            off = np.log((warm_us + _later_us(between, warm_us, costs)) / turns_us)
            total += float(weight @ np.sqrt(off**2 + _SMALL))
        return total / len(often) + 1e-5 * float(np.sum((logarithms - first) ** 2))

    begins = [np.concatenate([np.log([kept, soft]), first[2:]]) for kept in _KEPT_FROM for soft in _SOFT_FROM]
    found = min((minimize(loss, begin, method="L-BFGS-B") for begin in begins), key=lambda each: each.fun).x
    costs = {name: float(value) for name, value in zip(names, np.exp(found), strict=True)}
    for family in families:
        off = [
            np.abs(np.log((warm_us + _later_us(between, warm_us, costs)) / turns_us))
            for between, warm_us, turns_us, _ in columns
            if between.family == family
        ]
        costs[f"turns width {family}"] = float(np.quantile(np.concatenate(off), COVERAGE))
    return costs
