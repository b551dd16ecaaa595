"""The live set over a step: how much is alive at each call, its peak, and what is alive there.

A storage is alive from its allocation to its end; all of these are in one order, so that sums over it are exact. Sizes
are rounded up as the device's allocator does.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import get_args

from torchledger.memory.caching_allocator import CUDA_ROUNDING, AllocatorPeak, allocator_peak
from torchledger.nouns import LiveStorage, MemoryCategory, StepMemory

CATEGORIES: tuple[MemoryCategory, ...] = get_args(MemoryCategory)
"""As they are drawn, from the bottom: what stays first."""


@dataclass(frozen=True)
class Level:
    """How much is alive, in bytes, from one allocation or end to the next; ``order`` is the call, ``launch`` the launch
    within a graph's call that was next."""

    order: int
    launch: int | None
    nbytes: int
    place: int


@dataclass(frozen=True)
class Curve:
    """The live set's size over the step; ``levels`` are in order, the first is what was there before."""

    levels: tuple[Level, ...]

    @property
    def peak(self) -> Level:
        """The first moment at which most is alive."""
        return max(self.levels, key=lambda level: level.nbytes)

    def most_in(self, order: int) -> int:
        """The most that is alive while a call runs, with what was alive when it began."""
        inside = [level.nbytes for level in self.levels if level.order == order]
        return max([*inside, self.before(order)])

    def rise_in(self, order: int) -> int:
        """By how much a call raises the live set at most."""
        return self.most_in(order) - self.before(order)

    def before(self, order: int) -> int:
        """How much is alive when a call begins."""
        before = self.levels[0].nbytes
        for level in self.levels:
            if level.order >= order:
                break
            before = level.nbytes
        return before


@dataclass(frozen=True)
class Area:
    """The most that is alive in a call (or in a launch of a graph's call), by category."""

    order: int
    launch: int | None
    nbytes: int
    by_category: Mapping[MemoryCategory, int]


@dataclass(frozen=True)
class MemoryTotals:
    """A step's memory, added up; bytes throughout. ``at_peak`` is what is alive at the peak, the largest first.

    ``allocator`` is what a caching allocator makes of the storages (``None`` on a device without one); what its blocks
    have too much is the category ``blocks``.
    """

    memory: StepMemory
    storages: tuple[LiveStorage, ...]
    curve: Curve
    at_peak: tuple[LiveStorage, ...]
    by_category: Mapping[MemoryCategory, int]
    by_module: Mapping[str, int]
    allocator: AllocatorPeak | None = None

    @property
    def peak_allocated_bytes(self) -> int:
        """The most that is allocated at once: in the allocator's blocks where there is one, else what is alive."""
        return self.peak_live_bytes if self.allocator is None else self.allocator.allocated_bytes

    @property
    def peak_live_bytes(self) -> int:
        """The most that is alive at once, each storage rounded up as the allocator does."""
        return self.curve.peak.nbytes

    @property
    def size_of(self) -> Mapping[int, int]:
        """Size of each storage, rounded as the allocator does."""
        return {each.number: rounded(each.nbytes, self.memory.rounding) for each in self.storages}


def rounded(nbytes: int, rounding: int) -> int:
    """A size as an allocator gives it.

    >>> rounded(513, 512)
    1024
    """
    return -(-nbytes // rounding) * rounding


def live_curve(storages: Iterable[LiveStorage], *, rounding: int = 1) -> Curve:
    """The live set's size after each allocation and each end."""
    events: list[tuple[int, int, int | None, int]] = []
    level = 0
    for each in storages:
        size = rounded(each.nbytes, rounding)
        if each.born is None:
            level += size
        else:
            events.append((each.born, -1 if each.born_in is None else each.born_in, each.born_launch, size))
        if each.freed is not None:
            events.append((each.freed, -1 if each.freed_in is None else each.freed_in, each.freed_launch, -size))
    levels = [Level(-1, None, level, -1)]
    # Places differ, but for storages that are thought of as made again just before an end.
    for place, order, launch, change in sorted(events, key=lambda event: (event[0], event[3] < 0)):
        level += change
        levels.append(Level(order, launch, level, place))
    return Curve(tuple(levels))


def add_up_memory(memory: StepMemory, storages: Sequence[LiveStorage]) -> MemoryTotals:
    """The live set of a step, what is alive at its peak, and what a CUDA device's allocator makes of it."""
    curve = live_curve(storages, rounding=memory.rounding)
    alive = sorted(alive_at(storages, curve.peak.place), key=lambda each: (-each.nbytes, each.number))
    by_category: Counter[MemoryCategory] = Counter()
    by_module: Counter[str] = Counter()
    for each in alive:
        size = rounded(each.nbytes, memory.rounding)
        by_category[each.category] += size
        by_module[each.module or ""] += size
    allocator = allocator_peak(storages) if memory.rounding == CUDA_ROUNDING else None
    if allocator is not None and (rests := allocator.allocated_bytes - curve.peak.nbytes):
        by_category["blocks"] += rests
        by_module[""] += rests
    return MemoryTotals(
        memory,
        tuple(storages),
        curve,
        tuple(alive),
        {category: by_category[category] for category in CATEGORIES if by_category[category]},
        dict(by_module.most_common()),
        allocator,
    )


def alive_at(storages: Iterable[LiveStorage], place: int) -> list[LiveStorage]:
    """The storages that are alive once the event at a place has happened; -1 is before the step."""
    return [
        each
        for each in storages
        if (each.born is None or each.born <= place)
        # What is given back within an event is there at it.
        and (each.freed is None or each.freed > place or each.freed == each.born == place)
    ]


def areas(totals: MemoryTotals) -> list[Area]:
    """Call by call (launch by launch within graphs) the moment at which most is alive, by category."""
    sizes = totals.size_of
    running: Counter[MemoryCategory] = Counter()
    events: list[tuple[int, int, int | None, MemoryCategory, int]] = []
    for each in totals.storages:
        size = sizes[each.number]
        if each.born is None:
            running[each.category] += size
        else:
            events.append(
                (each.born, -1 if each.born_in is None else each.born_in, each.born_launch, each.category, size)
            )
        if each.freed is not None:
            events.append(
                (each.freed, -1 if each.freed_in is None else each.freed_in, each.freed_launch, each.category, -size)
            )
    found: list[Area] = [Area(-1, None, sum(running.values()), dict(running))]
    for _, order, launch, category, change in sorted(events, key=lambda event: event[0]):
        running[category] += change
        total = sum(running.values())
        last = found[-1]
        if (last.order, last.launch) == (order, launch):
            if total > last.nbytes:
                found[-1] = Area(order, launch, total, dict(running))
        else:
            found.append(Area(order, launch, total, dict(running)))
    return found
