"""What an eager convolution copies before its library's kernels: tensors of another layout than the one it runs in.

ATen runs a convolution with channels last for the sake of either tensor, and brings the other and the result's gradient
into that layout by kernels of its own, which count in the call (``_convolution`` and ``convolution_backward`` in
``Convolution.cpp``, torch 2.11 and 2.13). A thread of such a copy moves one element from far, so that it may take
longer than the convolution; it is priced as the copies into another layout that programs ask for themselves.
"""

from __future__ import annotations

import math
from dataclasses import replace

from torchledger.nouns import StepCall, TensorArgument
from torchledger.predicting.eager_launches import launch_of
from torchledger.work.categories import operator_name
from torchledger.work.convolution_shapes import convolution_tensors, operands_of, runs_channels_last
from torchledger.work.element_sizes import element_size

_SIDES = 4
_CONTIGUOUS, _CHANNELS_LAST = 0, 2
"""``torch.memory_format`` as records have it."""

_NAMES = ("convolution", "convolution_backward")


def laid_out(call: StepCall, device: str) -> tuple[StepCall, tuple[StepCall, ...]]:
    """The convolution over images on ``device`` (``"cuda:0"``) with all tensors in the layout in which it runs, and the
    copies that bring them there; any other call as it is."""
    images = [each for each in call.arguments if len(each.shape) == _SIDES and each.stride is not None]
    launch = launch_of(call, device) if operator_name(call.name)[1] in _NAMES and len(images) > 1 else None
    operands = None if launch is None else operands_of(launch, *convolution_tensors(launch))
    if operands is None or any(len(each.shape) != _SIDES for each in operands[:2]):
        return call, ()
    is_last = runs_channels_last(*operands[:2])
    made = {each: _dense(each, is_last=is_last) for each in images}
    copied = [each for each in images if not _lies_as(each, made[each])]
    if not copied:
        return call, ()
    arguments = tuple(made.get(each, each) for each in call.arguments)
    return replace(call, arguments=arguments), tuple(_copy(call, each, is_last=is_last) for each in copied)


def _dense(tensor: TensorArgument, *, is_last: bool) -> TensorArgument:
    _, channels, height, width = tensor.shape
    inner = (1, width * channels, channels) if is_last else (height * width, width, 1)
    return replace(tensor, stride=(channels * height * width, *inner))


def _lies_as(tensor: TensorArgument, other: TensorArgument) -> bool:
    """Whether all dimensions that count have the same strides."""
    return all(
        size == 1 or have == want
        for size, have, want in zip(tensor.shape, tensor.stride or (), other.stride or (), strict=True)
    )


def _copy(call: StepCall, tensor: TensorArgument, *, is_last: bool) -> StepCall:
    nbytes = 2 * math.prod(tensor.shape) * (element_size(tensor.dtype) or 4)
    settings = (("memory_format", (_CHANNELS_LAST if is_last else _CONTIGUOUS,)),)
    return replace(
        call, name="aten::clone", arguments=(tensor,), kernels=1, flops=0, flops_quality="exact", bytes_moved=nbytes,
        settings=settings, tensors=None, elements=None,
    )  # fmt: skip
