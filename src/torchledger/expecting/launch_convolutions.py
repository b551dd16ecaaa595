"""Convolutions among launches: their sizes, the passes that they run, and what their library needs for these."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from torchledger.expecting.convolution_network import learned_convolution_times
from torchledger.expecting.convolution_times import convolution_times
from torchledger.expecting.depth_folding import DEEP, is_deep, volume_columns, without_depth
from torchledger.expecting.launch_tensors import alignment_of, runs_transposed, tensors_of, tiles_of_product
from torchledger.expecting.machine import Machine
from torchledger.expecting.pass_networks import Elements, passes_and_choices, passes_of_call, runs_one_by_one
from torchledger.nouns import Buffer, Launch
from torchledger.work.categories import operation_of
from torchledger.work.element_sizes import element_size

_ALONE = "alone"
ALONE = f"log {_ALONE}"
"""Of a convolution by the networks of its single passes; the expected time where they are unknown."""

OPEN_CHOICE = "open choice"
"""The column that says how far a convolution's time varies over the kernels that the library may take for it."""

ONE_BY_ONE = "one by one"
"""The column of forwards that launch a kernel for each channel."""

EXACT_FLOAT32 = "exact float32"
"""The column of convolutions of float32 that must not be rounded for the tensor cores."""

SINGLE = 4.0  # bytes of an element
_SIDES = 4


def convolution_columns(launch: Launch, machine: Machine) -> dict[str, float]:
    """Features of a convolution beside ``expected_convolutions``."""
    given = tensors_of(launch)
    is_backward = "backward" in operation_of(launch)
    inputs, outputs = without_depth(*given, is_backward=is_backward)
    operands, deep = _operands(launch, inputs, outputs), float(is_deep(given[0]))
    if operands is None:
        return {"described": 0.0, DEEP: deep}
    image, weight, result, runs_back = operands
    count, channels, height, width = image.shape
    out_channels, per_group, tall, kernel = weight.shape
    groups = max(1, channels // max(per_group, 1))
    pixels = count * math.prod(result.shape[2:]) if len(result.shape) == 4 else count
    taps = per_group * kernel * tall
    return {
        **tiles_of_product("conv", groups, pixels, out_channels / groups, taps, machine.num_multiprocessors),
        "described": 1.0,
        "log count": math.log(count),
        "log channels": math.log(channels),
        "log out channels": math.log(out_channels),
        "log pixels": math.log(max(pixels, 1)),
        "log side": math.log(max(height, width if height == 1 else 1)),
        "kernel": float(kernel),
        "log groups": math.log(groups),
        "depthwise": float(per_group == 1 and channels > 1),
        "transposed": float(runs_back),
        "stride": float(round(width / max(result.shape[-1], 1))) if len(result.shape) == 4 else 1.0,
        "channels last": float(_is_channels_last(image, weight)),
        "image channels last": float(image.stride[1] == 1 and channels > 1),
        "weight channels last": float(weight.stride[1] == 1 and per_group > 1),
        "result channels last": float(len(result.shape) == 4 and result.stride[1] == 1),
        "gradients": float(len(_planes(outputs))),
        "channel alignment": alignment_of(per_group),
        "out channel alignment": alignment_of(out_channels),
        DEEP: deep,
        **volume_columns(*given, is_backward=is_backward),
    }


def expected_convolutions(
    direction: str, given: Sequence[Mapping[str, float]], machine: Machine
) -> Iterator[dict[str, float]]:
    """What the times of its algorithms say of each convolution of a direction."""
    if not given:
        return
    columns = {name: np.array([row[name] for row in given]) for name in given[0]}
    item_size, peak, copied_bytes = (columns.pop(name) for name in ("item size", "peak", "copied bytes"))
    is_float16, is_transposed = (columns.pop(name) > 0 for name in ("float16", "transposed"))
    is_exact = (item_size == SINGLE) & (peak <= machine.peak("float32"))
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


def convolution_shape(launch: Launch) -> dict[str, float] | None:
    """The parameters of ``conv2d`` and the size of an element; ``None`` where that is unknown or the tensors are not
    plain."""
    inputs, outputs = _tensors(launch)
    images, operands = _planes(inputs), _operands(launch, inputs, outputs)
    if operands is None or ("backward" in operation_of(launch) and len(images) < 3):
        return None
    image, weight, result, runs_back = operands
    if len(image.shape) != _SIDES or len(result.shape) != _SIDES:
        return None
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
        "transposed": float(runs_back),
        "copied bytes": max(item_size, _COPIED_AT_ONCE)
        * sum(_copied_elements(buffer, channels_last) for buffer in images),
    }


_COPIED_AT_ONCE = 4
"""Bytes: each thread of a copy into another layout moves one element, and smaller ones take it as long."""


def _tensors(launch: Launch) -> tuple[list[Buffer], list[Buffer]]:
    """What a convolution reads and writes, three dimensions folded into two."""
    return without_depth(*tensors_of(launch), is_backward="backward" in operation_of(launch))


def _operands(
    launch: Launch, inputs: Sequence[Buffer], outputs: Sequence[Buffer]
) -> tuple[Buffer, Buffer, Buffer, bool] | None:
    """A convolution's image, filters and result, with the two images exchanged where it is transposed, and whether it
    is; of its ``_tensors``."""
    images = _planes(inputs)
    if len(images) < 2 or not outputs:
        return None
    if "backward" in operation_of(launch) and len(images) >= 3:
        result, image, weight = images[:3]
    else:
        image, weight = images[:2]
        result = next(iter(_planes(outputs)), outputs[0])
    if runs_transposed(image.shape, weight.shape, result.shape):
        return result, weight, image, True
    return image, weight, result, False


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
