"""Convolutions of three dimensions as the ones of two that multiply the same numbers.

A library computes both as products of pixels, channels and taps, whose sides are what its time goes with: a filter of
three taps along the depth is one of three times the channels, over as many images as the result has places along the
depth.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from torchledger.nouns import Buffer
from torchledger.work.launch_tensors import runs_transposed

_SIDES = 5


def without_depth(
    inputs: Sequence[Buffer], outputs: Sequence[Buffer], *, is_backward: bool
) -> tuple[list[Buffer], list[Buffer]]:
    """A convolution's tensors, those of three dimensions folded into two; as they are where none is."""
    given = volumes_of(inputs, outputs, is_backward=is_backward)
    if given is None:
        return list(inputs), list(outputs)
    folded = dict(zip(map(id, given), _folded(*given), strict=True))
    return (
        [folded.get(id(buffer), buffer) for buffer in inputs],
        [folded.get(id(buffer)) or _flattened(buffer) for buffer in outputs],
    )


def volumes_of(
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
