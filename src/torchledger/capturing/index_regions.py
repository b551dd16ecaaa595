"""An index over loops as progressions of addresses: the loops are cut until it is affine on each region.

Floor divisions, remainders, minima and mask bounds are resolved by cutting the loops into digits and ranges (``x // 8``
is affine once ``x`` is split at 8). A small nest that resists is enumerated.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping, Sequence

import numpy as np

from torchledger.capturing.index_trees import Tree, evaluate_tree, symbols_of
from torchledger.capturing.progressions import ENUMERATION_LIMIT, MAX_UNROLL, Progression, TooComplex

BoundTree = tuple[Tree, int | None, int | None]
"""An expression, and between what it lies (``None``: open)."""
_MAX_REGIONS = 192
_MAX_PARTIAL = 16


def enumerated_pieces(
    index: Tree, sizes: Mapping[str, int], bounds: Sequence[BoundTree]
) -> tuple[Progression, ...] | None:
    """The addresses of a small loop nest as progressions, or ``None`` if it is not small."""
    names = sorted(symbols_of(index).union(*(symbols_of(tree) for tree, _, _ in bounds)))
    if math.prod(sizes[name] for name in names) > ENUMERATION_LIMIT:
        return None
    grids = np.meshgrid(*(np.arange(sizes[name], dtype=np.int64) for name in names), indexing="ij")
    values = dict(zip(names, grids, strict=True))
    keep = np.ones([sizes[name] for name in names], dtype=bool)
    for tree, low, high in bounds:
        value = evaluate_tree(tree, values)
        if low is not None:
            keep &= value >= low
        if high is not None:
            keep &= value <= high
    addresses = np.unique(np.broadcast_to(evaluate_tree(index, values), keep.shape)[keep])
    if addresses.size == 0:
        return ()
    # Runs of neighbours keep the number of pieces small.
    starts = np.flatnonzero(np.diff(addresses, prepend=addresses[0] - 2) != 1)
    lengths = np.diff(np.append(starts, addresses.size))
    return tuple(
        Progression(int(addresses[start]), ((1, int(length)),)) for start, length in zip(starts, lengths, strict=True)
    )


class _Affine:
    """``constant + sum(coefficient * digit)``; digits are numbered."""

    __slots__ = ("constant", "terms")

    def __init__(self, constant: int, terms: dict[int, int] | None = None) -> None:
        self.constant = constant
        self.terms = terms or {}

    def plus(self, other: _Affine, factor: int = 1) -> _Affine:
        terms = dict(self.terms)
        for digit, coefficient in other.terms.items():
            total = terms.get(digit, 0) + factor * coefficient
            if total:
                terms[digit] = total
            else:
                terms.pop(digit, None)
        return _Affine(self.constant + factor * other.constant, terms)

    def times(self, factor: int) -> _Affine:
        if factor == 0:
            return _Affine(0)
        return _Affine(self.constant * factor, {digit: c * factor for digit, c in self.terms.items()})

    def range(self, counts: Mapping[int, int]) -> tuple[int, int]:
        low = high = self.constant
        for digit, coefficient in self.terms.items():
            reach = coefficient * (counts[digit] - 1)
            if reach < 0:
                low += reach
            else:
                high += reach
        return low, high

    def substitute(self, digit: int, replacement: _Affine) -> _Affine:
        coefficient = self.terms.get(digit)
        if coefficient is None:
            return self
        rest = _Affine(self.constant, {d: c for d, c in self.terms.items() if d != digit})
        return rest.plus(replacement, coefficient)


class _SplitAt(Exception):
    """The region has to be split: ``digit = low + period * high``."""

    def __init__(self, digit: int, period: int) -> None:
        self.digit, self.period = digit, period


class _CutWhere(Exception):
    """The region has to be cut where an affine form changes sign (``form >= 0``)."""

    def __init__(self, form: _Affine) -> None:
        self.form = form


class _FixDigit(Exception):
    """The region has to be taken apart into the single values of a digit."""

    def __init__(self, digit: int) -> None:
        self.digit = digit


class _Region:
    """A box of digits, and each loop variable as an affine form of them."""

    __slots__ = ("counts", "next_digit", "values")

    def __init__(self, counts: dict[int, int], values: dict[str, _Affine], next_digit: int) -> None:
        self.counts, self.values, self.next_digit = counts, values, next_digit

    @classmethod
    def of_loops(cls, sizes: Mapping[str, int]) -> _Region:
        counts, values = {}, {}
        for digit, (name, size) in enumerate(sizes.items()):
            if size == 1:
                values[name] = _Affine(0)
            else:
                counts[digit] = size
                values[name] = _Affine(0, {digit: 1})
        return cls(counts, values, len(sizes))

    def within(self, digit: int, low: int, high: int) -> _Region:
        """The part with ``low <= digit <= high``."""
        if low == 0 and high == self.counts[digit] - 1:
            return self
        counts = {d: n for d, n in self.counts.items() if d != digit}
        if low == high:
            replacement = _Affine(low)
        else:
            counts[self.next_digit] = high - low + 1
            replacement = _Affine(low, {self.next_digit: 1})
        values = {name: form.substitute(digit, replacement) for name, form in self.values.items()}
        return _Region(counts, values, self.next_digit + 1)

    def split(self, digit: int, period: int) -> list[_Region]:
        """The parts on which ``digit`` is ``low + period * high``: the whole periods, and the rest."""
        whole, rest = divmod(self.counts[digit], period)
        parts = []
        if whole == 1:
            parts.append(self.within(digit, 0, period - 1))
        elif whole:
            counts = {d: n for d, n in self.counts.items() if d != digit}
            low, high = self.next_digit, self.next_digit + 1
            counts[low], counts[high] = period, whole
            replacement = _Affine(0, {low: 1, high: period})
            values = {name: form.substitute(digit, replacement) for name, form in self.values.items()}
            parts.append(_Region(counts, values, self.next_digit + 2))
        if rest:
            parts.append(self.within(digit, whole * period, whole * period + rest - 1))
        return parts

    def cut(self, form: _Affine) -> list[_Region]:
        """Parts on more of which ``form`` keeps its sign than before: the widest term decides where it can."""
        digit = max(form.terms, key=lambda d: (abs(form.terms[d]), self.counts[d]))
        coefficient, last = form.terms[digit], self.counts[digit] - 1
        low, high = _Affine(form.constant, {d: c for d, c in form.terms.items() if d != digit}).range(self.counts)
        if coefficient > 0:
            sure = -(low // coefficient)  # first value from which the form is >= 0 whatever the others are
            possible = -(high // coefficient)  # first value from which it can be >= 0
            bounds = [(0, possible - 1), (sure, last)]
            partial = (max(possible, 0), min(sure - 1, last))
        else:
            sure = low // -coefficient  # last value up to which it is >= 0 whatever the others are
            possible = high // -coefficient
            bounds = [(0, sure), (possible + 1, last)]
            partial = (max(sure + 1, 0), min(possible, last))
        if partial[1] - partial[0] >= _MAX_PARTIAL:
            raise TooComplex
        bounds.extend((value, value) for value in range(partial[0], partial[1] + 1))
        return [self.within(digit, max(a, 0), min(b, last)) for a, b in bounds if max(a, 0) <= min(b, last)]


def affine_pieces(index: Tree, sizes: Mapping[str, int], bounds: Sequence[BoundTree]) -> tuple[Progression, ...]:
    """The addresses of ``index`` over the loops, as progressions; raises ``TooComplex``."""
    pieces: dict[Progression, None] = {}
    pending = [_Region.of_loops(sizes)]
    budget = _MAX_REGIONS
    while pending:
        region = pending.pop()
        budget -= 1
        if budget < 0:
            raise TooComplex
        try:
            form = None
            for tree, low, high in bounds:
                if not _is_inside(_affine(tree, region), low, high, region):
                    break
            else:
                form = _affine(index, region)
        except _SplitAt as request:
            pending.extend(region.split(request.digit, request.period))
        except _CutWhere as request:
            pending.extend(region.cut(request.form))
        except _FixDigit as request:
            if region.counts[request.digit] > MAX_UNROLL:
                raise TooComplex from None
            count = region.counts[request.digit]
            pending.extend(region.within(request.digit, value, value) for value in range(count))
        else:
            if form is not None:
                terms = tuple(sorted((c, region.counts[digit]) for digit, c in form.terms.items()))
                pieces[Progression(form.constant, terms)] = None
    return tuple(pieces)


def _is_inside(form: _Affine, low: int | None, high: int | None, region: _Region) -> bool:
    """Whether all of the region fulfils the bound, or (False) none of it; asks for a cut where it is mixed."""
    smallest, largest = form.range(region.counts)
    if (low is not None and largest < low) or (high is not None and smallest > high):
        return False
    if low is not None and smallest < low:
        raise _CutWhere(form.plus(_Affine(-low)))
    if high is not None and largest > high:
        raise _CutWhere(_Affine(high).plus(form, -1))
    return True


def _affine(tree: Tree, region: _Region) -> _Affine:
    kind, *parts = tree
    if kind == "int":
        return _Affine(parts[0])
    if kind == "symbol":
        return region.values[parts[0]]
    if kind == "add":
        total = _Affine(0)
        for part in parts:
            total = total.plus(_affine(part, region))
        return total
    if kind == "multiply":
        return functools.reduce(
            lambda left, right: _product(left, right, region), (_affine(part, region) for part in parts)
        )
    if kind == "divide":
        return _floor_divide(_affine(parts[0], region), parts[1], region)
    if kind == "modulo":
        form = _affine(parts[0], region)
        return form.plus(_floor_divide(form, parts[1], region), -parts[1])
    chosen = _affine(parts[0], region)
    for part in parts[1:]:
        other = _affine(part, region)
        difference = chosen.plus(other, -1)
        low, high = difference.range(region.counts)
        if low < 0 < high:
            raise _CutWhere(difference)
        chosen_is_larger = low >= 0
        if chosen_is_larger != (kind == "max"):
            chosen = other
    return chosen


def _product(left: _Affine, right: _Affine, region: _Region) -> _Affine:
    if not left.terms:
        return right.times(left.constant)
    if not right.terms:
        return left.times(right.constant)
    raise _FixDigit(min((*left.terms, *right.terms), key=lambda digit: region.counts[digit]))


def _floor_divide(form: _Affine, divisor: int, region: _Region) -> _Affine:
    if divisor == 1:
        return form
    quotient, remainder = _Affine(form.constant // divisor), _Affine(form.constant % divisor)
    for digit, coefficient in form.terms.items():
        whole = coefficient // divisor if coefficient >= 0 else -(-coefficient // divisor)
        if whole:
            quotient.terms[digit] = whole
        if coefficient - whole * divisor:
            remainder.terms[digit] = coefficient - whole * divisor
    low, high = remainder.range(region.counts)
    if low // divisor == high // divisor:
        return quotient.plus(_Affine(low // divisor))
    for digit, coefficient in remainder.terms.items():
        period = divisor // math.gcd(coefficient, divisor)
        if region.counts[digit] > period:
            raise _SplitAt(digit, period)
    middle = (low // divisor + 1 + high // divisor) // 2
    raise _CutWhere(remainder.plus(_Affine(-middle * divisor)))
