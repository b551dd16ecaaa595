"""Which kernel a library takes for a matrix product, and what it then needs, as learned from 291,000 products.

The times of tiles (``product_times``) know what each tile needs, not which one the library takes. A small network for
each alignment of the operands' rows learned the difference from products of an H200 timed alone, in all three layouts
(``benchmarks/models/fit_product_network.py``). They are a constant of the generation's library, like the tiles' times
on which they learned. Networks, because on so many rows they err less than trees do, and are asked more quickly.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache

import numpy as np
from numpy.typing import NDArray

from torchledger.expecting.machine import Machine
from torchledger.expecting.networks import Network, of_package
from torchledger.expecting.product_times import (
    Sides,
    product_times,
    times_by_tile,
)
from torchledger.expecting.rounding import in_blocks

Array = NDArray[np.float64]

LAYOUTS = ("tn", "nn", "nt")
"""How the factors are stored: ``tn`` x[m, k] w[n, k]^T (linear), ``nn`` x[m, k] w[k, n], ``nt`` x[k, m]^T w[k, n]."""

CLASSES = (2, 4, 16, 0)
"""Bytes at which every operand's rows begin (2, from 4 below 16, at least 16), and 0 for single precision."""

FLOAT16_CLASSES = (2, 4)
"""Of these the library has other kernels for float16 than for bfloat16: in older files float16 has networks of its own,
later ones see which it is."""

_ROWS_AT_ONCE = 8192
_MOST = 3.0
_TILES = (
    *((64, 8), (64, 16), (64, 32), (64, 64), (128, 64), (64, 128), (128, 128), (128, 256), (256, 128), (192, 192)),
    *((192, 128), (128, 192), (32, 32), (16, 16), (256, 64), (64, 256), (32, 64), (8, 64), (64, 192), (320, 128)),
)
_WASTES = ((64, 8), (64, 64), (128, 64), (128, 128), (256, 128), (128, 256), (192, 192), (32, 32), (64, 128))
_FILLS = (8, 16, 32, 64, 128, 192, 256)
_MOST_ALIGNED = 64
_LOG2 = np.log2(np.maximum(np.arange(257), 1))


def learned_times(
    layout: str,
    sides: Sides,
    item_size: Array,
    peak: Array,
    machine: Machine,
    is_float16: NDArray[np.bool_] | None = None,
    known: tuple[Array, Array] | None = None,
) -> Array:
    """Microseconds of products [m, k] x [k, n] stored in one of ``LAYOUTS``; sides are (batch, m, n, k) arrays.

    By the quickest tile alone where the machine has no networks. Elements of two bytes are bfloat16 unless said.
    ``known`` are their ``product_times``, where they are.
    """
    times = np.empty(len(item_size))
    networks = _learned(machine.network_files.products)
    # In pieces whose features stay in the processor's cache.
    for start in range(0, len(times), _ROWS_AT_ONCE):
        some = slice(start, start + _ROWS_AT_ONCE)
        own: Sides = tuple(np.asarray(side[some], dtype=np.float64) for side in sides)  # type: ignore[assignment]
        kinds = product_class(layout, own, item_size[some])
        tiles = None if known is None else (known[0][some], known[1][some])
        has_own = is_float16 is not None and any(is_own for _, is_own in networks)
        asked = _asked_apart(kinds, is_float16[some] if is_float16 is not None and has_own else None)
        # Those of one network one after the other, so that what is asked of it is no copy.
        order = np.concatenate([rows for _, rows in asked]) if len(asked) > 1 else slice(None)
        of_order: Sides = tuple(side[order] for side in own)  # type: ignore[assignment]
        in_order = None if tiles is None else (tiles[0][order], tiles[1][order])
        size, rate = item_size[some][order], peak[some][order]
        half = None if is_float16 is None else is_float16[some][order]
        features, log_us = product_features(layout, of_order, size, rate, machine, kinds[order], in_order, half)
        first = 0
        for name, rows in asked:
            if (network := networks.get(name)) is not None:
                seen = features[first : first + len(rows), : len(network.center)]
                log_us[first : first + len(rows)] += network.predict(seen)
            first += len(rows)
        times[some][order] = np.exp(log_us)
    return times


def _asked_apart(
    kinds: NDArray[np.int64], is_float16: NDArray[np.bool_] | None
) -> list[tuple[tuple[int, bool], NDArray[np.intp]]]:
    """Which network each product is asked of, and its rows: by class, and whether it is float16's own."""
    found = []
    for kind in CLASSES:
        rows = np.flatnonzero(kinds == kind)
        if kind in FLOAT16_CLASSES and is_float16 is not None:
            own = is_float16[rows]
            parts = [((kind, False), rows[~own]), ((kind, True), rows[own])]
        else:
            parts = [((kind, False), rows)]
        found += [(name, part) for name, part in parts if len(part)]
    return found


def product_class(layout: str, sides: Sides, item_size: Array) -> NDArray[np.int64]:
    """Which of ``CLASSES`` each product is of."""
    left, right, out = _row_lengths(layout, sides)
    aligned = np.minimum(np.minimum(_lowest_bit(left), _lowest_bit(right)), _lowest_bit(out)) * item_size
    kinds = np.where(aligned >= 16, 16, np.where(aligned >= 4, 4, 2))
    return np.asarray(np.where(item_size >= 4, 0, kinds), dtype=np.int64)


def product_features(
    layout: str,
    sides: Sides,
    item_size: Array,
    peak: Array,
    machine: Machine,
    kinds: NDArray[np.int64],
    known: tuple[Array, Array] | None = None,
    is_float16: NDArray[np.bool_] | None = None,
) -> tuple[NDArray[np.float32], Array]:
    """What the networks see, [rows, features], and the logarithm of the tiles' time in microseconds; ``known`` are the
    products' ``product_times`` where they are. The last feature is whether elements are float16: networks that were
    learned before it was one see all others."""
    batch, m, n, k = sides = tuple(np.asarray(side, dtype=np.float64) for side in sides)  # type: ignore[assignment]
    moved = batch * (m * k + k * n + m * n)
    row_bytes = np.select([kinds == 2, kinds == 4], [2.0, 4.0], 16.0)
    times = known or product_times(sides, row_bytes, item_size, peak, machine)
    log_base = np.asarray(np.log(np.minimum(*times)))
    of_batch, of_m, of_n, of_k, of_moved = logs = _logarithms([batch, m, n, k, moved])
    area = of_batch + of_m + of_n
    columns = [*logs[:4], area, area + of_k, of_moved, area + of_k - of_moved, of_m - of_n, np.minimum(of_m, of_n)]
    columns.append(log_base)
    columns += [np.full(len(m), layout == name) for name in LAYOUTS]
    columns += [log2_alignment(length) for length in _row_lengths(layout, sides)]
    shares = [(side, size) for size in _FILLS for side in (m, n)] + [(k, size) for size in (16, 32, 64)]
    wastes = [in_blocks(side, size) * size / side for side, size in shares]
    for rows, cols in _WASTES:
        waves = batch * in_blocks(n, rows) * in_blocks(m, cols) / machine.num_multiprocessors
        wastes.append(np.ceil(waves) / waves)
    apart = times_by_tile(_TILES, sides, row_bytes, item_size, peak, machine)
    # Feature after feature: what is written row by row waits for memory.
    described = np.empty((len(columns) + len(wastes) + sum(map(len, apart)) + 1, len(m)), np.float32)
    described[-1] = 0.0 if is_float16 is None else is_float16
    for place, column in enumerate(columns):
        described[place] = column
    wasted, beside = np.split(described[len(columns) : -1], [len(wastes)])
    np.minimum(_logarithms(wastes), _MOST, out=wasted)
    np.log(np.concatenate(apart), out=beside)
    beside -= log_base.astype(np.float32)
    np.clip(beside, -1.0, 1.5, out=beside)
    return described.T, log_base


def _logarithms(columns: Sequence[Array]) -> NDArray[np.float32]:
    """Of each column, in the networks' precision."""
    values = np.array(columns, np.float32)
    return np.log(values, out=values)


def log2_alignment(length: Array, most: int = _MOST_ALIGNED) -> Array:
    """log2 of the largest power of two, up to ``most`` (256 at most), that divides each length."""
    whole = np.asarray(length, dtype=np.int64)
    return np.asarray(_LOG2[np.minimum(whole & -whole, most)])


def _row_lengths(layout: str, sides: Sides) -> tuple[Array, Array, Array]:
    _, m, n, k = sides
    return (m if layout == "nt" else k), (k if layout == "tn" else n), n


def _lowest_bit(value: Array) -> Array:
    whole = np.asarray(value, dtype=np.int64)
    return np.asarray(whole & -whole, dtype=np.float64)


def float16_name(kind: int) -> str:
    """What the float16 network of one of ``CLASSES`` is called in a file."""
    return f"float16 {kind}"


@cache
def _learned(file: str | None) -> Mapping[tuple[int, bool], Network]:
    """The networks of each class, and whether each is float16's own."""
    if file is None:
        return {}
    names = {str(kind): (kind, False) for kind in CLASSES}
    names |= {float16_name(kind): (kind, True) for kind in FLOAT16_CLASSES}
    return {names[name]: network for name, network in of_package(file, list(names)).items()}
