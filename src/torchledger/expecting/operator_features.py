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

from torchledger.expecting.attention_features import attention_columns, attention_rounds, attention_shape
from torchledger.expecting.convolution_network import learned_convolution_times
from torchledger.expecting.convolution_times import convolution_times
from torchledger.expecting.machine import Machine
from torchledger.expecting.product_network import learned_times
from torchledger.expecting.product_times import product_times
from torchledger.expecting.rounding import MOST_WASTE, VECTOR_BYTES_LOG2, alignment, as_column, in_blocks, round_up
from torchledger.expecting.row_features import row_columns
from torchledger.operators import Operator, Parameters, Work
from torchledger.work.element_sizes import ELEMENT_SIZES
from torchledger.work.flops import matmul_flops
from torchledger.work.list_costs import BLOCKS_A_LAUNCH, CHUNK_ELEMENTS, TENSORS_A_LAUNCH

Array = NDArray[np.float64]

TILES = ((128, 128), (256, 128), (128, 256), (64, 64), (128, 64))
"""Output tiles (rows, columns) that GEMM libraries choose among; which one is learned, not assumed."""

WORK_COLUMNS = ("log flops", "log bytes", "log intensity", "log roofline")
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
    "log learned",
)
_LAYOUTS: Mapping[tuple[str, str], tuple[str, ...]] = {
    ("linear", "forward"): ("tn",),
    ("linear", "backward"): ("nn", "nt"),
    ("bmm", "forward"): ("nn",),
    ("bmm", "backward"): ("tn", "nt"),
}
"""How each product of these operators, and of those that amount to them, has its factors stored."""

_CHANNEL_ALIGNMENT = 5
_BLOCK_ELEMENTS = (512, 1024, 2048)
_SMALL_SIDE = 128
_OPTIMIZER_LISTS = 4  # of AdamW: parameters, gradients, two moments


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
    has_learned_baseline: bool = False
    """Whether networks that know the library's choices made the baseline."""


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
    resolved = operator.resolve({name: as_column(value, count) for name, value in parameters.items()})
    resolved.update({name: as_column(resolved[name], count) for name in operator.defaults})
    kinds, codes = np.unique(dtypes, return_inverse=True)
    item_size = np.array([ELEMENT_SIZES[str(kind)] for kind in kinds])[codes]
    peak = np.array([machine.peak(str(kind)) for kind in kinds])[codes]
    works = operator.work(resolved, direction, item_size)  # type: ignore[arg-type]

    columns: dict[str, Array] = {}
    shape = [as_column(value, count) for value in operator.features(resolved)]
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
            columns[f"fill 128 {name}"] = np.log(round_up(value, 128) / np.maximum(value, 1))
            columns[f"fill power {name}"] = np.ceil(np.log2(np.maximum(value, 1))) - np.log2(np.maximum(value, 1))
            if not is_product:
                columns[f"alignment {name}"] = alignment(value)
                columns[f"vector {name}"] = np.minimum(alignment(value) + np.log2(item_size), VECTOR_BYTES_LOG2)
    products = [_sides(work, count) for work in works if work.kind == "gemm"]
    row_bytes = [_row_bytes(row_alignment(sides, direction, i), item_size) for i, sides in enumerate(products)]
    tiles = None
    if machine.counts_waves:
        tiles = [product_times(*one, item_size, peak, machine) for one in zip(products, row_bytes, strict=True)]
    form = operator.general_form(resolved)
    layouts = _LAYOUTS.get((operator.name if form is None else form[0], direction), ())
    product_us = [_product_roofline_us(sides, item_size, peak, machine) for sides in products]
    if tiles is not None:
        product_us = [np.minimum(*one) for one in tiles]
    if machine.has_tile_baseline:
        is_float16 = dtypes == "float16" if machine.tells_float16 else None
        for index, layout in enumerate(layouts[: len(products)]):
            known = None if tiles is None else tiles[index]
            product_us[index] = learned_times(
                layout, products[index], item_size, peak, machine, is_float16=is_float16, known=known
            )
    columns.update(_launch_shape_columns(works, direction, item_size, tiles, product_us, machine, count))
    columns.update(_element_columns(works, item_size, machine, count))
    columns.update(row_columns(operator, resolved, direction, item_size, machine))
    columns.update(_optimizer_columns(operator, resolved))
    if (attention := attention_shape(operator, resolved)) is not None:
        heads, length, _, d, _ = attention
        columns.update(attention_columns(heads, length, d, machine))
    columns.update(_convolution_columns(operator, resolved, direction, dtypes, item_size, peak, machine))
    expected_us = _expected_us(works, product_us, peak, machine, count)
    if "log expected" in columns:
        expected_us = np.exp(columns["log expected"])
    columns["log expected"] = np.log(expected_us)
    if attention is not None:
        columns.update(attention_rounds(attention, columns["log expected"], machine))
    if operator.name == "grouped_gemm":
        rows = as_column(resolved["groups"] * resolved["m"], count).astype(np.float64)
        columns.update(_grouped_columns(works, rows, columns["log expected"], machine))
    if operator.name == "linear_fp8" and machine.has_tile_baseline:
        # Two elements of one byte as one of two: the nearest product whose library is known.
        batch, m, n, k = products[0]
        learned = learned_times(
            "tn", (batch, m, n, k / 2), np.full(count, 2.0), np.full(count, machine.peak("bfloat16")), machine
        )
        columns["log learned beside"] = np.log(learned) - columns["log expected"]
    # Where the tiles' times are of another generation they inform the regressors; the baseline is the roofline.
    base = np.log(expected_us if machine.has_tile_baseline else limit_us + machine.floor_us)
    return FeatureTable(
        names=tuple(columns),
        values=np.array(list(columns.values()), dtype=np.float64).T,
        log_baseline=base,
        roofline_us=limit_us,
        shape=np.stack([*shape, codes], axis=1).astype(np.float64),
        n_shape=n_shape,
        has_learned_baseline=(bool(layouts) and machine.network_files.products is not None)
        or (operator.name == "conv2d" and machine.network_files.convolutions is not None),
    )


def work_totals(works: tuple[Work, ...], peak: Array, machine: Machine, count: int) -> tuple[Array, Array, Array]:
    """FLOPs, bytes and roofline time (microseconds, the kernels' sum) of each row."""
    flops = sum((as_column(work.flops, count) for work in works), start=np.zeros(count))
    moved = sum((as_column(work.bytes_moved, count) for work in works), start=np.zeros(count))
    limit_us = sum(
        (
            np.maximum(as_column(work.flops, count) / peak, as_column(work.bytes_moved, count) / machine.bytes_per_us)
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


def gemm_columns(name: str, batch: Array, m: Array, n: Array, k: Array, multiprocessors: int) -> dict[str, Array]:
    """How a batched product [m, k] x [k, n] divides into tiles and waves.

    ``waste`` of a tile size is log of (multiprocessors x whole waves x tile area) / (batch m n): what is paid for
    edges and for the last, partly filled wave.
    """
    area = batch * m * n
    columns = {}
    for rows, cols in TILES:
        waves = batch * in_blocks(m, rows) * in_blocks(n, cols) / multiprocessors
        paid = np.ceil(waves) * multiprocessors * rows * cols
        columns[f"{name} waste {rows}x{cols}"] = np.log(paid / np.maximum(area, 1))
    columns[f"{name} waves"] = np.log(np.maximum(batch * in_blocks(m, 128) * in_blocks(n, 128) / multiprocessors, 1e-6))
    return columns


def row_alignment(sides: tuple[Array, Array, Array, Array], direction: str, index: int) -> Array:
    """log2 of the elements at which every operand's rows are aligned.

    Tensors are stored by rows as the forward has them. Forward [m, k] x [k, n] has rows of k and n, whichever factor is
    transposed; in a backward every second product is the weight's gradient, which sums over the rows of both factors.
    """
    _, m, n, k = sides
    of_weight = direction == "backward" and index % 2 == 1
    return np.minimum(alignment(n), alignment(m if of_weight else k))


def _expected_us(
    works: tuple[Work, ...], product_us: Sequence[Array], peak: Array, machine: Machine, count: int
) -> Array:
    """The baseline: per kernel the roofline, or what its tiles need if that is more, and a launch floor."""
    total = np.zeros(count)
    products = 0
    for work in works:
        moved = as_column(work.bytes_moved, count)
        memory = moved / machine.bytes_per_us
        limit = np.maximum(as_column(work.flops, count) / peak, memory)
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
    tiles: Sequence[tuple[Array, Array]] | None,
    product_us: Sequence[Array],
    machine: Machine,
    count: int,
) -> dict[str, Array]:
    columns: dict[str, Array] = {}
    for index, work in enumerate([work for work in works if work.gemm is not None][:4]):
        sides = _sides(work, count)
        columns.update(gemm_columns(f"gemm {index}", *sides, machine.num_multiprocessors))
        aligned = row_alignment(sides, direction, index)
        columns[f"gemm {index} vector"] = np.minimum(aligned + np.log2(item_size), VECTOR_BYTES_LOG2)
        if index == 0 or direction == "forward":
            columns[f"gemm {index} alignment of n"] = alignment(sides[2])
            columns[f"gemm {index} alignment of k"] = alignment(sides[3])
        columns[f"gemm {index} log narrow"] = np.log(np.minimum(sides[1], sides[2]))
        if work.kind == "gemm" and tiles is not None:
            columns.update(_tile_columns(f"gemm {index}", *tiles[index], product_us[index]))
    return columns


def _convolution_columns(
    operator: Operator,
    p: Parameters,
    direction: str,
    dtypes: NDArray[np.str_],
    item_size: Array,
    peak: Array,
    machine: Machine,
) -> dict[str, Array]:
    """A convolution by the algorithms that a library may run, and what decides among them."""
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
    if machine.has_tile_baseline:
        has_own = direction == "forward" or machine.asks_gradients_together
        networks = machine.network_files.conv2d if has_own else None
        trees = machine.network_files.trees if networks else None
        times = learned_convolution_times(p, direction, item_size, dtypes == "float16", peak, machine, networks, trees)
        learned = times.pop("learned")
        beside = np.clip(np.log(learned / times["expected"]), -_MOST_GAIN, _MOST_GAIN)
        columns |= {f"log {name}": np.log(time) for name, time in {**times, "expected": learned}.items()}
        columns["log learned beside"] = beside
    elif machine.counts_waves:
        times = convolution_times(p, direction, item_size, peak, machine)
        columns |= {f"log {name}": np.log(time) for name, time in times.items()}
    return {name: as_column(value, len(item_size)).astype(np.float64) for name, value in columns.items()}


def _element_columns(works: tuple[Work, ...], item_size: Array, machine: Machine, count: int) -> dict[str, Array]:
    """How the elements of a pointwise kernel divide into blocks: the last, partly filled block takes a slower path."""
    work = next((work for work in works if work.kind == "pointwise"), None)
    if work is None:
        return {}
    elements = np.maximum(as_column(work.bytes_written, count) / item_size, 1.0)
    columns = {f"tail {size}": elements % size / size for size in _BLOCK_ELEMENTS}
    waves = in_blocks(elements, 1024) / (16 * machine.num_multiprocessors)
    return columns | {"elements wave waste": np.minimum(np.log(np.ceil(waves) / waves), MOST_WASTE)}


def _grouped_columns(works: Sequence[Work], rows: Array, log_base: Array, machine: Machine) -> dict[str, Array]:
    """How ATen's grouped product (``GroupMM.cu``) is cut: into one of two tiles, by the rows of all groups and the
    columns, over clusters of two multiprocessors."""
    columns: dict[str, Array] = {}
    for index, work in enumerate(works):
        groups, m, n, k = _sides(work, len(rows))
        # The weight's gradient sums over rows: its own rows are those of one group.
        is_small = ((m if index == 1 else rows) <= _SMALL_SIDE) | (n <= _SMALL_SIDE)
        tall, wide, deep = np.where(is_small, 64, 128), np.where(is_small, 128, 256), np.where(is_small, 128, 64)
        steps = np.ceil(k / deep) * deep / 64
        columns[f"grouped {index} small"] = is_small.astype(np.float64)
        columns[f"grouped {index} log steps"] = np.log(steps)
        for cluster in (1, 2):
            tiles = groups * np.ceil(m / (tall * cluster)) * cluster * np.ceil(n / wide)
            waves = tiles / machine.num_multiprocessors
            # A tile's start takes about as long as four steps.
            rounds = np.ceil(waves) * (steps + 4) * np.where(is_small, 0.5, 1.0)
            columns[f"grouped {index} log waves {cluster}"] = np.log(waves)
            columns[f"grouped {index} wave waste {cluster}"] = np.minimum(np.log(np.ceil(waves) / waves), MOST_WASTE)
            columns[f"grouped {index} pad {cluster}"] = np.log(tiles * tall * wide / (groups * m * n))
            columns[f"grouped {index} rounds beside {cluster}"] = np.log(rounds) - log_base
    return columns


def _optimizer_columns(operator: Operator, p: Parameters) -> dict[str, Array]:
    """How a fused optimizer cuts its tensors into chunks, and these into launches (ATen's ``MultiTensorApply.cuh``)."""
    form = ("adamw", p) if operator.name == "adamw" else operator.general_form(p)
    if form is None or form[0] != "adamw":
        return {}
    tensors, numel = np.asarray(form[1]["tensors"]), np.asarray(form[1]["numel"])
    per_tensor = numel / tensors
    share = numel // tensors
    first = numel - share * (tensors - 1)
    chunks = tensors * in_blocks(per_tensor, CHUNK_ELEMENTS)
    launches = np.maximum(in_blocks(chunks, BLOCKS_A_LAUNCH), in_blocks(tensors, TENSORS_A_LAUNCH[_OPTIMIZER_LISTS]))
    return {
        "log per tensor": np.log(per_tensor),
        "log chunks": np.log(chunks),
        "log launches": np.log(launches),
        "chunk fill": np.log(round_up(per_tensor, CHUNK_ELEMENTS) / per_tensor),
        "chunks of last launch": chunks % BLOCKS_A_LAUNCH / BLOCKS_A_LAUNCH,
        "tail 4": per_tensor % 4,
        "in vectors": ((numel // tensors % 4 == 0) & (numel % tensors % 4 == 0)).astype(np.float64),
        "share in vectors": (first * (first % 4 == 0) + (numel - first) * (share % 4 == 0)) / numel,
    }


def _product_roofline_us(
    sides: tuple[Array, Array, Array, Array], item_size: Array, peak: Array, machine: Machine
) -> Array:
    batch, m, n, k = sides
    moved = batch * (m * k + k * n + m * n) * item_size
    return np.asarray(np.maximum(matmul_flops(m, k, n, batch) / peak, moved / machine.bytes_per_us) + machine.floor_us)


def _tile_columns(name: str, whole: Array, split: Array, product_us: Array) -> dict[str, Array]:
    gain = np.clip(np.log(whole / split), -_MOST_GAIN, _MOST_GAIN)
    beside = np.clip(np.log(product_us / np.minimum(whole, split)), -_MOST_GAIN, _MOST_GAIN)
    return {f"{name} log tiles": np.log(product_us), f"{name} split gain": gain, f"{name} log tiles beside": beside}


def _row_bytes(aligned: Array, item_size: Array) -> Array:
    return np.asarray(np.minimum(2.0**aligned * item_size, 16.0))


def _sides(work: Work, count: int) -> tuple[Array, Array, Array, Array]:
    assert work.gemm is not None
    batch, m, n, k = (as_column(side, count).astype(np.float64) for side in work.gemm)
    return batch, m, n, k
