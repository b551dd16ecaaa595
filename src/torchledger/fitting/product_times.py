"""How long a matrix product takes by the tiles that a library has for it: the physics under every product's model.

A library cuts the output into tiles, gives each multiprocessor one tile after the other, and sometimes splits the sum
over k among several. Which tile it takes is not known beforehand, but it takes a quick one: the least over all of them
is the estimate. The constants were fitted to the forward products of the H200 data set whose kernels' names tell the
tile; alone, without any regressor, they come within 7 % (mean) where rows begin at 16 bytes and 13 to 18 % where not.
On another device they are scaled by its rates, and the regressors learn what is left.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from torchledger.fitting.machine import Machine

Array = NDArray[np.float64]
Sides = tuple[Array, Array, Array, Array]
"""(batch, m, n, k) of products [m, k] x [k, n]."""

_FITTED_HALF, _FITTED_SINGLE, _FITTED_BYTES = 7.93e8, 4.57e7, 4.32e6  # the H200's FLOP and bytes per microsecond
_FITTED_MULTIPROCESSORS = 132
_SPLITS = (2, 3, 4, 6, 8, 16)
_MOST_WAVES_TO_SPLIT = 3.0
_K_STEP = 64


@dataclass(frozen=True)
class Library:
    """Tiles of one generation of kernels and their constants: areas in 1e4, sides in 1e2, k in 1e3 elements; times in
    microseconds.

    A wave costs ``start`` + ``start_area`` x area + k x (``step`` + ``step_area`` x area + ``step_side`` x (rows +
    columns)); the tiles of a wave together ``part`` + ``part_area`` x area + k x area x ``part_step`` for each share of
    a whole wave. ``shared`` is the area that a multiprocessor works on at once, in as many tiles as fit.
    """

    tiles: tuple[tuple[int, int], ...]
    launch: float
    start: float
    start_area: float
    step: float
    step_area: float
    step_side: float
    part: float
    part_area: float
    part_step: float
    byte: float
    reduce: float
    reduce_element: float
    reduce_more: float
    shared: int


_WIDE = (
    *((64, 8), (192, 192), (256, 128), (320, 128), (64, 64), (64, 16), (192, 128), (64, 32), (128, 160), (128, 256)),
    *((32, 64), (128, 192), (128, 128), (8, 64), (64, 24), (128, 64), (96, 64), (64, 128), (144, 128), (64, 48)),
    *((112, 128), (176, 128), (168, 128), (96, 128), (64, 192), (64, 40), (128, 80), (64, 96), (160, 128), (16, 64)),
)
_MIDDLE = ((32, 32), (16, 16), (256, 128), (128, 256), (128, 64), (64, 64), (128, 128), (64, 128), (256, 64), (64, 256))
_NARROW = ((64, 64), (128, 128), (32, 32), (256, 128), (16, 16), (128, 64))
_SINGLE = ((64, 64), (32, 32), (128, 64), (128, 128), (256, 64), (128, 32), (64, 256), (32, 64), (64, 128), (256, 128))

_ALIGNED_16 = Library(
    _WIDE, 1.792, 0.0983, 0.3953, 1.2627, 0.9237, 0.00095, 0.2883, 0.0057, 1.7699, 2.33e-7, 2.817, 1.33e-7, 10.84, 1
)
_ALIGNED_4 = Library(
    _MIDDLE, 1.533, 0.0027, 1.1187, 4.907, 2.283, 0.2755, 0.1519, 0.125, 7.361, 4.61e-7, 2.508, 1.285e-6, 0.69, 16384
)
_ALIGNED_2 = Library(
    _NARROW, 1.909, 0.0099, 0.2021, 4.632, 7.419, 2.782, 0.1044, 0.0865, 8.849, 8.65e-7, 2.253, 1.441e-6, 0.787, 32768
)
_SINGLE_PRECISION = Library(
    _SINGLE, 1.379, 0.0007, 0.3506, 8.223, 27.08, 0.0435, 0.0006, 0.2865, 25.05, 4.9e-7, 0.878, 4.6e-6, 0.035, 16384
)
_VECTOR_LAUNCH, _VECTOR_BYTE = 2.396, 4.19e-7


def product_times(
    sides: Sides, row_bytes: Array, item_size: Array, peak: Array, machine: Machine
) -> tuple[Array, Array]:
    """Microseconds of each product by its best tile, without and with k split among multiprocessors.

    ``row_bytes`` is the power of two (up to 16) of bytes at which the operands' rows begin: it decides which kernels a
    library may use. ``peak`` is in FLOP per microsecond.
    """
    whole, split = np.full(len(item_size), np.nan), np.full(len(item_size), np.nan)
    for rows, library, fitted_peak in _kinds(row_bytes, item_size):
        if not rows.any():
            continue
        own = tuple(np.asarray(side, dtype=np.float64)[rows] for side in sides)
        whole[rows], split[rows] = tile_times(library, own, item_size[rows], peak[rows], machine, fitted_peak)  # type: ignore[arg-type]
    batch, m, n, k = sides
    is_vector = (m == 1) | (n == 1)
    if np.any(is_vector):
        moved = batch * (m * k + k * n + m * n) * item_size
        by_rows = _VECTOR_LAUNCH + moved * _VECTOR_BYTE * _FITTED_BYTES / machine.bytes_per_us
        whole = np.where(is_vector, np.minimum(by_rows, whole), whole)
    return whole, split


def tile_times(
    library: Library,
    sides: Sides,
    item_size: Array,
    peak: Array,
    machine: Machine,
    fitted_peak: float = _FITTED_HALF,
) -> tuple[Array, Array]:
    """``product_times`` by the tiles of one library, fitted on a device with so many FLOP per microsecond."""
    slower = fitted_peak / _FITTED_MULTIPROCESSORS / (peak / machine.num_multiprocessors)
    batch, m, n, k = sides
    slower32 = slower.astype(np.float32)
    whole, split = np.full(len(m), np.inf, np.float32), np.full(len(m), np.inf, np.float32)
    down = {rows: np.ceil(n / rows) for rows in {rows for rows, _ in library.tiles}}
    along = {columns: np.ceil(m / columns) * batch for columns in {columns for _, columns in library.tiles}}
    steps = {parts: (np.ceil(k / parts / _K_STEP) * (_K_STEP / 1e3)).astype(np.float32) for parts in (1, *_SPLITS)}
    parts_us = {
        parts: (batch * m * n * ((parts + library.reduce_more) * library.reduce_element)).astype(np.float32)
        for parts in _SPLITS
    }
    for rows, columns in library.tiles:
        at_once, step, start, share, share_step = _tile_costs(library, rows, columns)
        per_k, share_k = step * slower32, share_step * slower32
        waves = (down[rows] * along[columns] / (machine.num_multiprocessors * at_once)).astype(np.float32)
        taken = np.ceil(waves) * (start + steps[1] * per_k) + waves * (share + steps[1] * share_k)
        np.minimum(whole, taken, out=whole)
        few = np.flatnonzero(waves < _MOST_WAVES_TO_SPLIT)
        if not len(few):
            continue
        some, one_k, one_share = waves[few], per_k[few], share_k[few]
        for parts in _SPLITS:
            more, own = some * parts, steps[parts][few]
            taken = np.ceil(more) * (start + own * one_k) + more * (share + own * one_share) + parts_us[parts][few]
            split[few] = np.minimum(split[few], taken)
    memory = _memory_us(library, sides, item_size, machine)
    whole_us = _longer(whole.astype(np.float64), memory) + library.launch
    split_us = _longer(np.minimum(split.astype(np.float64), 1e9), memory) + library.launch + library.reduce
    return whole_us, split_us


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
    return np.asarray(moved * library.byte * _FITTED_BYTES / machine.bytes_per_us)


def _longer(one: Array, other: Array) -> Array:
    """The longer of two times that overlap, and somewhat more where they are alike."""
    return np.asarray(((one * one) ** 2 + (other * other) ** 2) ** 0.25)


def tiles_apart(
    tiles: tuple[tuple[int, int], ...], sides: Sides, row_bytes: Array, item_size: Array, peak: Array, machine: Machine
) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """Microseconds of each product by each of some tiles, [products, tiles]: whole, and with k split in four."""
    shape = (len(item_size), len(tiles))
    whole, split = np.empty(shape, np.float32), np.empty(shape, np.float32)
    for rows, library, fitted_peak in _kinds(row_bytes, item_size):
        if not rows.any():
            continue
        batch, m, n, k = (np.asarray(side, dtype=np.float64)[rows] for side in sides)
        slower = (fitted_peak / _FITTED_MULTIPROCESSORS / (peak[rows] / machine.num_multiprocessors)).astype(np.float32)
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
            out[rows] = own.T
    return whole, split


def tiles_of_library(
    library: Library, tiles: tuple[tuple[int, int], ...], splits: tuple[int, ...], sides: Sides, machine: Machine
) -> NDArray[np.float32]:
    """Microseconds of each product by each of some tiles of one library with k cut in each of some numbers of parts,
    [products, tiles x splits], on the device that the library was fitted on, whatever goes through memory."""
    batch, m, n, k = sides
    times = np.empty((len(m), len(tiles) * len(splits)), np.float32)
    steps = [np.ceil(k / parts / _K_STEP) * (_K_STEP / 1e3) for parts in splits]
    summed = [
        np.zeros(())
        if parts == 1
        else batch * m * n * ((parts + library.reduce_more) * library.reduce_element) + library.reduce
        for parts in splits
    ]
    for index, (tall, wide) in enumerate(tiles):
        at_once, step, start, share, share_step = _tile_costs(library, tall, wide)
        waves = np.ceil(m / tall) * np.ceil(n / wide) * batch / (machine.num_multiprocessors * at_once)
        for place, parts in enumerate(splits):
            more, own = waves * parts, steps[place]
            taken = np.ceil(more) * (start + own * step) + more * (share + own * share_step) + summed[place]
            times[:, index * len(splits) + place] = taken + library.launch
    return times


def _kinds(row_bytes: Array, item_size: Array) -> tuple[tuple[NDArray[np.bool_], Library, float], ...]:
    is_single = item_size >= 4
    return (
        (is_single, _SINGLE_PRECISION, _FITTED_SINGLE),
        (~is_single & (row_bytes >= 16), _ALIGNED_16, _FITTED_HALF),
        (~is_single & (row_bytes >= 4) & (row_bytes < 16), _ALIGNED_4, _FITTED_HALF),
        (~is_single & (row_bytes < 4), _ALIGNED_2, _FITTED_HALF),
    )
