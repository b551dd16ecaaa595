"""The blocks of a fused kernel, and how they meet memory.

A GPU moves 32-byte sectors. A block of threads that walks along a tensor's contiguous axis uses all of a sector; one
that walks across it uses two or four bytes of each. Which it does follows from the shape of the block, and that shape
Inductor chooses by rules (``triton_heuristics.py`` and ``simd.py`` of torch 2.11): along the rows or across them for a
reduction, one or two axes for pointwise kernels. Where its rules leave several shapes, it measures them; here each is
costed and the quickest one stands.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal

from torchledger.expecting.machine import Machine
from torchledger.expecting.memory_accesses import Loops, MemoryAccess, kept_and_reduced, local_strides
from torchledger.nouns import Buffer, Launch, LoopNest
from torchledger.work.walks import SECTOR_BYTES

_MIXED_BLOCKS = 8  # for each multiprocessor, that Inductor aims at where a kernel also adds across its rows
_FEW_KEPT = 64  # fewer kept elements for each multiprocessor and Inductor knows which way a reduction goes
_FEW_REDUCED = 32  # no more reduced elements and it does not ask
_MUCH_MORE_ALONG = 8.0  # times as many bytes along the rows as across them and it takes a reduction to go along

ReductionHint = Literal["inner", "outer", "tiny", "any"]


@dataclass(frozen=True)
class Tile:
    """The elements of a block: along the innermost kept loops, along loops further out (those with at least ``split``
    elements inside them), and along the reduction; ``rows`` that a block takes one after another (0: its own only)."""

    inner: float
    outer: float = 1.0
    split: int = 0
    reduced: float = 1.0
    warps: float = 4.0
    rows: float = 0.0


@dataclass(frozen=True)
class TileCost:
    """What all blocks of a shape ask for: bytes of sectors loaded from beyond the multiprocessor and stored, bytes of
    all sectors, instructions that load or store; blocks, turns of a block's loop, rounds of blocks."""

    tile: Tile
    loaded_bytes: float
    stored_bytes: float
    near_bytes: float
    instructions: float
    blocks: float
    turns: float
    rounds: float
    busy: float
    """Share of the multiprocessors that have a block."""
    time_us: float


def cost_of_tiles(
    launch: Launch, nests: Sequence[LoopNest], accesses: Sequence[MemoryAccess], machine: Machine
) -> list[TileCost]:
    """Every shape that Inductor would consider, the one of its first choice first."""
    kept, reduced = kept_and_reduced(nests)
    whole = any(not nest.reduction_extents and math.prod(nest.extents) >= kept * reduced for nest in nests)
    return [
        _cost(accesses, tile, kept, reduced, 2.0 if whole else 1.0, machine)
        for tile in _tiles(launch, accesses, kept, reduced, machine)
    ]


def next_power(value: float) -> float:
    """The power of two that is not smaller."""
    return float(2.0 ** math.ceil(math.log2(max(value, 1.0))))


def _tiles(launch: Launch, accesses: Sequence[MemoryAccess], kept: int, reduced: int, machine: Machine) -> list[Tile]:
    split = _split(accesses, kept, reduced)
    if adds_across_rows(launch):
        return [_mixed_tile(kept, reduced, machine)]
    if launch.category == "split_scan":
        # A running sum that is cut into pieces: each block takes a piece of one row, wherever its elements lie.
        return [Tile(1.0, reduced=min(next_power(reduced), 2048.0), warps=_warps(min(next_power(reduced), 2048.0), 16))]
    if reduced > 1:
        tiles = _reduction_tiles(launch, accesses, kept, reduced, machine)
        if split:
            tiles += [Tile(1.0, tile.inner, split, tile.reduced, tile.warps) for tile in tiles if tile.inner > 1]
        return tiles
    block = float(min(max(kept // 128, 256), 1024))
    shapes = [(32.0, 32.0), (64.0, 64.0), (256.0, 16.0), (16.0, 256.0), (1.0, block)] if split else []
    if len(launch.buffers) == 2:
        # One tensor in and one out: Inductor takes the first shape and measures none.
        shapes = shapes[:1]
    return [Tile(block), *(Tile(inner, outer, split) for inner, outer in shapes)]


def adds_across_rows(launch: Launch) -> bool:
    """Whether a kernel reduces along its rows and adds up columns on the way, as the backward of a norm does."""
    return any("partial_accumulate" in nest.ops for nest in launch.loops) and any(
        nest.reduction_extents for nest in launch.loops
    )


def _mixed_tile(kept: int, reduced: int, machine: Machine) -> Tile:
    """Each block takes so many rows, a few at a time, and writes what it added up when it is through."""
    whole = next_power(reduced)
    rows = min(max(next_power(kept // (_MIXED_BLOCKS * machine.num_multiprocessors) + 1) / 2, 16.0), 128.0)
    at_once = min(max(rows // 32, 4.0 if whole <= 512 else 1.0), 16.0)
    warps = _warps(whole, 8)
    return Tile(at_once, reduced=whole, warps=max(warps / 2, 1.0) if whole <= 1024 else warps, rows=rows)


def _split(accesses: Sequence[MemoryAccess], kept: int, reduced: int) -> int:
    """Elements inside the axis along which most bytes are contiguous that are not so along the innermost one; 0 if
    there is no such axis, or blocks of two axes do not fit all nests."""
    nests = {
        tuple(extent for extent, _, inner in access.loops if not inner)
        for access in accesses
        if access.count >= kept * reduced
    }
    deepest = max((len(extents) for extents in nests), default=0)
    borders = [
        {math.prod(extents[place:]) for place in range(len(extents) + 1)}
        for extents in nests
        if len(extents) > 1 or deepest > 2
    ]
    votes: dict[int, float] = {}
    for access in accesses:
        inside = 1
        for extent, stride, of_reduction in reversed(access.loops):
            if of_reduction:
                continue
            if stride == 1 and extent > 1 and (None not in access.declared.strides or "%" in access.declared.index):
                if inside > 1 and extent >= 8 and all(inside in border for border in borders):
                    votes[inside] = votes.get(inside, 0.0) + access.size * access.elements
                break
            inside *= extent
    return max(votes, key=lambda place: votes[place]) if votes else 0


def _reduction_tiles(
    launch: Launch, accesses: Sequence[MemoryAccess], kept: int, reduced: int, machine: Machine
) -> list[Tile]:
    if machine.knows_directions:
        hint, columns = reduction_hint(launch, accesses, kept, reduced, machine), next_power(kept)
    else:
        hint, columns = _former_hint(accesses, kept, reduced, machine), float(kept)
    whole = next_power(reduced)
    most = min(whole, 2048.0)
    if hint == "tiny":
        count = max(2 * (256 // whole), 1.0)
        return [Tile(count, reduced=most, warps=_warps(count * most, 8))]
    if launch.category == "persistent_reduction":
        if hint == "inner" and reduced >= 256:
            alone = whole > 1024 or next_power(kept) // 8 < 128
            count = 1.0 if alone else max(1.0, min(1024.0 // whole, 8.0))
            return [Tile(count, reduced=whole, warps=_warps(whole, 8) if count == 1 else 1.0)]
        counts = [float(count) for count in (1, 8, 32, 128) if count == 1 or (whole * count <= 4096 and count <= kept)]
        return [
            Tile(count, reduced=whole, warps=_warps(count * whole, 8))
            for count in (counts[-1:] if hint == "outer" else counts)
        ]
    inner = Tile(2.0 if reduced <= 2048 else 1.0, reduced=most, warps=_warps(most, 16))
    outer = _outer_tile(columns, whole, len({each.declared.buffer for each in accesses if each.is_load}))
    if hint == "inner":
        return [inner]
    if hint == "outer":
        return [outer]
    more = ((64.0, 64.0, 16.0), (8.0, 512.0, 16.0), (64.0, 4.0, 8.0))
    return [inner, outer, *(Tile(count, reduced=min(turn, most), warps=warps) for count, turn, warps in more)]


def reduction_hint(
    launch: Launch, accesses: Sequence[MemoryAccess], kept: int, reduced: int, machine: Machine
) -> ReductionHint:
    """Which way Inductor takes a reduction to go: along its rows, across them, across the few that an earlier kernel
    left (``"tiny"``), or it cannot tell and measures all its shapes (``"any"``)."""
    parts = _parts_of_outputs(launch, kept)
    largest = _FEW_KEPT * machine.num_multiprocessors
    votes = [_goes_along(nest) for nest in launch.loops if nest.reduction_extents]
    if _joins_parts(launch, reduced * parts) and not any(votes):
        return "tiny" if _are_few(kept, reduced) else "outer"
    if (parts > 1 or reduced > _FEW_REDUCED) and kept / parts < largest:
        if all(vote is False for vote in votes):
            return "outer"
        if all(votes) and not _walks_across(launch, kept * reduced):
            return "inner"
    return "inner" if _is_mostly_along(accesses, once=True) else "any"


def _former_hint(accesses: Sequence[MemoryAccess], kept: int, reduced: int, machine: Machine) -> ReductionHint:
    """What ``reduction_hint`` was taken to be by models that know no directions."""
    if _is_mostly_along(accesses, once=False):
        return "inner"
    full = [access for access in accesses if access.in_reduction and access.is_load and access.has_every_loop]
    by_rows = sum(access.innermost(in_reduction=True) == 1 for access in full)
    if 2 * by_rows > len(full) or kept >= _FEW_KEPT * machine.num_multiprocessors:
        return "any"
    return "tiny" if _are_few(kept, reduced) else "outer"


def _is_mostly_along(accesses: Sequence[MemoryAccess], *, once: bool) -> bool:
    """Whether nothing lies across the rows, or far fewer bytes do than along them; ``once`` counts what is read or
    written of a tensor once each way."""
    if all(access.innermost(in_reduction=True) in (0, 1) for access in accesses):
        return True
    amounts, counted = {True: 0.0, False: 0.0}, set()
    for access in accesses:
        for in_reduction in amounts:
            place = access.declared.buffer, access.is_load, in_reduction
            if access.innermost(in_reduction=in_reduction) == 1 and not (once and place in counted):
                counted.add(place)
                amounts[in_reduction] += access.size * access.elements * (1.0 if access.is_load else 2.0)
    return amounts[True] >= _MUCH_MORE_ALONG * max(amounts[False], 1.0)


def _are_few(kept: int, reduced: int) -> bool:
    return (kept <= 512 and reduced <= 512) or (kept <= 256 and reduced <= 1024)


def _parts_of_outputs(launch: Launch, kept: int) -> int:
    """Parts that a reduction was cut into, whose sums a later kernel adds up; they are the last dimension of what this
    one writes, and not its innermost. 1 for a whole one."""
    for buffer in launch.buffers:
        if buffer.role != "input" and math.prod(buffer.shape) == kept and _ends_in_parts(buffer):
            return buffer.shape[-1]
    return 1


def _joins_parts(launch: Launch, parts: int) -> bool:
    """Whether a reduction adds up so many parts that an earlier kernel left."""
    return any(
        buffer.role != "output" and buffer.shape[-1:] == (parts,) and _ends_in_parts(buffer)
        for buffer in launch.buffers
    )


def _ends_in_parts(buffer: Buffer) -> bool:
    return len(buffer.shape) > 1 and buffer.shape[-1] > 1 and buffer.stride[-1:] > (1,)


def _goes_along(nest: LoopNest) -> bool | None:
    """Whether most of what a reduction reads as a whole lies along it; ``None`` where it reads nothing as a whole."""
    extents = (*nest.extents, *nest.reduction_extents)
    found = []
    for access in nest.accesses:
        if access.kind == "load" and len(access.strides) == len(extents):
            strides = local_strides(access.index, access.strides, extents)
            if all(stride or extent == 1 for stride, extent in zip(strides, extents, strict=True)):
                found.append(1 in strides[len(nest.extents) :])
    return 2 * sum(found) > len(found) if found else None


def _walks_across(launch: Launch, elements: int) -> bool:
    """Whether a nest beside the reduction, over as many elements, goes over a tensor across its last loop."""
    return any(
        access.strides[-1] != 1 and any(access.strides[:-1])
        for nest in launch.loops
        if not nest.reduction_extents and math.prod(nest.extents) >= elements and len(nest.extents) > 1
        for access in nest.accesses
        if access.strides and access.strides[-1] != 0
    )


def _warps(elements: float, most: float) -> float:
    return min(max(elements / 128, 2.0), most)


def _outer_tile(kept: float, reduced: float, loads: int) -> Tile:
    if kept <= 1024:
        count, turn = float(max(min(kept // 128, 8), 2)), 64.0
    elif kept // 4096 <= 8:
        count, turn = 16.0, 32.0
    else:
        count = max(min(256.0, next_power(kept // 4096)), 64.0)
        turn = 512.0 / count
        if loads >= 4 and reduced > 128:
            count, turn = min(count, 32.0), 64.0 if reduced >= 2048 else 32.0
    turn = min(turn, reduced)
    return Tile(count, reduced=turn, warps=_warps(count * turn, 8))


def _cost(
    accesses: Sequence[MemoryAccess], tile: Tile, kept: int, reduced: int, passes: float, machine: Machine
) -> TileCost:
    loaded = stored = near = instructions = 0.0
    rates = machine.constants.kernels
    for access in accesses:
        asked, distinct, vector = _sector_bytes(access.size, access.loops, tile)
        asked *= access.share
        instructions += access.count / vector
        near += asked
        if access.again:
            continue
        if not access.is_load:
            stored += asked
        elif distinct < rates.cached_bytes:
            # Small enough to stay near each multiprocessor.
            loaded += min(asked, machine.num_multiprocessors * distinct)
        else:
            loaded += asked
    blocks = max(1.0, kept / (tile.rows or tile.inner * tile.outer))
    if tile.split:
        blocks = math.ceil(tile.split / tile.inner) * math.ceil(kept / tile.split / tile.outer)
    busy = min(1.0, blocks / machine.num_multiprocessors)
    turns = max(1.0, reduced / tile.reduced) * (passes if reduced > tile.reduced else 1.0)
    turns = max(turns, tile.rows / tile.inner)
    at_once = machine.threads * rates.threads_in_use / (32 * tile.warps)
    slots = machine.num_multiprocessors * max(1.0, min(16.0, at_once))
    rounds = max(1.0, blocks / slots)
    time_us = max(
        (loaded + stored) / (rates.choose_sector_bytes * machine.num_multiprocessors * busy),
        near / (rates.choose_near_bytes * machine.num_multiprocessors * busy),
        rounds * (rates.choose_start_us + turns * rates.choose_turn_us),
    )
    return TileCost(tile, loaded, stored, near, instructions, blocks, turns, rounds, busy, time_us)


@lru_cache(maxsize=20_000)
def _sector_bytes(size: int, loops: Loops, tile: Tile) -> tuple[float, float, float]:
    """Of an access to elements of ``size`` bytes: bytes of the sectors that all blocks ask for, distinct bytes, and
    elements of one instruction."""
    kept_left, outer_left, reduced_left, inside = tile.inner, tile.outer, tile.reduced, 1
    spread: list[tuple[int, float]] = []
    blocks, distinct = 1.0, float(size)
    for extent, stride, of_reduction in reversed(loops):
        if of_reduction:
            count = min(float(extent), reduced_left)
            reduced_left = max(1.0, reduced_left / extent)
        elif tile.split and inside >= tile.split:
            count = min(float(extent), outer_left)
            outer_left = max(1.0, outer_left / extent)
        else:
            count = min(float(extent), kept_left)
            kept_left = max(1.0, kept_left / extent)
            inside *= extent
        blocks *= extent / count
        if stride:
            distinct *= extent
            if count > 1:
                spread.append((abs(stride), count))
    run, rows = 1.0, 1.0
    jumps = {abs(stride) for _, stride, _ in loops if stride} - {stride for stride, _ in spread}
    for stride, count in sorted(spread):
        if stride <= run or (stride * size < SECTOR_BYTES and rows == 1.0):
            run += stride * (count - 1)
        else:
            rows *= count
            jumps.add(stride)
    # A run that begins anywhere meets a sector more than one that begins where a sector does.
    length = round(run * size)
    aligned = math.gcd(SECTOR_BYTES, length, *(stride * size for stride in jumps))
    sectors = rows * ((length - aligned) / SECTOR_BYTES + 1.0)
    vector = _vector(size, loops, tile, run) if spread and min(spread)[0] == 1 else 1.0
    return blocks * sectors * SECTOR_BYTES, distinct, vector


def _vector(size: int, loops: Loops, tile: Tile, run: float) -> float:
    """Elements of one instruction along a contiguous run: every row has to begin, and the mask to end, at one of its
    multiples."""
    masked = math.prod(extent for extent, _, inner in loops if inner == (tile.reduced > 1))
    whole = math.gcd(1 << 20, masked, *(stride for _, stride, _ in loops if stride not in (0, 1)))
    return float(min(whole, max(16 // size, 1), 8)) if min(run, whole) > 1 else 1.0
