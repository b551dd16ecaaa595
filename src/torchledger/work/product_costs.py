"""Matrix products and convolutions: where each operator keeps its arguments, and what it reads and writes."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from torchledger.nouns import Cost
from torchledger.work.cost_parts import (
    Formula,
    dense,
    memory_cost,
    named,
    product_cost,
    spread,
    work_cost,
)
from torchledger.work.flops import (
    convolution_backward_flops,
    convolution_flops,
    distance_flops,
    grouped_matmul_flops,
    matmul_flops,
    trilinear_flops,
    trilinear_sizes,
)
from torchledger.work.op_shapes import DTYPE_OF_SCALAR_TYPE, OpCall, Tensor, broadcast_shape


def convolution_output_shape(
    input_shape: Sequence[int],
    weight_shape: Sequence[int],
    *,
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    transposed: bool = False,
    output_padding: Sequence[int] = (),
    groups: int = 1,
) -> tuple[int, ...]:
    """Shape of a convolution's result, ``(N, C, spatial...)``.

    >>> convolution_output_shape((2, 3, 8, 8), (4, 3, 3, 3), stride=(1, 1), padding=(1, 1), dilation=(1, 1))
    (2, 4, 8, 8)
    """
    rank = len(input_shape) - 2
    stride, padding, dilation = spread(stride, rank), spread(padding, rank), spread(dilation, rank)
    extra = spread(output_padding or (0,), rank)
    spatial = []
    for axis in range(rank):
        size, kernel = input_shape[2 + axis], weight_shape[2 + axis]
        reach = dilation[axis] * (kernel - 1)
        if transposed:
            spatial.append((size - 1) * stride[axis] - 2 * padding[axis] + reach + extra[axis] + 1)
        else:
            spatial.append((size + 2 * padding[axis] - reach - 1) // stride[axis] + 1)
    channels = weight_shape[1] * groups if transposed else weight_shape[0]
    return (input_shape[0], channels, *spatial)


def _mm(call: OpCall) -> Cost | None:
    left, right = call.tensor(0), call.tensor(1)
    if left is None or right is None or left.shape[-1] != right.shape[-2]:
        return None
    batch = math.prod(broadcast_shape([left.shape[:-2], right.shape[:-2]]) or ())
    output = (*left.shape[:-1], right.shape[-1])
    flops = matmul_flops(left.shape[-2], left.shape[-1], right.shape[-1], batch)
    return product_cost(flops, [left, right], Tensor(output, left.dtype))


def _addmm(call: OpCall) -> Cost | None:
    bias, left, right = call.tensor(0), call.tensor(1), call.tensor(2)
    if bias is None or left is None or right is None or left.shape[-1] != right.shape[-2]:
        return None
    flops = matmul_flops(left.shape[-2], left.shape[-1], right.shape[-1], math.prod(left.shape[:-2]))
    output = Tensor((*left.shape[:-1], right.shape[-1]), left.dtype)
    if call.is_inplace:
        output = Tensor(bias.shape, bias.dtype)
    return product_cost(flops, [bias, left, right], output)


def _scaled_mm(call: OpCall) -> Cost | None:
    left, right = call.tensor(0), call.tensor(1)
    if left is None or right is None or left.shape[-1] != right.shape[-2]:
        return None
    flops = matmul_flops(left.shape[-2], left.shape[-1], right.shape[-1], math.prod(left.shape[:-2]))
    out_dtype = "bfloat16"
    for position in (6, 5):
        code = call.ints(position)
        if code and len(code) == 1 and code[0] in DTYPE_OF_SCALAR_TYPE and code[0] > 1:
            out_dtype = DTYPE_OF_SCALAR_TYPE[code[0]]
            break
    output = Tensor((*left.shape[:-1], right.shape[-1]), out_dtype)
    return product_cost(flops, [tensor for tensor in call.tensors if tensor.shape != output.shape], output)


def _int_mm(call: OpCall) -> Cost | None:
    left, right = call.tensor(0), call.tensor(1)
    if left is None or right is None:
        return None
    output = Tensor((left.shape[0], right.shape[1]), "int32")
    return product_cost(matmul_flops(left.shape[0], left.shape[1], right.shape[1]), [left, right], output)


def _grouped_mm(call: OpCall) -> Cost | None:
    left, right = call.tensor(0), call.tensor(1)
    if left is None or right is None:
        return None
    rows, columns = left.shape[-2], right.shape[-1]
    if len(left.shape) == len(right.shape) == 2:
        offsets = call.tensor(2 if "scaled" not in call.base_name else 4)
        if offsets is None:
            return None
        output: tuple[int, ...] = (offsets.numel, rows, columns)
    elif len(left.shape) == len(right.shape):
        output = (left.shape[0], rows, columns)
    else:
        output = (rows, columns)
    dtype = "bfloat16" if left.dtype.startswith("float8") else left.dtype
    return product_cost(grouped_matmul_flops(left.shape, right.shape), list(call.tensors), Tensor(output, dtype))


def _linear(call: OpCall) -> Cost | None:
    inputs, weight, bias = call.tensor(0), call.tensor(1), call.tensor(2)
    if inputs is None or weight is None or inputs.shape[-1] != weight.shape[-1]:
        return None
    rows = inputs.numel // max(inputs.shape[-1], 1)
    columns = weight.shape[0] if len(weight.shape) == 2 else 1
    output = (*inputs.shape[:-1], columns) if len(weight.shape) == 2 else inputs.shape[:-1]
    read = [tensor for tensor in (inputs, weight, bias) if tensor is not None]
    return product_cost(matmul_flops(rows, inputs.shape[-1], columns), read, Tensor(output, inputs.dtype))


def _matmul(call: OpCall) -> Cost | None:
    left, right = call.tensor(0), call.tensor(1)
    if left is None or right is None or left.is_scalar or right.is_scalar:
        return None
    rows_shape = left.shape if len(left.shape) > 1 else (1, *left.shape)
    columns_shape = right.shape if len(right.shape) > 1 else (*right.shape, 1)
    batch_shape = broadcast_shape([rows_shape[:-2], columns_shape[:-2]])
    if batch_shape is None or rows_shape[-1] != columns_shape[-2]:
        return None
    flops = matmul_flops(rows_shape[-2], rows_shape[-1], columns_shape[-1], math.prod(batch_shape))
    output = (
        *batch_shape,
        *(rows_shape[-2:-1] if len(left.shape) > 1 else ()),
        *(columns_shape[-1:] if len(right.shape) > 1 else ()),
    )
    return product_cost(flops, [left, right], Tensor(output, left.dtype))


def _addmv(call: OpCall) -> Cost | None:
    bias, matrix, vector = call.tensor(0), call.tensor(1), call.tensor(2)
    if bias is None or matrix is None or vector is None or len(matrix.shape) != 2:
        return None
    flops = matmul_flops(matrix.shape[0], matrix.shape[1], 1)
    return product_cost(flops, [bias, matrix, vector], Tensor(matrix.shape[:1], matrix.dtype))


def _outer(call: OpCall) -> Cost | None:
    left, right = call.tensor(0), call.tensor(1)
    if left is None or right is None:
        return None
    output = Tensor((left.numel, right.numel), left.dtype)
    return memory_cost([left, right], [output])


def _addbmm(call: OpCall) -> Cost | None:
    bias, left, right = call.tensor(0), call.tensor(1), call.tensor(2)
    if bias is None or left is None or right is None or len(left.shape) != 3:
        return None
    flops = matmul_flops(left.shape[1], left.shape[2], right.shape[2], left.shape[0])
    return product_cost(flops, [bias, left, right], Tensor((left.shape[1], right.shape[2]), left.dtype))


def _trilinear(call: OpCall) -> Cost | None:
    factors = [tensor for place in range(3) if (tensor := call.tensor(place)) is not None]
    expanded = [ints for place in range(3, 6) if (ints := call.ints(place)) is not None]
    summed = call.ints(6)
    if len(factors) != 3 or len(expanded) != 3 or summed is None:
        return None
    sizes = trilinear_sizes([factor.shape for factor in factors], expanded)
    made = tuple(size for place, size in sorted(sizes.items()) if place not in summed)
    return product_cost(
        trilinear_flops([factor.shape for factor in factors], expanded), factors, Tensor(made, factors[0].dtype)
    )


class _Positions:
    def __init__(self, **positions: int) -> None:
        self.weight = positions.get("weight", 1)
        self.bias = positions.get("bias", -1)
        self.stride = positions["stride"]
        self.padding = positions["padding"]
        self.dilation = positions.get("dilation", -1)
        self.transposed = positions.get("transposed", -1)
        self.output_padding = positions.get("output_padding", -1)
        self.groups = positions.get("groups", -1)
        self.is_transposed = bool(positions.get("is_transposed", 0))


_GENERAL = _Positions(bias=2, stride=3, padding=4, dilation=5, transposed=6, output_padding=7, groups=8)


_FUNCTIONAL = _Positions(bias=2, stride=3, padding=4, dilation=5, groups=6)


_PADDING_FIRST = _Positions(padding=2, stride=3, dilation=4, groups=5)


_BIAS_PADDING_FIRST = _Positions(bias=2, padding=3, stride=4, dilation=5, groups=6)


_KERNEL_FIRST = _Positions(bias=3, stride=4, padding=5, dilation=6)


_CONVOLUTIONS: Mapping[str, _Positions] = {
    "convolution": _GENERAL,
    "_convolution": _GENERAL,
    "convolution_overrideable": _GENERAL,
    "conv1d": _FUNCTIONAL,
    "conv2d": _FUNCTIONAL,
    "conv3d": _FUNCTIONAL,
    "cudnn_convolution_relu": _FUNCTIONAL,
    "miopen_convolution_relu": _FUNCTIONAL,
    "cudnn_convolution_add_relu": _Positions(bias=4, stride=5, padding=6, dilation=7, groups=8),
    "miopen_convolution_add_relu": _Positions(bias=4, stride=5, padding=6, dilation=7, groups=8),
    "cudnn_convolution": _PADDING_FIRST,
    "miopen_convolution": _BIAS_PADDING_FIRST,
    "miopen_depthwise_convolution": _BIAS_PADDING_FIRST,
    "mkldnn_convolution": _BIAS_PADDING_FIRST,
    "_convolution_pointwise": _BIAS_PADDING_FIRST,
    "cudnn_convolution_transpose": _Positions(
        padding=2, output_padding=3, stride=4, dilation=5, groups=6, is_transposed=1
    ),
    "miopen_convolution_transpose": _Positions(
        bias=2, padding=3, output_padding=4, stride=5, dilation=6, groups=7, is_transposed=1
    ),
    "conv_transpose1d": _Positions(
        bias=2, stride=3, padding=4, output_padding=5, groups=6, dilation=7, is_transposed=1
    ),
    "_slow_conv2d_forward": _KERNEL_FIRST,
    "thnn_conv2d": _KERNEL_FIRST,
    "slow_conv3d_forward": _KERNEL_FIRST,
    "_conv_depthwise2d": _KERNEL_FIRST,
    "conv_depthwise3d": _KERNEL_FIRST,
    "slow_conv_dilated2d": _KERNEL_FIRST,
    "slow_conv_dilated3d": _KERNEL_FIRST,
}

_CONVOLUTIONS = {
    **_CONVOLUTIONS,
    "conv_transpose2d": _CONVOLUTIONS["conv_transpose1d"],
    "conv_transpose3d": _CONVOLUTIONS["conv_transpose1d"],
}


def _convolution(call: OpCall) -> Cost | None:
    positions = _CONVOLUTIONS[call.base_name]
    inputs, weight = call.tensor(0), call.tensor(positions.weight)
    if inputs is None or weight is None or len(weight.shape) < 3:
        return None
    shape = inputs.shape if len(inputs.shape) == len(weight.shape) else (1, *inputs.shape)
    stride, padding = call.ints(positions.stride), call.ints(positions.padding)
    if stride is None or padding is None:
        return None
    dilation = call.ints(positions.dilation) if positions.dilation >= 0 else None
    groups = call.ints(positions.groups) if positions.groups >= 0 else None
    extra = call.ints(positions.output_padding) if positions.output_padding >= 0 else None
    transposed = positions.is_transposed or (
        positions.transposed >= 0 and call.constant(positions.transposed) in ("True", "1", "true")
    )
    output = convolution_output_shape(
        shape,
        weight.shape,
        stride=stride,
        padding=padding,
        dilation=dilation or (1,),
        transposed=transposed,
        output_padding=extra or (0,),
        groups=(groups or (1,))[0],
    )
    flops = convolution_flops(shape, weight.shape, output, transposed=transposed)
    read = [tensor for tensor in call.tensors if not tensor.is_scalar]
    return product_cost(flops, read, Tensor(output, inputs.dtype))


def _convolution_backward(call: OpCall) -> Cost | None:
    gradient, inputs, weight = call.tensor(0), call.tensor(1), call.tensor(2)
    if gradient is None or inputs is None or weight is None or len(weight.shape) < 3:
        return None
    transposed = call.constant(7) in ("True", "1", "true")
    mask = _wanted_gradients(call)
    flops = convolution_backward_flops(
        gradient.shape,
        inputs.shape,
        weight.shape,
        transposed=transposed,
        wants_input=mask[0],
        wants_weight=mask[1],
    )
    written = []
    if mask[0]:
        written.append(inputs)
    if mask[1]:
        written.append(weight)
    if mask[2]:
        written.append(Tensor((gradient.shape[1],), gradient.dtype))
    read = [gradient, *([weight] if mask[0] else []), *([inputs] if mask[1] else [])]
    return work_cost(flops, read, [dense(tensor) for tensor in written])


def _wanted_gradients(call: OpCall) -> list[bool]:
    """Which gradients a backward convolution computes: of its input, its weight and its bias."""
    text = call.constant(10)
    mask = [word.strip(" []").lower() in ("true", "1") for word in text.split(",")] if text else []
    return mask if len(mask) == 3 else [True] * 3


def overcounted_by_torch(call: OpCall) -> int:
    """FLOPs by which torch's own counter exceeds the formula here: it takes the weight's gradient of a grouped
    convolution as if that had one group (``torch.utils.flop_counter.conv_backward_flop``)."""
    if call.base_name not in ("convolution_backward", "convolution_backward_overrideable"):
        return 0
    gradient, inputs, weight, groups = call.tensor(0), call.tensor(1), call.tensor(2), call.ints(9)
    if gradient is None or inputs is None or weight is None or not groups or not _wanted_gradients(call)[1]:
        return 0
    transposed = call.constant(7) in ("True", "1", "true")
    one = convolution_flops(inputs.shape, weight.shape, gradient.shape, transposed=transposed)
    return int(one) * (groups[0] - 1)


def _single_convolution_backward(call: OpCall) -> Cost | None:
    """``cudnn_convolution_backward_input`` and its like: one product of gradient and the other operand."""
    tensors = [tensor for tensor in call.tensors if len(tensor.shape) >= 3]
    shape = call.ints(0)
    if len(tensors) != 2 or shape is None:
        return None
    output = Tensor(tuple(shape), tensors[0].dtype)
    gradient, other = tensors
    is_weight = "weight" in call.base_name
    flops = convolution_flops(
        other.shape if is_weight else output.shape, output.shape if is_weight else other.shape, gradient.shape
    )
    return product_cost(flops, tensors, output)


def _distances(call: OpCall) -> Cost | None:
    left, right = call.tensor(0), call.tensor(1)
    if left is None or right is None or not len(left.shape) == len(right.shape) >= 2:
        return None
    output = Tensor((*left.shape[:-1], right.shape[-2]), left.dtype)
    return product_cost(distance_flops(left.shape, right.shape), [left, right], output)


PRODUCT_COSTS: Mapping[str, Formula] = {
    **named("mm bmm", _mm),
    **named("addmm baddbmm _addmm_activation", _addmm),
    **named("mv dot vdot matmul inner", _matmul),
    "addmv": _addmv,
    "addbmm": _addbmm,
    "_trilinear": _trilinear,
    "_euclidean_dist": _distances,
    **named("outer ger", _outer),
    "linear": _linear,
    "_scaled_mm": _scaled_mm,
    "_int_mm": _int_mm,
    **named("_grouped_mm _scaled_grouped_mm", _grouped_mm),
    **dict.fromkeys(_CONVOLUTIONS, _convolution),
    **named("convolution_backward convolution_backward_overrideable", _convolution_backward),
    **named(
        """cudnn_convolution_backward_input cudnn_convolution_backward_weight miopen_convolution_backward_input
        miopen_convolution_backward_weight""",
        _single_convolution_backward,
    ),
}
"""Operator name (without namespace and in-place mark) to its formula."""
