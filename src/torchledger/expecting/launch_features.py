"""What the regressors see of a kernel launch: its loops, accesses and buffers, or the shape of its library call.

No operator of the user's model is named: a fused kernel is described by what it loads, computes and stores, so that any
model's kernels are covered. What a launch finds in the L2 cache follows from the order of its graph (``cache_state``).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from torchledger.expecting.adaptive_pools import ADAPTIVE_POOLS, pool_columns
from torchledger.expecting.attention_schedules import SCHEDULED, kernel_columns
from torchledger.expecting.cache_state import CacheState
from torchledger.expecting.kernel_details import (
    LITTLE,
    detail_columns,
    detail_times,
    loop_time_us,
    moving_us,
    named_kinds,
    once,
)
from torchledger.expecting.launch_attention import attention_call
from torchledger.expecting.launch_convolutions import ALONE, OF_WIDE_FILTERS, WIDE
from torchledger.expecting.launch_costs import kernel_costs
from torchledger.expecting.launch_families import LIBRARY, family_of
from torchledger.expecting.launch_library import expected_columns, library_columns
from torchledger.expecting.launch_products import LEARNED, TILED
from torchledger.expecting.machine import Machine
from torchledger.expecting.streaming import LOOPED, STREAMED, excess_of, knows_streaming, over_fewer_rows
from torchledger.expecting.tile_columns import EXPECTED
from torchledger.expecting.volume_columns import DEEP, OF_VOLUMES
from torchledger.nouns import Access, Launch, LoopNest
from torchledger.work.categories import operation_of
from torchledger.work.element_sizes import ELEMENT_SIZES, element_size
from torchledger.work.kernel_counts import kernels_of_launch
from torchledger.work.step_traffic import StepTraffic
from torchledger.work.walks import SECTOR_BYTES

Array = NDArray[np.float64]


_TURNS = ("sin", "cos")
_SPECIAL = ("exp", "log", "erf", "tanh", "sigmoid", "pow", "softplus", "expm1", "log1p", "erfinv")
_ROOTS = ("sqrt", "rsqrt", "truediv", "reciprocal", "div")
_RANDOM = ("rand", "randn", "load_seed", "philox")
_SELECT = ("where", "lt", "le", "gt", "ge", "eq", "ne", "and", "or", "logical", "masked", "maximum", "minimum")
_CATEGORIES = {
    name: f"category {name}"
    for name in ("pointwise", "reduction", "persistent_reduction", "cpp", "foreach", "template", "split_scan")
}
_STRETCH = 4096  # elements one after the other beyond which more make no difference


@dataclass(frozen=True)
class LaunchFeatures:
    """Features of one launch by name, its baseline in microseconds and the family whose regressor it belongs to.

    ``parts_us`` are what a fused kernel's baseline is made of, where its blocks are known.
    """

    family: str
    values: Mapping[str, float]
    baseline_us: float
    roofline_us: float
    parts_us: Mapping[str, float] | None = None
    streamed: Mapping[str, float] | None = None
    """The features over fewer rows, of a kernel so large that its size is no matter (``streaming.py``)."""

    def values_for(self, feature_names: Sequence[str]) -> Mapping[str, float]:
        """The features for a regressor of these columns."""
        return self.streamed if self.streamed is not None and knows_streaming(feature_names) else self.values

    def log_baseline_of(self, feature_names: Sequence[str]) -> float:
        """Logarithm of the baseline for a regressor with these features, which may be one of their columns."""
        column = baseline_column(self.family, feature_names)
        return math.log(self.baseline_us) if column is None else self.values.get(column, math.log(self.baseline_us))


def baseline_column(family: str, feature_names: Sequence[str]) -> str | None:
    """The column that a regressor learned beside: attention's schedule, other libraries' calls by their counts of
    kernels, convolutions and products by the networks of their library, fused kernels by their instructions. ``None``
    for others and those of before, which learned beside the roofline or the expected time."""
    if family.startswith("launch:fused"):
        return LOOPED if LOOPED in feature_names else None
    if family.startswith("launch:attention") and SCHEDULED in feature_names:
        return SCHEDULED
    if family.startswith(("launch:attention", "launch:library")) and EXPECTED in feature_names:
        return EXPECTED
    columns = {"launch:convolution": (ALONE,), "launch:gemm": (LEARNED, TILED)}.get(family.partition("/")[0], ())
    return next((column for column in columns if column in feature_names), None)


def knows_steps(feature_names: Sequence[str]) -> bool:
    """Whether a regressor of fused kernels learned what a step leaves in the cache; those of before did not."""
    return "scans" in feature_names


def features_of_launches(
    launches: Sequence[Launch],
    machine: Machine,
    *,
    convolution_tf32: bool = True,
    traffic: Sequence[StepTraffic | None] | None = None,
) -> list[LaunchFeatures | None]:
    """Features of launches that stand in the order in which they run, of one graph or of several.

    ``None`` where a launch cannot be described: it moves an unknown number of bytes or elements of unknown size, or
    launches nothing. ``convolution_tf32`` says that float32 convolutions may run as TF32, as PyTorch has it unless told
    otherwise. ``traffic`` is of the step that each launch is of, one step after the other; ``None`` for a launch before
    whose graph the cache is swept, and for all of them where a model has learned of the names of buffers alone
    (``knows_steps``).
    """
    cache = CacheState(machine.l2_kept_bytes)
    found: list[LaunchFeatures | None] = []
    graph = None
    columns = expected_columns(launches, machine, convolution_tf32=convolution_tf32)
    steps = traffic if traffic is not None else [None] * len(launches)
    for launch, expected, step in zip(launches, columns, steps, strict=True):
        if launch.graph != graph:
            cache = CacheState(machine.l2_kept_bytes, launch.graph, step, by_name=traffic is None)
            graph = launch.graph
        launch = _with_gathered_rows(launch)
        found.append(_features(launch, cache, machine, expected, convolution_tf32))
        cache.touch(launch)
    return found


def _with_gathered_rows(launch: Launch) -> Launch:
    """A sum over rows of a table reads the rows that its indices name; the recording has the whole table."""
    if operation_of(launch) not in ("_embedding_bag", "_embedding_bag_forward_only") or len(launch.buffers) < 2:
        return launch
    table, indices = launch.buffers[:2]
    rows = math.prod(indices.shape)
    if not table.bytes_read or not table.shape or rows >= table.shape[0]:
        return launch
    gathered = table.bytes_read * rows // table.shape[0]
    return replace(launch, buffers=(replace(table, bytes_read=gathered), *launch.buffers[1:]))


def _features(
    launch: Launch, cache: CacheState, machine: Machine, expected: Mapping[str, float], convolution_tf32: bool
) -> LaunchFeatures | None:
    family = family_of(launch)
    read, written = launch.bytes_read, launch.bytes_written
    if family is None or read is None or written is None or not _has_known_elements(launch, family):
        return None
    moved = read + written
    warm = min(cache.warm_bytes(launch), read)
    dtype = _main_dtype(launch)
    flops = float(launch.flops or 0)
    l2_speed = machine.constants.kernels.l2_speed
    memory_us = (moved - warm + warm / l2_speed) / machine.bytes_per_us
    is_convolution = family.startswith("launch:convolution")
    peak = machine.convolution_peak(dtype, allow_tf32=convolution_tf32) if is_convolution else machine.peak(dtype)
    compute_us = flops / peak
    roofline_us = max(memory_us, compute_us)
    values = {
        "log read": math.log1p(read),
        "log written": math.log1p(written),
        "log moved": math.log1p(moved),
        "warm share": warm / max(moved, 1),
        "log memory time": math.log(memory_us + machine.floor_us),
        "log flops": math.log1p(flops),
        "buffers in": float(sum(buffer.role == "input" for buffer in launch.buffers)),
        "buffers out": float(sum(buffer.role != "input" for buffer in launch.buffers)),
        "wide share": _share_of_wide(launch),
        "double share": _share_of_integers(launch),
    }
    baseline_us = roofline_us + machine.floor_us
    parts_us = streamed = None
    if family.startswith("launch:fused"):
        own_ops = _own_ops(launch, machine)
        vector_us = _vector_us(launch, own_ops, machine)
        values |= _loop_columns(launch, own_ops, sum(vector_us), moved, machine)
        details = detail_times(launch, [once(ops) for ops in own_ops], _kinds_of_op, machine)
        values |= detail_columns(details)
        # What this launch brings into the cache drives out as much, and what is dirty there has to be written.
        values["dirty share"] = cache.dirty_share
        baseline_us = max(roofline_us, sum(vector_us)) + machine.floor_us
        if launch.category != "cpp" and machine.counts_waves:
            warm_us = warm / l2_speed / machine.bytes_per_us
            costs = kernel_costs(launch, machine, cold_bytes=moved - warm, warm_us=warm_us, vector_us=vector_us)
            baseline_us, parts_us = costs.baseline_us(machine), {**costs.parts, **details}
            values |= costs.columns(machine, baseline_us) | _times_of_loops(family, parts_us, machine)
        values[STREAMED] = 0.0
        if (excess := excess_of(moved, machine)) > 0:
            streamed = over_fewer_rows(values, excess, machine)
    else:
        values |= {**library_columns(launch, machine), **expected}
        if family.startswith("launch:attention") and (call := attention_call(launch)) is not None:
            values |= kernel_columns(call, machine, cold_bytes=read - warm, read_bytes=read)
        if family == LIBRARY:
            kernels = max(1, kernels_of_launch(launch))
            values[EXPECTED] = math.log(roofline_us + machine.floor_us * kernels)
            if pools := pool_columns(launch):
                family, values = ADAPTIVE_POOLS, {**values, **pools}
    if EXPECTED in expected and machine.has_tile_baseline and not family.startswith("launch:attention"):
        baseline_us = math.exp(expected[EXPECTED])
    if values.get(DEEP):
        family += OF_VOLUMES
    elif values.get(WIDE):
        family += OF_WIDE_FILTERS
    return LaunchFeatures(family, values, baseline_us, roofline_us, parts_us, streamed)


def _has_known_elements(launch: Launch, family: str) -> bool:
    """Whether the size of an element is known wherever the family's columns ask for it."""
    if family.startswith("launch:fused"):
        return all(element_size(access.dtype) is not None for nest in launch.loops for access in nest.accesses)
    return family == LIBRARY or all(element_size(buffer.dtype) for buffer in launch.buffers)


def _vector_us(launch: Launch, own_ops: Sequence[Mapping[str, int]], machine: Machine) -> list[float]:
    """Time of the vector instructions of each nest, all lanes busy; ``own_ops`` are of ``_own_ops``."""
    lanes = machine.vector_instructions_per_us
    instructions = machine.constants.kernels.instructions
    return [
        math.prod(nest.extents)
        * math.prod(nest.reduction_extents)
        * sum(instructions[_kind_of_op(name)] * number for name, number in ops.items())
        / lanes
        for nest, ops in zip(launch.loops, own_ops, strict=True)
    ]


def _own_ops(launch: Launch, machine: Machine) -> list[dict[str, int]]:
    """Operations of each nest that no earlier one of the same pass does: nests that share a pass over the data share
    what they compute, and the recording has it in each of them."""
    done: dict[tuple[int, bool], dict[str, int]] = {}
    found = []
    for nest in launch.loops:
        looped = launch.category == "reduction" and bool(nest.reduction_extents)
        same = done.setdefault((math.prod(nest.extents) * math.prod(nest.reduction_extents), looped), {})
        own = {name: max(0, number - same.get(name, 0)) for name, number in nest.ops.items()}
        found.append({name: number * _steps_of_op(name, nest, launch, machine) for name, number in own.items()})
        same |= {name: max(number, same.get(name, 0)) for name, number in nest.ops.items()}
    return found


_OPS_OF_AN_EXCHANGE, _OPS_OF_A_WIDE_ONE, _OPS_OF_ITS_INDEX = 17, 54, 43
"""Selections of one element in one exchange of a sort, of up to two bytes and of more, and of its index where that is
wanted too. By the three that were measured on an H200: 8,320 rows of 512 in bfloat16 take 77 us, 2,816 rows of 256 with
indices 37, 4,608 rows of 512 in float32 with indices 242."""


_NARROW = 2  # bytes
_SCANNED_AT_ONCE = {"persistent_reduction": 1 << 20, "split_scan": 2048}
_LOOPED_SCAN = 32
"""Elements of a running sum that a block takes at a time, by category; and where its loop goes over more."""


def _steps_of_op(name: str, nest: LoopNest, launch: Launch, machine: Machine) -> int:
    """Operations that one of a nest stands for, at one element. A sort within a block is Batcher's network: rounds of
    1, 2, 3, ... exchanges for each doubling of its length. A running sum takes a step for each."""
    length = max(2, math.prod(nest.reduction_extents))
    if name == "scan" and machine.knows_directions:
        return (min(length, _SCANNED_AT_ONCE.get(launch.category, _LOOPED_SCAN)) - 1).bit_length()
    if name != "sort":
        return 1
    doublings = (length - 1).bit_length()
    exchanges = doublings * (doublings + 1) // 2
    if not machine.knows_sorted_indices:
        return _OPS_OF_AN_EXCHANGE * exchanges
    is_wide = any((element_size(access.dtype) or 0) > _NARROW for access in nest.accesses if access.kind == "load")
    values, results = _OPS_OF_A_WIDE_ONE if is_wide else _OPS_OF_AN_EXCHANGE, nest.ops[name]
    return exchanges * (values + (results - 1) * _OPS_OF_ITS_INDEX) // results


def _times_of_loops(family: str, parts: Mapping[str, float], machine: Machine) -> dict[str, float]:
    """The time of a fused kernel by its instructions, which later regressors learn beside, and as a feature."""
    move = machine.constants.kernels.move
    values = {"log moving time": math.log(moving_us(parts, move) + LITTLE)}
    costs = machine.loop_costs.get(family.rpartition("/")[2])
    if costs is None:
        return values
    time_us = float(loop_time_us(parts, costs, move=move, floor_us=machine.floor_us))
    return values | {LOOPED: math.log(time_us), "log loops": math.log(time_us)}


def _loop_columns(
    launch: Launch, own_ops: Sequence[Mapping[str, int]], vector_us: float, moved: int, machine: Machine
) -> dict[str, float]:
    nests = launch.loops
    iterations = [math.prod(nest.extents) * math.prod(nest.reduction_extents) for nest in nests]
    main = max(range(len(nests)), key=lambda index: iterations[index], default=None)
    total = float(sum(iterations))
    counts: dict[str, float] = {"turn": 0, "special": 0, "root": 0, "random": 0, "select": 0, "plain": 0}
    for ops, count in zip(own_ops, iterations, strict=True):
        for name, number in ops.items():
            counts[_kind_of_op(name)] += number * count
    largest = nests[main] if main is not None else LoopNest(())
    outer, inner = math.prod(largest.extents), math.prod(largest.reduction_extents)
    last = (1, *largest.extents, *largest.reduction_extents)[-1]
    reductions = [nest for nest in nests if nest.reduction_extents]
    scans = [place for place, nest in enumerate(nests) if nest.reduction_type == "scan"]
    reduced = max((math.prod(nest.reduction_extents) for nest in reductions), default=1)
    kept = max((math.prod(nest.extents) for nest in reductions), default=1)
    values = {"log vector time": math.log(vector_us + machine.floor_us)}
    values |= {column: float(launch.category == name) for name, column in _CATEGORIES.items()}
    values |= {f"log {kind} ops": math.log1p(number) for kind, number in counts.items()}
    values |= {
        "log iterations": math.log1p(total),
        "nests": float(len(nests)),
        "reductions": float(len(reductions)),
        "log outer": math.log1p(outer),
        "log inner": math.log1p(inner),
        "log reduced": math.log(max(reduced, 1)),
        "log kept": math.log(max(kept, 1)),
        "kept waves": math.log(max(kept, 1) / machine.num_multiprocessors),
        "dimensions": float(len(largest.extents) + len(largest.reduction_extents)),
        "log last extent": math.log(max(last, 1)),
        "last alignment": _alignment(last),
        "log ops per byte": math.log1p(sum(counts.values()) / max(moved, 1)),
        "scans": float(len(scans)),
        "log scan iterations": math.log1p(sum(iterations[place] for place in scans)),
        "log scanned": math.log(max((math.prod(nests[place].reduction_extents) for place in scans), default=1) or 1),
        "welford": float(any("welford" in str(nest.reduction_type) for nest in nests)),
        "ordered": float(any(nest.reduction_type in ("max", "min", "argmax", "argmin") for nest in nests)),
    }
    return values | _access_columns(zip(nests, iterations, strict=True), max(moved, 1))


def _access_columns(nests: Iterable[tuple[LoopNest, int]], moved: int) -> dict[str, float]:
    """Requested bytes by how the innermost contiguous loop meets them."""
    kinds = {"contiguous": 0.0, "broadcast": 0.0, "strided": 0.0, "unknown": 0.0, "indirect": 0.0, "atomic": 0.0}
    loads = stores = requested = sectors = scattered_loads = scattered_stores = 0.0
    runs, stretches = {"load": 0.0, "store": 0.0}, {"load": 0.0, "store": 0.0}
    by_reduction = across = 0.0
    for nest, count in nests:
        lead = _leading_loop(nest)
        for access in nest.accesses:
            size = ELEMENT_SIZES[access.dtype or ""]
            amount = float(count * size)
            requested += amount
            stride = access.strides[lead] if lead is not None and lead < len(access.strides) else None
            kind = _kind_of_access(access, stride)
            kinds[kind] += amount
            spread = 1.0 if stride is None else 1 / 8
            if stride:
                spread = min(abs(stride) * size, SECTOR_BYTES) / size
            sectors += amount * max(spread, 1 / 8)
            if stride not in (0, 1):
                scattered_loads += amount if access.kind == "load" else 0.0
                scattered_stores += amount if access.kind != "load" else 0.0
            of_kind = "load" if access.kind == "load" else "store"
            run = max(_run(nest, access), 1)
            runs[of_kind] += amount * math.log(run)
            stretches[of_kind] += amount * math.log(min(run, _STRETCH))
            loads += access.kind == "load"
            stores += access.kind != "load"
            if nest.reduction_extents and access.kind == "load":
                last = access.strides[-1] if access.strides else None
                by_reduction += amount if last == 1 else 0.0
                across += amount if last not in (0, 1) else 0.0
    whole = max(requested, 1.0)
    return {f"{kind} share": amount / whole for kind, amount in kinds.items()} | {
        "loads": loads,
        "stores": stores,
        "log requested per moved": math.log(whole / moved),
        "log sectors per moved": math.log(max(sectors, 1.0) / moved),
        "scattered load share": scattered_loads / whole,
        "scattered store share": scattered_stores / whole,
        "log load run": runs["load"] / whole,
        "log store run": runs["store"] / whole,
        "log load stretch": stretches["load"] / whole,
        "log store stretch": stretches["store"] / whole,
        "reduced along rows": by_reduction / whole,
        "reduced across rows": across / whole,
    }


def _leading_loop(nest: LoopNest) -> int | None:
    """The loop along which most bytes are contiguous: neighbouring threads walk along it."""
    votes: dict[int, int] = {}
    for access in nest.accesses:
        for place, stride in enumerate(access.strides):
            if stride == 1:
                votes[place] = votes.get(place, 0) + ELEMENT_SIZES[access.dtype or ""]
    return max(votes, key=lambda place: votes[place]) if votes else None


def _run(nest: LoopNest, access: Access) -> int:
    """How many elements an access walks over one after the other: the extents of its loops of stride 1, then the next
    that carries on where these end."""
    extents = (*nest.extents, *nest.reduction_extents)
    left = [(stride, extent) for stride, extent in zip(access.strides, extents, strict=False) if stride]
    run = 1
    for stride, extent in sorted(left, key=lambda pair: abs(pair[0])):
        if abs(stride) != run:
            break
        run *= extent
    return run


def _kind_of_access(access: Access, stride: int | None) -> str:
    if access.kind == "atomic":
        return "atomic"
    if access.is_indirect:
        return "indirect"
    if stride is None:
        return "unknown"
    return {0: "broadcast", 1: "contiguous"}.get(stride, "strided")


@lru_cache(maxsize=10_000)
def _kinds_of_op(name: str) -> tuple[str, ...]:
    """What an operation is to ``detail_times``."""
    others = {"turn": "circular", "random": "random", "select": "select"}
    return named_kinds(name) or (others.get(_kind_of_op(name), "plain"),)


@lru_cache(maxsize=10_000)
def _kind_of_op(name: str) -> str:
    if any(word in name for word in _RANDOM):
        return "random"
    if name.removeprefix("libdevice_").rstrip("h") in _TURNS:
        # Sine and cosine of large arguments reduce them in many steps.
        return "turn"
    if any(name.startswith((word, f"libdevice_{word}")) for word in _SPECIAL):
        return "special"
    if any(name.startswith(word) for word in _ROOTS):
        return "root"
    return "select" if any(word in name for word in _SELECT) else "plain"


def _main_dtype(launch: Launch) -> str:
    """The dtype of most input bytes: at its rate the products run."""
    weight: dict[str, int] = {}
    for buffer in launch.buffers:
        if buffer.dtype.startswith(("float", "bfloat")):
            weight[buffer.dtype] = weight.get(buffer.dtype, 0) + (buffer.bytes_read or 0) + 1
    if not weight and launch.flops:  # a product of integers runs at the rate of elements as large
        return max(launch.buffers, key=lambda buffer: buffer.bytes_read or 0).dtype
    return max(weight, key=lambda name: weight[name]) if weight else "float32"


def _share_of_wide(launch: Launch) -> float:
    return _share(launch, ("float32", "int32"))


def _share_of_integers(launch: Launch) -> float:
    return _share(launch, ("int64", "float64"))


def _share(launch: Launch, dtypes: tuple[str, ...]) -> float:
    total = chosen = 0
    for buffer in launch.buffers:
        amount = (buffer.bytes_read or 0) + (buffer.bytes_written or 0)
        total += amount
        chosen += amount if buffer.dtype in dtypes else 0
    return chosen / max(total, 1)


def _alignment(value: int) -> float:
    return float(math.log2(min(value & -value, 256))) if value > 0 else 8.0
