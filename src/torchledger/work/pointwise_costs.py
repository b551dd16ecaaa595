"""Elementwise operators, copies, casts and fills."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from torchledger.nouns import Cost
from torchledger.work.cost_parts import (
    Formula,
    dense,
    like_first,
    memory_cost,
    named,
)
from torchledger.work.op_shapes import DTYPE_OF_SCALAR_TYPE, OpCall, Tensor, broadcast_shape, promoted_dtype

_UNARY = """abs absolute acos acosh asin asinh atan atanh bitwise_not ceil celu clone contiguous cos cosh deg2rad
digamma elu erf erfc
erfinv exp exp2 expm1 floor frac gelu glu hardshrink hardsigmoid hardswish hardtanh i0 isfinite isinf isnan
leaky_relu lgamma log log10 log1p log2 log_sigmoid logical_not logit mish nan_to_num neg negative positive rad2deg
reciprocal relu relu6 round rsqrt selu sgn sigmoid sign signbit silu sin sinc sinh softplus softshrink sqrt square tan
tanh threshold trunc tril triu flip roll rot90 cumsum cumprod cummax cummin logcumsumexp clamp_min clamp_max clip
pixel_shuffle pixel_unshuffle channel_shuffle repeat_interleave constant_pad_nd reflection_pad1d reflection_pad2d
reflection_pad3d
replication_pad1d replication_pad2d replication_pad3d
special_expit special_erf special_entr native_channel_shuffle conj_physical
bernoulli feature_dropout alpha_dropout view_as_real_copy log_sigmoid_forward fake_quantize_per_tensor_affine
quantize_per_tensor dequantize"""


_BINARY = """add sub subtract rsub mul multiply div divide true_divide floor_divide remainder fmod pow float_power atan2
maximum minimum fmax fmin hypot copysign nextafter logaddexp logaddexp2 bitwise_and bitwise_or bitwise_xor
bitwise_left_shift bitwise_right_shift __and__ __or__ __xor__ __lshift__ __rshift__ xlogy ldexp heaviside prelu
_prelu_kernel gcd lcm special_xlog1py gelu_backward silu_backward threshold_backward sigmoid_backward tanh_backward
elu_backward leaky_relu_backward softplus_backward hardtanh_backward hardswish_backward hardsigmoid_backward
hardshrink_backward softshrink_backward mish_backward logit_backward native_dropout_backward
masked_scale _masked_scale lerp_scalar clamp_tensor dist polar complex"""


_COMPARISON = """eq ne lt le gt ge not_equal less less_equal greater greater_equal logical_and logical_or logical_xor
isclose"""


_TERNARY = """where addcmul addcdiv lerp clamp masked_fill log_sigmoid_backward mse_loss_backward
smooth_l1_loss_backward huber_loss_backward binary_cross_entropy_backward
soft_margin_loss_backward kl_div_backward"""


_FILL = """fill zero uniform normal random exponential geometric log_normal cauchy ones zeros empty full arange linspace
randn rand randint randperm eye zeros_like ones_like full_like rand_like randn_like new_zeros new_ones new_full
scalar_tensor"""


_BOOLEAN_RESULT = {*_COMPARISON.split(), "isfinite", "isinf", "isnan", "logical_not", "signbit"}


_FLOAT_RESULT = {"div", "divide", "true_divide", "exp", "log", "sqrt", "rsqrt", "sin", "cos", "tanh", "sigmoid", "erf"}


def pointwise(arity: int) -> Formula:
    def cost(call: OpCall) -> Cost | None:
        tensors = [argument for argument in call.arguments if isinstance(argument, Tensor)]
        if not tensors:
            return None
        inputs, given_output = tensors, None
        if len(tensors) > arity:
            inputs, given_output = tensors[:arity], tensors[-1]
        shape = broadcast_shape([tensor.shape for tensor in inputs])
        if shape is None:  # what one device keeps for the backward has no elements on another (log_sigmoid_backward)
            inputs = [tensor for tensor in inputs if tensor.numel]
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
        return memory_cost(inputs, [output])

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


def _result_shape(call: OpCall, shape: tuple[int, ...]) -> tuple[int, ...]:
    if call.base_name == "glu" and shape:
        axis = (call.ints(1) or (-1,))[0]
        return tuple(size // 2 if index == axis % len(shape) else size for index, size in enumerate(shape))
    if "_pad" in call.base_name and (padding := call.ints(1)):
        result = list(shape)
        for axis in range(len(padding) // 2):
            result[-1 - axis] += padding[2 * axis] + padding[2 * axis + 1]
        return tuple(result)
    return shape


def _copy(call: OpCall) -> Cost | None:
    destination, source = call.tensor(0), call.tensor(1)
    if destination is None or source is None:
        return None
    return memory_cost([source], [destination])


def _to_copy(call: OpCall) -> Cost | None:
    source = call.tensor(0)
    if source is None:
        return None
    return memory_cost([source], [Tensor(source.shape, _dtype_at(call, 1) or source.dtype)])


def _fill(call: OpCall) -> Cost | None:
    target = call.tensor(0)
    if target is not None:
        size = call.ints(1) if call.base_name.startswith("new_") else None
        return memory_cost([], [target if size is None else Tensor(size, target.dtype)])
    place = next((at for at, text in enumerate(call.constants) if text.startswith("[")), None)
    shape = call.ints(place) if place is not None else _shape_by_numbers(call)
    if shape is None:
        return None
    usual = "int64" if call.base_name in ("randint", "randperm") else "float32"
    behind = 2 if call.base_name == "full" else 1  # what it is filled with stands between
    return memory_cost([], [Tensor(shape, (None if place is None else _dtype_at(call, place + behind)) or usual)])


def _dtype_at(call: OpCall, place: int) -> str | None:
    """A dtype among the constants: by its number, as a profiler has it, or by its name."""
    text = call.constants[place] if place < len(call.constants) else ""
    if text in DTYPE_OF_SCALAR_TYPE.values():
        return text
    code = call.ints(place)
    return DTYPE_OF_SCALAR_TYPE.get(code[0]) if code else None


def _shape_by_numbers(call: OpCall) -> tuple[int, ...] | None:
    """The shape made by operators that are given no list of sizes."""
    match call.base_name:
        case "randperm":
            return call.ints(0)
        case "linspace":
            return call.ints(2)
        case "scalar_tensor":
            return ()
        case "eye":
            rows, columns = call.ints(0), call.ints(1)
            return None if rows is None else (rows[0], (columns or rows)[0])
    return None


def _repeat(call: OpCall) -> Cost | None:
    source, repeats = call.tensor(0), call.ints(1)
    if source is None or repeats is None or len(repeats) < len(source.shape):
        return None
    shape = (*[1] * (len(repeats) - len(source.shape)), *source.shape)
    times = tuple(size * repeat for size, repeat in zip(shape, repeats, strict=True))
    return memory_cost([source], [Tensor(times, source.dtype)])


def _padded_gradient(call: OpCall) -> Cost | None:
    """The gradient of a part: zeros of the whole's size (the second argument) with the part copied in."""
    gradient, shape = call.tensor(0), call.ints(1)
    return None if gradient is None or shape is None else memory_cost([gradient], [Tensor(shape, gradient.dtype)])


def _gated_gradient(call: OpCall) -> Cost | None:
    gradient, source = call.tensor(0), call.tensor(1)
    return None if gradient is None or source is None else memory_cost([gradient, source], [dense(source)])


def _gated_by_weight(call: OpCall) -> Cost | None:
    """The gradient of what was gated, and of each gate where the operator makes that too."""
    source = call.tensor(1)
    if source is None:
        return None
    return memory_cost(call.tensors, [dense(source)] * (2 if "prelu" in call.base_name else 1))


def _with_noise(call: OpCall) -> Cost | None:
    source, noise = call.tensor(0), call.tensor(1)
    return None if source is None or noise is None else memory_cost([source], [noise, dense(source)])


def _searched(call: OpCall) -> Cost | None:
    """``bucketize(values, boundaries)`` and ``searchsorted(boundaries, values)``: a place for each value."""
    first, second = call.tensor(0), call.tensor(1)
    if first is None:
        return None
    values = second if call.base_name == "searchsorted" else first
    places = Tensor(values.shape if values is not None else (), "int64")
    return memory_cost([tensor for tensor in (first, second) if tensor is not None], [places])


def _among(call: OpCall) -> Cost | None:
    """``isin(elements, test_elements)``: a truth for each of the first."""
    tensors = [argument for argument in call.arguments if isinstance(argument, Tensor)]
    first = call.tensor(0)
    return memory_cost(tensors, [Tensor(first.shape if first is not None else (), "bool")]) if tensors else None


def _arange(call: OpCall) -> Cost | None:
    start, end, step = (call.ints(position) for position in range(3))
    if start is None:
        return None
    first, last = (start[0], end[0]) if end is not None else (0, start[0])
    number = max(0, -(-(last - first) // (step[0] if step is not None else 1)))
    return memory_cost([], [Tensor((number,), "int64")])


def _concatenate(call: OpCall) -> Cost | None:
    parts = call.tensor_list(0)
    if not parts:
        return None
    return memory_cost(parts, [dense(part) for part in parts])


def _local_scalar(call: OpCall) -> Cost | None:
    source = call.tensor(0)
    return None if source is None else memory_cost([source], [source])


POINTWISE_COSTS: Mapping[str, Formula] = {
    **named(_UNARY, pointwise(1)),
    **named(_BINARY, pointwise(2)),
    **named(_COMPARISON, pointwise(2)),
    **named(_TERNARY, pointwise(3)),
    **named(_FILL, _fill),
    "arange": _arange,
    "repeat": _repeat,
    "glu_backward": _gated_gradient,
    **named("select_backward slice_backward diagonal_backward unfold_backward", _padded_gradient),
    **named("bucketize searchsorted", _searched),
    "isin": _among,
    "_amp_update_scale": like_first(),
    **named("_prelu_kernel_backward rrelu_with_noise_backward", _gated_by_weight),
    "rrelu_with_noise": _with_noise,
    "split_with_sizes_copy": pointwise(1),
    **named("copy _foreach_copy_single", _copy),
    **named("_to_copy to type_as", _to_copy),
    **named("cat concat concatenate stack _cat hstack vstack", _concatenate),
    **named("_local_scalar_dense item", _local_scalar),
}
"""Operator name (without namespace and in-place mark) to its formula."""
