"""What a fused kernel's time is made of: memory, caches, instructions, loops that wait, atomics.

What a kernel does (bytes, instructions, turns) follows from its loops; the constants of the device's generation
(``constants.py``) turn each into microseconds. On a device without constants of its own they scale with its
multiprocessors and only place the baseline.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from torchledger.expecting.atomic_lines import LINE_BYTES, is_by_distance, most_in_line, waiting_in_lines
from torchledger.expecting.constants import KernelConstants
from torchledger.expecting.launch_tiles import Tile, TileCost, cost_of_tiles, next_power
from torchledger.expecting.machine import Machine
from torchledger.expecting.memory_accesses import MemoryAccess, distinct_divisions_of, divisions_of, memory_accesses
from torchledger.nouns import Buffer, Launch, LoopNest
from torchledger.work.walks import SECTOR_BYTES

FOLDS = ("persistent across", "persistent along", "looped across", "looped along")
"""How a reduction goes."""

ATOMICS = ("row atomic", "scattered atomic", "crowded atomic", "narrow atomic")
"""Parts that come on top of all others."""

PARTS = (
    *("far", "warm", "lone", "load", "store", "near", "vector", "move", "divide", "turn", "gather"),
    *("row turn", "mask"),
    *ATOMICS,
    *(f"fold {kind}" for kind in FOLDS),
)
"""What a kernel's time is made of, by name."""

SMALL = 0.3
"""Microseconds added to each part before its logarithm is taken."""

LEAST_OF_COST = 0.1
"""Microseconds added to a part before its share of the cost is taken."""

_MASKS_OF, _MASKS_POWER = 8.0, 1.75
"""Where blocks take their rows in turns, a mask (a tensor of booleans) is laid out anew in each, at a cost that grows
with this power of the elements that a thread holds: 0.5 to 1 ps an element of a mask at 8 (40 kernels of norms'
gradients behind dropout on an H200, 2026-11-24), 5 to 20 ps at 32 (8 kernels)."""


WAITING = "waiting of cost"
"""The column that says which share of a kernel's cost is atomics that wait for one another in a line of memory for
long: half of it counts where they do for so many..."""
_LONG_WAIT_US = 150.0
"""...microseconds. Fewer do not queue as those that were timed for the law
(``benchmarks/launches/atomics_cuda.py``)."""


def time_of_parts(part: Mapping[str, Any], constants: KernelConstants, floor_us: float) -> NDArray[np.float64]:
    """Microseconds of a kernel, or of many: what limits most counts most, atomics and the launch come on top."""
    limits = (
        part["far"] + part["warm"] + part["lone"],
        part["load"] + part["store"],
        part["near"],
        part["vector"] + part["move"] + part["divide"] + sum(part[f"fold {kind}"] for kind in FOLDS),
        part["turn"] + part["row turn"],
    )
    # Of one kernel, numpy's scalars would take longer than all the rest.
    larger = max if isinstance(part["far"], float) else np.maximum
    longest = larger(1e-6, limits[0])
    for limit in limits[1:]:
        longest = larger(longest, limit)
    together = longest * sum((limit / longest) ** constants.power for limit in limits) ** (1 / constants.power)
    extra = part["row atomic"] + part["scattered atomic"] + part["crowded atomic"] + part["gather"]
    extra = extra + part["narrow atomic"]
    return np.asarray(together + extra + constants.floors * floor_us)


@dataclass(frozen=True)
class KernelCosts:
    """Microseconds of each part, the shape of the blocks, and what the other shapes would have cost."""

    parts: Mapping[str, float]
    chosen: TileCost | None = None
    shapes_us: tuple[float, ...] = ()
    filled: float = 1.0
    reads_again: bool = False
    registers: float = 1.0
    """Values that a thread holds at once: what it loads of a turn, and adds up."""
    held: Mapping[str, float] = field(default_factory=dict)
    """Columns: elements of a thread, and how many tensors, masks, vectors and sums it holds of each."""
    waiting_us: float = 0.0
    """Of atomics that wait for one another in a line of memory."""

    def baseline_us(self, machine: Machine) -> float:
        """The time by the sum of the parts."""
        return float(time_of_parts(self.parts, machine.constants.kernels, machine.floor_us))

    def columns(self, machine: Machine, baseline_us: float) -> dict[str, float]:
        """The parts as features, beside the time that they make."""
        values = {f"log {name} us": math.log(time + SMALL) for name, time in self.parts.items()}
        values["log cost"] = math.log(baseline_us)
        if self.chosen is None:
            return values
        tile = self.chosen.tile
        threads = 32 * tile.warps * self.chosen.blocks
        return values | {
            "log blocks": math.log(self.chosen.blocks),
            "log turns": math.log(self.chosen.turns),
            "log rounds": math.log(self.chosen.rounds),
            "log block kept": math.log(tile.inner * tile.outer),
            "log block reduced": math.log(tile.reduced),
            "log warps": math.log(tile.warps),
            "log registers": math.log(self.registers),
            "log thread rounds": math.log(threads / (machine.threads * machine.num_multiprocessors)),
            "two axes": float(tile.split > 0),
            "shapes": float(len(self.shapes_us)),
            "log first shape": math.log(self.shapes_us[0] + SMALL),
            "log worst shape": math.log(max(self.shapes_us) + SMALL),
            "load of cost": math.log((self.parts["load"] + LEAST_OF_COST) / baseline_us),
            "store of cost": math.log((self.parts["store"] + LEAST_OF_COST) / baseline_us),
            "filled": self.filled,
            "reads again": float(self.reads_again),
            WAITING: self.waiting_us**2 / (self.waiting_us + _LONG_WAIT_US) / baseline_us,
            **self.held,
        }


def kernel_costs(
    launch: Launch, machine: Machine, *, cold_bytes: float, warm_us: float, vector_us: Sequence[float]
) -> KernelCosts:
    """The costs of a fused kernel; ``vector_us`` are its nests' instructions, in the order of its loops."""
    constants = machine.constants.kernels
    parts = dict.fromkeys(PARTS, 0.0)
    parts["far"], parts["warm"] = cold_bytes / machine.bytes_per_us, warm_us
    parts["vector"] = sum(
        time * (1.0 if _changes(nest) else constants.unchanging)
        for nest, time in zip(launch.loops, vector_us, strict=True)
    )
    nests = [nest for nest in launch.loops if math.prod(nest.extents) * math.prod(nest.reduction_extents) > 0]
    if not nests:
        return KernelCosts(parts)
    accesses = memory_accesses(launch, nests)
    costs = cost_of_tiles(launch, nests, accesses, machine)
    chosen = min(costs, key=lambda cost: cost.time_us)
    each = machine.num_multiprocessors * chosen.busy
    parts["lone"] = constants.lone * parts["far"] * (1 / chosen.busy - 1)
    parts["load"] = chosen.loaded_bytes / (constants.loaded_bytes * each)
    # Sectors that are written whole are part of what memory carries.
    parts["store"] = max(0.0, chosen.stored_bytes - (launch.bytes_written or 0)) / (constants.scattered_bytes * each)
    parts["near"] = chosen.near_bytes / (constants.near_bytes * each)
    lanes = machine.vector_instructions_per_us
    parts["move"] = constants.move * chosen.instructions / lanes
    parts["divide"] = constants.divide * _divisions(accesses, machine) / lanes
    loads = sum(access.is_load for access in accesses)
    if chosen.tile.rows:
        parts["row turn"] = chosen.rounds * chosen.turns * constants.row_turn_us
    else:
        turn_us = constants.turn_us + constants.turn_of_load_us * loads
        parts["turn"] = chosen.rounds * (chosen.turns - 1) * turn_us
    gathered = sum(access.size * access.count for access in accesses if access.declared.is_indirect)
    parts["gather"] = gathered / (constants.gathered_bytes * machine.num_multiprocessors)
    if machine.knows_large_tables:
        parts["far"] += _fetched_again_bytes(accesses, chosen.tile, launch, machine) / machine.bytes_per_us
    if machine.knows_distances:
        parts["gather"] += constants.split_store_us * _stores_that_meet(accesses, chosen.tile)
    waiting_us = _add_atomics(parts, accesses, launch, machine)
    reduced = max((math.prod(nest.reduction_extents) for nest in nests if nest.reduction_extents), default=1)
    _add_folds(parts, nests, accesses, next_power(reduced), launch, machine)
    held = _held(chosen.tile, nests, accesses)
    if machine.knows_masks and chosen.tile.rows:
        elements = chosen.tile.rows * chosen.blocks * next_power(reduced) * held["masks read"]
        each = max(1.0, math.exp(held["log thread elements"]) / _MASKS_OF) ** _MASKS_POWER
        parts["mask"] = elements * each / lanes
    return KernelCosts(
        parts,
        chosen,
        tuple(cost.time_us for cost in costs),
        filled=reduced / next_power(reduced),
        reads_again=chosen.turns > 1 and any(not access.in_reduction and access.is_load for access in accesses),
        registers=_registers(chosen.tile, nests, accesses),
        held=held,
        waiting_us=waiting_us,
    )


def _divisions(accesses: Sequence[MemoryAccess], machine: Machine) -> float:
    """Divisions that computed addresses ask for."""
    constants = machine.constants.kernels
    computed = [access for access in accesses if None in access.declared.strides]
    if not machine.knows_shared_indices:
        costs = (divisions_of(each.declared.index, constants.shift, constants.clamp) * each.count for each in computed)
        return sum(costs)
    passes: dict[int, list[str]] = {}
    for access in computed:
        passes.setdefault(access.count, []).append(access.declared.index)
    return sum(
        count * distinct_divisions_of(indices, constants.shift, constants.clamp) for count, indices in passes.items()
    )


def _registers(tile: Tile, nests: Sequence[LoopNest], accesses: Sequence[MemoryAccess]) -> float:
    loads = _tensors(access for access in accesses if access.is_load and access.has_every_loop)
    return max(_thread_elements(tile) * max(loads + _added_up(nests), 1), 1.0)


def _thread_elements(tile: Tile) -> float:
    return tile.inner * tile.outer * tile.reduced / (32 * tile.warps)


def _added_up(nests: Sequence[LoopNest]) -> int:
    return sum(nest.ops.get("partial_accumulate", 0) for nest in nests)


def _held(tile: Tile, nests: Sequence[LoopNest], accesses: Sequence[MemoryAccess]) -> dict[str, float]:
    whole = [access for access in accesses if access.has_every_loop]
    vectors = [
        access for access in accesses if access.is_load and not access.has_every_loop and access.innermost() == 1
    ]
    return {
        "log thread elements": math.log(max(_thread_elements(tile), 1.0)),
        "masks read": float(_tensors(access for access in whole if access.is_load and _is_mask(access))),
        "masks written": float(_tensors(access for access in whole if not access.is_load and _is_mask(access))),
        "halves read": float(_tensors(access for access in whole if access.is_load and access.size == 2)),
        "vectors read": float(_tensors(vectors)),
        "added up": float(_added_up(nests)),
    }


def _tensors(accesses: Iterable[MemoryAccess]) -> int:
    return len({access.declared.buffer for access in accesses})


def _is_mask(access: MemoryAccess) -> bool:
    return access.declared.dtype == "bool"


def _changes(nest: LoopNest) -> bool:
    """Whether anything that a reduction touches changes along it."""
    kept = len(nest.extents)
    return not nest.reduction_extents or any(
        stride != 0 for access in nest.accesses for stride in access.strides[kept:]
    )


def _stores_that_meet(accesses: Sequence[MemoryAccess], tile: Tile) -> int:
    """Scattered stores into rows of which a block makes a part: sectors are written by several blocks."""
    return sum(
        access.count
        for access in accesses
        if access.declared.kind == "store" and access.declared.is_indirect and tile.reduced == 1
        if min((abs(stride) for _, stride, _ in access.loops if stride), default=0) > tile.inner * tile.outer
    )


def _fetched_again_bytes(accesses: Sequence[MemoryAccess], tile: Tile, launch: Launch, machine: Machine) -> float:
    """Bytes that gathers and atomics have fetched from DRAM a second time and more: of a table that the L2 does not
    hold, each row that is asked for again is missing in it as often as the table lies outside."""
    tables = {buffer.name: math.prod(buffer.shape) for buffer in launch.buffers}
    fetched = 0.0
    for access in accesses:
        if not access.declared.is_indirect or access.declared.kind not in ("load", "atomic"):
            continue
        table = tables.get(access.declared.buffer, 0) * access.size
        if table <= machine.l2_bytes:
            continue
        # Threads that lie along a reduction over rows have an index each, and use one element of a sector.
        is_alone = access.in_reduction and not access.innermost(in_reduction=True) and tile.inner * tile.outer == 1
        asked = access.count * (SECTOR_BYTES if is_alone else access.size)
        # What an atomic changes goes back.
        times = 2 if access.declared.kind == "atomic" else 1
        fetched += times * max(0.0, asked - table) * (1 - machine.l2_bytes / table)
    return fetched


def _add_atomics(parts: dict[str, float], accesses: Sequence[MemoryAccess], launch: Launch, machine: Machine) -> float:
    """Atomics on whole rows, on scattered addresses, and on so few that they wait for one another; the microseconds of
    those that are known to wait in a line."""
    constants, waiting_us = machine.constants.kernels, 0.0
    sizes = {buffer.name: math.prod(buffer.shape) for buffer in launch.buffers}
    for access in accesses:
        if access.declared.kind != "atomic":
            continue
        elements = max(sizes.get(access.declared.buffer, 1), 1)
        each = access.count / elements
        last = access.innermost()
        if last == 1:
            slower = 1.0 + constants.row_crowd_slower * min(each / constants.row_crowd, 1.0)
            parts["row atomic"] += constants.row_atomic_us * access.count * slower
        elif (
            machine.knows_distances
            and constants.line_atomic_us
            and (most := _in_line(access, accesses, launch, machine))
        ):
            scattered_us = constants.scattered_atomic_us * access.count
            parts["crowded atomic"] += max(constants.line_atomic_us * most, scattered_us)
            waiting_us += constants.line_atomic_us * most if machine.knows_flights else 0.0
        elif each > constants.crowded_from:
            share = min(each / constants.crowded_whole, 1.0)
            crowded_us = constants.crowded_atomic_us * access.count * share
            if machine.knows_distances and constants.line_atomic_us:
                # Those of one line wait for one another; those of others go on beside them.
                lines = max(1.0, elements * access.size / LINE_BYTES)
                waiting_each_us = max(constants.line_atomic_us / lines, constants.scattered_atomic_us)
                crowded_us = min(crowded_us, waiting_each_us * access.count)
            parts["crowded atomic"] += crowded_us
        else:
            share = constants.short_run_share if last <= constants.short_run else 1.0
            parts["scattered atomic"] += constants.scattered_atomic_us * access.count * share
        if access.size == 2 and last != 1:
            parts["narrow atomic"] += _narrow_us(access.count, each, constants)
    return waiting_us


def _narrow_us(count: float, each: float, constants: KernelConstants) -> float:
    """Microseconds that atomics on elements of two bytes take beside wider ones, of which ``each`` meet at one."""
    crowd = constants.narrow_crowd
    share = min(max(each - 1.0, 0.0) / crowd, 1.0) if crowd else 1.0
    each_us = constants.narrow_scattered_us + share * constants.narrow_atomic_us
    return each_us * count + constants.narrow_wait_us * each


def _in_line(access: MemoryAccess, accesses: Sequence[MemoryAccess], launch: Launch, machine: Machine) -> float | None:
    """The atomics that meet in one line of a table which the distance of two places is looked up in; else ``None``."""
    shapes = {buffer.name: buffer.shape for buffer in launch.buffers}
    table = shapes.get(access.declared.buffer, ())
    if len(table) < 2:
        return None
    rows, width = math.prod(table[:-1]), table[-1]
    for each in accesses:
        index = shapes.get(each.declared.buffer, ())
        is_index = each.is_load and (each.declared.dtype or "").startswith("int")
        if not is_index or width * math.prod(index) != access.count:
            continue
        places = math.isqrt(math.prod(index))
        is_square = places**2 == math.prod(index) and (len(index) < 2 or index[-1] == index[-2])
        if is_square and is_by_distance(places, rows):
            if not machine.knows_flights:
                return most_in_line(places, rows, width, access.size)
            is_past = any(_hides_the_future(buffer, places) for buffer in launch.buffers)
            return waiting_in_lines(places, rows, width, access.size, machine.in_flight, is_past=is_past)
    return None


def _hides_the_future(buffer: Buffer, places: int) -> bool:
    """Whether a buffer is a mask of which place may see which, alike for all that is masked: decoders have them."""
    shape = buffer.shape
    return (
        buffer.dtype == "bool" and len(shape) >= 2 and shape[-2:] == (places, places) and math.prod(shape) == places**2
    )


def _add_folds(
    parts: dict[str, float],
    nests: Sequence[LoopNest],
    accesses: Sequence[MemoryAccess],
    width: float,
    launch: Launch,
    machine: Machine,
) -> None:
    """Elements that reductions fold: those kept whole in registers cost most where neighbours are kept elements."""
    full = [access for access in accesses if access.in_reduction and access.is_load and access.has_every_loop]
    is_along = 2 * sum(access.innermost(in_reduction=True) == 1 for access in full) >= len(full)
    whole = "persistent" if launch.category == "persistent_reduction" else "looped"
    kind = f"{whole} {'along' if is_along else 'across'}"
    count = 0.0
    for nest in nests:
        if nest.reduction_extents:
            names = str(nest.reduction_type or "").split("+")
            count += max(1, sum(nest.ops.get(name, 1) for name in names)) * math.prod(nest.extents) * width
    parts[f"fold {kind}"] += count / (machine.constants.kernels.folded[kind] * machine.num_multiprocessors)
