"""How long a matrix product takes by the tiles that a library has for it: the physics under every product's model.

A library cuts the output into tiles, gives each multiprocessor one tile after the other, and sometimes splits the sum
over k among several. Which tile it takes is not known beforehand, but it takes a quick one: the least over all of them
is the estimate. The constants are those of the device's generation (``constants.py``), scaled by its rates where they
were fitted on another device; the regressors learn what is left.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from torchledger.expecting.constants import Library
from torchledger.expecting.machine import Machine

Array = NDArray[np.float64]
Singles = NDArray[np.float32]
Sides = tuple[Array, Array, Array, Array]
"""(batch, m, n, k) of products [m, k] x [k, n]."""

_SPLITS = (2, 3, 4, 6, 8, 16)
_MOST_WAVES_TO_SPLIT = 3.0
_K_STEP = 64
_WHOLE_IN_SINGLE = 2.0**24
"""Whole numbers below are the same in single precision."""
_MOST_PICKED = 0.8
_NUMBERS_AT_ONCE = 1 << 15
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
    down, along = _cuts(library.tiles, batch, m, n)
    steps = (np.ceil(k / _K_STEP) * (_K_STEP / 1e3)).astype(np.float32)
    area = batch * m * n
    # Only products of few waves are asked how long they take split, and these one after the other.
    few = _maybe_few(library, area, machine) if splits else np.zeros(0, np.intp)
    shape = (len(splits), len(few))
    # Nothing is picked where nearly all are.
    picked = slice(None) if len(few) == len(m) else few
    few_k, few_area = k[picked], area[picked]
    slower_few = slower32 if len(slower32) == 1 else slower32[picked]
    split_steps, summed = np.empty((2, *shape), np.float32)
    for place, count in enumerate(splits):
        split_steps[place] = np.ceil(few_k / count / _K_STEP) * (_K_STEP / 1e3)
        summed[place] = few_area * ((count + library.reduce_more) * library.reduce_element)
    parts = np.array(splits, np.float32)[:, None, None]
    best, best_split = np.full(len(m), np.inf, np.float32), np.full(shape, np.inf, np.float32)
    for some in _pieces(len(library.tiles), len(m)):
        waves, (step, start, share, share_step) = _waves(library, library.tiles[some], down, along, machine)
        costs = start, step * slower32, share, share_step * slower32
        np.minimum(best, _in_rounds(waves, steps, costs).min(axis=0), out=best)
        if not len(few):
            continue
        waves_few = waves if len(few) == len(m) else waves.take(few, axis=1)
        # A wave too many says that a split takes for ever.
        waves_few[waves_few >= _MOST_WAVES_TO_SPLIT] = _FOR_EVER
        costs = start, step * slower_few, share, share_step * slower_few
        for own in _pieces(len(splits), waves_few.size):
            taken = _in_rounds(waves_few * parts[own], split_steps[own, None], costs).min(axis=1)
            taken += summed[own]
            np.minimum(best_split[own], taken, out=best_split[own])
    split = np.full(len(m), np.inf, np.float32)
    split[picked] = best_split.min(axis=0, initial=np.inf)
    memory = _memory_us(library, sides, item_size, machine)
    whole_us = _longer(best.astype(np.float64), memory) + library.launch
    split_us = _longer(np.minimum(split.astype(np.float64), 1e9), memory) + library.launch + library.reduce
    return whole_us, split_us


def _maybe_few(library: Library, area: Array, machine: Machine) -> NDArray[np.intp]:
    """The products that may be few enough waves to be split by one of the tiles: all of them where nearly all are."""
    per_wave = max(
        (rows * columns * _tile_costs(library, rows, columns)[0] for rows, columns in library.tiles), default=0
    )
    few = np.flatnonzero(area < _MOST_WAVES_TO_SPLIT * machine.num_multiprocessors * per_wave)
    return np.arange(len(area)) if len(few) > _MOST_PICKED * len(area) else few


def _pieces(count: int, each: int) -> Iterator[slice]:
    """Slices of so many things of so many numbers each, that stay in the processor's cache while they are worked on."""
    step = max(_NUMBERS_AT_ONCE // max(each, 1), 1)
    return (slice(start, start + step) for start in range(0, count, step))


def _in_rounds(waves: Singles, steps: Singles, costs: tuple[Singles, Singles, Singles, Singles]) -> Singles:
    """Microseconds of tiles in so many waves, of so many steps each: of every round its start and steps, and of every
    wave its share of both."""
    start, per_k, share, share_k = costs
    shared = steps * share_k
    shared += share
    taken = steps * per_k
    taken += start
    # Only by the waves both have a number for each tile and product.
    shared, taken = shared * waves, taken * np.ceil(waves)
    taken += shared
    return taken


def _waves(
    library: Library,
    tiles: tuple[tuple[int, int], ...],
    down: Mapping[int, NDArray[Any]],
    along: Mapping[int, NDArray[Any]],
    machine: Machine,
) -> tuple[Singles, tuple[Singles, Singles, Singles, Singles]]:
    """The waves of each product by each of some tiles, [tiles, products], and the tiles' costs, [tiles, 1] each."""
    count = next(iter(down.values()))
    waves = np.empty((len(tiles), len(count)), count.dtype)
    for place, (rows, columns) in enumerate(tiles):
        np.multiply(down[rows], along[columns], out=waves[place])
    at_once, *costs = _costs_of_tiles(library, tiles)
    waves /= (machine.num_multiprocessors * at_once).astype(waves.dtype)
    step, start, share, share_step = (each.astype(np.float32) for each in costs)
    return waves.astype(np.float32, copy=False), (step, start, share, share_step)


@cache
def _costs_of_tiles(library: Library, tiles: tuple[tuple[int, int], ...]) -> Array:
    """``_tile_costs`` of some tiles, [cost, tiles, 1]."""
    return np.array([_tile_costs(library, rows, columns) for rows, columns in tiles], dtype=np.float64).T[:, :, None]


def _cuts(
    tiles: Iterable[tuple[int, int]], batch: Array, m: Array, n: Array
) -> tuple[dict[int, NDArray[Any]], dict[int, NDArray[Any]]]:
    """Into how many pieces tiles cut each output, by their rows along n and by their columns along m and the batch: in
    single precision where that holds all of their products exactly."""
    down: dict[int, NDArray[Any]] = {rows: np.ceil(n / rows) for rows in {rows for rows, _ in tiles}}
    along: dict[int, NDArray[Any]] = {columns: np.ceil(m / columns) * batch for columns in {wide for _, wide in tiles}}
    if _most(down) * _most(along) < _WHOLE_IN_SINGLE:
        down = {side: count.astype(np.float32) for side, count in down.items()}
        along = {side: count.astype(np.float32) for side, count in along.items()}
    return down, along


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
        down, along = _cuts(tiles, batch, m, n)
        own_whole, own_split = np.empty((2, len(tiles), len(m)), np.float32)
        for some in _pieces(len(tiles), len(m)):
            waves, (step, start, share, share_step) = _waves(library, tiles[some], down, along, machine)
            own_whole[some] = _in_rounds(waves, steps, (start, step, share, share_step))
            waves *= 4
            own_split[some] = _in_rounds(waves, quarter, (start, step, share, share_step))
        own_split += summed32
        # Rows that lie together are written as such.
        place = np.flatnonzero(rows)
        together = slice(place[0], place[-1] + 1) if place[-1] - place[0] == len(place) - 1 else place
        for own, out in ((own_whole, whole), (own_split, split)):
            np.maximum(own, memory, out=own)
            np.add(own, np.float32(library.launch), out=own)
            out[:, together] = own
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
