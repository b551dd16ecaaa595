"""Indices that a kernel computes from its loops with floating-point arithmetic, as resizing an image does.

Such an index looks like loaded data to the compiler, but depends on the loops alone: its values can be worked out.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from torchledger._torch.loops import Ref, Statement
from torchledger.capturing.index_trees import evaluate_index

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


class ComputedIndices:
    """The indices of one loop body that depend on its loops alone.

    ``sizes`` are the extents of the loops, ``limits`` the number of values of each indirect index (``None``: unknown).
    """

    def __init__(
        self, statements: Sequence[Statement], sizes: Mapping[str, int], limits: Mapping[str, int | None]
    ) -> None:
        self._statements = statements
        self._sizes = sizes
        self._limits = limits
        self._sources = {
            statement.arguments[1]: statement.arguments[0]
            for statement in statements
            if statement.name == "set_indirect"
        }
        self._known: dict[str, IndexValues | None] = {}

    def values(self, symbol: str) -> IndexValues | None:
        """The values that the index ``symbol`` takes, wrapped into its range.

        ``None`` if it depends on loaded data, uses an operation not known here, spans too many iterations, or takes
        values that are not evenly spaced.
        """
        if symbol not in self._known:
            self._known[symbol] = self._work_out(symbol)
        return self._known[symbol]

    def _work_out(self, symbol: str) -> IndexValues | None:
        names: set[str] = set()
        if not self._collect_loops(symbol, names, set()):
            return None
        ordered = sorted(names)
        if math.prod(self._sizes[name] for name in ordered) > EVALUATION_LIMIT:
            return None
        axes = np.meshgrid(*(np.arange(self._sizes[name], dtype=np.int64) for name in ordered), indexing="ij")
        found = self._index(symbol, dict(zip(ordered, axes, strict=True)), {})
        if found is None:
            return None
        values = np.unique(found)
        if values.size == 0 or values[0] < 0 or values[-1] >= self._limits[symbol]:
            return None
        steps = np.unique(np.diff(values))
        if steps.size > 1:
            return None
        return IndexValues(int(values[0]), int(steps[0]) if steps.size else 1, int(values.size))

    def _collect_loops(self, symbol: str, names: set[str], seen: set[int]) -> bool:
        """Add the loops that an index depends on to ``names``; False if it depends on anything else."""
        source = self._sources.get(symbol)
        if self._limits.get(symbol) is None or not isinstance(source, Ref):
            return False
        return self._collect_from(source.place, names, seen)

    def _collect_from(self, place: int, names: set[str], seen: set[int]) -> bool:
        if place in seen:
            return True
        seen.add(place)
        statement = self._statements[place]
        if statement.name in ("index_expr", "value_expr"):
            for symbol in getattr(statement.arguments[0], "free_symbols", ()):
                if symbol.name in self._sizes:
                    names.add(symbol.name)
                elif not self._collect_loops(symbol.name, names, seen):
                    return False
            return True
        if statement.name not in ("constant", "to_dtype", *_FUNCTIONS):
            return False
        return all(
            self._collect_from(argument.place, names, seen)
            for argument in statement.arguments
            if isinstance(argument, Ref)
        )

    def _index(self, symbol: str, loops: Mapping[str, Any], known: dict[int, Any]) -> Any:
        value = self._evaluate(self._sources[symbol].place, loops, known)
        if value is None or np.asarray(value).dtype.kind not in "iu":
            return None
        return np.where(value < 0, value + self._limits[symbol], value)

    def _evaluate(self, place: int, loops: Mapping[str, Any], known: dict[int, Any]) -> Any:
        if place not in known:
            known[place] = self._compute(self._statements[place], loops, known)
        return known[place]

    def _compute(self, statement: Statement, loops: Mapping[str, Any], known: dict[int, Any]) -> Any:
        name, arguments = statement.name, statement.arguments
        dtype = _DTYPES.get(str(arguments[1])) if len(arguments) > 1 else None
        if name in ("index_expr", "value_expr"):
            symbols = {symbol.name for symbol in getattr(arguments[0], "free_symbols", ())}
            values = {**loops, **{symbol: self._index(symbol, loops, known) for symbol in symbols - set(loops)}}
            if dtype is None or any(values[symbol] is None for symbol in symbols):
                return None
            value = evaluate_index(arguments[0], values)
            return None if value is None else np.asarray(value).astype(dtype)
        if name == "constant":
            return None if dtype is None else np.asarray(arguments[0]).astype(dtype)
        if name == "to_dtype":
            value = self._evaluate(arguments[0].place, loops, known)
            return None if dtype is None or value is None else np.asarray(value).astype(dtype)
        operands = [
            self._evaluate(argument.place, loops, known) if isinstance(argument, Ref) else argument
            for argument in arguments
        ]
        return None if any(operand is None for operand in operands) else _FUNCTIONS[name](*operands)
