"""Convolutions of three dimensions as the ones of two that multiply the same numbers.

A library computes both as products of pixels, channels and taps, whose sides are what its time goes with: a filter of
three taps along the depth is one of three times the channels, over as many images as the result has places along the
depth. No network learned passes of three dimensions, and the library has other kernels for them, some many times slower
than those of two: what is measured beside this is learned in families of their own (``OF_VOLUMES``). A model without
them is within a factor of 2.6 in nine of ten of 84 eager calls (``docs/results/strangers_kernels.md``).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from torchledger.expecting.launch_tensors import alignment_of, runs_transposed
from torchledger.nouns import Buffer

DEEP = "deep"
"""The column of convolutions of three dimensions."""
DEEP_WIDTH = float(np.log(2.0))
"""Half of an interval's logarithm: what holds six of seven of these calls where nothing was learned of volumes."""

OF_VOLUMES = " of volumes"
"""What the name of a convolution's family ends in where it is of three dimensions."""

_SIDES = 5
_NARROW = 8  # channels, below which a library pads or has other kernels


def without_depth(
    inputs: Sequence[Buffer], outputs: Sequence[Buffer], *, is_backward: bool
) -> tuple[list[Buffer], list[Buffer]]:
    """A convolution's tensors, those of three dimensions folded into two; as they are where none is."""
    given = _volumes(inputs, outputs, is_backward=is_backward)
    if given is None:
        return list(inputs), list(outputs)
    folded = dict(zip(map(id, given), _folded(*given), strict=True))
    return (
        [folded.get(id(buffer), buffer) for buffer in inputs],
        [folded.get(id(buffer)) or _flattened(buffer) for buffer in outputs],
    )


def volume_columns(inputs: Sequence[Buffer], outputs: Sequence[Buffer], *, is_backward: bool) -> Mapping[str, float]:
    """What folding forgets of a convolution of three dimensions: its sides along the depth, and how its tensors lie.
    Empty for any other."""
    given = _volumes(inputs, outputs, is_backward=is_backward)
    if given is None:
        return {}
    result, image, weight = given
    taps, depth, left = weight.shape[2:], image.shape[2], result.shape[2]
    larger = math.prod(max(image.shape[2:], result.shape[2:], key=math.prod))
    return {
        "volumes": math.log(image.shape[0]),
        "log depth": math.log(depth),
        "log depth of result": math.log(left),
        "taps along depth": float(taps[0]),
        "taps across depth": float(taps[1] * taps[2]),
        "log depth over depth": math.log(depth / left),
        "log side over side": math.log(image.shape[-1] / result.shape[-1]),
        "log places": math.log(larger),
        "channels of a filter": math.log(weight.shape[1]),
        "alignment of a filter": alignment_of(weight.shape[1]),
        "alignment of places": alignment_of(math.prod(result.shape[2:])),
        "narrow": float(min(weight.shape[:2]) < _NARROW),
        "float16": float(image.dtype == "float16"),
        "lies last": float(image.stride[1] == 1 < image.shape[1]),
        "result lies last": float(result.stride[1] == 1 < result.shape[1]),
        "filters lie last": float(weight.stride[1] == 1 < weight.shape[1]),
    }


def _volumes(
    inputs: Sequence[Buffer], outputs: Sequence[Buffer], *, is_backward: bool
) -> tuple[Buffer, Buffer, Buffer] | None:
    """The result, the image and the filter of a convolution of three dimensions; ``None`` of any other."""
    deep = [buffer for buffer in inputs if len(buffer.shape) == _SIDES]
    made = [buffer for buffer in outputs if len(buffer.shape) == _SIDES]
    if len(deep) < 2 + is_backward or not made:
        return None
    return (deep[0], deep[1], deep[2]) if is_backward else (made[0], deep[0], deep[1])


def is_deep(buffers: Sequence[Buffer]) -> bool:
    """Whether tensors are of a convolution of three dimensions."""
    return any(len(buffer.shape) == _SIDES for buffer in buffers)


def _folded(result: Buffer, image: Buffer, weight: Buffer) -> tuple[Buffer, Buffer, Buffer]:
    """A transposed convolution leads from the tensor with a channel for each row of its weight to the other."""
    is_back = runs_transposed(image.shape, weight.shape, result.shape)
    source, target = (result, image) if is_back else (image, result)
    count, depth = source.shape[0] * target.shape[2], weight.shape[2]
    wide = _reshaped(source, (count, source.shape[1] * depth, *source.shape[3:]))
    plain = _reshaped(target, (count, target.shape[1], *target.shape[3:]))
    filters = _reshaped(weight, (weight.shape[0], weight.shape[1] * depth, *weight.shape[3:]))
    return (wide, plain, filters) if is_back else (plain, wide, filters)


def _reshaped(buffer: Buffer, shape: tuple[int, ...]) -> Buffer:
    """Dense in the layout that the tensor has, channels last or not."""
    _, channels, height, width = shape
    is_last = buffer.stride[1] == 1 < buffer.shape[1]
    inner = (1, width * channels, channels) if is_last else (height * width, width, 1)
    return replace(buffer, shape=shape, stride=(channels * height * width, *inner))


def _flattened(buffer: Buffer) -> Buffer:
    """A gradient, of which only counts that it is one."""
    if len(buffer.shape) != _SIDES:
        return buffer
    count, channels, depth, height, width = buffer.shape
    return _reshaped(buffer, (count, channels, depth * height, width))
