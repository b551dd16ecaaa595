"""What a library call computes, from the shapes and strides of its buffers."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from torchledger.fitting.attention_features import attention_columns
from torchledger.fitting.attention_times import AttentionCall, attention_us, schedule_columns
from torchledger.fitting.convolution_network import learned_convolution_times
from torchledger.fitting.convolution_times import convolution_times
from torchledger.fitting.depth_folding import DEEP, is_deep, without_depth
from torchledger.fitting.launch_families import family_of
from torchledger.fitting.machine import Machine
from torchledger.fitting.operator_features import gemm_columns
from torchledger.fitting.pass_networks import Elements, passes_and_choices, passes_of_call, runs_one_by_one
from torchledger.fitting.product_times import product_times
from torchledger.nouns import Buffer, Launch
from torchledger.work.categories import operation_of
from torchledger.work.element_sizes import element_size
from torchledger.work.kernel_counts import INTEGERS, kernels_of_launch


def library_columns(launch: Launch, machine: Machine) -> dict[str, float]:
    """Features of a library call; those of an unknown kind are only its bytes and FLOPs."""
    kind = str(family_of(launch)).split("/")[0]
    inputs, outputs = _tensors(launch)
    if kind == "launch:gemm":
        return _product(launch, inputs, outputs, machine)
    if kind == "launch:attention":
        return _attention(launch, inputs, machine)
    if kind == "launch:convolution":
        flat = without_depth(inputs, outputs, is_backward="backward" in operation_of(launch))
        return {**_convolution(launch, *flat, machine), DEEP: float(is_deep(inputs))}
    largest = max(launch.buffers, key=lambda buffer: math.prod(buffer.shape), default=None)
    indices = max((math.prod(buffer.shape) for buffer in inputs if buffer.dtype in INTEGERS), default=0)
    name = operation_of(launch)
    # What its bytes say little of: how a time goes with them differs from one of these to the next.
    kinds = {f"is {kind}": float(kind in name) for kind in _KINDS} | {"is gradient": float("backward" in name)}
    return {
        "log largest": math.log1p(math.prod(largest.shape)) if largest else 0.0,
        "log kernels": math.log(kernels_of_launch(launch) or 1),
        "log indices": math.log1p(indices),
        "log row": math.log1p(inputs[0].shape[-1]) if inputs else 0.0,
        "log rows": math.log1p(math.prod(inputs[0].shape[:-1])) if inputs else 0.0,
        "log made": math.log1p(max((math.prod(buffer.shape) for buffer in outputs), default=0)),
        "channels last": float(any(len(b.shape) == 4 and b.stride[1] == 1 < b.shape[1] for b in inputs)),
        "along rows": float(next(iter(launch.kwargs.values()), "") in ("1", "-1")),
        "half precision": float(any(buffer.dtype in ("bfloat16", "float16") for buffer in inputs)),
        **kinds,
    }


_KINDS = (
    *("embedding", "index", "scatter", "sort", "topk", "cumsum", "sum", "rand", "norm", "pool", "fft"),
    *("embedding_bag", "embedding_dense", "cum", "bicubic", "bilinear", "nearest", "grid", "im2col", "pad", "cholesky"),
    *("multinomial", "unique", "bincount", "histc", "nonzero", "masked", "median", "kthvalue", "cdist", "reduce"),
)
EXPECTED = "log expected"
"""The column that holds the logarithm of the time by the library's tiles, where they are known."""

_SINGLE = 4.0  # bytes of an element
_ALONE = "alone"
ALONE = f"log {_ALONE}"
"""Of a convolution by the networks of its single passes; the expected time where they are unknown."""

OPEN_CHOICE = "open choice"
"""The column that says how far a convolution's time varies over the kernels that the library may take for it."""

ONE_BY_ONE = "one by one"
"""The column of forwards that launch a kernel for each channel."""

EXACT_FLOAT32 = "exact float32"
"""The column of convolutions of float32 that must not be rounded for the tensor cores."""


def expected_columns(
    launches: Sequence[Launch], machine: Machine, *, convolution_tf32: bool = True
) -> list[dict[str, float]]:
    """For each launch the columns that need its tiles' times: all of them computed at once, as one costs as many steps
    as a thousand. Empty for what is neither a matrix product, a convolution nor attention, and where it is unknown how
    many tiles run at once."""
    found: list[dict[str, float]] = [{} for _ in launches]
    if not machine.counts_waves:
        return found
    products: list[tuple[int, tuple[float, ...]]] = []
    convolutions: dict[str, list[tuple[int, dict[str, float]]]] = {"forward": [], "backward": [], "weight": []}
    for index, launch in enumerate(launches):
        kind = str(family_of(launch)).split("/")[0]
        inputs, outputs = _tensors(launch)
        if kind == "launch:gemm" and (row := product_of(launch, machine)) is not None:
            products.append((index, row))
        elif kind == "launch:attention" and (call := attention_call(launch)) is not None:
            if (time_us := attention_us(call, machine)) is not None:
                found[index] = {EXPECTED: math.log(time_us), **schedule_columns(call, machine)}
        elif kind == "launch:convolution" and (given := _convolution_shape(launch, inputs, outputs)) is not None:
            given["peak"] = machine.convolution_peak(inputs[-1].dtype, allow_tf32=convolution_tf32)
            convolutions[str(family_of(launch)).split("/")[1]].append((index, given))
    if products:
        batch, m, n, k, row_bytes, item_size, peak = np.array([row for _, row in products]).T
        whole, split = product_times((batch, m, n, k), row_bytes, item_size, peak, machine)
        for place, (index, _) in enumerate(products):
            gain = float(np.clip(np.log(whole[place] / split[place]), -1.5, 1.5))
            found[index] = {EXPECTED: float(np.log(min(whole[place], split[place]))), "split gain": gain}
    for direction, rows in convolutions.items():
        for place, of_one in enumerate(_convolution_columns(direction, [given for _, given in rows], machine)):
            index, given = rows[place]
            found[index] = {
                **of_one,
                EXACT_FLOAT32: float(given["item size"] == _SINGLE and not convolution_tf32),
            }
    return found


def _convolution_columns(
    direction: str, given: Sequence[Mapping[str, float]], machine: Machine
) -> Iterator[dict[str, float]]:
    """What the times of its algorithms say of each convolution of a direction."""
    if not given:
        return
    columns = {name: np.array([row[name] for row in given]) for name in given[0]}
    item_size, peak, copied_bytes = (columns.pop(name) for name in ("item size", "peak", "copied bytes"))
    is_float16, is_transposed = (columns.pop(name) > 0 for name in ("float16", "transposed"))
    is_exact = (item_size == _SINGLE) & (peak <= machine.peak("float32"))
    alone, open_choice = None, np.zeros(len(given))
    if machine.has_tile_baseline:
        times = learned_convolution_times(columns, direction, item_size, is_float16, peak, machine)
        times["way"], times["expected"] = times["expected"], times.pop("learned")
        elements = Elements(item_size, is_float16 | is_exact, peak)
        alone, open_choice = _passes_alone(columns, direction, elements, is_transposed, machine)
    else:
        times = convolution_times(columns, direction, item_size, peak, machine)
    is_slow = runs_one_by_one(columns, direction, item_size) & ~is_transposed & (alone is not None)
    copied = machine.constants.convolutions.copy_over_dram * copied_bytes / machine.bytes_per_us
    copied += np.where(copied_bytes > 0, machine.floor_us, 0.0)
    times["expected"] = times["expected"] + copied
    if machine.has_tile_baseline:
        times[_ALONE] = times["expected"] if alone is None else alone + copied
    for place in range(len(given)):
        logarithms = {f"log {name}": math.log(time[place]) for name, time in times.items()}
        yield {**logarithms, ONE_BY_ONE: float(is_slow[place]), OPEN_CHOICE: float(open_choice[place])}


def _passes_alone(
    columns: Mapping[str, NDArray[np.float64]],
    direction: str,
    elements: Elements,
    is_transposed: NDArray[np.bool_],
    machine: Machine,
) -> tuple[NDArray[np.float64] | None, NDArray[np.float64]]:
    """Microseconds of the passes that a direction runs by their own networks, ``None`` without any, and how open the
    library's choice is."""
    found, open_choice = np.zeros((2, len(is_transposed)))
    for side in (False, True):
        rows = np.flatnonzero(is_transposed == side)
        if not len(rows):
            continue
        passes = passes_of_call(direction, is_transposed=side)
        own = {name: value[rows] for name, value in columns.items()}
        times = passes_and_choices(own, passes, elements.some(rows), machine)
        if times is None:
            return None, open_choice
        found[rows], open_choice[rows] = times
    return found, open_choice


def _tensors(launch: Launch) -> tuple[list[Buffer], list[Buffer]]:
    inputs = [buffer for buffer in launch.buffers if buffer.role != "output" and len(buffer.shape) > 0]
    outputs = [buffer for buffer in launch.buffers if buffer.role != "input" and len(buffer.shape) > 0]
    return inputs, outputs


def product_of(launch: Launch, machine: Machine) -> tuple[float, ...] | None:
    """Of a matrix product (batch, m, n, k), bytes at which rows begin, bytes of an element, and the device's peak in
    FLOP per microsecond; ``None`` where these are unknown, the factors are not plain, or it is none."""
    if not str(family_of(launch)).startswith("launch:gemm"):
        return None
    inputs, outputs = _tensors(launch)
    factors = _factors(launch, inputs)
    if len(factors) < 2 or not outputs or len(outputs[0].shape) < 2:
        return None
    (left, right), product = factors, outputs[0]
    item_size = element_size(right.dtype)
    if item_size is None:
        return None
    strides = [max(factor.stride[-2:]) for factor in factors] + [_row_stride(product)]
    row_bytes = min(2.0 ** _alignment(stride) for stride in strides) * item_size
    sizes = (float(max(side, 1)) for side in _sides(launch, left, right, product))
    return (*sizes, min(row_bytes, 16.0), float(item_size), machine.peak(right.dtype))


def _factors(launch: Launch, inputs: Sequence[Buffer]) -> list[Buffer]:
    """What is multiplied: the last two matrices, behind what is added to the product; the first two where scales or the
    ends of groups stand behind them."""
    matrices = [buffer for buffer in inputs if len(buffer.shape) >= 2]
    name = operation_of(launch)
    return matrices[:2] if "scaled" in name or "grouped" in name else matrices[-2:]


def _sides(launch: Launch, left: Buffer, right: Buffer, product: Buffer) -> tuple[int, int, int, int]:
    """Batch, rows, columns and inner length of a product. Groups whose sizes the data decide are taken for equal ones:
    as many products, of that share of the rows, the columns, or (gradients of weights) the inner length."""
    batch, (m, n), k = math.prod(product.shape[:-2]), product.shape[-2:], left.shape[-1]
    stacked = [buffer for buffer in (left, right, product) if len(buffer.shape) == 3]
    if "grouped" not in operation_of(launch) or len(stacked) != 1:
        return batch, m, n, k
    groups = stacked[0].shape[0]
    if stacked[0] is right:
        return groups, math.ceil(m / groups), n, k
    return (groups, m, math.ceil(n / groups), k) if stacked[0] is left else (groups, m, n, math.ceil(k / groups))


def _row_stride(product: Buffer) -> int:
    """Elements from one row of a product to the next: more than a row has where Inductor padded it."""
    return max(product.shape[-1], product.stride[-2] if product.shape[-2] > 1 else 0)


def _convolution_shape(launch: Launch, inputs: list[Buffer], outputs: list[Buffer]) -> dict[str, float] | None:
    """The parameters of ``conv2d`` and the size of an element; ``None`` where that is unknown or the tensors are not
    plain."""
    inputs, outputs = without_depth(inputs, outputs, is_backward="backward" in operation_of(launch))
    images = _planes(inputs)
    if "backward" in operation_of(launch):
        if len(images) < 3:
            return None
        result, image, weight = images[:3]
    else:
        results = _planes(outputs)
        if len(images) < 2 or not results:
            return None
        image, weight, result = images[0], images[1], results[0]
    is_transposed = _is_transposed(image, weight, result)
    if is_transposed:
        image, result = result, image
    item_size, channels_last = element_size(image.dtype), _is_channels_last(image, weight)
    if item_size is None:
        return None
    count, channels, height, width = image.shape
    out_channels, per_group, tall, kernel = weight.shape
    stride = max(round(width / max(result.shape[3], 1)), 1)
    return {
        "n": count,
        "c_in": channels,
        "height": height,
        "width": width,
        "c_out": out_channels,
        "kernel": kernel,
        "stride": stride,
        "kernel_height": tall,
        # As much as makes the result as large as it is.
        "padding": max(math.ceil(((result.shape[3] - 1) * stride + kernel - width) / 2), 0),
        "padding_height": max(math.ceil(((result.shape[2] - 1) * stride + tall - height) / 2), 0),
        "groups": max(channels // max(per_group, 1), 1),
        "channels_last": float(channels_last),
        "item size": float(item_size),
        "float16": float(image.dtype == "float16"),
        "transposed": float(is_transposed),
        "copied bytes": item_size * sum(_copied_elements(buffer, channels_last) for buffer in images),
    }


def _product(launch: Launch, inputs: list[Buffer], outputs: list[Buffer], machine: Machine) -> dict[str, float]:
    factors = _factors(launch, inputs)
    with_bias = operation_of(launch) in ("addmm", "baddbmm", "_addmm_activation")
    if len(factors) < 2 or not outputs:
        return {"described": 0.0}
    left, right = factors
    product = outputs[0]
    batch, m, n, k = _sides(launch, left, right, product)
    return {
        **_tiles_of_product("gemm", batch, m, n, k, machine.num_multiprocessors),
        "described": 1.0,
        "log batch": math.log(max(batch, 1)),
        "log m": math.log(max(m, 1)),
        "log n": math.log(max(n, 1)),
        "log k": math.log(max(k, 1)),
        "bias": float(with_bias),
        "left by columns": float(left.stride[-1] != 1),
        "right by columns": float(right.stride[-1] != 1),
        "wide output": float(product.dtype == "float32"),
        "left row stride alignment": _alignment(max(left.stride[-2:])),
        "right row stride alignment": _alignment(max(right.stride[-2:])),
        "product row alignment": _alignment(_row_stride(product)),
        "batch broadcast": float(any(size == 0 for buffer in factors for size in buffer.stride[:-2])),
    }


def attention_call(launch: Launch) -> AttentionCall | None:
    """A launch of attention as its library sees it; ``None`` for other libraries, and where its tensors are not those
    of a call."""
    name, (inputs, _) = operation_of(launch), _tensors(launch)
    library = next((each for each in ("flash", "cudnn", "efficient") if f"_{each}_" in name), None)
    tensors = [buffer for buffer in inputs if len(buffer.shape) == 4]
    backward = "backward" in name
    if library is None or len(tensors) < 3 + backward:
        return None
    query, key = tensors[backward], tensors[backward + 1]
    batch, heads, length, d = query.shape
    if min(*query.shape, *key.shape) < 1:
        return None
    biases = _biases(inputs, key.shape[2], d)
    return AttentionCall(
        library, backward, query.dtype == "float32", batch, heads, key.shape[1], length, key.shape[2], d,
        is_causal=is_causal(launch),
        has_bias=bool(biases),
        is_strided=backward and len(tensors[0].stride) == 4 and tensors[0].stride[1] > tensors[0].stride[2],
        has_dropout=has_dropout(launch),
        is_bias_odd=any(map(_is_odd, biases)),
        is_float16=query.dtype == "float16",
        bias_elements=max(map(_stored_elements, biases), default=0),
    )  # fmt: skip


def _biases(inputs: Sequence[Buffer], length_kv: int, d: int) -> list[Buffer]:
    return [buffer for buffer in inputs if len(buffer.shape) == 4 and buffer.shape[-1] == length_kv != d]


def _is_odd(bias: Buffer) -> bool:
    """Whether rows of a bias do not begin where sixteen bytes do."""
    return len(bias.stride) == 4 and bias.stride[-2] * (element_size(bias.dtype) or 1) % 16 != 0


def _stored_elements(buffer: Buffer) -> int:
    """Elements of a tensor that lie in memory: along a stride of 0 all are one."""
    return math.prod(size for size, stride in zip(buffer.shape, buffer.stride, strict=True) if stride)


def has_dropout(launch: Launch) -> bool:
    """Whether a call of attention drops some of its weights: by its arguments, in which generated code gives the rate
    by place, before the scale."""
    named = [value for name, value in launch.kwargs.items() if "dropout" in name]
    scale = launch.kwargs.get("scale")
    places = sorted((int(name[3:]), value) for name, value in launch.kwargs.items() if name[3:].isdigit())
    rates = named or [value for _, value in places if "." in value and value != scale]
    try:
        return bool(rates) and 0 < float(rates[0]) < 1
    except ValueError:
        return False


def _attention(launch: Launch, inputs: list[Buffer], machine: Machine) -> dict[str, float]:
    queries = [buffer for buffer in inputs if len(buffer.shape) == 4]
    if len(queries) < 3:
        return {"described": 0.0}
    backward = "backward" in operation_of(launch)
    query, key = (queries[1], queries[2]) if backward else (queries[0], queries[1])
    batch, heads, length, d = query.shape
    length_kv, heads_kv = key.shape[-2], key.shape[1]
    biases = _biases(inputs, length_kv, d)
    full = 4.0 * batch * heads * length * length_kv * d * (2.5 if backward else 1.0)
    name = operation_of(launch)
    columns = attention_columns(
        np.array([float(batch * heads)]), np.array([float(length)]), np.array([float(d)]), machine
    )
    causal = is_causal(launch)
    return {key_name: float(column[0]) for key_name, column in columns.items()} | {
        "described": 1.0,
        "log heads": math.log(batch * heads),
        "log length": math.log(length),
        "log length kv": math.log(length_kv),
        "log d": math.log(d),
        "grouped": math.log(heads / max(heads_kv, 1)),
        "log full flops": math.log(full),
        # A causal mask hides half of the square; FLOPs are counted over all of it.
        "visible share": 0.5 * (1 + 1 / max(length, 1)) if causal else min((launch.flops or full) / full, 2.0),
        "causal": float(causal),
        "is flash": float("flash" in name),
        "is cudnn": float("cudnn" in name),
        "is efficient": float("efficient" in name),
        "length alignment": _alignment(length),
        "bias": float(bool(biases)),
        "odd bias": float(any(map(_is_odd, biases))),
        "dropout": float(has_dropout(launch)),
    }


def is_causal(launch: Launch) -> bool:
    """Whether a call of attention hides what comes later, by its arguments: generated code gives them by place, and
    the flag stands behind the one for the log-sum-exp (or, backward, the mask of four gradients)."""
    named = [value for name, value in launch.kwargs.items() if "causal" in name]
    if named:
        return named[0].lower() == "true"
    places = sorted((int(name[3:]), value) for name, value in launch.kwargs.items() if name[3:].isdigit())
    flags = [value == "True" for _, value in places if value in ("True", "False")]
    name = operation_of(launch)
    before = 0 if "flash" in name else 4 if "efficient" in name else 0
    if "backward" not in name:
        before = 0 if "flash" in name else 1
    return len(flags) > before and flags[before]


def _convolution(launch: Launch, inputs: list[Buffer], outputs: list[Buffer], machine: Machine) -> dict[str, float]:
    images = _planes(inputs)
    if len(images) < 2 or not outputs:
        return {"described": 0.0}
    backward = "backward" in operation_of(launch)
    if backward and len(images) >= 3:
        gradient, image, weight = images[:3]
        result = gradient
    else:
        image, weight = images[:2]
        result = next(iter(_planes(outputs)), outputs[0])
    is_transposed = _is_transposed(image, weight, result)
    if is_transposed:
        image, result = result, image
    count, channels, height, width = image.shape
    out_channels, per_group, tall, kernel = weight.shape
    groups = max(1, channels // max(per_group, 1))
    pixels = count * math.prod(result.shape[2:]) if len(result.shape) == 4 else count
    taps = per_group * kernel * tall
    made = _planes(outputs)
    return {
        **_tiles_of_product("conv", groups, pixels, out_channels / groups, taps, machine.num_multiprocessors),
        "described": 1.0,
        "log count": math.log(count),
        "log channels": math.log(channels),
        "log out channels": math.log(out_channels),
        "log pixels": math.log(max(pixels, 1)),
        "log side": math.log(max(height, width if height == 1 else 1)),
        "kernel": float(kernel),
        "log groups": math.log(groups),
        "depthwise": float(per_group == 1 and channels > 1),
        "transposed": float(is_transposed),
        "stride": float(round(width / max(result.shape[-1], 1))) if len(result.shape) == 4 else 1.0,
        "channels last": float(_is_channels_last(image, weight)),
        "image channels last": float(image.stride[1] == 1 and channels > 1),
        "weight channels last": float(weight.stride[1] == 1 and per_group > 1),
        "result channels last": float(len(result.shape) == 4 and result.stride[1] == 1),
        "gradients": float(len(made)),
        "channel alignment": _alignment(per_group),
        "out channel alignment": _alignment(out_channels),
    }


def _is_transposed(image: Buffer, weight: Buffer, result: Buffer) -> bool:
    """Whether a convolution runs the other way round, from ``result`` to ``image``: its weight is then stored by the
    channels of what it is given."""
    if len(result.shape) != 4:
        return False
    if weight.shape[0] != result.shape[1]:
        return True
    return weight.shape[0] == image.shape[1] and math.prod(result.shape[2:]) > math.prod(image.shape[2:])


def _planes(buffers: Sequence[Buffer]) -> list[Buffer]:
    """The images among buffers; ATen runs a convolution along one dimension as one over images of height 1."""
    found = []
    for buffer in buffers:
        if len(buffer.shape) == 3:
            count, channels, width = buffer.shape
            outer, inner, last = buffer.stride
            plane = (count, channels, 1, width), (outer, inner, last * width, last)
            buffer = replace(buffer, shape=plane[0], stride=plane[1])
        if len(buffer.shape) == 4:
            found.append(buffer)
    return found


def _is_channels_last(image: Buffer, weight: Buffer) -> bool:
    """Whether ATen runs a convolution with channels last: it does for the sake of either tensor (``ConvUtils.h``)."""
    of_image = image.stride[1] == 1 and image.shape[1] > 1
    if image.shape[2] == weight.shape[2] == 1 < weight.shape[3]:
        # One dimension: ATen makes its tensors contiguous first.
        return False
    _, per_group, kernel, _ = weight.shape
    of_weight = weight.stride[1] == 1 and weight.stride[3] == per_group and per_group * kernel > 1
    return of_image or of_weight


def _copied_elements(buffer: Buffer, channels_last: bool) -> float:
    """Elements read and written to bring an image into the layout in which the convolution runs, if it has another."""
    count, channels, height, width = buffer.shape
    dense = (1, width * channels, channels) if channels_last else (height * width, width, 1)
    plain = all(
        size == 1 or have == want for size, have, want in zip(buffer.shape[1:], buffer.stride[1:], dense, strict=True)
    )
    return 0.0 if plain else 2.0 * count * channels * height * width


@lru_cache(maxsize=20_000)
def _tiles_of_product(
    name: str, batch: float, m: float, n: float, k: float, multiprocessors: int
) -> Mapping[str, float]:
    """``gemm_columns`` of one product: the layers of a model have alike ones."""
    rows = np.array([[float(max(side, 1))] for side in (batch, m, n, k)])
    columns = gemm_columns(name, rows[0], rows[1], rows[2], rows[3], multiprocessors)
    return {column: float(values[0]) for column, values in columns.items()}


def _alignment(value: float) -> float:
    whole = int(value)
    return float(math.log2(min(whole & -whole, 256))) if whole > 0 else 8.0
