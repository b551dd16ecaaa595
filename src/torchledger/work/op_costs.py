"""FLOPs and minimum bytes of one operator call, from shapes alone.

``op_cost(call)`` finds the formula of an operator by its name. FLOPs are tensor FLOPs: products of matrices,
convolutions and attention, one multiply-add = 2 FLOPs; other operators have 0. Minimum bytes are inputs read once plus
outputs written once, at distinct addresses; output shapes are inferred from the inputs. Nothing here needs torch.

Conventions, which are those of ``torch.utils.flop_counter``: a bias adds none, attention counts the whole square of
scores (a causal mask makes the number an upper bound), attention backward counts its five products.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import lru_cache

from torchledger.nouns import Cost, Quality
from torchledger.work.flops import (
    attention_backward_flops,
    attention_flops,
    convolution_backward_flops,
    convolution_flops,
    grouped_matmul_flops,
    matmul_flops,
)
from torchledger.work.op_shapes import (
    DTYPE_OF_SCALAR_TYPE,
    OpCall,
    Tensor,
    broadcast_shape,
    parse_ints,
    promoted_dtype,
)

Formula = Callable[[OpCall], Cost | None]

NO_TENSOR_SHAPES = "the trace holds no shapes for this operator (recorded without record_shapes=True)"
LONG_LIST = "the trace holds no shapes for long lists of tensors"


def op_cost(call: OpCall) -> Cost:
    """FLOPs and minimum bytes of a call; what is unknown is ``None`` with the reason.

    >>> cost = op_cost(OpCall("aten::mm", (Tensor((4, 8), "float32"), Tensor((8, 16), "float32"))))
    >>> cost.flops, cost.bytes_moved
    (1024, 896)
    """
    if call.has_unknown_list:
        return Cost(reason=LONG_LIST)
    formula = FORMULAS.get(call.base_name)
    if formula is None and call.base_name.startswith("_foreach_"):
        formula = _foreach
    if formula is not None:
        cost = _guarded(formula, call)
        if cost is not None:
            return cost
    if not call.tensors:
        return Cost(reason=NO_TENSOR_SHAPES)
    if formula is not None:
        return Cost(reason=f"the shapes recorded for {call.name} do not fit its formula")
    return _unknown_operator(call)


@lru_cache(maxsize=100_000)
def has_formula(name: str) -> bool:
    """True when an operator of this name has a formula of its own."""
    base_name = OpCall(name, ()).base_name
    return base_name in FORMULAS or base_name.startswith("_foreach_")


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
    stride, padding, dilation = _spread(stride, rank), _spread(padding, rank), _spread(dilation, rank)
    extra = _spread(output_padding or (0,), rank)
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


# ---- matrix products


def _mm(call: OpCall) -> Cost | None:
    left, right = call.tensor(0), call.tensor(1)
    if left is None or right is None or left.shape[-1] != right.shape[-2]:
        return None
    batch = math.prod(broadcast_shape([left.shape[:-2], right.shape[:-2]]) or ())
    output = (*left.shape[:-1], right.shape[-1])
    flops = matmul_flops(left.shape[-2], left.shape[-1], right.shape[-1], batch)
    return _product(flops, [left, right], Tensor(output, left.dtype))


def _addmm(call: OpCall) -> Cost | None:
    bias, left, right = call.tensor(0), call.tensor(1), call.tensor(2)
    if bias is None or left is None or right is None or left.shape[-1] != right.shape[-2]:
        return None
    flops = matmul_flops(left.shape[-2], left.shape[-1], right.shape[-1], math.prod(left.shape[:-2]))
    output = Tensor((*left.shape[:-1], right.shape[-1]), left.dtype)
    if call.is_inplace:
        output = Tensor(bias.shape, bias.dtype)
    return _product(flops, [bias, left, right], output)


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
    return _product(flops, [tensor for tensor in call.tensors if tensor.shape != output.shape], output)


def _int_mm(call: OpCall) -> Cost | None:
    left, right = call.tensor(0), call.tensor(1)
    if left is None or right is None:
        return None
    output = Tensor((left.shape[0], right.shape[1]), "int32")
    return _product(matmul_flops(left.shape[0], left.shape[1], right.shape[1]), [left, right], output)


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
    return _product(grouped_matmul_flops(left.shape, right.shape), list(call.tensors), Tensor(output, dtype))


def _linear(call: OpCall) -> Cost | None:
    inputs, weight, bias = call.tensor(0), call.tensor(1), call.tensor(2)
    if inputs is None or weight is None or inputs.shape[-1] != weight.shape[-1]:
        return None
    rows = inputs.numel // max(inputs.shape[-1], 1)
    columns = weight.shape[0] if len(weight.shape) == 2 else 1
    output = (*inputs.shape[:-1], columns) if len(weight.shape) == 2 else inputs.shape[:-1]
    read = [tensor for tensor in (inputs, weight, bias) if tensor is not None]
    return _product(matmul_flops(rows, inputs.shape[-1], columns), read, Tensor(output, inputs.dtype))


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
    return _product(flops, [left, right], Tensor(output, left.dtype))


def _addmv(call: OpCall) -> Cost | None:
    bias, matrix, vector = call.tensor(0), call.tensor(1), call.tensor(2)
    if bias is None or matrix is None or vector is None or len(matrix.shape) != 2:
        return None
    flops = matmul_flops(matrix.shape[0], matrix.shape[1], 1)
    return _product(flops, [bias, matrix, vector], Tensor(matrix.shape[:1], matrix.dtype))


def _outer(call: OpCall) -> Cost | None:
    left, right = call.tensor(0), call.tensor(1)
    if left is None or right is None:
        return None
    output = Tensor((left.numel, right.numel), left.dtype)
    return _memory([left, right], [output])


def _addbmm(call: OpCall) -> Cost | None:
    bias, left, right = call.tensor(0), call.tensor(1), call.tensor(2)
    if bias is None or left is None or right is None or len(left.shape) != 3:
        return None
    flops = matmul_flops(left.shape[1], left.shape[2], right.shape[2], left.shape[0])
    return _product(flops, [bias, left, right], Tensor((left.shape[1], right.shape[2]), left.dtype))


# ---- convolutions: where each operator keeps its arguments


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
    return _product(flops, read, Tensor(output, inputs.dtype))


def _convolution_backward(call: OpCall) -> Cost | None:
    gradient, inputs, weight = call.tensor(0), call.tensor(1), call.tensor(2)
    if gradient is None or inputs is None or weight is None or len(weight.shape) < 3:
        return None
    transposed = call.constant(7) in ("True", "1", "true")
    mask_text = call.constant(10)
    mask = [word.strip(" []").lower() in ("true", "1") for word in mask_text.split(",")] if mask_text else [True] * 3
    if len(mask) != 3:
        mask = [True] * 3
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
    return _with_bytes(flops, read, [_dense(tensor) for tensor in written])


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
    return _product(flops, tensors, output)


# ---- attention


def _attention_reader(
    first: int, *, heads_second: bool, causal: int, backward: bool = False, cumulative: int | None = None
) -> Formula:
    """A formula for operators that keep query, key and value from position ``first`` on.

    ``heads_second`` says that tensors are (batch, heads, length, size), not (batch, length, heads, size); ``causal``
    is the position of the flag; ``cumulative`` that of the offsets of packed sequences.
    """

    def cost(call: OpCall) -> Cost | None:
        query, key, value = (call.tensor(first + offset) for offset in range(3))
        if query is None or key is None or value is None:
            return None
        is_bound = call.constant(causal).lower() in ("true", "1", "2")
        if len(query.shape) == 4:
            length, heads = (2, 1) if heads_second else (1, 2)
            batch_heads = query.shape[0] * query.shape[heads]
            queries, keys = query.shape[length], key.shape[length]
        elif len(query.shape) == 3 and cumulative is not None and call.tensor(cumulative) is not None:
            longest = call.ints(cumulative + 3) or call.ints(cumulative + 2) or ()
            batch_heads, queries = query.shape[1], query.shape[0]
            keys = longest[0] if len(longest) == 1 else key.shape[0]
            is_bound = True
        elif len(query.shape) == 3:
            batch_heads, queries, keys = query.shape[0], query.shape[1], key.shape[1]
        else:
            return None
        formula = attention_backward_flops if backward else attention_flops
        flops = formula(batch_heads, queries * keys, query.shape[-1], value.shape[-1])
        read = [tensor for tensor in call.tensors if not tensor.is_scalar]
        output = Tensor((*query.shape[:-1], value.shape[-1]), query.dtype)
        statistics = Tensor((batch_heads, queries), "float32")
        written = [_dense(query), _dense(key), _dense(value)] if backward else [output, statistics]
        result = _with_bytes(flops, read, written)
        if not is_bound:
            return result
        return _replace(
            result,
            flops_quality="upper_bound",
            basis="the whole square of scores; a mask or packing skips part of it",
        )

    return cost


# ---- elementwise operators, reductions and movement of data

_UNARY = """abs absolute acos acosh asin asinh atan atanh bitwise_not ceil celu clone contiguous cos cosh deg2rad
digamma elu erf erfc
erfinv exp exp2 expm1 floor frac gelu glu hardshrink hardsigmoid hardswish hardtanh i0 isfinite isinf isnan
leaky_relu lgamma log log10 log1p log2 log_sigmoid logical_not logit mish nan_to_num neg negative positive rad2deg
reciprocal relu relu6 round rsqrt selu sgn sigmoid sign signbit silu sin sinc sinh softplus softshrink sqrt square tan
tanh threshold trunc tril triu flip roll rot90 cumsum cumprod cummax cummin logcumsumexp clamp_min clamp_max clip
pixel_shuffle pixel_unshuffle channel_shuffle repeat_interleave constant_pad_nd reflection_pad1d reflection_pad2d
replication_pad1d replication_pad2d special_expit special_erf special_entr native_channel_shuffle conj_physical
bernoulli feature_dropout alpha_dropout real imag view_as_real_copy log_sigmoid_forward fake_quantize_per_tensor_affine
quantize_per_tensor dequantize"""

_BINARY = """add sub subtract rsub mul multiply div divide true_divide floor_divide remainder fmod pow float_power atan2
maximum minimum fmax fmin hypot copysign nextafter logaddexp logaddexp2 bitwise_and bitwise_or bitwise_xor
bitwise_left_shift bitwise_right_shift __and__ __or__ __xor__ __lshift__ __rshift__ xlogy ldexp heaviside prelu
_prelu_kernel gcd lcm special_xlog1py gelu_backward silu_backward threshold_backward sigmoid_backward tanh_backward
elu_backward leaky_relu_backward softplus_backward hardtanh_backward hardswish_backward hardsigmoid_backward
hardshrink_backward softshrink_backward mish_backward logit_backward glu_backward native_dropout_backward
masked_scale _masked_scale lerp_scalar clamp_tensor dist polar complex"""

_COMPARISON = """eq ne lt le gt ge not_equal less less_equal greater greater_equal logical_and logical_or logical_xor
isclose isin"""

_TERNARY = """where addcmul addcdiv lerp clamp masked_fill log_sigmoid_backward mse_loss_backward
smooth_l1_loss_backward huber_loss_backward binary_cross_entropy_backward binary_cross_entropy
binary_cross_entropy_with_logits soft_margin_loss_backward kl_div_backward"""

_FILL = """fill zero uniform normal random exponential geometric log_normal cauchy ones zeros empty full arange linspace
randn rand randint randperm eye zeros_like ones_like full_like rand_like randn_like new_zeros new_ones new_full
scalar_tensor bernoulli_fill"""

_BOOLEAN_RESULT = {*_COMPARISON.split(), "isfinite", "isinf", "isnan", "logical_not", "signbit"}

_REDUCTIONS: Mapping[str, int] = {
    "sum": 1,
    "nansum": 1,
    "mean": 1,
    "nanmean": 1,
    "prod": 1,
    "amax": 1,
    "amin": 1,
    "aminmax": 1,
    "max": 1,
    "min": 1,
    "argmax": 1,
    "argmin": 1,
    "any": 1,
    "all": 1,
    "std": 1,
    "var": 1,
    "std_mean": 1,
    "var_mean": 1,
    "logsumexp": 1,
    "norm": 2,
    "linalg_vector_norm": 2,
    "count_nonzero": 1,
    "median": 1,
    "nanmedian": 1,
    "mode": 1,
    "kthvalue": 2,
}
"""Reduction to the position of its dimensions."""


def _pointwise(arity: int) -> Formula:
    def cost(call: OpCall) -> Cost | None:
        tensors = [argument for argument in call.arguments if isinstance(argument, Tensor)]
        if not tensors:
            return None
        inputs, given_output = tensors, None
        if len(tensors) > arity:
            inputs, given_output = tensors[:arity], tensors[-1]
        shape = broadcast_shape([tensor.shape for tensor in inputs])
        if shape is None:
            return None
        if call.is_inplace:
            output = tensors[0]
        elif given_output is not None:
            output = given_output
        else:
            dtype = "bool" if call.base_name in _BOOLEAN_RESULT else _result_dtype(call, inputs)
            output = Tensor(_result_shape(call, shape), dtype)
        return _memory(inputs, [output])

    return cost


def _result_dtype(call: OpCall, inputs: Sequence[Tensor]) -> str:
    if call.base_name in ("where", "masked_fill"):
        values = [tensor for tensor in inputs if tensor.dtype != "bool"] or list(inputs)
        return promoted_dtype(values)
    dtype = promoted_dtype(inputs)
    is_integer = not dtype.startswith(("float", "bfloat", "complex"))
    if is_integer and call.base_name in _FLOAT_RESULT:
        return "float32"
    return "int64" if dtype == "bool" and call.base_name in ("cumsum", "cumprod") else dtype


_FLOAT_RESULT = {"div", "divide", "true_divide", "exp", "log", "sqrt", "rsqrt", "sin", "cos", "tanh", "sigmoid", "erf"}


def _result_shape(call: OpCall, shape: tuple[int, ...]) -> tuple[int, ...]:
    if call.base_name == "glu" and shape:
        axis = (call.ints(1) or (-1,))[0]
        return tuple(size // 2 if index == axis % len(shape) else size for index, size in enumerate(shape))
    if call.base_name == "constant_pad_nd" and (padding := call.ints(1)):
        result = list(shape)
        for axis in range(len(padding) // 2):
            result[-1 - axis] += padding[2 * axis] + padding[2 * axis + 1]
        return tuple(result)
    return shape


def _copy(call: OpCall) -> Cost | None:
    destination, source = call.tensor(0), call.tensor(1)
    if destination is None or source is None:
        return None
    return _memory([source], [destination])


def _to_copy(call: OpCall) -> Cost | None:
    source = call.tensor(0)
    if source is None:
        return None
    code = call.ints(1)
    dtype = DTYPE_OF_SCALAR_TYPE.get(code[0], source.dtype) if code and len(code) == 1 else source.dtype
    return _memory([source], [Tensor(source.shape, dtype)])


def _fill(call: OpCall) -> Cost | None:
    target = call.tensor(0)
    if target is not None:
        return _memory([], [target])
    shape = parse_ints(call.constant(0)) if call.constant(0).startswith("[") else None
    code = call.ints(1)
    if shape is None:
        return None
    return _memory([], [Tensor(shape, DTYPE_OF_SCALAR_TYPE.get((code or (6,))[0], "float32"))])


def _arange(call: OpCall) -> Cost | None:
    start, end, step = (call.ints(position) for position in range(3))
    if start is None:
        return None
    first, last = (start[0], end[0]) if end is not None else (0, start[0])
    number = max(0, -(-(last - first) // (step[0] if step is not None else 1)))
    return _memory([], [Tensor((number,), "int64")])


def _concatenate(call: OpCall) -> Cost | None:
    parts = call.tensor_list(0)
    if not parts:
        return None
    return _memory(parts, [_dense(part) for part in parts])


def _reduction(call: OpCall) -> Cost | None:
    source = call.tensor(0)
    if source is None:
        return None
    name = call.base_name
    if name in ("max", "min") and (other := call.tensor(1)) is not None and len(call.arguments) <= 3:
        return _pointwise(2)(OpCall(call.name, (source, other)))
    position = _REDUCTIONS[name]
    dims = call.ints(position)
    has_list = call.constant(position).startswith("[")
    takes_int = name in (
        "any",
        "all",
        "argmax",
        "argmin",
        "max",
        "min",
        "prod",
        "median",
        "nanmedian",
        "mode",
        "kthvalue",
    )
    rank = len(source.shape)
    if dims is None or not (has_list or takes_int) or any(not -rank <= dim < max(rank, 1) for dim in dims):
        dims = ()
    reduced = {dim % rank for dim in dims} if dims and rank else set(range(rank))
    shape = tuple(size for axis, size in enumerate(source.shape) if axis not in reduced)
    values = Tensor(shape, _reduction_dtype(name, source.dtype))
    written = [values]
    if name in ("std_mean", "var_mean", "aminmax"):
        written.append(values)
    if name in ("max", "min", "median", "nanmedian", "mode", "kthvalue") and dims:
        written.append(Tensor(shape, "int64"))
    return _memory([source], written)


def _reduction_dtype(name: str, dtype: str) -> str:
    if name in ("any", "all"):
        return "uint8" if dtype == "uint8" else "bool"
    if name in ("argmax", "argmin", "count_nonzero"):
        return "int64"
    if name in ("sum", "prod", "nansum") and not dtype.startswith(("float", "bfloat", "complex")):
        return "int64"
    return dtype


def _like_first(*, extra_outputs: Iterable[str] = ()) -> Formula:
    """Reads every tensor, writes one like the first, and others of its shape with the given dtypes."""
    extra = tuple(extra_outputs)

    def cost(call: OpCall) -> Cost | None:
        first = call.tensor(0)
        if first is None:
            return None
        tensors = [tensor for tensor in call.tensors if tensor.dtype != "generator"]
        return _memory(tensors, [_dense(first), *(Tensor(first.shape, dtype) for dtype in extra)])

    return cost


def _softmax(call: OpCall) -> Cost | None:
    source = call.tensor(0)
    if source is None:
        return None
    widened = call.constant(2) == "True" and source.dtype in ("float16", "bfloat16")
    code = call.ints(2)
    dtype = "float32" if widened else source.dtype
    if code and call.constant(2) not in ("True", "False") and code[0] in DTYPE_OF_SCALAR_TYPE:
        dtype = DTYPE_OF_SCALAR_TYPE[code[0]]
    return _memory([source], [Tensor(source.shape, dtype)])


def _softmax_backward(call: OpCall) -> Cost | None:
    gradient, output = call.tensor(0), call.tensor(1)
    if gradient is None or output is None:
        return None
    code = call.ints(3)
    dtype = DTYPE_OF_SCALAR_TYPE.get(code[0], gradient.dtype) if code else gradient.dtype
    return _memory([gradient, output], [Tensor(gradient.shape, dtype)])


def _dropout(call: OpCall) -> Cost | None:
    source = call.tensor(0)
    if source is None:
        return None
    return _memory([source], [_dense(source), Tensor(source.shape, "bool")])


# ---- normalization


def _layer_norm(call: OpCall) -> Cost | None:
    source, normalized = call.tensor(0), call.ints(1)
    if source is None or normalized is None:
        return None
    rows = source.numel // max(math.prod(normalized), 1)
    statistics = Tensor((rows,), "float64" if source.dtype == "float64" else "float32")
    count = 1 if "rms" in call.base_name else 2
    read = [source, *(tensor for tensor in (call.tensor(2), call.tensor(3)) if tensor is not None)]
    return _memory(read, [_dense(source), *[statistics] * count])


def _layer_norm_backward(call: OpCall) -> Cost | None:
    gradient, source = call.tensor(0), call.tensor(1)
    if gradient is None or source is None:
        return None
    parameters = [Tensor(tuple(call.ints(2) or ()), source.dtype)] * (1 if "rms" in call.base_name else 2)
    return _memory(call.tensors, [_dense(source), *(parameters if call.ints(2) else ())])


def _batch_norm(call: OpCall) -> Cost | None:
    source = call.tensor(0)
    if source is None or len(source.shape) < 2:
        return None
    channels = Tensor((source.shape[1],), "float32")
    return _replace(_memory(call.tensors, [_dense(source), channels, channels]), bytes_quality="estimated")


def _batch_norm_backward(call: OpCall) -> Cost | None:
    large = [tensor for tensor in call.tensors if len(tensor.shape) >= 2]
    if not large:
        return None
    channels = Tensor((large[0].shape[1],), "float32")
    return _replace(_memory(call.tensors, [_dense(large[0]), channels, channels]), bytes_quality="estimated")


def _group_norm(call: OpCall) -> Cost | None:
    source = call.tensor(0)
    if source is None:
        return None
    return _replace(_memory(call.tensors, [_dense(source)]), bytes_quality="estimated")


# ---- gathers and scatters


def _embedding(call: OpCall) -> Cost | None:
    table, indices = call.tensor(0), call.tensor(1)
    if table is None or indices is None or len(table.shape) != 2:
        return None
    return _gathered(table, indices, Tensor((*indices.shape, table.shape[1]), table.dtype))


def _index_select(call: OpCall) -> Cost | None:
    table, axis, indices = call.tensor(0), call.ints(1), call.tensor(2)
    if table is None or axis is None or indices is None or not table.shape:
        return None
    shape = list(table.shape)
    shape[axis[0]] = indices.numel
    return _gathered(table, indices, Tensor(tuple(shape), table.dtype))


def _gather(call: OpCall) -> Cost | None:
    table, indices = call.tensor(0), call.tensor(2)
    if table is None or indices is None:
        return None
    return _gathered(table, indices, Tensor(indices.shape, table.dtype))


def _take(call: OpCall) -> Cost | None:
    table, indices = call.tensor(0), call.tensor(1)
    if table is None or indices is None:
        return None
    return _gathered(table, indices, Tensor(indices.shape, table.dtype))


def _index(call: OpCall) -> Cost | None:
    table, indices = call.tensor(0), call.tensor_list(1)
    if table is None or not indices:
        return None
    shape = broadcast_shape([index.shape for index in indices])
    if shape is None or any(index.dtype == "bool" for index in indices):
        return None
    output = Tensor((*shape, *table.shape[len(indices) :]), table.dtype)
    return _gathered(table, indices[0], output)


def _gathered(table: Tensor, indices: Tensor, output: Tensor) -> Cost:
    """Rows may repeat, so what is read of the table is at most the output, and at most the table."""
    if None in (table.bytes, output.bytes, indices.bytes):
        return Cost(flops=0, flops_quality="exact", reason=f"element size of {table.dtype} is not known here")
    read = min(table.bytes or 0, output.bytes or 0)
    total = read + (output.bytes or 0) + (indices.bytes or 0)
    return Cost(0, total, "exact", "upper_bound", basis="each row that is gathered read once; repeated rows cost less")


def _embedding_backward(call: OpCall) -> Cost | None:
    gradient, indices, rows = call.tensor(0), call.tensor(1), call.ints(2)
    if gradient is None or indices is None or rows is None:
        return None
    table = Tensor((rows[0], gradient.shape[-1]), gradient.dtype)
    return _replace(_memory([gradient, indices], [table]), bytes_quality="estimated")


def _scatter(call: OpCall) -> Cost | None:
    """Writes where the indices say: what changes is read and written, at most once per source element."""
    target = call.tensor(0)
    others = [tensor for tensor in call.tensors[1:] if not tensor.is_scalar]
    if target is None or not others:
        return None
    touched = max((tensor for tensor in others), key=lambda tensor: tensor.numel)
    changed = Tensor((min(touched.numel, target.numel),), target.dtype)
    whole = [] if call.is_inplace else [target]
    written = [changed] if call.is_inplace else [_dense(target)]
    adds = [changed] if "add" in call.base_name or "reduce" in call.base_name or "accumulate" in call.base_name else []
    return _replace(_memory([*whole, *others, *adds], written), bytes_quality="upper_bound")


# ---- pooling, resizing, sorting


def _max_pool(call: OpCall) -> Cost | None:
    return _pool(call, extra="int64", ceil=5, dilation=4)


def _average_pool(call: OpCall) -> Cost | None:
    return _pool(call, extra=None, ceil=4, dilation=-1)


def _pool(call: OpCall, *, extra: str | None, ceil: int, dilation: int) -> Cost | None:
    source, kernel = call.tensor(0), call.ints(1)
    if source is None or not kernel:
        return None
    rank = len(kernel) if len(kernel) > 1 else len(source.shape) - 2
    kernel = _spread(kernel, rank)
    stride = _spread(call.ints(2) or kernel, rank)
    padding = _spread(call.ints(3) or (0,), rank)
    spread = _spread((call.ints(dilation) if dilation >= 0 else None) or (1,), rank)
    rounds_up = call.constant(ceil).lower() in ("true", "1")
    spatial = []
    for axis in range(rank):
        free = source.shape[axis - rank] + 2 * padding[axis] - spread[axis] * (kernel[axis] - 1) - 1
        steps = -(-free // stride[axis]) if rounds_up else free // stride[axis]
        if rounds_up and steps * stride[axis] >= source.shape[axis - rank] + padding[axis]:
            steps -= 1
        spatial.append(steps + 1)
    shape = (*source.shape[:-rank], *spatial)
    written = [Tensor(shape, source.dtype), *([Tensor(shape, extra)] if extra else [])]
    return _memory([source], written)


def _resized(call: OpCall) -> Cost | None:
    source = call.tensor(0)
    size = next((values for position in (1, 2) if (values := call.ints(position))), None)
    if source is None or size is None or not call.constant(1).startswith("["):
        return None
    shape = (*source.shape[: len(source.shape) - len(size)], *size)
    written = [Tensor(shape, source.dtype)]
    if "max_pool" in call.base_name:
        written.append(Tensor(shape, "int64"))
    return _memory([source], written)


def _resized_backward(call: OpCall) -> Cost | None:
    gradient = call.tensor(0)
    if gradient is None:
        return None
    size = next((values for position in (2, 1) if (values := call.ints(position)) and len(values) > 2), None)
    if size is not None:
        return _memory([gradient], [Tensor(size, gradient.dtype)])
    source = call.tensor(1)
    return None if source is None else _memory([gradient], [_dense(source)])


def _pool_backward(call: OpCall) -> Cost | None:
    gradient, source = call.tensor(0), call.tensor(1)
    if gradient is None or source is None:
        return None
    indices = [tensor for tensor in call.tensors[2:] if tensor.dtype == "int64"]
    needs_source = "adaptive_max" in call.base_name
    return _memory([gradient, *indices, *([source] if needs_source else [])], [_dense(source)])


def _sort(call: OpCall) -> Cost | None:
    source = call.tensor(0)
    if source is None:
        return None
    cost = _memory([source], [_dense(source), Tensor(source.shape, "int64")])
    return _replace(cost, bytes_quality="estimated", basis="one pass over the data; sorting makes several")


def _topk(call: OpCall) -> Cost | None:
    source, number = call.tensor(0), call.ints(1)
    if source is None or number is None or not source.shape:
        return None
    axis = (call.ints(2) or (-1,))[0]
    shape = tuple(number[0] if index == axis % len(source.shape) else size for index, size in enumerate(source.shape))
    return _memory([source], [Tensor(shape, source.dtype), Tensor(shape, "int64")])


# ---- losses, optimizers, recurrent layers


def _nll_loss(call: OpCall) -> Cost | None:
    scores, target = call.tensor(0), call.tensor(1)
    if scores is None or target is None:
        return None
    picked = Tensor(target.shape, scores.dtype)
    return _replace(_memory([picked, target], [Tensor((), scores.dtype)]), bytes_quality="estimated")


def _nll_loss_backward(call: OpCall) -> Cost | None:
    scores, target = call.tensor(1), call.tensor(2)
    if scores is None or target is None:
        return None
    return _memory([target], [_dense(scores)])


def _reduced_loss(call: OpCall) -> Cost | None:
    scores, target = call.tensor(0), call.tensor(1)
    if scores is None or target is None:
        return None
    is_elementwise = call.constant(2) == "0"
    return _memory([scores, target], [_dense(scores) if is_elementwise else Tensor((), scores.dtype)])


def _foreach(call: OpCall) -> Cost | None:
    name = call.base_name
    first = call.tensor_list(0)
    if not first:
        return None
    if name == "_foreach_zero":
        return _memory([], first)
    if name == "_foreach_copy":
        return _memory(call.tensor_list(1), first)
    if name in ("_foreach_norm", "_foreach_max"):
        return _memory(first, [Tensor((), tensor.dtype) for tensor in first])
    return _memory(call.tensors, [_dense(tensor) for tensor in first])


_WRITTEN_BY_OPTIMIZER: Mapping[str, tuple[int, ...]] = {
    "_fused_adam": (0, 2, 3, 4),
    "_fused_adamw": (0, 2, 3, 4),
    "_fused_sgd": (0, 2),
    "_fused_adagrad": (0, 2),
    "_amp_foreach_non_finite_check_and_unscale": (0,),
}


def _optimizer(call: OpCall) -> Cost | None:
    if not call.tensor_list(0):
        return None
    written = [tensor for position in _WRITTEN_BY_OPTIMIZER[call.base_name] for tensor in call.tensor_list(position)]
    return _memory(call.tensors, written)


def _recurrent(call: OpCall) -> Cost | None:
    """Each step multiplies every weight matrix once with that step's rows."""
    source = call.tensor(0)
    weights = [tensor for tensor in call.tensors[1:] if len(tensor.shape) == 2]
    if source is None or len(source.shape) != 3 or not weights:
        return None
    rows = source.shape[0] * source.shape[1]
    flops = sum(2 * rows * weight.numel for weight in weights)
    return _replace(_with_bytes(flops, call.tensors, [_dense(source)]), bytes_quality="estimated")


# ---- what is left


def _nothing(call: OpCall) -> Cost | None:
    return Cost(0, 0, "exact", "exact")


def _local_scalar(call: OpCall) -> Cost | None:
    source = call.tensor(0)
    return None if source is None else _memory([source], [source])


def _unknown_operator(call: OpCall) -> Cost:
    """An operator without a formula: bytes as if it read each input once and wrote one like the largest."""
    largest = max(call.tensors, key=lambda tensor: tensor.numel)
    cost = _memory(call.tensors, [_dense(largest)])
    if cost.bytes_moved is None:
        return cost
    return Cost(
        None,
        cost.bytes_moved,
        "unavailable",
        "estimated",
        reason=f"no FLOP formula for {call.name}",
        basis="inputs read once, one result like the largest input",
    )


def _product(flops: int, read: Sequence[Tensor], output: Tensor) -> Cost:
    return _with_bytes(flops, read, [output])


def _with_bytes(flops: int, read: Iterable[Tensor], written: Iterable[Tensor]) -> Cost:
    memory = _memory(read, written)
    return _replace(memory, flops=flops, flops_quality="exact")


def _memory(read: Iterable[Tensor], written: Iterable[Tensor]) -> Cost:
    total = 0
    for tensor in (*read, *written):
        size = tensor.bytes
        if size is None:
            return Cost(0, None, "exact", "unavailable", reason=f"element size of {tensor.dtype} is not known here")
        total += size
    return Cost(0, total, "exact", "exact", basis="recorded shapes")


def _replace(
    cost: Cost,
    *,
    flops: int | None = None,
    flops_quality: Quality | None = None,
    bytes_quality: Quality | None = None,
    basis: str | None = None,
) -> Cost:
    return Cost(
        cost.flops if flops is None else flops,
        cost.bytes_moved,
        flops_quality or cost.flops_quality,
        cost.bytes_quality if cost.bytes_moved is None or bytes_quality is None else bytes_quality,
        cost.reason,
        basis or cost.basis,
    )


def _dense(tensor: Tensor) -> Tensor:
    return Tensor(tensor.shape, tensor.dtype)


def _spread(values: Sequence[int], rank: int) -> tuple[int, ...]:
    return tuple(values) if len(values) == rank else (values[0],) * rank


def _guarded(formula: Formula, call: OpCall) -> Cost | None:
    """A formula's answer, or ``None`` where recorded arguments are not what the operator's schema promises."""
    try:
        cost = formula(call)
    except (IndexError, ValueError, ZeroDivisionError, TypeError):
        return None
    if cost is not None and (cost.flops or 0) < 0:
        return None
    return cost


def _names(text: str, formula: Formula) -> dict[str, Formula]:
    return dict.fromkeys(text.split(), formula)


FORMULAS: Mapping[str, Formula] = {
    **_names(_UNARY, _pointwise(1)),
    **_names(_BINARY, _pointwise(2)),
    **_names(_COMPARISON, _pointwise(2)),
    **_names(_TERNARY, _pointwise(3)),
    **_names(_FILL, _fill),
    "arange": _arange,
    **dict.fromkeys(_REDUCTIONS, _reduction),
    **_names("mm bmm", _mm),
    **_names("addmm baddbmm _addmm_activation", _addmm),
    **_names("mv dot vdot matmul inner", _matmul),
    "addmv": _addmv,
    "addbmm": _addbmm,
    **_names("outer ger", _outer),
    "linear": _linear,
    "_scaled_mm": _scaled_mm,
    "_int_mm": _int_mm,
    **_names("_grouped_mm _scaled_grouped_mm", _grouped_mm),
    **dict.fromkeys(_CONVOLUTIONS, _convolution),
    **_names("convolution_backward convolution_backward_overrideable", _convolution_backward),
    **_names(
        """cudnn_convolution_backward_input cudnn_convolution_backward_weight miopen_convolution_backward_input
        miopen_convolution_backward_weight""",
        _single_convolution_backward,
    ),
    "_scaled_dot_product_flash_attention": _attention_reader(0, heads_second=True, causal=4),
    "_scaled_dot_product_flash_attention_for_cpu": _attention_reader(0, heads_second=True, causal=4),
    "_scaled_dot_product_efficient_attention": _attention_reader(0, heads_second=True, causal=6),
    "_scaled_dot_product_cudnn_attention": _attention_reader(0, heads_second=True, causal=6),
    "_scaled_dot_product_attention_math": _attention_reader(0, heads_second=True, causal=5),
    "scaled_dot_product_attention": _attention_reader(0, heads_second=True, causal=5),
    "_flash_attention_forward": _attention_reader(0, heads_second=False, causal=8, cumulative=3),
    "_efficient_attention_forward": _attention_reader(0, heads_second=False, causal=9, cumulative=4),
    "_cudnn_attention_forward": _attention_reader(0, heads_second=True, causal=10, cumulative=4),
    "_flash_attn_forward": _attention_reader(0, heads_second=False, causal=5),
    "_flash_attn_varlen_forward": _attention_reader(0, heads_second=False, causal=9, cumulative=3),
    "_flash_attn_backward": _attention_reader(1, heads_second=False, causal=11, backward=True),
    "_scaled_dot_product_flash_attention_backward": _attention_reader(1, heads_second=True, causal=11, backward=True),
    "_scaled_dot_product_flash_attention_for_cpu_backward": _attention_reader(
        1, heads_second=True, causal=7, backward=True
    ),
    "_scaled_dot_product_efficient_attention_backward": _attention_reader(
        1, heads_second=True, causal=11, backward=True
    ),
    "_scaled_dot_product_cudnn_attention_backward": _attention_reader(1, heads_second=True, causal=14, backward=True),
    "_flash_attention_backward": _attention_reader(1, heads_second=False, causal=11, backward=True, cumulative=6),
    "_efficient_attention_backward": _attention_reader(1, heads_second=False, causal=13, backward=True, cumulative=6),
    **_names("copy _foreach_copy_single", _copy),
    **_names("_to_copy to type_as", _to_copy),
    **_names("cat concat concatenate stack _cat hstack vstack", _concatenate),
    **_names("_softmax softmax _log_softmax log_softmax", _softmax),
    **_names("_softmax_backward_data _log_softmax_backward_data", _softmax_backward),
    **_names("native_dropout dropout _fused_dropout", _dropout),
    **_names("native_layer_norm layer_norm rms_norm _fused_rms_norm", _layer_norm),
    **_names("native_layer_norm_backward _fused_rms_norm_backward", _layer_norm_backward),
    **_names(
        """native_batch_norm cudnn_batch_norm miopen_batch_norm _native_batch_norm_legit
        _native_batch_norm_legit_no_training _batch_norm_with_update _batch_norm_no_update batch_norm
        _batch_norm_impl_index batch_norm_elemt""",
        _batch_norm,
    ),
    **_names(
        """native_batch_norm_backward cudnn_batch_norm_backward miopen_batch_norm_backward batch_norm_backward
        _batch_norm_impl_index_backward batch_norm_backward_elemt""",
        _batch_norm_backward,
    ),
    **_names("native_group_norm group_norm instance_norm", _group_norm),
    "native_group_norm_backward": _like_first(),
    "embedding": _embedding,
    **_names("embedding_dense_backward", _embedding_backward),
    "index_select": _index_select,
    "gather": _gather,
    "take": _take,
    **_names("index _unsafe_index", _index),
    **_names(
        """scatter scatter_add scatter_reduce index_add index_copy index_fill index_put _index_put_impl
        _unsafe_index_put put index_reduce masked_scatter""",
        _scatter,
    ),
    **_names("max_pool2d_with_indices max_pool3d_with_indices", _max_pool),
    **_names("avg_pool1d avg_pool2d avg_pool3d", _average_pool),
    **_names(
        """_adaptive_avg_pool2d adaptive_avg_pool2d _adaptive_avg_pool3d adaptive_max_pool2d upsample_nearest1d
        upsample_nearest2d upsample_nearest3d _upsample_nearest_exact2d upsample_bilinear2d upsample_bicubic2d
        upsample_linear1d upsample_trilinear3d _upsample_bilinear2d_aa""",
        _resized,
    ),
    **_names(
        """upsample_nearest1d_backward upsample_nearest2d_backward upsample_nearest3d_backward
        upsample_bilinear2d_backward upsample_bicubic2d_backward upsample_linear1d_backward
        upsample_trilinear3d_backward _upsample_nearest_exact2d_backward _adaptive_avg_pool2d_backward
        _adaptive_avg_pool3d_backward""",
        _resized_backward,
    ),
    **_names(
        """max_pool2d_with_indices_backward max_pool3d_with_indices_backward avg_pool2d_backward avg_pool3d_backward
        adaptive_max_pool2d_backward""",
        _pool_backward,
    ),
    **_names("sort argsort msort", _sort),
    "topk": _topk,
    **_names("nll_loss_forward nll_loss2d_forward nll_loss", _nll_loss),
    **_names("nll_loss_backward nll_loss2d_backward", _nll_loss_backward),
    **_names("mse_loss smooth_l1_loss huber_loss l1_loss kl_div", _reduced_loss),
    **dict.fromkeys(_WRITTEN_BY_OPTIMIZER, _optimizer),
    **_names("_cudnn_rnn miopen_rnn mkldnn_rnn_layer", _recurrent),
    **_names("_local_scalar_dense item", _local_scalar),
    **_names("empty empty_like empty_strided view reshape as_strided expand permute transpose t detach", _nothing),
}
"""Operator name (without namespace and in-place mark) to its formula."""
