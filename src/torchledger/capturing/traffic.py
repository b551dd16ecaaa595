"""Distinct addresses that a set of accesses touches in one buffer, in closed form.

Minimum traffic counts each address once, however often it is loaded. The cost of counting follows the shape of the
index expressions (how many loops, views, windows), never the size of the tensors.

The way of an access through this module:

1. **regions**: floor divisions, remainders, minima and mask bounds are resolved by cutting the loops into digits and
   ranges, until the index is affine on each region (``x // 8`` is affine once ``x`` is split at 8);
2. **progressions**: an affine index over a box of loops is ``offset + sum(stride * [0, count))``; loops that overlap
   (windows) are merged until every address is written in one way only, so that the product of the counts is exact;
3. **union**: the progressions of all accesses become boxes in one mixed-radix digit space, whose union is swept.

Where that gives up (indirect addresses, index arithmetic that is not affine, too many pieces) the answer is an upper
bound and says so. Only what is small is ever enumerated.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

if TYPE_CHECKING:
    import sympy

CountQuality = Literal["exact", "upper_bound"]

ENUMERATION_LIMIT = 4096
"""Iterations up to which an access that has no closed form is enumerated."""
_MAX_REGIONS = 192
_MAX_PIECES = 256
_MAX_UNROLL = 64
_MAX_PARTIAL = 16
_MAX_SWEEPS = 4000


@dataclass(frozen=True)
class Bound:
    """The iterations for which ``low <= expression <= high`` (``None``: open)."""

    expression: sympy.Expr
    low: int | None = None
    high: int | None = None


@dataclass(frozen=True)
class IndexedAccess:
    """One load or store: where it goes as a function of the loops around it.

    ``loops`` names each loop variable with its extent. ``bounds`` are the parts of its mask that are conditions on the
    loops; ``is_masked`` says that other parts exist, which only the data decides. ``indirect`` gives the number of
    values of each symbol that comes from loaded data (0 up to that number), where it is known; symbols that are
    neither loops nor listed there are taken as unbounded data. The kind ``cover`` is a store through another argument
    that shares the memory: it only says which addresses need no read after it.
    """

    index: sympy.Expr
    loops: tuple[tuple[sympy.Symbol, int], ...]
    kind: Literal["load", "store", "atomic", "cover"] = "load"
    bounds: tuple[Bound, ...] = ()
    is_masked: bool = False
    indirect: tuple[tuple[sympy.Symbol, int], ...] = ()


@dataclass(frozen=True)
class Extent:
    """The addresses that belong to a buffer: its size, stride (in elements) and first address."""

    size: tuple[int, ...]
    stride: tuple[int, ...]
    offset: int = 0

    @property
    def low(self) -> int:
        """The lowest address."""
        return self.offset + sum(min(0, (n - 1) * s) for n, s in zip(self.size, self.stride, strict=True))

    @property
    def high(self) -> int:
        """The highest address."""
        return self.offset + sum(max(0, (n - 1) * s) for n, s in zip(self.size, self.stride, strict=True))

    def count(self) -> int:
        """Number of distinct addresses (at most: strides that interleave in odd ways are counted by their span)."""
        if any(n == 0 for n in self.size):
            return 0
        terms = tuple((s, n) for s, n in zip(self.stride, self.size, strict=True))
        return _count_union([_Progression(self.offset, terms)])[0]


@dataclass(frozen=True)
class AddressCount:
    """How many distinct addresses, and whether that is exact or an upper bound."""

    count: int
    quality: CountQuality


@dataclass(frozen=True)
class TrafficCount:
    """Distinct addresses read from and written to one buffer by one launch."""

    read: int
    written: int
    quality: CountQuality


def count_addresses(accesses: Sequence[IndexedAccess], extent: Extent | None = None) -> AddressCount:
    """Count the distinct addresses that ``accesses`` touch together.

    Masked and indirect accesses are limited to ``extent``. The cost does not depend on the loops' extents.

    >>> import sympy
    >>> x = sympy.Symbol("x", integer=True)
    >>> pair = [IndexedAccess(x + k, ((x, 9_999_999),)) for k in (0, 1)]  # a[1:] + a[:-1]
    >>> count_addresses(pair)
    AddressCount(count=10000000, quality='exact')
    """
    return _count_reached([_reach(access, extent) for access in _distinct(accesses)], extent)


def count_traffic(accesses: Sequence[IndexedAccess], extent: Extent | None = None) -> TrafficCount:
    """Count the addresses read and written by ``accesses``, given in the order in which the launch makes them.

    An atomic update reads and writes. A load from an address that the same launch stored before is no read: the value
    is at hand.
    """
    written = count_addresses([access for access in accesses if access.kind in ("store", "atomic")], extent)
    phases = _load_phases(accesses, extent)
    loads = [reach for phase, _ in phases for reach in phase]
    read = _count_reached(loads, extent)
    if any(covers for _, covers in phases) and all(reach.pieces is not None for reach in loads):
        without_covered = _count_uncovered(phases)
        if without_covered is not None and without_covered < read.count:
            # A superset of the loads that leaves nothing over is as good as the loads themselves.
            is_exact = without_covered == 0 or all(reach.is_exact for reach in loads)
            read = AddressCount(without_covered, "exact" if is_exact else "upper_bound")
    is_exact = read.quality == written.quality == "exact"
    return TrafficCount(read.count, written.count, "exact" if is_exact else "upper_bound")


_Phase = tuple[list["_Reach"], list["_Progression"]]
"""Loads, and all that was surely stored before them."""


def _load_phases(accesses: Sequence[IndexedAccess], extent: Extent | None) -> list[_Phase]:
    phases: list[_Phase] = []
    loads: dict[_Reach, None] = {}
    covers: dict[_Progression, None] = {}
    for access in accesses:
        reach = _reach(access, extent)
        if access.kind in ("load", "atomic"):
            loads[reach] = None
        if access.kind != "load" and reach.is_exact and not covers.keys() >= set(reach.pieces or ()):
            if loads:
                phases.append((list(loads), list(covers)))
                loads = {}
            covers.update(dict.fromkeys(reach.pieces or ()))
    if loads:
        phases.append((list(loads), list(covers)))
    return phases


def _count_uncovered(phases: Sequence[_Phase]) -> int | None:
    """Addresses loaded in any phase that were not stored before it; ``None`` where no exact count is at hand.

    With loads L and stores C that only grow, phase k adds |L1 ∪ … ∪ Lk ∪ Ck| - |L1 ∪ … ∪ Lk-1 ∪ Ck|.
    """
    total = 0
    loaded: list[_Progression] = []
    for loads, covers in phases:
        pieces = [piece for reach in loads for piece in reach.pieces or ()]
        before, before_is_exact = _count_union([*loaded, *covers])
        loaded += pieces
        after, after_is_exact = _count_union([*loaded, *covers])
        if not (before_is_exact and after_is_exact):
            return None
        total += after - before
    return total


def clear_caches() -> None:
    """Forget the accesses counted so far (for measuring; answers do not depend on it)."""
    for cached in (_reach, _parse, _symbols, index_text):
        cached.cache_clear()


def _distinct(accesses: Iterable[IndexedAccess]) -> list[IndexedAccess]:
    return list(dict.fromkeys(accesses))


# ---------------------------------------------------------------------------------------------------------------------
# One access: the addresses it reaches


@dataclass(frozen=True)
class _Progression:
    """The addresses ``offset + sum(stride * x)`` for ``0 <= x < count`` of each term ``(stride, count)``."""

    offset: int
    terms: tuple[tuple[int, int], ...]


@dataclass(frozen=True)
class _Reach:
    """What one access reaches: a superset as progressions (``None``: unknown), a limit on their number, exactness."""

    pieces: tuple[_Progression, ...] | None
    limit: int
    is_exact: bool


def _count_reached(reached: Sequence[_Reach], extent: Extent | None) -> AddressCount:
    sure = [piece for reach in reached if reach.is_exact for piece in reach.pieces or ()]
    sure_count, is_exact = _count_union(sure)
    doubtful = [reach for reach in reached if not reach.is_exact]
    if not doubtful:
        if is_exact or extent is None:
            return AddressCount(sure_count, "exact" if is_exact else "upper_bound")
        return AddressCount(min(sure_count, extent.count()), "upper_bound")
    candidates = [sure_count + sum(reach.limit for reach in doubtful)]
    if extent is not None:
        candidates.append(extent.count())
    if all(reach.pieces is not None for reach in doubtful):
        candidates.append(_count_union(sure + [piece for reach in doubtful for piece in reach.pieces or ()])[0])
    count = min(candidates)
    return AddressCount(count, "exact" if is_exact and count == sure_count else "upper_bound")


@functools.lru_cache(maxsize=8192)
def _reach(access: IndexedAccess, extent: Extent | None) -> _Reach:
    if any(size <= 0 for _, size in access.loops):
        return _Reach((), 0, True)
    sizes = {symbol.name: int(size) for symbol, size in access.loops}
    is_exact = not access.is_masked
    try:
        index = _parse(access.index)
    except _Unsupported:
        return _Reach(None, math.prod(sizes.values()), False)
    bounds = []
    for bound in access.bounds:
        try:
            parsed = _parse(bound.expression)
        except _Unsupported:
            is_exact = False
            continue
        if _symbols(parsed) <= set(sizes):
            bounds.append((parsed, bound.low, bound.high))
        else:
            is_exact = False
    limit = math.prod(sizes.values())
    from_data = _symbols(index) - set(sizes)
    if from_data:
        is_exact = False
        ranges = {symbol.name: int(size) for symbol, size in access.indirect}
        if not from_data <= set(ranges):
            return _Reach(None, limit, False)
        sizes |= {name: ranges[name] for name in from_data}
        if any(size <= 0 for size in sizes.values()):
            return _Reach((), 0, False)
    else:
        limit = math.prod(sizes[name] for name in _symbols(index))
    pieces: tuple[_Progression, ...] | None
    try:
        pieces = _affine_pieces(index, sizes, bounds)
    except _TooComplex:
        pieces = None if from_data else _enumerate(index, sizes, bounds)
    if pieces is None:
        return _Reach(None, limit, False)
    if extent is not None and (access.bounds or access.is_masked or from_data):
        try:
            pieces = tuple(part for piece in pieces for part in _clamp(piece, extent.low, extent.high))
        except _TooComplex:
            is_exact = False
    return _Reach(pieces, limit, is_exact)


class _Unsupported(Exception):
    """An index expression outside integer arithmetic."""


class _TooComplex(Exception):
    """No closed form within the budget."""


# ---------------------------------------------------------------------------------------------------------------------
# Expressions: sympy's trees as plain tuples

_Tree = tuple[Any, ...]


@functools.lru_cache(maxsize=16384)
def _parse(expression: Any) -> _Tree:
    """Turn a sympy expression (with torch's integer functions, known by name) into nested tuples."""
    if isinstance(expression, int):
        return ("int", expression)
    if expression.is_Integer:
        return ("int", int(expression))
    if expression.is_Symbol:
        return ("symbol", expression.name)
    if expression.is_Add:
        return ("add", *map(_parse, expression.args))
    if expression.is_Mul:
        if any(factor.is_Rational and not factor.is_Integer for factor in expression.args):
            raise _Unsupported(str(expression))
        return ("multiply", *map(_parse, expression.args))
    if expression.is_Pow and expression.exp.is_Integer and expression.exp > 0:
        return ("multiply", *([_parse(expression.base)] * int(expression.exp)))
    name, arguments = expression.func.__name__, expression.args
    if name in ("FloorDiv", "CleanDiv"):
        return ("divide", _parse(arguments[0]), _positive(arguments[1]))
    if name == "ModularIndexing":
        return ("modulo", ("divide", _parse(arguments[0]), _positive(arguments[1])), _positive(arguments[2]))
    if name in ("Mod", "PythonMod"):
        return ("modulo", _parse(arguments[0]), _positive(arguments[1]))
    if name in ("Max", "Min"):
        return (name.lower(), *map(_parse, arguments))
    if name == "Abs":
        inner = _parse(arguments[0])
        return ("max", inner, ("multiply", ("int", -1), inner))
    if name == "Identity":
        return _parse(arguments[0])
    if name in ("floor", "FloorToInt"):
        numerator, denominator = arguments[0].together().as_numer_denom()
        return ("divide", _parse(numerator), _positive(denominator))
    raise _Unsupported(str(expression))


def _positive(expression: Any) -> int:
    if not (isinstance(expression, int) or expression.is_Integer) or int(expression) <= 0:
        raise _Unsupported(f"division by {expression}")
    return int(expression)


@functools.lru_cache(maxsize=16384)
def _symbols(tree: _Tree) -> frozenset[str]:
    if tree[0] == "symbol":
        return frozenset((tree[1],))
    return frozenset().union(*(_symbols(part) for part in tree[1:] if isinstance(part, tuple)))


def _evaluate(tree: _Tree, values: Mapping[str, Any]) -> Any:
    kind, *parts = tree
    if kind == "int":
        return parts[0]
    if kind == "symbol":
        return values[parts[0]]
    if kind == "divide":
        return _evaluate(parts[0], values) // parts[1]
    if kind == "modulo":
        return _evaluate(parts[0], values) % parts[1]
    operands = [_evaluate(part, values) for part in parts]
    combine = {"add": np.add, "multiply": np.multiply, "max": np.maximum, "min": np.minimum}[kind]
    return functools.reduce(combine, operands)


def evaluate_index(expression: Any, values: Mapping[str, Any]) -> Any:
    """An index expression at numbers (or whole arrays of them) for its symbols; ``None`` outside integer arithmetic."""
    try:
        return _evaluate(_parse(expression), values)
    except _Unsupported:
        return None


@functools.lru_cache(maxsize=16384)
def index_text(expression: Any) -> str:
    """An index expression as a Python expression (sympy's own printer is slow).

    >>> import sympy
    >>> index_text(sympy.sympify("64*x + y - 1"))
    '64*x + y - 1'
    """
    try:
        return _text(_parse(expression))
    except _Unsupported:
        return str(expression)


def _text(tree: _Tree) -> str:
    kind, *parts = tree
    if kind in ("int", "symbol"):
        return str(parts[0])
    if kind == "add":
        return " + ".join(map(_text, sorted(parts, key=_reading_order))).replace("+ -", "- ")
    if kind == "multiply":
        factors = [_operand(part) for part in parts]
        return "*".join(factors).removeprefix("1*").replace("-1*", "-", 1 if parts[0] == ("int", -1) else 0)
    if kind in ("divide", "modulo"):
        return f"({_operand(parts[0])} {'//' if kind == 'divide' else '%'} {parts[1]})"
    return f"{kind}({', '.join(map(_text, parts))})"


def _operand(tree: _Tree) -> str:
    return f"({_text(tree)})" if tree[0] == "add" else _text(tree)


def _reading_order(term: _Tree) -> tuple[bool, bool, int, str]:
    """Widest stride first, what is taken away after what is added, the constant last."""
    factor = term[1][1] if term[0] == "multiply" and term[1][0] == "int" else 1
    return term[0] == "int", factor < 0, -abs(factor), _text(term)


_BoundTree = tuple[_Tree, int | None, int | None]


def _enumerate(index: _Tree, sizes: Mapping[str, int], bounds: Sequence[_BoundTree]) -> tuple[_Progression, ...] | None:
    """The addresses of a small loop nest as progressions, or ``None`` if it is not small."""
    names = sorted(_symbols(index).union(*(_symbols(tree) for tree, _, _ in bounds)))
    if math.prod(sizes[name] for name in names) > ENUMERATION_LIMIT:
        return None
    grids = np.meshgrid(*(np.arange(sizes[name], dtype=np.int64) for name in names), indexing="ij")
    values = dict(zip(names, grids, strict=True))
    keep = np.ones([sizes[name] for name in names], dtype=bool)
    for tree, low, high in bounds:
        value = _evaluate(tree, values)
        if low is not None:
            keep &= value >= low
        if high is not None:
            keep &= value <= high
    addresses = np.unique(np.broadcast_to(_evaluate(index, values), keep.shape)[keep])
    if addresses.size == 0:
        return ()
    # Runs of neighbours keep the number of pieces small.
    starts = np.flatnonzero(np.diff(addresses, prepend=addresses[0] - 2) != 1)
    lengths = np.diff(np.append(starts, addresses.size))
    return tuple(
        _Progression(int(addresses[start]), ((1, int(length)),)) for start, length in zip(starts, lengths, strict=True)
    )


# ---------------------------------------------------------------------------------------------------------------------
# Regions: cutting the loops until the index is affine


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
            raise _TooComplex
        bounds.extend((value, value) for value in range(partial[0], partial[1] + 1))
        return [self.within(digit, max(a, 0), min(b, last)) for a, b in bounds if max(a, 0) <= min(b, last)]


def _affine_pieces(index: _Tree, sizes: Mapping[str, int], bounds: Sequence[_BoundTree]) -> tuple[_Progression, ...]:
    """The addresses of ``index`` over the loops, as progressions; raises ``_TooComplex``."""
    pieces: dict[_Progression, None] = {}
    pending = [_Region.of_loops(sizes)]
    budget = _MAX_REGIONS
    while pending:
        region = pending.pop()
        budget -= 1
        if budget < 0:
            raise _TooComplex
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
            if region.counts[request.digit] > _MAX_UNROLL:
                raise _TooComplex from None
            count = region.counts[request.digit]
            pending.extend(region.within(request.digit, value, value) for value in range(count))
        else:
            if form is not None:
                terms = tuple(sorted((c, region.counts[digit]) for digit, c in form.terms.items()))
                pieces[_Progression(form.constant, terms)] = None
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


def _affine(tree: _Tree, region: _Region) -> _Affine:
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


# ---------------------------------------------------------------------------------------------------------------------
# Progressions: one way to write each address


def _separate(piece: _Progression) -> list[_Progression]:
    """Rewrite a progression as ones whose counts multiply to their number of distinct addresses.

    In each result every stride is larger than the span of all smaller strides together. Raises ``_TooComplex``.
    """
    result, pending = [], [piece]
    budget = _MAX_PIECES
    while pending:
        budget -= 1
        if budget < 0:
            raise _TooComplex
        current = pending.pop()
        offset, terms = _merge_terms(current.offset, current.terms)
        conflict = _first_conflict(terms)
        if conflict is None:
            result.append(_Progression(offset, terms))
        else:
            pending.extend(_resolve(offset, terms, conflict))
    return result


def _merge_terms(offset: int, terms: Iterable[tuple[int, int]]) -> tuple[int, tuple[tuple[int, int], ...]]:
    counts: dict[int, int] = {}
    for stride, count in terms:
        if stride == 0 or count == 1:
            continue
        if stride < 0:
            offset += stride * (count - 1)
            stride = -stride
        counts[stride] = counts.get(stride, 1) + count - 1
    merged = sorted(counts.items())
    i = 0
    while i < len(merged):
        stride, count = merged[i]
        for j in range(i + 1, len(merged)):
            ratio, rest = divmod(merged[j][0], stride)
            if rest == 0 and ratio <= count:
                # Steps of `ratio` between runs of at least that length leave no gap: one longer run.
                merged[i] = (stride, count + ratio * (merged[j][1] - 1))
                del merged[j]
                i = -1
                break
        i += 1
    return offset, tuple(merged)


def _first_conflict(terms: Sequence[tuple[int, int]]) -> int | None:
    span = 0
    for position, (stride, count) in enumerate(terms):
        if stride <= span:
            return position
        span += stride * (count - 1)
    return None


def _resolve(offset: int, terms: tuple[tuple[int, int], ...], conflict: int) -> list[_Progression]:
    """Unroll the cheapest loop that stands in the way, or split the conflicting one at the period of a smaller."""
    stride, count = terms[conflict]
    cheapest = min(range(conflict + 1), key=lambda i: terms[i][1])
    period = None
    for smaller, _ in terms[:conflict]:
        candidate = smaller // math.gcd(smaller, stride)
        if 1 < candidate < count and (period is None or candidate < period):
            period = candidate
    if period is not None and period < terms[cheapest][1]:
        if period > _MAX_UNROLL:
            raise _TooComplex
        others = terms[:conflict] + terms[conflict + 1 :]
        return [
            _Progression(offset + stride * start, (*others, (stride * period, (count - start + period - 1) // period)))
            for start in range(period)
        ]
    stride, count = terms[cheapest]
    if count > _MAX_UNROLL:
        raise _TooComplex
    others = terms[:cheapest] + terms[cheapest + 1 :]
    return [_Progression(offset + stride * step, others) for step in range(count)]


def _size(piece: _Progression) -> int:
    return math.prod(count for _, count in piece.terms)


def _last(piece: _Progression) -> int:
    return piece.offset + sum(stride * (count - 1) for stride, count in piece.terms)


def _clamp(piece: _Progression, low: int, high: int) -> list[_Progression]:
    """The part of a progression with addresses in ``[low, high]``."""
    parts: list[_Progression] = []
    for separated in _separate(piece):
        for part in _clamp_below(separated, low):
            # Mirrored, the upper limit is a lower one.
            mirrored = _Progression(-_last(part), part.terms)
            parts.extend(_Progression(-_last(kept), kept.terms) for kept in _clamp_below(mirrored, -high))
    return parts


def _clamp_below(piece: _Progression, low: int) -> list[_Progression]:
    if piece.offset >= low:
        return [piece]
    if _last(piece) < low:
        return []
    *lower, (stride, count) = piece.terms
    span = sum(s * (n - 1) for s, n in lower)
    first_whole = min(-((piece.offset - low) // stride), count)
    parts = []
    if first_whole < count:
        rest = count - first_whole
        terms = (*lower, (stride, rest)) if rest > 1 else tuple(lower)
        parts.append(_Progression(piece.offset + stride * first_whole, terms))
    start = piece.offset + stride * (first_whole - 1)
    if first_whole > 0 and start + span >= low:
        parts.extend(_clamp_below(_Progression(start, tuple(lower)), low))
    return parts


# ---------------------------------------------------------------------------------------------------------------------
# Union of progressions


def _count_union(pieces: Sequence[_Progression]) -> tuple[int, bool]:
    """Distinct addresses in the union, and whether that is exact (otherwise it is an upper bound)."""
    if not pieces:
        return 0, True
    separated: dict[_Progression, None] = {}
    total_bound, is_exact = 0, True
    for piece in dict.fromkeys(pieces):
        try:
            separated.update(dict.fromkeys(_separate(piece)))
        except _TooComplex:
            addresses = _enumerate_progression(piece)
            if addresses is not None:
                separated.update(dict.fromkeys(addresses))
                continue
            is_exact = False
            total_bound += _bound(piece)
    count = 0
    for cluster in _clusters(list(separated)):
        cluster_count, cluster_is_exact = _count_cluster(cluster)
        count += cluster_count
        is_exact = is_exact and cluster_is_exact
    return count + total_bound, is_exact


def _bound(piece: _Progression) -> int:
    _, terms = _merge_terms(piece.offset, piece.terms)
    divisor = math.gcd(*(stride for stride, _ in terms))
    span = sum(stride * (count - 1) for stride, count in terms)
    return min(math.prod(count for _, count in terms), span // divisor + 1)


def _enumerate_progression(piece: _Progression) -> list[_Progression] | None:
    offset, terms = _merge_terms(piece.offset, piece.terms)
    if math.prod(count for _, count in terms) > ENUMERATION_LIMIT:
        return None
    return [_Progression(int(address), ()) for address in np.unique(_addresses(_Progression(offset, terms)))]


def _addresses(piece: _Progression) -> Any:
    addresses = np.array([piece.offset], dtype=np.int64)
    for stride, count in piece.terms:
        addresses = (addresses[:, None] + stride * np.arange(count, dtype=np.int64)).reshape(-1)
    return addresses


def _clusters(pieces: list[_Progression]) -> list[list[_Progression]]:
    """Groups whose address ranges do not overlap; pieces inside an unbroken run of another are dropped."""
    pieces.sort(key=lambda piece: (piece.offset, -_last(piece)))
    clusters: list[list[_Progression]] = []
    end = None
    for piece in pieces:
        if end is None or piece.offset > end:
            clusters.append([])
            end = _last(piece)
        clusters[-1].append(piece)
        end = max(end, _last(piece))
    return [_without_covered(cluster) if len(cluster) > 1 else cluster for cluster in clusters]


def _without_covered(cluster: list[_Progression]) -> list[_Progression]:
    runs = [piece for piece in cluster if len(piece.terms) == 1 and piece.terms[0][0] == 1]
    if not runs:
        return cluster
    longest = max(runs, key=_size)
    first, last = longest.offset, _last(longest)
    return [piece for piece in cluster if piece is longest or piece.offset < first or _last(piece) > last]


def _count_cluster(cluster: list[_Progression]) -> tuple[int, bool]:
    if len(cluster) == 1:
        return _size(cluster[0]), True
    total = sum(map(_size, cluster))
    if len(cluster) > _MAX_PIECES and total > 16 * ENUMERATION_LIMIT:
        return _loose_bound(cluster, total), False
    try:
        if len(cluster) <= _MAX_PIECES:
            return _sweep(_boxes(cluster)), True
    except _TooComplex:
        pass
    if total <= 16 * ENUMERATION_LIMIT:
        return int(np.unique(np.concatenate([_addresses(piece) for piece in cluster])).size), True
    return _loose_bound(cluster, total), False


def _loose_bound(cluster: list[_Progression], total: int) -> int:
    first = cluster[0].offset
    divisor = _common_divisor(cluster)
    return min(total, (max(map(_last, cluster)) - first) // divisor + 1)


def _common_divisor(cluster: list[_Progression]) -> int:
    first = cluster[0].offset
    return math.gcd(
        *(piece.offset - first for piece in cluster), *(stride for piece in cluster for stride, _ in piece.terms)
    )


_Box = tuple[tuple[int, int], ...]


def _boxes(cluster: list[_Progression]) -> list[_Box]:
    """Write the progressions as boxes (a closed interval per digit) in one mixed-radix number system."""
    first = min(piece.offset for piece in cluster)
    divisor = _common_divisor(cluster)
    strides = {stride // divisor for piece in cluster for stride, _ in piece.terms}
    radices = _radix_chain(strides)
    boxes: dict[_Box, None] = {}
    for piece in cluster:
        offset = (piece.offset - first) // divisor
        terms = [(stride // divisor, count) for stride, count in piece.terms]
        for start, counts in _on_chain(offset, terms, radices):
            _carry(start, counts, radices, boxes)
    return list(boxes)


def _radix_chain(strides: set[int]) -> list[int]:
    """Place values, each dividing the next, such that each stride is one of them or divides one by a small factor."""
    chain = [1]
    for stride in sorted(strides):
        common = math.lcm(stride, chain[-1])
        if common // stride > _MAX_UNROLL:
            raise _TooComplex
        if common != chain[-1]:
            chain.append(common)
    return chain


def _on_chain(
    offset: int, terms: Sequence[tuple[int, int]], radices: Sequence[int]
) -> list[tuple[int, dict[int, int]]]:
    """The progression with all strides on place values: (offset, count - 1 per place value), unrolled as needed."""
    results: list[tuple[int, dict[int, int]]] = [(offset, {})]
    for stride, count in terms:
        place = next(radix for radix in radices if radix % stride == 0)
        factor = place // stride
        unrolled = []
        for start, reach in results:
            for step in range(min(factor, count)):
                extended = dict(reach)
                extended[place] = extended.get(place, 0) + (count - 1 - step) // factor
                unrolled.append((start + stride * step, extended))
        results = unrolled
        if len(results) > _MAX_PIECES:
            raise _TooComplex
    return results


def _carry(start: int, reach: Mapping[int, int], radices: Sequence[int], boxes: dict[_Box, None]) -> None:
    """Resolve the carries between digits: at most three boxes a digit, for the first, whole and last period."""
    pending: list[tuple[int, int, int, _Box]] = [(0, 0, 0, ())]
    while pending:
        position, carry_low, carry_high, box = pending.pop()
        place = radices[position]
        if position == len(radices) - 1:
            low = start // place + carry_low
            boxes[(*box, (low, start // place + reach.get(place, 0) + carry_high))] = None
            if len(boxes) > 4 * _MAX_PIECES:
                raise _TooComplex
            continue
        radix = radices[position + 1] // place
        digit = start // place % radix
        low, high = digit + carry_low, digit + reach.get(place, 0) + carry_high
        first_period, last_period = low // radix, high // radix
        if first_period == last_period:
            part = (low - first_period * radix, high - first_period * radix)
            pending.append((position + 1, first_period, first_period, (*box, part)))
            continue
        if low % radix:
            pending.append((position + 1, first_period, first_period, (*box, (low % radix, radix - 1))))
            first_period += 1
        if high % radix != radix - 1:
            pending.append((position + 1, last_period, last_period, (*box, (0, high % radix))))
            last_period -= 1
        if first_period <= last_period:
            pending.append((position + 1, first_period, last_period, (*box, (0, radix - 1))))


def _sweep(boxes: list[_Box]) -> int:
    """Number of points in the union of boxes, digit by digit; equal sets of open boxes are counted once."""
    dimensions = len(boxes[0])
    known: dict[tuple[int, int], int] = {}
    budget = [_MAX_SWEEPS]

    def count(position: int, active: int) -> int:
        if position < 0:
            return 1
        if active & (active - 1) == 0:
            low_high = boxes[active.bit_length() - 1][: position + 1]
            return math.prod(high - low + 1 for low, high in low_high)
        key = (position, active)
        if key in known:
            return known[key]
        budget[0] -= 1
        if budget[0] < 0:
            raise _TooComplex
        events: dict[int, int] = {}
        remaining = active
        while remaining:
            lowest = remaining & -remaining
            low, high = boxes[lowest.bit_length() - 1][position]
            events[low] = events.get(low, 0) ^ lowest
            events[high + 1] = events.get(high + 1, 0) ^ lowest
            remaining ^= lowest
        widths: dict[int, int] = {}
        open_boxes, previous = 0, 0
        for place in sorted(events):
            if open_boxes:
                widths[open_boxes] = widths.get(open_boxes, 0) + place - previous
            open_boxes ^= events[place]
            previous = place
        result = sum(width * count(position - 1, subset) for subset, width in widths.items())
        known[key] = result
        return result

    return count(dimensions - 1, (1 << len(boxes)) - 1)
