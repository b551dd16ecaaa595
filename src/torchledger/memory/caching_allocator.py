"""What PyTorch's caching allocator makes of a step's storages: blocks that are larger than what was asked for, and the
segments of the device that it keeps.

The allocator's own rules (``c10/cuda/CUDACachingAllocator.cpp``, default settings): sizes are multiples of 512 bytes;
up to 1 MiB they come out of segments of 2 MiB, up to 10 MiB of 20 MiB, larger ones have a segment of the next multiple
of 2 MiB; the smallest free block that is large enough is taken; of a block of a large segment a rest is cut off only
where it is over 1 MiB. What a program did before its step decides which blocks there are: here the step itself has run
twice before, with its optimizer's state made at the end of the first. Streams, a limit on splitting, expandable
segments and pools of CUDA graphs are not known.
"""

from __future__ import annotations

import bisect
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from torchledger.nouns import LiveStorage

_MIB = 2**20
CUDA_ROUNDING = 512
"""Bytes: the caching allocator gives each tensor a multiple of this (``kMinBlockSize``)."""

_LARGEST_SMALL = _MIB
_SMALL_SEGMENT, _MIDDLE_SEGMENT, _LARGE_UNIT = 2 * _MIB, 20 * _MIB, 2 * _MIB
_LARGEST_MIDDLE = 10 * _MIB
_LARGEST_SWALLOWED = _MIB

_STEPS = 3
"""Steps that are gone through: by the third the blocks are those of every further one."""


@dataclass(eq=False)
class Block:
    """A piece of a segment, free or given; ``before`` and ``after`` are its neighbours there."""

    place: int
    nbytes: int
    is_small: bool
    before: Block | None = None
    after: Block | None = None
    is_free: bool = False


@dataclass
class CachingAllocator:
    """The allocator's books: bytes in given blocks, bytes in segments, and the most of the former."""

    allocated_bytes: int = 0
    reserved_bytes: int = 0
    peak_bytes: int = 0
    _free: dict[bool, list[tuple[int, int, Block]]] = field(default_factory=lambda: {True: [], False: []})
    _next_place: int = 0

    def allocate(self, nbytes: int) -> Block:
        """A block of at least so many bytes."""
        nbytes = max(CUDA_ROUNDING, -(-nbytes // CUDA_ROUNDING) * CUDA_ROUNDING)
        is_small = nbytes <= _LARGEST_SMALL
        free = self._free[is_small]
        found = bisect.bisect_left(free, (nbytes, -1))
        block = free.pop(found)[2] if found < len(free) else self._segment(nbytes, is_small)
        rest = block.nbytes - nbytes
        if rest >= CUDA_ROUNDING if is_small else rest > _LARGEST_SWALLOWED:
            cut = Block(block.place + nbytes, rest, is_small, block, block.after)
            if block.after is not None:
                block.after.before = cut
            block.after, block.nbytes = cut, nbytes
            self._keep(cut)
        block.is_free = False
        self.allocated_bytes += block.nbytes
        self.peak_bytes = max(self.peak_bytes, self.allocated_bytes)
        return block

    def free(self, block: Block) -> None:
        """Take a block back, and join it with its free neighbours."""
        self.allocated_bytes -= block.nbytes
        before, after = block.before, block.after
        if before is not None and before.is_free:
            self._take(before)
            self._join(before, block)
            block = before
        if after is not None and after.is_free:
            self._take(after)
            self._join(block, after)
        self._keep(block)

    def _segment(self, nbytes: int, is_small: bool) -> Block:
        size = -(-nbytes // _LARGE_UNIT) * _LARGE_UNIT
        if nbytes < _LARGEST_MIDDLE:
            size = _SMALL_SEGMENT if is_small else _MIDDLE_SEGMENT
        block = Block(self._next_place, size, is_small)
        self._next_place += size
        self.reserved_bytes += size
        return block

    def _keep(self, block: Block) -> None:
        block.is_free = True
        bisect.insort(self._free[block.is_small], (block.nbytes, block.place, block))

    def _take(self, block: Block) -> None:
        free = self._free[block.is_small]
        free.pop(bisect.bisect_left(free, (block.nbytes, block.place)))

    @staticmethod
    def _join(block: Block, after: Block) -> None:
        block.nbytes += after.nbytes
        block.after = after.after
        if after.after is not None:
            after.after.before = block


@dataclass(frozen=True)
class AllocatorPeak:
    """What the allocator is expected to have given at most in a step, and to hold of the device, in bytes."""

    allocated_bytes: int
    reserved_bytes: int


def allocator_peak(storages: Sequence[LiveStorage]) -> AllocatorPeak:
    """Go through a step's allocations and ends as often as it takes for the blocks to settle.

    What a step leaves behind and the next one frees (gradients that are set to none when it begins) is the same block
    in both: the two are found by their size.
    """
    allocator = CachingAllocator()
    there = [each for each in storages if each.born is None]
    passing = [each for each in there if each.freed is not None]
    held: dict[int, Block] = {}
    _allocate(allocator, (each for each in there if each.freed is None and each.category != "optimizer_state"), held)
    events = sorted(_events(storages), key=lambda event: event[:2])
    left: list[tuple[int, Block]] = []
    for step in range(_STEPS):
        by_size: dict[int, list[Block]] = defaultdict(list)
        for nbytes, block in left:
            by_size[nbytes].append(block)
        for each in passing if step else ():
            alike = by_size[each.nbytes]
            held[each.number] = alike.pop() if alike else allocator.allocate(each.nbytes)
        for blocks in by_size.values():
            for block in blocks:
                allocator.free(block)
        allocator.peak_bytes = allocator.allocated_bytes
        for _, is_end, each in events:
            if not is_end:
                held[each.number] = allocator.allocate(each.nbytes)
            elif each.number in held:
                allocator.free(held.pop(each.number))
        if step == 0:
            states = (each for each in there if each.freed is None and each.category == "optimizer_state")
            _allocate(allocator, states, held)
        left = [
            (each.nbytes, held.pop(each.number)) for each in storages if each.born is not None and each.number in held
        ]
    return AllocatorPeak(allocator.peak_bytes, allocator.reserved_bytes)


def _allocate(allocator: CachingAllocator, storages: Iterable[LiveStorage], held: dict[int, Block]) -> None:
    for each in storages:
        held[each.number] = allocator.allocate(each.nbytes)


def _events(storages: Iterable[LiveStorage]) -> Iterable[tuple[int, bool, LiveStorage]]:
    """(place, whether it is an end, storage)."""
    for each in storages:
        if each.born is not None:
            yield each.born, False, each
        if each.freed is not None:
            yield each.freed, True, each
