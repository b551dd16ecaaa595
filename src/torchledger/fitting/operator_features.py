"""What the regressors see of an operator at a shape.

All of it follows from the catalogue's declaration: the shape of the tensors, the work of each kernel (FLOPs, bytes),
and for matrix products how well tiles fill the device. Computed for whole tables at once; needs numpy alone.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from torchledger.fitting.machine import Machine
from torchledger.operators import ITEM_SIZES, Operator, Parameters, Work

Array = NDArray[np.float64]

TILES = ((128, 128), (256, 128), (128, 256), (64, 64), (128, 64))
"""Output tiles (rows, columns) that GEMM libraries choose among; which one is learned, not assumed."""

WORK_COLUMNS = ("log flops", "log bytes", "log intensity", "log roofline")
_VECTOR_BYTES_LOG2 = 4  # the widest load of a thread is 16 bytes
_CANDIDATE_TILES = (
    (64, 8),
    (8, 64),
    (64, 16),
    (16, 64),
    (64, 32),
    (32, 64),
    (64, 64),
    (128, 64),
    (64, 128),
    (128, 96),
    (96, 128),
    (128, 128),
    (128, 160),
    (160, 128),
    (128, 192),
    (192, 128),
    (192, 160),
    (192, 192),
    (256, 128),
    (128, 256),
    (320, 128),
    (160, 256),
)
_SPLITS = (1, 2, 4, 8, 16)
_RATE_BY_VECTOR = (0.11, 0.35, 0.45, 1.0)
_L2_OVER_DRAM = 1.6
_TILE_US = 0.8
_ATTENTION_TILE = 128
_ALIGNMENT_LIMIT = 256


@dataclass(frozen=True)
class FeatureTable:
    """Features of many shapes: one row each, with the logarithm of the physical baseline in microseconds.

    ``n_shape`` is how many of the first columns describe the question itself; the others follow from them. ``shape``
    is the vector that shapes with the same kernels have in common (it decides on which side of a split a row stands).
    """

    names: tuple[str, ...]
    values: Array
    log_baseline: Array
    roofline_us: Array
    shape: Array
    n_shape: int


def reduce_features(table: FeatureTable, physics: str, baseline: bool) -> FeatureTable:
    """The table without some of its ideas, for the ablation: see ``learning.Options``."""
    keep = np.arange(len(table.names))
    if physics == "work":
        keep = keep[: table.n_shape]
    elif physics == "shape":
        keep = np.array([i for i in keep[: table.n_shape] if table.names[i] not in WORK_COLUMNS])
    return replace(
        table,
        names=tuple(table.names[i] for i in keep),
        values=table.values[:, keep],
        log_baseline=table.log_baseline if baseline else np.zeros_like(table.log_baseline),
        n_shape=min(table.n_shape, len(keep)),
    )


def operator_features(
    operator: Operator,
    parameters: Mapping[str, Any],
    direction: str,
    dtypes: NDArray[np.str_],
    machine: Machine,
) -> FeatureTable:
    """Features of an operator's direction at many shapes.

    ``parameters`` maps each parameter to an integer array; ``dtypes`` holds torch's names, one per row.
    """
    count = len(dtypes)
    resolved = operator.resolve({name: _column(value, count) for name, value in parameters.items()})
    resolved.update({name: _column(resolved[name], count) for name in operator.defaults})
    kinds, codes = np.unique(dtypes, return_inverse=True)
    item_size = np.array([ITEM_SIZES[str(kind)] for kind in kinds])[codes]
    peak = np.array([machine.peak(str(kind)) for kind in kinds])[codes]
    works = operator.work(resolved, direction, item_size)  # type: ignore[arg-type]

    columns: dict[str, Array] = {}
    shape = [_column(value, count) for value in operator.features(resolved)]
    shape += [resolved[name] for name in operator.defaults]
    names = [*(operator.feature_names or operator.parameters), *operator.defaults]
    for name, value in zip(names, shape, strict=True):
        columns[f"log {name}"] = np.log1p(value) if name in operator.defaults else np.log(np.maximum(value, 1))
    columns["half precision kind"] = np.where(dtypes == "bfloat16", 1.0, 0.0)
    columns["log item size"] = np.log2(item_size)
    _, _, limit_us = work_totals(works, peak, machine, count)
    columns.update(work_columns(works, peak, machine, count))
    n_shape = len(columns)
    for name, value in zip(names, shape, strict=True):
        if name not in operator.defaults:
            columns[f"alignment {name}"] = alignment(value)
            columns[f"fill 128 {name}"] = np.log(_round_up(value, 128) / np.maximum(value, 1))
            columns[f"vector {name}"] = np.minimum(alignment(value) + np.log2(item_size), _VECTOR_BYTES_LOG2)
            columns[f"fill power {name}"] = np.ceil(np.log2(np.maximum(value, 1))) - np.log2(np.maximum(value, 1))
    columns.update(_launch_shape_columns(works, direction, item_size, peak, machine, count))
    columns.update(_attention_columns(operator, resolved, machine))
    expected_us = _expected_us(works, direction, item_size, peak, machine, count)
    columns["log expected"] = np.log(expected_us)
    base = np.log(expected_us)
    return FeatureTable(
        names=tuple(columns),
        values=np.stack(list(columns.values()), axis=1).astype(np.float64),
        log_baseline=base,
        roofline_us=limit_us,
        shape=np.stack([*shape, codes], axis=1).astype(np.float64),
        n_shape=n_shape,
    )


def work_totals(works: tuple[Work, ...], peak: Array, machine: Machine, count: int) -> tuple[Array, Array, Array]:
    """FLOPs, bytes and roofline time (microseconds, the kernels' sum) of each row."""
    flops = sum((_column(work.flops, count) for work in works), start=np.zeros(count))
    moved = sum((_column(work.bytes_moved, count) for work in works), start=np.zeros(count))
    limit_us = sum(
        (
            np.maximum(_column(work.flops, count) / peak, _column(work.bytes_moved, count) / machine.bytes_per_us)
            for work in works
        ),
        start=np.zeros(count),
    )
    return flops, moved, limit_us


def work_columns(works: tuple[Work, ...], peak: Array, machine: Machine, count: int) -> dict[str, Array]:
    """FLOPs, bytes, intensity and roofline time as features."""
    flops, moved, limit_us = work_totals(works, peak, machine, count)
    return {
        "log flops": np.log1p(flops),
        "log bytes": np.log1p(moved),
        "log intensity": np.log1p(flops / np.maximum(moved, 1)),
        "log roofline": np.log(limit_us + machine.floor_us),
    }


def gemm_columns(name: str, batch: Array, m: Array, n: Array, k: Array, machine: Machine) -> dict[str, Array]:
    """How a batched product [m, k] x [k, n] divides into tiles and waves, and how its sides are aligned.

    ``waste`` of a tile size is log of (multiprocessors x whole waves x tile area) / (batch m n): what is paid for
    edges and for the last, partly filled wave.
    """
    area = batch * m * n
    columns = {}
    for rows, cols in TILES:
        waves = batch * _ceil(m, rows) * _ceil(n, cols) / machine.num_multiprocessors
        paid = np.ceil(waves) * machine.num_multiprocessors * rows * cols
        columns[f"{name} waste {rows}x{cols}"] = np.log(paid / np.maximum(area, 1))
    columns[f"{name} waves"] = np.log(
        np.maximum(batch * _ceil(m, 128) * _ceil(n, 128) / machine.num_multiprocessors, 1e-6)
    )
    for side, value in (("m", m), ("n", n), ("k", k)):
        columns[f"{name} alignment {side}"] = alignment(value)
    return columns


def tile_time(
    sides: tuple[Array, Array, Array, Array],
    row_alignment: Array,
    item_size: Array,
    peak: Array,
    machine: Machine,
) -> Array:
    """Microseconds of a product (batch, m, n, k) by the best of many tile sizes and splits of k.

    Each multiprocessor works through its tiles one after the other: per tile the slower of arithmetic and of loading
    its operands, and a fixed start and end. A library picks the quickest tile for the shape: the least is taken.
    Operands whose rows do not begin at 16 bytes rule out the quick instructions of the last generations: the rate is
    then a fraction, by the width that is left.
    """
    batch, m, n, k = sides
    lanes = row_alignment + np.log2(item_size)
    share = np.interp(np.minimum(lanes, _VECTOR_BYTES_LOG2), (1.0, 2.0, 3.0, 4.0), _RATE_BY_VECTOR)
    rate = peak * share / machine.num_multiprocessors
    load = _L2_OVER_DRAM * machine.bytes_per_us / machine.num_multiprocessors
    best = np.full(np.shape(m), np.inf)
    for rows, cols in _CANDIDATE_TILES:
        tiles = batch * _ceil(m, rows) * _ceil(n, cols)
        efficiency = min(1.0, 0.35 + 0.65 * (rows * cols) / (128 * 128))
        per_k = np.maximum(2.0 * rows * cols / (rate * efficiency), (rows + cols) * item_size / load)
        for split in _SPLITS:
            waves = np.ceil(tiles * split / machine.num_multiprocessors)
            reduce_us = np.zeros(np.shape(m))
            if split > 1:
                reduce_us = machine.floor_us + 4.0 * (split + 1) * batch * m * n / (2 * machine.bytes_per_us)
            best = np.minimum(best, waves * (np.maximum(k / split, 32.0) * per_k + _TILE_US) + reduce_us)
    return best


def row_alignment(sides: tuple[Array, Array, Array, Array], direction: str, index: int) -> Array:
    """log2 of the elements at which every operand's rows are aligned.

    Tensors are stored by rows as the forward has them. Forward [m, k] x [k, n] has rows of k and n, whichever factor is
    transposed; in a backward every second product is the weight's gradient, which sums over the rows of both factors.
    """
    _, m, n, k = sides
    of_weight = direction == "backward" and index % 2 == 1
    return np.minimum(alignment(n), alignment(m if of_weight else k))


def alignment(value: Array) -> Array:
    """log2 of the largest power of two (up to 256) that divides each value."""
    whole = np.asarray(value, dtype=np.int64)
    lowest = np.where(whole == 0, _ALIGNMENT_LIMIT, whole & -whole)
    return np.log2(np.minimum(lowest, _ALIGNMENT_LIMIT).astype(np.float64))


def _expected_us(
    works: tuple[Work, ...], direction: str, item_size: Array, peak: Array, machine: Machine, count: int
) -> Array:
    """The baseline: per kernel the roofline, or what its tiles need if that is more, and a launch floor."""
    total = np.zeros(count)
    products = 0
    for work in works:
        moved = _column(work.bytes_moved, count)
        memory = moved / machine.bytes_per_us
        limit = np.maximum(_column(work.flops, count) / peak, memory)
        if work.gemm is not None and work.kind != "convolution":
            sides = _sides(work, count)
            aligned = row_alignment(sides, direction, products)
            limit = np.maximum(memory, tile_time(sides, aligned, item_size, peak, machine))
            products += 1
        # A kernel that moves nothing at a shape (a bias that is not there) is not launched there.
        total = total + np.where(moved > 0, limit + machine.floor_us, 0.0)
    return np.asarray(np.maximum(total, machine.floor_us))


def _launch_shape_columns(
    works: tuple[Work, ...], direction: str, item_size: Array, peak: Array, machine: Machine, count: int
) -> dict[str, Array]:
    columns: dict[str, Array] = {}
    for index, work in enumerate([work for work in works if work.gemm is not None][:4]):
        sides = _sides(work, count)
        columns.update(gemm_columns(f"gemm {index}", *sides, machine))
        aligned = row_alignment(sides, direction, index)
        columns[f"gemm {index} vector"] = np.minimum(aligned + np.log2(item_size), _VECTOR_BYTES_LOG2)
        columns[f"gemm {index} log narrow"] = np.log(np.minimum(sides[1], sides[2]))
        columns[f"gemm {index} log tiles"] = np.log(tile_time(sides, aligned, item_size, peak, machine))
    return columns


def _sides(work: Work, count: int) -> tuple[Array, Array, Array, Array]:
    assert work.gemm is not None
    batch, m, n, k = (_column(side, count).astype(np.float64) for side in work.gemm)
    return batch, m, n, k


def _attention_columns(operator: Operator, p: Parameters, machine: Machine) -> dict[str, Array]:
    form = ("sdpa", p) if operator.name == "sdpa" else operator.general_form(p)
    if form is None or form[0] != "sdpa":
        return {}
    return attention_columns(form[1]["b"] * form[1]["h"], form[1]["l"], form[1]["d"], machine)


def attention_columns(heads: Array, length: Array, d: Array, machine: Machine) -> dict[str, Array]:
    """How fused attention divides into blocks of 128 queries and waves, and what padding the head dimension costs."""
    waves = heads * _ceil(length, _ATTENTION_TILE) / machine.num_multiprocessors
    return {
        "attention waves": np.log(waves),
        "attention wave waste": np.log(np.ceil(waves) / waves),
        "attention pad 32": np.log(_round_up(d, 32) / d),
        "attention pad 64": np.log(_round_up(d, 64) / d),
    }


def _column(value: Any, count: int) -> Array:
    array = np.asarray(value)
    if array.ndim == 0:
        return np.full(count, array[()])
    return array


def _ceil(value: Array, step: int) -> Array:
    return np.asarray(np.ceil(value / step))


def _round_up(value: Array, step: int) -> Array:
    return np.asarray(_ceil(value, step) * step)
