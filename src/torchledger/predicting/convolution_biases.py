"""What an eager convolution does beside its library's kernels: it adds its bias, or sums its gradient, by kernels of
their own (torch 2.11 and 2.13: ``_convolution`` and ``convolution_backward`` in ``Convolution.cpp``)."""

from __future__ import annotations

from torchledger.nouns import StepCall, TensorArgument
from torchledger.predicting.call_parts import bytes_of, further_call
from torchledger.predicting.eager_launches import launch_of
from torchledger.work.categories import operator_name
from torchledger.work.element_sizes import element_size
from torchledger.work.settings import setting
from torchledger.work.tensor_layouts import row_major

_IMAGE_AND_WEIGHT, _OF_GRADIENTS, _MASK_OF_BIAS = 2, 3, 2
_FEWEST_DIMENSIONS = 3


def bias_work(call: StepCall, device: str) -> StepCall | None:
    """The call that an eager convolution on ``device`` (``"cuda:0"``) makes for its bias: the addition to its result,
    or the sum of the result's gradient. ``None`` of other calls, without a bias, and where the filter's own kernel adds
    it: one filter a channel whose pictures lie channel by channel.
    """
    name = operator_name(call.name)[1]
    given = [each for each in call.arguments if len(each.shape) >= _FEWEST_DIMENSIONS]
    if name == "convolution" and len(given) == _IMAGE_AND_WEIGHT:
        launch = launch_of(call, device)
        if len(call.arguments) == _IMAGE_AND_WEIGHT or launch is None or _adds_itself(*given):
            return None
        made = launch.buffers[-1]
        result = TensorArgument(made.shape, made.dtype, made.stride)
        each_channel = (1, made.shape[1], *(1 for _ in made.shape[2:]))
        bias = TensorArgument(each_channel, made.dtype, row_major(each_channel))
        return further_call(call, "aten::add_", (result, bias), 2 * bytes_of(result) + bytes_of(bias))
    if name == "convolution_backward" and len(given) == _OF_GRADIENTS:
        asked = setting(call.settings, "output_mask") or ()
        if len(asked) <= _MASK_OF_BIAS or not asked[_MASK_OF_BIAS]:
            return None
        gradient = given[0]
        dims = (0, *range(2, len(gradient.shape)))
        moved = bytes_of(gradient) + gradient.shape[1] * (element_size(gradient.dtype) or 4)
        return further_call(call, "aten::sum", (gradient,), moved, (("dim", dims),))
    return None


def _adds_itself(image: TensorArgument, weight: TensorArgument) -> bool:
    is_one_each = weight.shape[1] == 1 < image.shape[1] and len(image.shape) == len(weight.shape)
    return is_one_each and (image.stride is None or image.stride[1] != 1)
