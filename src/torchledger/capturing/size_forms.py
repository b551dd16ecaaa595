"""Counts as expressions in the symbols of a dynamic graph.

What a launch moves is counted in closed form at one size after another, each free of cost that grows with the size;
the polynomial in the graph's symbols through some of these counts is kept if it also gives the others. Its terms are
those of the buffers' and loops' own extents, floor divisions among them. Sizes that the graph's guards exclude are not
asked for: it is never called with them.
"""

from __future__ import annotations

import functools
import itertools
import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import sympy

from torchledger._torch import inductor, symbol_sizes
from torchledger._torch.loops import Hint, loop_extents
from torchledger.nouns import Buffer
from torchledger.signals import let_through

log = logging.getLogger(__name__)

_Counted = tuple[tuple[Buffer, ...], int | None]
Count = Callable[[Hint], _Counted]
"""Buffers (with shapes and bytes) and vector FLOPs of a launch, where ``Hint`` says how large each size is."""

_MOST_TERMS = 10
_CHECKS = 2
"""Sizes beyond those that determine a polynomial, at which it must hold."""


@dataclass
class SizeForms:
    """Finds the expressions of one dynamic graph's launches; ``points`` are sizes that it may be called with."""

    graph: Any
    points: Sequence[Mapping[Any, int]] = field(init=False)
    _are_made_up: bool = field(init=False, default=False)

    def __post_init__(self) -> None:
        try:
            self.points = symbol_sizes.possible_sizes(self.graph, _MOST_TERMS + _CHECKS)
            self._are_made_up = bool(symbol_sizes.data_dependent_symbols(self.graph))
        except Exception as error:  # the entries are recorded all the same
            let_through(error)
            log.debug("no sizes to count at", exc_info=error)
            self.points = ()

    def of(
        self, snodes: Sequence[Any], buffers: tuple[Buffer, ...], vector_flops: int | None, count: Count
    ) -> tuple[tuple[Buffer, ...], str | None]:
        """The buffers with their bytes as expressions, and the expression of the vector FLOPs.

        Nothing is added in a graph of one size; an expression that is not found is ``None``.
        """
        if not self.points:
            return buffers, None
        try:
            return self._of(snodes, buffers, vector_flops, count)
        except Exception as error:  # the entry is recorded all the same
            let_through(error)
            log.debug("no expressions for %s", [buffer.name for buffer in buffers], exc_info=error)
            return buffers, None

    def _of(
        self, snodes: Sequence[Any], buffers: tuple[Buffer, ...], vector_flops: int | None, count: Count
    ) -> tuple[tuple[Buffer, ...], str | None]:
        extents = [inductor.buffer_numel(self.graph, buffer.name) for buffer in buffers]
        extents += itertools.chain.from_iterable(map(loop_extents, snodes))
        extents = list(dict.fromkeys(extent.as_coeff_Mul()[1] for extent in extents))
        terms = _terms(extents)
        points = self.points if len(terms) > 1 else ()
        known = None if self._are_made_up else (buffers, vector_flops)
        found = _Counts(self.graph, points, count, buffers, known)
        bases = [[sympy.Integer(1)], *([extent] for extent in extents if not extent.is_Integer), terms]
        formed = [
            buffer
            if buffer.bytes_quality == "unavailable" and not self._are_made_up
            else replace(
                buffer,
                bytes_read_expr=found.form(bases, functools.partial(_bytes_read, place)),
                bytes_written_expr=found.form(bases, functools.partial(_bytes_written, place)),
            )
            for place, buffer in enumerate(buffers)
        ]
        return tuple(formed), found.form(bases, _vector_flops)


def _bytes_read(place: int, counted: _Counted) -> int | None:
    return counted[0][place].bytes_read


def _bytes_written(place: int, counted: _Counted) -> int | None:
    return counted[0][place].bytes_written


def _vector_flops(counted: _Counted) -> int | None:
    return counted[1]


class _Counts:
    """A launch counted at as many sizes as were asked for so far; the first, where ``known``, are those that it is
    compiled at. What is not known there, for want of sizes, may be at others."""

    def __init__(
        self,
        graph: Any,
        points: Sequence[Mapping[Any, int]],
        count: Count,
        buffers: tuple[Buffer, ...],
        known: _Counted | None,
    ) -> None:
        self._graph, self._points, self._count = graph, points, count
        self._qualities = [buffer.bytes_quality for buffer in buffers]
        self._known: list[_Counted | None] = [] if known is None else [known]

    def form(self, bases: Sequence[list[sympy.Expr]], pick: Callable[[_Counted], int | None]) -> str | None:
        """The first of the sums of terms that gives what ``pick`` takes from the count at every size."""
        if not self._points:
            value = self._picked(0, pick) if self._known else None
            return None if value is None else str(value)
        for terms in bases:
            if len(terms) > _MOST_TERMS:
                continue
            n_points = len(terms) + _CHECKS
            if len(self._points) < n_points:
                return None
            values = [self._picked(index, pick) for index in range(n_points)]
            if None in values:
                return None
            rows = [[_at(term, self._points[index]) for term in terms] for index in range(n_points)]
            form = _solved(terms, rows, values)  # type: ignore[arg-type]
            if form is not None:
                return str(form)
        return None

    def _picked(self, index: int, pick: Callable[[_Counted], int | None]) -> int | None:
        while len(self._known) <= index:
            self._known.append(self._counted(self._points[len(self._known)]))
        counted = self._known[index]
        return None if counted is None else pick(counted)

    def _counted(self, point: Mapping[Any, int]) -> _Counted | None:
        buffers, vector_flops = self._count(lambda value: symbol_sizes.size_with(value, point, self._graph))
        is_alike = all(
            before in (buffer.bytes_quality, "unavailable")
            for before, buffer in zip(self._qualities, buffers, strict=True)
        )
        return (buffers, vector_flops) if is_alike else None


def _solved(terms: Sequence[sympy.Expr], rows: list[list[Any]], values: Sequence[int]) -> sympy.Expr | None:
    """The sum of ``terms`` that has these values, or ``None`` if none has."""
    if len(terms) == 1:
        (first,), value = rows[0], values[0]
        is_proportional = all(first * other == row[0] * value for row, other in zip(rows, values, strict=True))
        return sympy.Rational(value, first) * terms[0] if is_proportional and first else None
    matrix, wanted = sympy.Matrix(rows), sympy.Matrix(values)
    try:
        factors, free = matrix.gauss_jordan_solve(wanted)
    except ValueError:  # contradicted by some of the values
        return None
    if free.shape[0]:
        return None
    return sympy.Add(*(factor * term for factor, term in zip(factors, terms, strict=True)))


def _at(expression: sympy.Expr, point: Mapping[Any, int]) -> Any:
    return expression.xreplace({symbol: sympy.Integer(value) for symbol, value in point.items()})


def _terms(extents: Sequence[sympy.Expr]) -> list[sympy.Expr]:
    """One, and every product of powers that divides a term of the extents."""
    found: dict[sympy.Expr, None] = {sympy.Integer(1): None}
    for extent in dict.fromkeys(extents):
        if extent.is_Integer:
            continue
        polynomial = sympy.Poly(sympy.expand(extent))
        for powers in polynomial.monoms():
            for lower in itertools.product(*(range(power + 1) for power in powers)):
                term = sympy.Mul(*(g**power for g, power in zip(polynomial.gens, lower, strict=True)))
                found[term] = None
    return list(found)
