"""Indices that a kernel computes from its loops with floating-point arithmetic, as resizing an image does.

Such an index looks like loaded data to the compiler, but depends on the loops alone: its values can be worked out.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from torchledger.capturing.traffic import evaluate_index

if TYPE_CHECKING:
    from torchledger._torch.loops import Statement

EVALUATION_LIMIT = 16384
"""Iterations up to which a computed index is evaluated."""

_DTYPES: Mapping[str, Any] = {
    "float64": np.float64,
    "float32": np.float32,
    "float16": np.float32,  # Inductor computes in float32 and rounds on storing
    "bfloat16": np.float32,
    "int64": np.int64,
    "int32": np.int32,
    "int16": np.int16,
    "int8": np.int8,
    "uint8": np.uint8,
    "bool": np.bool_,
}

_FUNCTIONS: Mapping[str, Callable[..., Any]] = {
    "add": np.add,
    "sub": np.subtract,
    "mul": np.multiply,
    "truediv": np.true_divide,
    "floordiv": np.floor_divide,
    "minimum": np.minimum,
    "maximum": np.maximum,
    "floor": np.floor,
    "ceil": np.ceil,
    "trunc": np.trunc,
    "round": np.round,
    "neg": np.negative,
    "abs": np.abs,
    "where": np.where,
    "lt": np.less,
    "le": np.less_equal,
    "gt": np.greater,
    "ge": np.greater_equal,
    "eq": np.equal,
    "ne": np.not_equal,
    "and_": np.logical_and,
    "logical_and": np.logical_and,
    "or_": np.logical_or,
    "logical_or": np.logical_or,
    "logical_not": np.logical_not,
    "identity": lambda value: value,
}


@dataclass(frozen=True)
class IndexValues:
    """The values ``first + step * [0, count)`` that an index takes."""

    first: int
    step: int
    count: int


def index_values(
    statements: Sequence[Statement], place: int, sizes: Mapping[str, int], size: int
) -> IndexValues | None:
    """The values of the index computed by statement ``place``, wrapped into ``[0, size)``.

    ``None`` if it depends on loaded data, uses an operation not known here, spans too many iterations, or takes values
    that are not evenly spaced.
    """
    names: set[str] = set()
    if not _collect_loops(statements, place, sizes, names, set()):
        return None
    ordered = sorted(names)
    if math.prod(sizes[name] for name in ordered) > EVALUATION_LIMIT:
        return None
    axes = np.meshgrid(*(np.arange(sizes[name], dtype=np.int64) for name in ordered), indexing="ij")
    loops = dict(zip(ordered, axes, strict=True))
    value = _evaluate(statements, place, loops, {})
    if value is None or np.asarray(value).dtype.kind not in "iu":
        return None
    values = np.unique(value)
    values = np.unique(np.where(values < 0, values + size, values))
    if values.size == 0 or values[0] < 0 or values[-1] >= size:
        return None
    steps = np.unique(np.diff(values))
    if steps.size > 1:
        return None
    return IndexValues(int(values[0]), int(steps[0]) if steps.size else 1, int(values.size))


def _collect_loops(
    statements: Sequence[Statement], place: int, sizes: Mapping[str, int], names: set[str], seen: set[int]
) -> bool:
    if place in seen:
        return True
    seen.add(place)
    statement = statements[place]
    if statement.name in ("index_expr", "value_expr"):
        found = {str(symbol) for symbol in getattr(statement.arguments[0], "free_symbols", ())}
        names |= found
        return found <= set(sizes)
    if statement.name not in ("constant", "to_dtype", *_FUNCTIONS):
        return False
    return all(
        _collect_loops(statements, argument.place, sizes, names, seen)
        for argument in statement.arguments
        if hasattr(argument, "place")
    )


def _evaluate(statements: Sequence[Statement], place: int, loops: Mapping[str, Any], known: dict[int, Any]) -> Any:
    if place in known:
        return known[place]
    statement = statements[place]
    name, arguments = statement.name, statement.arguments
    value: Any = None
    if name in ("index_expr", "value_expr", "constant"):
        dtype = _DTYPES.get(str(arguments[1]))
        raw = arguments[0] if name == "constant" else evaluate_index(arguments[0], loops)
        value = None if dtype is None or raw is None else np.asarray(raw).astype(dtype)
    elif name == "to_dtype":
        dtype = _DTYPES.get(str(arguments[1]))
        source = _evaluate(statements, arguments[0].place, loops, known)
        value = None if dtype is None or source is None else np.asarray(source).astype(dtype)
    else:
        operands = [
            _evaluate(statements, argument.place, loops, known) if hasattr(argument, "place") else argument
            for argument in arguments
        ]
        if all(operand is not None for operand in operands):
            value = _FUNCTIONS[name](*operands)
    known[place] = value
    return value
