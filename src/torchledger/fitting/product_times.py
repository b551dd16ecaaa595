"""How long a matrix product takes by the tiles that a library has for it: the physics under every product's model.

A library cuts the output into tiles, gives each multiprocessor one tile after the other, and sometimes splits the sum
over k among several. Which tile it takes is not known beforehand, but it takes a quick one: the least over all of them
is the estimate. The constants are those of the device's generation (``constants.py``), scaled by its rates where they
were fitted on another device; the regressors learn what is left.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from torchledger.fitting.constants import Library
from torchledger.fitting.machine import Machine

Array = NDArray[np.float64]
Sides = tuple[Array, Array, Array, Array]
"""(batch, m, n, k) of products [m, k] x [k, n]."""

_SPLITS = (2, 3, 4, 6, 8, 16)
_MOST_WAVES_TO_SPLIT = 3.0
_K_STEP = 64
_WHOLE_IN_SINGLE = 2.0**24
"""Whole numbers below are the same in single precision."""
_MOST_PICKED = 0.3
_FOR_EVER = np.float32(1e25)


def product_times(
    sides: Sides, row_bytes: Array, item_size: Array, peak: Array, machine: Machine
) -> tuple[Array, Array]:
    """Microseconds of each product by its best tile, without and with k split among multiprocessors.

    ``row_bytes`` is the power of two (up to 16) of bytes at which the operands' rows begin: it decides which kernels a
    library may use. ``peak`` is in FLOP per microsecond.
    """
    whole, split = np.full(len(item_size), np.nan), np.full(len(item_size), np.nan)
    constants = machine.constants
    for rows, library, fitted_peak in _kinds(row_bytes, item_size, machine):
        if not rows.any():
            continue
        own = tuple(np.asarray(side, dtype=np.float64)[rows] for side in sides)
        whole[rows], split[rows] = tile_times(library, own, item_size[rows], peak[rows], machine, fitted_peak)  # type: ignore[arg-type]
    batch, m, n, k = sides
    is_vector = (m == 1) | (n == 1)
    if np.any(is_vector):
        moved = batch * (m * k + k * n + m * n) * item_size
        fitted_bytes = constants.reference.bytes_per_us
        slow_us = moved * constants.products.vector_byte * fitted_bytes / machine.bytes_per_us
        by_rows = constants.products.vector_launch + slow_us
        whole = np.where(is_vector, np.minimum(by_rows, whole), whole)
    return whole, split


def tile_times(
    library: Library,
    sides: Sides,
    item_size: Array,
    peak: Array,
    machine: Machine,
    fitted_peak: float | None = None,
    splits: tuple[int, ...] = _SPLITS,
) -> tuple[Array, Array]:
    """``product_times`` by the tiles of one library, fitted on a device with so many FLOP per microsecond (that of the
    reference in half precision unless given); without ``splits`` only the first of both says something."""
    slower = _slower(fitted_peak or machine.constants.reference.half_flops_per_us, peak, machine)
    batch, m, n, k = sides
    slower32 = slower.astype(np.float32)
    if len(slower32) and (slower32 == slower32[0]).all():
        slower32 = slower32[:1]  # one element type: what a step costs need not be worked out for each product
    # Row after row: k whole, then in each number of parts.
    best = np.full((1 + len(splits), len(m)), np.inf, np.float32)
    down: dict[int, NDArray[Any]] = {rows: np.ceil(n / rows) for rows in {rows for rows, _ in library.tiles}}
    along: dict[int, NDArray[Any]] = {
        columns: np.ceil(m / columns) * batch for columns in {columns for _, columns in library.tiles}
    }
    if _most(down) * _most(along) < _WHOLE_IN_SINGLE:
        down = {side: count.astype(np.float32) for side, count in down.items()}
        along = {side: count.astype(np.float32) for side, count in along.items()}
    parts = np.array(splits, np.float32)[:, None]
    steps = (np.ceil(k / _K_STEP) * (_K_STEP / 1e3)).astype(np.float32)
    split_steps, summed = np.empty((2, len(splits), len(m)), np.float32)
    area = batch * m * n
    for place, count in enumerate(splits):
        split_steps[place] = np.ceil(k / count / _K_STEP) * (_K_STEP / 1e3)
        summed[place] = area * ((count + library.reduce_more) * library.reduce_element)
    room = np.empty((3, best[1:].size), np.float32)
    one_room = np.empty((2, len(m)), np.float32)
    for rows, columns in library.tiles:
        at_once, step, start, share, share_step = _tile_costs(library, rows, columns)
        costs = start, step * slower32, share, share_step * slower32
        waves = down[rows] * along[columns]
        waves /= machine.num_multiprocessors * at_once
        waves32: NDArray[np.float32] = waves.astype(np.float32, copy=False)
        np.minimum(best[0], _in_rounds(waves32, steps, costs, *one_room), out=best[0])
        if not splits:
            continue
        is_few = waves32 < _MOST_WAVES_TO_SPLIT
        asked = np.count_nonzero(is_few)
        if asked > _MOST_PICKED * len(m):
            # To ask of all is quicker than to pick these: a wave too many says that a split takes for ever.
            waves32[~is_few] = _FOR_EVER
            more, *others = (each.reshape(best[1:].shape) for each in room)
            np.multiply(waves32, parts, out=more)
            taken = _in_rounds(more, split_steps, costs, *others)
            taken += summed
            np.minimum(best[1:], taken, out=best[1:])
        elif asked:
            few = np.flatnonzero(is_few)
            shape = (len(splits), asked)
            more, *others = (each[: asked * len(splits)].reshape(shape) for each in room)
            np.multiply(waves32[few], parts, out=more)
            start, per_k, share, share_k = costs
            own = start, per_k if len(per_k) == 1 else per_k[few], share, share_k if len(share_k) == 1 else share_k[few]
            taken = _in_rounds(more, split_steps.take(few, axis=1), own, *others)
            taken += summed.take(few, axis=1)
            best[1:, few] = np.minimum(best[1:].take(few, axis=1), taken)
    whole, split = best[0], best[1:].min(axis=0, initial=np.inf)
    memory = _memory_us(library, sides, item_size, machine)
    whole_us = _longer(whole.astype(np.float64), memory) + library.launch
    split_us = _longer(np.minimum(split.astype(np.float64), 1e9), memory) + library.launch + library.reduce
    return whole_us, split_us


def _in_rounds(
    waves: NDArray[np.float32],
    steps: NDArray[np.float32],
    costs: tuple[float, NDArray[np.float32], float, NDArray[np.float32]],
    taken: NDArray[np.float32],
    shared: NDArray[np.float32],
) -> NDArray[np.float32]:
    """Microseconds of tiles in so many waves, of so many steps each: of every round its start and steps, and of every
    wave its share of both. ``taken``, which holds them then, and ``shared`` are room to work in."""
    start, per_k, share, share_k = costs
    np.multiply(steps, share_k, out=shared)
    shared += share
    shared *= waves
    np.multiply(steps, per_k, out=taken)
    taken += start
    taken *= np.ceil(waves)
    taken += shared
    return taken


def _most(counts: Mapping[int, NDArray[Any]]) -> float:
    """The largest of all counts."""
    return max((float(each.max()) for each in counts.values() if len(each)), default=0.0)


def _tile_costs(library: Library, rows: int, columns: int) -> tuple[int, float, float, float, float]:
    """Of one tile: how many share a multiprocessor; microseconds of a step and of the start of a round of them; those
    of each tile's share, whole and by step. Steps are those of the device that the library was fitted on."""
    area, side = rows * columns / 1e4, (rows + columns) / 1e2
    at_once = min(max(library.shared // (rows * columns), 1), 8)
    step = library.step + at_once * (library.step_area * area + library.step_side * side)
    start = library.start + at_once * library.start_area * area
    share = at_once * (library.part + library.part_area * area)
    return at_once, step, start, share, at_once * library.part_step * area


def _memory_us(library: Library, sides: Sides, item_size: Array, machine: Machine) -> Array:
    """Microseconds that the factors and the product take through memory."""
    batch, m, n, k = sides
    moved = batch * (m * k + k * n + m * n) * item_size
    return np.asarray(moved * library.byte * machine.constants.reference.bytes_per_us / machine.bytes_per_us)


def _longer(one: Array, other: Array) -> Array:
    """The longer of two times that overlap, and somewhat more where they are alike."""
    return np.asarray(np.sqrt(np.sqrt((one * one) ** 2 + (other * other) ** 2)))


def tiles_apart(
    tiles: tuple[tuple[int, int], ...], sides: Sides, row_bytes: Array, item_size: Array, peak: Array, machine: Machine
) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """Microseconds of each product by each of some tiles, [products, tiles]: whole, and with k split in four."""
    whole, split = times_by_tile(tiles, sides, row_bytes, item_size, peak, machine)
    return whole.T, split.T


def times_by_tile(
    tiles: tuple[tuple[int, int], ...], sides: Sides, row_bytes: Array, item_size: Array, peak: Array, machine: Machine
) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """``tiles_apart``, [tiles, products]."""
    shape = (len(tiles), len(item_size))
    whole, split = np.empty(shape, np.float32), np.empty(shape, np.float32)
    for rows, library, fitted_peak in _kinds(row_bytes, item_size, machine):
        if not rows.any():
            continue
        batch, m, n, k = (np.asarray(side, dtype=np.float64)[rows] for side in sides)
        slower = _slower(fitted_peak, peak[rows], machine).astype(np.float32)
        memory = _memory_us(library, (batch, m, n, k), item_size[rows], machine).astype(np.float32)
        steps = ((np.ceil(k / _K_STEP) * (_K_STEP / 1e3)).astype(np.float32)) * slower
        quarter = ((np.ceil(k / 4 / _K_STEP) * (_K_STEP / 1e3)).astype(np.float32)) * slower
        summed = batch * m * n * ((4 + library.reduce_more) * library.reduce_element) + library.reduce
        summed32 = summed.astype(np.float32)
        down = {tall: np.ceil(n / tall) for tall in {tall for tall, _ in tiles}}
        along = {
            wide: np.ceil(m / wide) * (batch / machine.num_multiprocessors) for wide in {wide for _, wide in tiles}
        }
        own_whole, own_split = np.empty((len(tiles), len(m)), np.float32), np.empty((len(tiles), len(m)), np.float32)
        for index, (tall, wide) in enumerate(tiles):
            at_once, step, start, share, share_step = _tile_costs(library, tall, wide)
            waves = (down[tall] * along[wide]).astype(np.float32)
            if at_once > 1:
                waves /= at_once
            own_whole[index] = np.ceil(waves) * (steps * step + start) + waves * (steps * share_step + share)
            waves *= 4
            own_split[index] = np.ceil(waves) * (quarter * step + start) + waves * (quarter * share_step + share)
        own_split += summed32
        for own, out in ((own_whole, whole), (own_split, split)):
            np.maximum(own, memory, out=own)
            own += np.float32(library.launch)
            out[:, rows] = own
    return whole, split


def count_tiles(sides: Sides, row_bytes: Array, item_size: Array, peak: Array, machine: Machine) -> Array:
    """How many tiles each product's output is cut into by the quickest tile: four times as many where splitting k in
    four is quicker than that."""
    counted = np.zeros(len(item_size))
    batch, m, n, _ = sides
    for rows, library, _ in _kinds(row_bytes, item_size, machine):
        if not rows.any():
            continue
        tiles = tuple(library.tiles)
        own = tuple(np.asarray(side, dtype=np.float64)[rows] for side in sides)
        whole, split = tiles_apart(tiles, own, row_bytes[rows], item_size[rows], peak[rows], machine)  # type: ignore[arg-type]
        is_split = split.min(axis=1) < whole.min(axis=1)
        tall, wide = np.array(tiles, dtype=np.float64)[np.where(is_split, split.argmin(axis=1), whole.argmin(axis=1))].T
        counted[rows] = np.ceil(n[rows] / tall) * np.ceil(m[rows] / wide) * batch[rows] * np.where(is_split, 4, 1)
    return counted


def tiles_of_library(
    library: Library, tiles: tuple[tuple[int, int], ...], splits: tuple[int, ...], sides: Sides, machine: Machine
) -> NDArray[np.float32]:
    """Microseconds of each product by each of some tiles of one library with k cut in each of some numbers of parts,
    [tiles x splits, products], on the device that the library was fitted on, whatever goes through memory."""
    batch, m, n, k = sides
    times = np.empty((len(tiles) * len(splits), len(m)), np.float32)
    steps = [np.ceil(k / parts / _K_STEP) * (_K_STEP / 1e3) for parts in splits]
    summed = [
        np.zeros(())
        if parts == 1
        else batch * m * n * ((parts + library.reduce_more) * library.reduce_element) + library.reduce
        for parts in splits
    ]
    down = {tall: np.ceil(m / tall) for tall in {tall for tall, _ in tiles}}
    along = {wide: np.ceil(n / wide) for wide in {wide for _, wide in tiles}}
    for index, (tall, wide) in enumerate(tiles):
        at_once, step, start, share, share_step = _tile_costs(library, tall, wide)
        waves = down[tall] * along[wide] * batch / (machine.num_multiprocessors * at_once)
        for place, parts in enumerate(splits):
            more, own = waves * parts, steps[place]
            taken = np.ceil(more) * (start + own * step) + more * (share + own * share_step) + summed[place]
            times[index * len(splits) + place] = taken + library.launch
    return times


def _slower(fitted_peak: float, peak: Array, machine: Machine) -> Array:
    """By how much each multiprocessor is slower than one of the device on which the constants were fitted."""
    fitted = fitted_peak / (machine.constants.reference.device.num_multiprocessors or machine.num_multiprocessors)
    return np.asarray(fitted / (peak / machine.num_multiprocessors))


def _kinds(
    row_bytes: Array, item_size: Array, machine: Machine
) -> tuple[tuple[NDArray[np.bool_], Library, float], ...]:
    products, reference = machine.constants.products, machine.constants.reference
    half = reference.half_flops_per_us
    is_single = item_size >= 4
    return (
        (is_single, products.single_precision, reference.single_flops_per_us),
        (~is_single & (row_bytes >= 16), products.aligned_16, half),
        (~is_single & (row_bytes >= 4) & (row_bytes < 16), products.aligned_4, half),
        (~is_single & (row_bytes < 4), products.aligned_2, half),
    )
