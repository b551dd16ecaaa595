"""What an eager convolution copies before its library's kernels: tensors of another layout than the one it runs in.

ATen runs a convolution with channels last for the sake of either tensor, and brings the other and the result's gradient
into that layout by kernels of its own, which count in the call (``_convolution`` and ``convolution_backward`` in
``Convolution.cpp``, torch 2.11 and 2.13). A thread of such a copy moves one element from far, so that it may take
longer than the convolution; it is priced as the copies into another layout that programs ask for themselves.
"""

from __future__ import annotations

from dataclasses import replace

from torchledger.nouns import StepCall, TensorArgument
from torchledger.predicting.call_parts import bytes_of, further_call
from torchledger.predicting.eager_launches import launch_of
from torchledger.work.categories import operator_name
from torchledger.work.convolution_shapes import convolution_tensors, operands_of, runs_channels_last
from torchledger.work.tensor_layouts import channels_last, lies_as, row_major

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
    made = {each: channels_last(each.shape) if is_last else row_major(each.shape) for each in images}
    copied = [each for each in images if not lies_as(each.shape, each.stride or (), made[each])]
    if not copied:
        return call, ()
    arguments = tuple(replace(each, stride=made.get(each, each.stride)) for each in call.arguments)
    return replace(call, arguments=arguments), tuple(_copy(call, each, is_last=is_last) for each in copied)


def _copy(call: StepCall, tensor: TensorArgument, *, is_last: bool) -> StepCall:
    settings = (("memory_format", (_CHANNELS_LAST if is_last else _CONTIGUOUS,)),)
    return further_call(call, "aten::clone", (tensor,), 2 * bytes_of(tensor), settings)
