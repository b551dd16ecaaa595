"""A convolution among launches: which of its tensors is what, its sizes, and the layout in which it runs."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

from torchledger.nouns import Buffer, Launch
from torchledger.work.categories import operation_of
from torchledger.work.depth_folding import without_depth
from torchledger.work.element_sizes import element_size
from torchledger.work.launch_tensors import runs_transposed, tensors_of
from torchledger.work.tensor_layouts import channels_last, lies_as, row_major

_SIDES = 4


def convolution_shape(launch: Launch) -> dict[str, float] | None:
    """The parameters of ``conv2d`` and the size of an element; ``None`` where that is unknown or the tensors are not
    plain. ``copies`` are the bytes of tensors that ATen brings into the layout first, ``copied bytes`` what that
    moves."""
    inputs, outputs = convolution_tensors(launch)
    images, operands = planes_of(inputs), operands_of(launch, inputs, outputs)
    if operands is None or ("backward" in operation_of(launch) and len(images) < 3):
        return None
    image, weight, result, runs_back = operands
    if len(image.shape) != _SIDES or len(result.shape) != _SIDES:
        return None
    item_size, channels_last = element_size(image.dtype), runs_channels_last(image, weight)
    if item_size is None:
        return None
    count, channels, height, width = image.shape
    out_channels, per_group, tall, kernel = weight.shape
    down, stride = (max(round(image.shape[side] / max(result.shape[side], 1)), 1) for side in (2, 3))
    copied = sum(math.prod(image.shape) for image in images if not _is_laid_out(image, channels_last))
    return {
        "n": count,
        "c_in": channels,
        "height": height,
        "width": width,
        "c_out": out_channels,
        "kernel": kernel,
        "stride": stride,
        "stride_height": down,
        "kernel_height": tall,
        # As much as makes the result as large as it is.
        "padding": max(math.ceil(((result.shape[3] - 1) * stride + kernel - width) / 2), 0),
        "padding_height": max(math.ceil(((result.shape[2] - 1) * down + tall - height) / 2), 0),
        "groups": max(channels // max(per_group, 1), 1),
        "channels_last": float(channels_last),
        "item size": float(item_size),
        "float16": float(image.dtype == "float16"),
        "transposed": float(runs_back),
        # Read and written.
        "copied bytes": 2.0 * max(item_size, _COPIED_AT_ONCE) * copied,
        "copies": float(item_size * copied),
    }


_COPIED_AT_ONCE = 4
"""Bytes: each thread of a copy into another layout moves one element, and smaller ones take it as long."""


def convolution_tensors(launch: Launch) -> tuple[list[Buffer], list[Buffer]]:
    """What a convolution reads and writes, three dimensions folded into two."""
    return without_depth(*tensors_of(launch), is_backward="backward" in operation_of(launch))


def operands_of(
    launch: Launch, inputs: Sequence[Buffer], outputs: Sequence[Buffer]
) -> tuple[Buffer, Buffer, Buffer, bool] | None:
    """A convolution's image, filters and result, with the two images exchanged where it is transposed, and whether it
    is; of its ``convolution_tensors``."""
    images = planes_of(inputs)
    if len(images) < 2 or not outputs:
        return None
    if "backward" in operation_of(launch) and len(images) >= 3:
        result, image, weight = images[:3]
    else:
        image, weight = images[:2]
        result = next(iter(planes_of(outputs)), outputs[0])
    told = _TOLD.get(str(launch.kwargs.get("transposed")))
    if runs_transposed(image.shape, weight.shape, result.shape, told=told):
        return result, weight, image, True
    return image, weight, result, False


_TOLD = {"True": True, "False": False}


def makes_image_alone(launch: Launch) -> bool:
    """Whether a gradient is asked of the image alone, as where filters are frozen or a sample is what is learned: that
    of a plain convolution is a transposed one's forward, and that of a transposed one a plain forward."""
    if "backward" not in operation_of(launch):
        return False
    given, made = ([each.shape for each in side if len(each.shape) in _DEEP] for side in tensors_of(launch))
    return len(given) >= 3 and len(made) == 1 and made[0] == given[1] != given[2]


_DEEP = (3, 4, 5)
"""Dimensions of images, filters and results; a bias has one."""


def planes_of(buffers: Sequence[Buffer]) -> list[Buffer]:
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


def runs_channels_last(image: Buffer, weight: Buffer) -> bool:
    """Whether ATen runs a convolution with channels last: it does for the sake of either tensor (``ConvUtils.h``)."""
    of_image = image.stride[1] == 1 and image.shape[1] > 1
    if image.shape[2] == weight.shape[2] == 1 < weight.shape[3]:
        # One dimension: ATen makes its tensors contiguous first.
        return False
    _, per_group, kernel, _ = weight.shape
    of_weight = weight.stride[1] == 1 and weight.stride[3] == per_group and per_group * kernel > 1
    return of_image or of_weight


def _is_laid_out(image: Buffer, is_last: bool) -> bool:
    """Whether an image has the layout in which the convolution runs."""
    dense = channels_last(image.shape) if is_last else row_major(image.shape)
    return lies_as(image.shape[1:], image.stride[1:], dense[1:])
