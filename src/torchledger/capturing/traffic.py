"""Distinct addresses that a set of accesses touches in one buffer, in closed form.

Minimum traffic counts each address once, however often it is loaded. The cost of counting follows the shape of the
index expressions (how many loops, views, windows), never the size of the tensors.

An access becomes a tree (``index_trees.py``), which is cut into regions on which it is affine (``index_regions.py``);
those are progressions, whose union is counted (``progressions.py``).

Where that gives up (indirect addresses, index arithmetic that is not affine, too many pieces) the answer is an upper
bound and says so. Only what is small is ever enumerated.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from torchledger.capturing.index_regions import affine_pieces, enumerated_pieces
from torchledger.capturing.index_trees import Unsupported, index_text, parse_index, symbols_of
from torchledger.capturing.progressions import Progression, TooComplex, clamp, count_union

if TYPE_CHECKING:
    import sympy

CountQuality = Literal["exact", "upper_bound"]


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
        return count_union([Progression(self.offset, terms)])[0]


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


_Phase = tuple[list["_Reach"], list["Progression"]]
"""Loads, and all that was surely stored before them."""


def _load_phases(accesses: Sequence[IndexedAccess], extent: Extent | None) -> list[_Phase]:
    phases: list[_Phase] = []
    loads: dict[_Reach, None] = {}
    covers: dict[Progression, None] = {}
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
    loaded: list[Progression] = []
    for loads, covers in phases:
        pieces = [piece for reach in loads for piece in reach.pieces or ()]
        before, before_is_exact = count_union([*loaded, *covers])
        loaded += pieces
        after, after_is_exact = count_union([*loaded, *covers])
        if not (before_is_exact and after_is_exact):
            return None
        total += after - before
    return total


def clear_caches() -> None:
    """Forget the accesses counted so far (for measuring; answers do not depend on it)."""
    for cached in (_reach, parse_index, symbols_of, index_text):
        cached.cache_clear()


def _distinct(accesses: Iterable[IndexedAccess]) -> list[IndexedAccess]:
    return list(dict.fromkeys(accesses))


# ---------------------------------------------------------------------------------------------------------------------
# One access: the addresses it reaches


@dataclass(frozen=True)
class _Reach:
    """What one access reaches: a superset as progressions (``None``: unknown), a limit on their number, exactness."""

    pieces: tuple[Progression, ...] | None
    limit: int
    is_exact: bool


def _count_reached(reached: Sequence[_Reach], extent: Extent | None) -> AddressCount:
    sure = [piece for reach in reached if reach.is_exact for piece in reach.pieces or ()]
    sure_count, is_exact = count_union(sure)
    doubtful = [reach for reach in reached if not reach.is_exact]
    if not doubtful:
        if is_exact or extent is None:
            return AddressCount(sure_count, "exact" if is_exact else "upper_bound")
        return AddressCount(min(sure_count, extent.count()), "upper_bound")
    candidates = [sure_count + sum(reach.limit for reach in doubtful)]
    if extent is not None:
        candidates.append(extent.count())
    if all(reach.pieces is not None for reach in doubtful):
        candidates.append(count_union(sure + [piece for reach in doubtful for piece in reach.pieces or ()])[0])
    count = min(candidates)
    return AddressCount(count, "exact" if is_exact and count == sure_count else "upper_bound")


@functools.lru_cache(maxsize=8192)
def _reach(access: IndexedAccess, extent: Extent | None) -> _Reach:
    if any(size <= 0 for _, size in access.loops):
        return _Reach((), 0, True)
    sizes = {symbol.name: int(size) for symbol, size in access.loops}
    is_exact = not access.is_masked
    try:
        index = parse_index(access.index)
    except Unsupported:
        return _Reach(None, math.prod(sizes.values()), False)
    bounds = []
    for bound in access.bounds:
        try:
            parsed = parse_index(bound.expression)
        except Unsupported:
            is_exact = False
            continue
        if symbols_of(parsed) <= set(sizes):
            bounds.append((parsed, bound.low, bound.high))
        else:
            is_exact = False
    limit = math.prod(sizes.values())
    from_data = symbols_of(index) - set(sizes)
    if from_data:
        is_exact = False
        ranges = {symbol.name: int(size) for symbol, size in access.indirect}
        if not from_data <= set(ranges):
            return _Reach(None, limit, False)
        sizes |= {name: ranges[name] for name in from_data}
        if any(size <= 0 for size in sizes.values()):
            return _Reach((), 0, False)
    else:
        limit = math.prod(sizes[name] for name in symbols_of(index))
    pieces: tuple[Progression, ...] | None
    try:
        pieces = affine_pieces(index, sizes, bounds)
    except TooComplex:
        pieces = None if from_data else enumerated_pieces(index, sizes, bounds)
    if pieces is None:
        return _Reach(None, limit, False)
    if extent is not None and (access.bounds or access.is_masked or from_data):
        try:
            pieces = tuple(part for piece in pieces for part in clamp(piece, extent.low, extent.high))
        except TooComplex:
            is_exact = False
    return _Reach(pieces, limit, is_exact)
