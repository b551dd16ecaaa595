"""Eager products, convolutions and attention as the launches that compiled graphs make of them, which the models have
learned.

A record has the tensors that an operator was given, its FLOPs, and how a filter moves (``StepCall.settings``). Where it
lacks the last, as records of before do, the size of a result follows from the FLOPs, which are 2 for each of its
elements and each element of the filter. The weight's gradient of a grouped convolution counts as PyTorch's counter
counts it in graphs, as if it had one group: so it was learned. Where it is not recorded whether attention is causal,
FLOPs that are an upper bound say so.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

from torchledger.expecting.adaptive_pools import is_adaptive_pool
from torchledger.nouns import Launch, StepCall, TensorArgument
from torchledger.work.categories import operator_name
from torchledger.work.element_sizes import element_size
from torchledger.work.launch_tensors import runs_transposed
from torchledger.work.library_launches import library_launch
from torchledger.work.op_shapes import Tensor
from torchledger.work.settings import Settings, setting
from torchledger.work.tensor_layouts import channels_last, row_major


def launch_of(call: StepCall, device: str) -> Launch | None:
    """The launch of an eager product, convolution, attention, adaptive pool, of their gradients, or of a product of
    eight-bit integers on ``device`` (``"cuda:0"``).

    ``None`` for other calls, and where the size of the result is not certain.
    """
    name = operator_name(call.name)[1]
    if is_adaptive_pool(name):
        return _pool(name, call, device)
    if not call.flops:
        return None
    if name.startswith("_scaled_dot_product_"):
        return _attention(name, call, device)
    if name in _PRODUCTS:
        return _product(name, call, device)
    if name == "_int_mm" and len(call.arguments) == 2:
        left, right = call.arguments
        made = TensorArgument((left.shape[0], right.shape[-1]), "int32")
        return _launch(name, call, call.flops, call.arguments, [made], device)
    given = [each for each in call.arguments if len(each.shape) in (3, 4, 5) and min(each.shape) > 0]
    if name == "convolution" and len(given) == 2:
        result = _result_by_settings(given[0], given[1], call.settings) or _result(given[0], given[1], call.flops)
        launch = None if result is None else _launch(name, call, call.flops, given, [result], device)
        return None if launch is None else replace(launch, kwargs=_kwargs(call.settings))
    if name != "convolution_backward" or len(given) != 3:
        return None
    result, image, weight = given
    asked = setting(call.settings, "output_mask")
    gradients = [each for each, wanted in zip((image, weight), asked or (), strict=False) if wanted]
    told = setting(call.settings, "transposed")
    runs_back = runs_transposed(image.shape, weight.shape, result.shape, told=bool(told[0]) if told else None)
    source, made = (result, image) if runs_back else (image, result)
    gradients = gradients or _gradients(image, weight, made, call.flops)
    groups = source.shape[1] // weight.shape[1]
    flops = call.flops + (max(groups, 1) - 1) * call.flops // len(gradients)
    launch = _launch(name, call, flops, given, gradients, device)
    return None if launch is None else replace(launch, kwargs=_kwargs(call.settings))


_PRODUCTS = frozenset(("mm", "addmm", "bmm", "baddbmm"))


def _product(name: str, call: StepCall, device: str) -> Launch | None:
    """``None`` where it was not recorded how its factors are stored."""
    first, sides = int("add" in name), 2 + ("bmm" in name)
    given, out = call.arguments[: first + 2], call.arguments[first + 2 :]
    factors = given[first:]
    if len(factors) < 2 or any(each.stride is None or len(each.shape) != sides for each in factors):
        return None
    left, right = factors
    made = TensorArgument((*left.shape[:-1], right.shape[-1]), out[0].dtype if out else left.dtype)
    return _launch(name, call, call.flops or 0, given, [made], device)


def _pool(name: str, call: StepCall, device: str) -> Launch | None:
    given = [each for each in call.arguments if len(each.shape) == 4 and min(each.shape) > 0]
    if name.endswith("_backward"):
        return _launch(name, call, call.flops or 0, given, given[1:2], device) if len(given) > 1 else None
    cells = setting(call.settings, "output_size") or ()
    if len(given) != 1 or len(cells) != 2 or min(cells) < 1:
        return None
    made = TensorArgument((*given[0].shape[:2], *cells), given[0].dtype)
    places = [TensorArgument(made.shape, "int64")] if "max" in name else []
    return _launch(name, call, call.flops or 0, given, [made, *places], device)


def has_mask(call: StepCall) -> bool:
    """True for a forward of attention that was given more than queries, keys and values."""
    return "_backward" not in call.name and len(_matrices(call)) > _OF_ATTENTION


_OF_ATTENTION = 3
"""Queries, keys and values; a fourth matrix is a mask, and a backward has its gradient in front."""


def _matrices(call: StepCall) -> list[TensorArgument]:
    return [each for each in call.arguments if len(each.shape) > 1 and min(each.shape) > 0]


def _attention(name: str, call: StepCall, device: str) -> Launch | None:
    given, is_backward = _matrices(call), "_backward" in name
    matrices = given[is_backward : is_backward + _OF_ATTENTION]
    if [len(each.shape) for each in matrices] != [4] * _OF_ATTENTION:
        return None
    query, key, value = matrices
    if is_backward and (mask := _mask_not_kept(call, query, key, value)) is not None:
        given.append(mask)
    result = TensorArgument((*query.shape[:-1], value.shape[-1]), query.dtype)
    made = [query, key, value] if is_backward else [result, TensorArgument(query.shape[:-1], "float32")]
    if setting(call.settings, "grad_input_mask") == _ALL_GRADIENTS:
        made += given[len(_ALL_GRADIENTS) :][:1]
    launch = _launch(name, call, call.flops or 0, given, made, device)
    causal, rate = setting(call.settings, "is_causal"), setting(call.settings, "dropout")
    is_causal = bool(causal[0]) if causal else call.settings is None and call.flops_quality == "upper_bound"
    kwargs = {"dropout_p": _SOME_RATE if rate else "0.0", "is_causal": str(is_causal)}
    return None if launch is None else replace(launch, kwargs=kwargs)


_ALL_GRADIENTS = (1, 1, 1, 1)
"""Of queries, keys, values and of the mask that stands behind them, which then is learned."""

_SOME_RATE = "0.1"
"""What stands for a rate of dropout: that there is one is recorded, and decides the kernel."""

_KEPT = 8
"""Tensors of a call that a record keeps."""


def _mask_not_kept(
    call: StepCall, query: TensorArgument, key: TensorArgument, value: TensorArgument
) -> TensorArgument | None:
    """The mask of cuDNN's backward, which stands behind those tensors of a call that a record keeps: its size is what
    the call moves beside these and the gradients that it makes."""
    if "_cudnn_" not in call.name or len(call.arguments) != _KEPT or call.bytes_moved is None:
        return None
    kept = [Tensor(each.shape, each.dtype or "", each.stride) for each in call.arguments if each.shape]
    made = [Tensor(each.shape, each.dtype or "") for each in (query, key, value)]
    sizes, size = [each.bytes for each in (*kept, *made)], element_size(query.dtype)
    if None in sizes or not size:
        return None
    elements = (call.bytes_moved - sum(filter(None, sizes))) // size
    length, length_kv = query.shape[2], key.shape[2]
    rows = length if elements % (length * length_kv) == 0 else 1
    masks = elements // (rows * length_kv)
    return TensorArgument((masks, rows, length_kv), query.dtype) if masks > 0 else None


def _launch(
    name: str,
    call: StepCall,
    flops: int,
    inputs: Sequence[TensorArgument],
    outputs: Sequence[TensorArgument],
    device: str,
) -> Launch | None:
    return library_launch(name, inputs, outputs, flops=flops, device=device, graph=call.step, order=call.order)


def _kwargs(settings: Settings | None) -> dict[str, str]:
    """How a filter moves, as generated code writes it."""
    kwargs = {
        name: str(values)
        for name in ("stride", "padding", "dilation", "output_padding")
        if (values := setting(settings, name)) is not None
    }
    for name, texts in (("transposed", ("False", "True")), ("groups", None)):
        if values := setting(settings, name):
            kwargs[name] = str(values[0]) if texts is None else texts[values[0]]
    return kwargs


def _result_by_settings(
    image: TensorArgument, weight: TensorArgument, settings: Settings | None
) -> TensorArgument | None:
    """What a filter makes of an image, as it was told to move; ``None`` where that was not recorded."""
    moves = [setting(settings, name) for name in ("stride", "padding", "dilation", "output_padding")]
    transposed, groups = setting(settings, "transposed"), setting(settings, "groups")
    sides, kernel = image.shape[2:], weight.shape[2:]
    stride, padding, dilation, further = (
        each * len(sides) if each is not None and len(each) == 1 else each or () for each in moves
    )
    if not transposed or not groups or {len(sides)} != {len(kernel), *map(len, (stride, padding, dilation))}:
        return None
    reach = [step * (side - 1) + 1 for step, side in zip(dilation, kernel, strict=True)]
    if transposed[0]:
        more = further or (0,) * len(sides)
        made = [(side - 1) * stride[at] - 2 * padding[at] + reach[at] + more[at] for at, side in enumerate(sides)]
        channels = weight.shape[1] * groups[0]
    else:
        made = [(side + 2 * padding[at] - reach[at]) // stride[at] + 1 for at, side in enumerate(sides)]
        channels = weight.shape[0]
    if min(made) < 1:
        return None
    return _laid_out((image.shape[0], channels, *made), image)


def _laid_out(shape: tuple[int, ...], image: TensorArgument) -> TensorArgument:
    is_channels_last = len(shape) == 4 and image.stride is not None and image.stride[1] == 1 < image.shape[1]
    return TensorArgument(shape, image.dtype, channels_last(shape) if is_channels_last else row_major(shape))


def _result(image: TensorArgument, weight: TensorArgument, flops: int) -> TensorArgument | None:
    """What a filter makes of an image; ``None`` where it may be a transposed one, or the sides are not the image's."""
    count, channels, *sides = image.shape
    out_channels, per_group, *kernel = weight.shape
    if len(sides) != len(kernel) or channels % per_group or out_channels % (channels // per_group):
        return None
    if per_group < channels == out_channels and all(side % 2 == 0 for side in kernel):
        return None  # a filter of even sides and fewer channels is a transposed one more often than one of groups
    positions, left = divmod(flops, 2 * count * out_channels * per_group * math.prod(kernel))
    if left or not positions:
        return None
    if len(sides) == 1:
        made: tuple[int, ...] = (positions,)
    elif len(sides) == 3:
        if positions != math.prod(sides):
            return None
        made = tuple(sides)
    else:
        shrunk = math.sqrt(math.prod(sides) / positions)
        height = max(1, round(sides[0] / shrunk))
        made = (height, positions // height)
        if math.prod(made) != positions:
            return None
    shape = (count, out_channels, *made)
    return _laid_out(shape, image)


def _gradients(image: TensorArgument, weight: TensorArgument, made: TensorArgument, flops: int) -> list[TensorArgument]:
    """The gradients that were asked for, of what makes ``made``: the weight's alone where the FLOPs are those of one
    product."""
    one = 2 * image.shape[0] * math.prod(made.shape[2:]) * math.prod(weight.shape)
    return [weight] if flops < 1.5 * one else [image, weight]
