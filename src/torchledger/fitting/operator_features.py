"""What the regressors see of an operator at a shape.

All of it follows from the catalogue's declaration: the shape of the tensors, the work of each kernel (FLOPs, bytes),
and for matrix products how well tiles fill the device. Computed for whole tables at once; needs numpy alone.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from torchledger.fitting.convolution_times import convolution_times
from torchledger.fitting.machine import Machine
from torchledger.fitting.product_network import learned_times
from torchledger.fitting.product_times import product_times
from torchledger.operators import ITEM_SIZES, Operator, Parameters, Work

Array = NDArray[np.float64]

TILES = ((128, 128), (256, 128), (128, 256), (64, 64), (128, 64))
"""Output tiles (rows, columns) that GEMM libraries choose among; which one is learned, not assumed."""

WORK_COLUMNS = ("log flops", "log bytes", "log intensity", "log roofline")
_VECTOR_BYTES_LOG2 = 4  # the widest load of a thread is 16 bytes
_MOST_GAIN = 1.5
_OF_TILES = (
    "log tiles",
    "split gain",
    "log expected",
    "log product",
    "log filters",
    "log one each",
    "log few",
    "log change",
)
_LAYOUTS: Mapping[tuple[str, str], tuple[str, ...]] = {
    ("linear", "forward"): ("tn",),
    ("linear", "backward"): ("nn", "nt"),
    ("bmm", "forward"): ("nn",),
    ("bmm", "backward"): ("tn", "nt"),
}
"""How each product of these operators, and of those that amount to them, has its factors stored."""

_CHANNEL_ALIGNMENT = 5
_ATTENTION_TILE = 128
_BLOCK_ELEMENTS = (512, 1024, 2048)
_ROWS_AT_ONCE = (1, 2, 4, 8, 16)
_ROW_THREADS = (256, 512, 1024, 2048, 4096)
_MOST_WASTE = 2.0
_WARP, _MOST_THREADS, _RESIDENT_THREADS, _WIDEST_IN_WARP = 32, 1024, 2048, (1024, 2048)
_CHUNK_ELEMENTS = 65536
_CHUNKS_A_LAUNCH = 320
_TENSORS_A_LAUNCH = 36
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
    base = table.log_baseline
    if physics != "all":
        base = table.values[:, table.names.index("log roofline")]
    if physics == "roofline":
        keep = np.array([i for i in keep if not any(part in table.names[i] for part in _OF_TILES)])
    elif physics == "work":
        keep = keep[: table.n_shape]
    elif physics == "shape":
        keep = np.array([i for i in keep[: table.n_shape] if table.names[i] not in WORK_COLUMNS])
    return replace(
        table,
        names=tuple(table.names[i] for i in keep),
        values=table.values[:, keep],
        log_baseline=base if baseline else np.zeros_like(base),
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
    # How a product's sides are aligned is told per operand below: the rows' number plays no part in it, and where a
    # sweep aligns all sides alike a regressor would blame it.
    is_product = works[0].kind == "gemm"
    for name, value in zip(names, shape, strict=True):
        if name not in operator.defaults:
            columns[f"fill 128 {name}"] = np.log(_round_up(value, 128) / np.maximum(value, 1))
            columns[f"fill power {name}"] = np.ceil(np.log2(np.maximum(value, 1))) - np.log2(np.maximum(value, 1))
            if not is_product:
                columns[f"alignment {name}"] = alignment(value)
                columns[f"vector {name}"] = np.minimum(alignment(value) + np.log2(item_size), _VECTOR_BYTES_LOG2)
    products = [_sides(work, count) for work in works if work.kind == "gemm"]
    row_bytes = [_row_bytes(row_alignment(sides, direction, i), item_size) for i, sides in enumerate(products)]
    tiles = [product_times(*one, item_size, peak, machine) for one in zip(products, row_bytes, strict=True)]
    form = operator.general_form(resolved)
    layouts = _LAYOUTS.get((operator.name if form is None else form[0], direction), ())
    product_us = [np.minimum(*one) for one in tiles]
    if machine.has_hopper_tiles:
        for index, layout in enumerate(layouts[: len(products)]):
            product_us[index] = learned_times(layout, products[index], item_size, peak, machine)
    columns.update(_launch_shape_columns(works, direction, item_size, tiles, product_us, machine, count))
    columns.update(_element_columns(works, item_size, machine, count))
    columns.update(_row_columns(operator, resolved, item_size, machine))
    columns.update(_optimizer_columns(operator, resolved))
    columns.update(_attention_columns(operator, resolved, machine))
    columns.update(_convolution_columns(operator, resolved, direction, item_size, peak, machine))
    expected_us = _expected_us(works, product_us, peak, machine, count)
    if "log expected" in columns:
        expected_us = np.exp(columns["log expected"])
    columns["log expected"] = np.log(expected_us)
    # On another generation the tiles' times inform the regressors; the baseline under them is the roofline.
    base = np.log(expected_us if machine.has_hopper_tiles else limit_us + machine.floor_us)
    return FeatureTable(
        names=tuple(columns),
        values=np.stack(list(columns.values()), axis=1).astype(np.float64, copy=False),
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
    """How a batched product [m, k] x [k, n] divides into tiles and waves.

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
    return columns


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
    works: tuple[Work, ...], product_us: Sequence[Array], peak: Array, machine: Machine, count: int
) -> Array:
    """The baseline: per kernel the roofline, or what its tiles need if that is more, and a launch floor."""
    total = np.zeros(count)
    products = 0
    for work in works:
        moved = _column(work.bytes_moved, count)
        memory = moved / machine.bytes_per_us
        limit = np.maximum(_column(work.flops, count) / peak, memory)
        if work.kind == "gemm":
            # Launch included.
            total = total + np.maximum(memory, product_us[products])
            products += 1
            continue
        # A kernel that moves nothing at a shape (a bias that is not there) is not launched there.
        total = total + np.where(moved > 0, limit + machine.floor_us, 0.0)
    return np.asarray(np.maximum(total, machine.floor_us))


def _launch_shape_columns(
    works: tuple[Work, ...],
    direction: str,
    item_size: Array,
    tiles: Sequence[tuple[Array, Array]],
    product_us: Sequence[Array],
    machine: Machine,
    count: int,
) -> dict[str, Array]:
    columns: dict[str, Array] = {}
    for index, work in enumerate([work for work in works if work.gemm is not None][:4]):
        sides = _sides(work, count)
        columns.update(gemm_columns(f"gemm {index}", *sides, machine))
        aligned = row_alignment(sides, direction, index)
        columns[f"gemm {index} vector"] = np.minimum(aligned + np.log2(item_size), _VECTOR_BYTES_LOG2)
        if index == 0 or direction == "forward":
            columns[f"gemm {index} alignment of n"] = alignment(sides[2])
            columns[f"gemm {index} alignment of k"] = alignment(sides[3])
        columns[f"gemm {index} log narrow"] = np.log(np.minimum(sides[1], sides[2]))
        if work.kind == "gemm":
            columns.update(_tile_columns(f"gemm {index}", *tiles[index], product_us[index]))
    return columns


def _convolution_columns(
    operator: Operator, p: Parameters, direction: str, item_size: Array, peak: Array, machine: Machine
) -> dict[str, Array]:
    """A convolution by the ways in which a library may run it, and what decides among them."""
    if operator.name != "conv2d":
        return {}
    inside, outside = p.c_in // p.groups, p.c_out // p.groups
    height = (p.height + 2 * p.padding - p.kernel) // p.stride + 1
    width = (p.width + 2 * p.padding - p.kernel) // p.stride + 1
    one_each = (p.groups == p.c_in) & (p.groups > 1)
    columns: dict[str, Any] = {
        "one filter a channel": one_each,
        "grouped": (p.groups > 1) & ~one_each,
        "log inside": np.log(inside),
        "log outside": np.log(outside),
        "log pixels": np.log(p.n * height * width),
        "log taps inside": np.log(p.kernel * p.kernel * inside),
        "inside alignment": np.minimum(alignment(inside), _CHANNEL_ALIGNMENT),
        "outside alignment": np.minimum(alignment(outside), _CHANNEL_ALIGNMENT),
        "places alignment": np.minimum(alignment(height * width), _CHANNEL_ALIGNMENT),
        "one by one": (p.kernel == 1) & (p.stride == 1),
    }
    ways = convolution_times(p, direction, item_size, peak, machine)
    columns |= {f"log {name}": np.log(time) for name, time in ways.items()}
    return {name: _column(value, len(item_size)).astype(np.float64) for name, value in columns.items()}


def _element_columns(works: tuple[Work, ...], item_size: Array, machine: Machine, count: int) -> dict[str, Array]:
    """How the elements of a pointwise kernel divide into blocks: the last, partly filled block takes a slower path."""
    work = next((work for work in works if work.kind == "pointwise"), None)
    if work is None:
        return {}
    elements = np.maximum(_column(work.bytes_written, count) / item_size, 1.0)
    columns = {f"tail {size}": elements % size / size for size in _BLOCK_ELEMENTS}
    waves = _ceil(elements, 1024) / (16 * machine.num_multiprocessors)
    return columns | {"elements wave waste": np.minimum(np.log(np.ceil(waves) / waves), _MOST_WASTE)}


def _row_columns(operator: Operator, p: Parameters, item_size: Array, machine: Machine) -> dict[str, Array]:
    """How kernels that give a block (or a warp) to each row fill the device, and a row the block's threads."""
    found = _rows_and_width(operator, p)
    if found is None:
        return {}
    rows, width = found
    columns = {}
    for each in _ROWS_AT_ONCE:
        waves = rows / (each * machine.num_multiprocessors)
        columns[f"row waste {each}"] = np.minimum(np.log(np.ceil(waves) / waves), _MOST_WASTE)
    for size in _ROW_THREADS:
        columns[f"fill {size} width"] = np.minimum(np.log(_round_up(width, size) / width), _MOST_WASTE)
    vectors = width * item_size / 2**_VECTOR_BYTES_LOG2
    # Norms load four elements at once or take another kernel, gathers 16 bytes.
    columns["width in fours"] = (width % 4 == 0).astype(np.float64)
    columns["width in vectors"] = (vectors % 1 == 0).astype(np.float64)
    if "softmax" in operator.name.lower() or "cross_entropy" in operator.name:
        columns.update(_softmax_columns(rows, width, vectors, machine))
    return columns


def _softmax_columns(rows: Array, width: Array, vectors: Array, machine: Machine) -> dict[str, Array]:
    """ATen's softmax (``SoftMax.cuh``): a block of the power of two of threads that leaves each one or two vectors of
    16 bytes; up to 2,048 elements forward and 1,024 backward a warp that keeps them."""
    threads = 2 ** np.ceil(np.log2(np.clip(vectors, 1, _MOST_THREADS) / 2))
    threads = np.maximum(threads, _WARP)
    steps = vectors / threads
    waves = rows * threads / (_RESIDENT_THREADS * machine.num_multiprocessors)
    return {
        "log block threads": np.log(threads),
        "block steps": np.log(np.ceil(steps)),
        "block step waste": np.minimum(np.log(np.ceil(steps) / steps), _MOST_WASTE),
        "block wave waste": np.minimum(np.log(np.ceil(waves) / waves), _MOST_WASTE),
        **{f"row of {widest} at most": (width <= widest).astype(np.float64) for widest in _WIDEST_IN_WARP},
    }


def _rows_and_width(operator: Operator, p: Parameters) -> tuple[Array, Array] | None:
    form = operator.general_form(p)
    given: Mapping[str, Any] = p if form is None else form[1]
    if form is None and operator.feature_names[-2:] == ("l", "columns"):
        values = operator.features(p)
        given = {"rows": np.prod(np.broadcast_arrays(*values[:-1]), axis=0), "dim": values[-1]}
    for rows, width in (("rows", "dim"), ("tokens", "vocab"), ("tokens", "dim")):
        if rows in given and width in given:
            return np.asarray(given[rows], dtype=np.float64), np.asarray(given[width], dtype=np.float64)
    return None


def _optimizer_columns(operator: Operator, p: Parameters) -> dict[str, Array]:
    """How a fused optimizer cuts its tensors into chunks, and these into launches (ATen's ``MultiTensorApply.cuh``)."""
    form = ("adamw", p) if operator.name == "adamw" else operator.general_form(p)
    if form is None or form[0] != "adamw":
        return {}
    tensors, numel = np.asarray(form[1]["tensors"]), np.asarray(form[1]["numel"])
    per_tensor = numel / tensors
    chunks = tensors * _ceil(per_tensor, _CHUNK_ELEMENTS)
    launches = np.maximum(_ceil(chunks, _CHUNKS_A_LAUNCH), _ceil(tensors, _TENSORS_A_LAUNCH))
    return {
        "log per tensor": np.log(per_tensor),
        "log chunks": np.log(chunks),
        "log launches": np.log(launches),
        "chunk fill": np.log(_round_up(per_tensor, _CHUNK_ELEMENTS) / per_tensor),
        "chunks of last launch": chunks % _CHUNKS_A_LAUNCH / _CHUNKS_A_LAUNCH,
        "tail 4": per_tensor % 4,
        "in vectors": ((numel // tensors % 4 == 0) & (numel % tensors % 4 == 0)).astype(np.float64),
    }


def _tile_columns(name: str, whole: Array, split: Array, product_us: Array) -> dict[str, Array]:
    gain = np.clip(np.log(whole / split), -_MOST_GAIN, _MOST_GAIN)
    beside = np.clip(np.log(product_us / np.minimum(whole, split)), -_MOST_GAIN, _MOST_GAIN)
    return {f"{name} log tiles": np.log(product_us), f"{name} split gain": gain, f"{name} log tiles beside": beside}


def _row_bytes(aligned: Array, item_size: Array) -> Array:
    return np.asarray(np.minimum(2.0**aligned * item_size, 16.0))


def _sides(work: Work, count: int) -> tuple[Array, Array, Array, Array]:
    assert work.gemm is not None
    batch, m, n, k = (_column(side, count).astype(np.float64) for side in work.gemm)
    return batch, m, n, k


def _attention_columns(operator: Operator, p: Parameters, machine: Machine) -> dict[str, Array]:
    if operator.name == "sdpa_varlen":
        return attention_columns(p["sequences"] * p["h"], p["l"], p["d"], machine)
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
