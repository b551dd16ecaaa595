"""FLOP formulas by operator: torch's registry, completed.

``torch.utils.flop_counter`` is the reference that everybody uses; what it lacks or gets wrong in a supported version is
added here, and the same table serves the entries, the reference count and the eager check:

- flash attention on CPU has no formula (absent in 2.9, 2.11 and 2.13);
- attention formulas raise on grouped-query shapes in 2.11;
- oneDNN/MKL linear and convolution, which freezing puts in, have none;
- products with a vector, sums of batched products, ``torch.nn.Bilinear``, ``cdist`` and recurrent layers have none;
- encoder layers and attention that ``torch.nn`` calls as one operator for inference have none;
- those of cuDNN and of the plain CPU loops are read as if a flag of theirs said that they were transposed;
- the expert products of ``transformers`` are an operator of that package, without one.

A formula that a program adds with ``torch.utils.flop_counter.register_flop_formula`` counts from then on.

What is added calls the formulas of ``torchledger.work.flops``. One multiply-add is 2 FLOPs. Causal attention is counted
in full, as torch does.
"""

from __future__ import annotations

import functools
import logging
import math
import sys
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch.utils import flop_counter

from torchledger._torch.library_operators import is_own_operator
from torchledger.signals import let_through
from torchledger.work.flops import (
    attention_backward_flops,
    attention_flops,
    convolution_flops,
    distance_flops,
    encoder_flops,
    grouped_matmul_flops,
    matmul_flops,
    recurrent_flops,
    trilinear_flops,
)

log = logging.getLogger(__name__)

Formula = Callable[..., Any]
"""Called with the operator's arguments, tensors given as shapes, and ``out_shape``; where sizes are expressions, so is
what it returns."""


def _attention(query: Any, key: Any, value: Any, *args: Any, **kwargs: Any) -> Any:
    """Key and value heads may be fewer than query heads (grouped query)."""
    return attention_flops(math.prod(query[:-2]), query[-2] * key[-2], query[-1], value[-1])


def _attention_backward(grad_out: Any, query: Any, key: Any, value: Any, *args: Any, **kwargs: Any) -> Any:
    return attention_backward_flops(math.prod(query[:-2]), query[-2] * key[-2], query[-1], value[-1])


def _product(left: Any, right: Any, *args: Any, **kwargs: Any) -> Any:
    return matmul_flops(left[-2], left[-1], right[-1])


def _linear(x: Any, weight: Any, *args: Any, out_shape: Any = None, **kwargs: Any) -> Any:
    """From the result's shape, as weights may be packed."""
    return matmul_flops(math.prod(out_shape[:-1]), x[-1], out_shape[-1])


def _convolution(x: Any, weight: Any, *args: Any, out_shape: Any = None, **kwargs: Any) -> Any:
    return convolution_flops(x, weight, out_shape)


def _transposed_convolution(x: Any, weight: Any, *args: Any, out_shape: Any = None, **kwargs: Any) -> Any:
    return convolution_flops(x, weight, out_shape, transposed=True)


def _grouped_product(left: Any, right: Any, *args: Any, **kwargs: Any) -> Any:
    return grouped_matmul_flops(left, right)


def _grouped_product_backward(left: Any, right: Any, *args: Any, **kwargs: Any) -> Any:
    """The gradients of both operands, a product each."""
    return 2 * _grouped_product(left, right)


def _matrix_and_vector(matrix: Any, vector: Any, *args: Any, **kwargs: Any) -> Any:
    return matmul_flops(matrix[0] if len(matrix) > 1 else 1, matrix[-1], 1)


def _added_matrix_and_vector(bias: Any, matrix: Any, vector: Any, *args: Any, **kwargs: Any) -> Any:
    return _matrix_and_vector(matrix, vector)


def _summed_products(bias: Any, left: Any, right: Any, *args: Any, **kwargs: Any) -> Any:
    return matmul_flops(left[1], left[2], right[2], left[0])


def _distances(left: Any, right: Any, *args: Any, **kwargs: Any) -> Any:
    return distance_flops(left, right)


def _trilinear(first: Any, second: Any, third: Any, *expanded: Any, **kwargs: Any) -> Any:
    return trilinear_flops((first, second, third), expanded[:3])


def _recurrent(x: Any, *weights: Any, **kwargs: Any) -> Any:
    """Of one layer (oneDNN: four arrays) or of all (cuDNN: a list)."""
    return recurrent_flops(math.prod(x[:-1]), weights[0] if isinstance(weights[0], list) else weights[:4])


def _recurrent_backward(x: Any, *weights: Any, **kwargs: Any) -> Any:
    """The gradients of weights and of rows, a product each."""
    return 2 * _recurrent(x, *weights)


def _encoder_layer(x: Any, width: Any, heads: Any, *weights: Any, **kwargs: Any) -> Any:
    """What ``torch.nn.TransformerEncoderLayer`` calls for inference."""
    shapes = [weight for weight in weights if isinstance(weight, tuple)]
    return encoder_flops(x, x[1], width, shapes[:_ENCODER_WEIGHTS])


def _encoder_attention(query: Any, key: Any, value: Any, width: Any, heads: Any, *weights: Any, **kwargs: Any) -> Any:
    """What ``torch.nn.MultiheadAttention`` calls for inference."""
    shapes = [weight for weight in weights if isinstance(weight, tuple)]
    return encoder_flops(query, key[1], width, shapes[:_ATTENTION_WEIGHTS])


_ENCODER_WEIGHTS = 12
"""Weights and biases of an encoder layer's call, in front of its mask."""
_ATTENTION_WEIGHTS = 4
_ATTENTION = (
    "_scaled_dot_product_flash_attention_for_cpu",
    "_scaled_dot_product_flash_attention",
    "_scaled_dot_product_efficient_attention",
    "_scaled_dot_product_cudnn_attention",
    "_scaled_dot_product_fused_attention_overrideable",
)
_LINEAR = ("mkldnn._linear_pointwise", "mkl._mkl_linear", "aten._weight_int8pack_mm", "aten._weight_int4pack_mm")
_CONVOLUTIONS = (
    *("mkldnn._convolution_pointwise", "mkldnn._convolution_pointwise_", "aten.mkldnn_convolution"),
    *("aten.cudnn_convolution", "aten.cudnn_convolution_relu", "aten.cudnn_convolution_add_relu"),
    *("aten.miopen_convolution", "aten.miopen_convolution_relu", "aten.miopen_depthwise_convolution"),
    *("aten._slow_conv2d_forward", "aten.slow_conv3d_forward", "aten._conv_depthwise2d", "aten.conv_depthwise3d"),
)
_TRANSPOSED_CONVOLUTIONS = (
    *("mkldnn._convolution_transpose_pointwise", "aten.cudnn_convolution_transpose"),
    "aten.miopen_convolution_transpose",
)
_ADDED: Mapping[str, Formula] = {
    **{f"aten.{name}": _attention for name in _ATTENTION},
    **{f"aten.{name}_backward": _attention_backward for name in _ATTENTION},
    "aten._scaled_dot_product_flash_attention_for_cpu_backward": _attention_backward,
    **dict.fromkeys(_LINEAR, _linear),
    **dict.fromkeys(_CONVOLUTIONS, _convolution),
    **dict.fromkeys(_TRANSPOSED_CONVOLUTIONS, _transposed_convolution),
    **dict.fromkeys(("aten._int_mm", "aten._scaled_mm_v2"), _product),
    **dict.fromkeys(("aten._grouped_mm", "aten._scaled_grouped_mm", "aten._scaled_grouped_mm_v2"), _grouped_product),
    **dict.fromkeys(("aten.mv", "aten.dot", "aten.vdot"), _matrix_and_vector),
    "aten.addmv": _added_matrix_and_vector,
    "aten.addbmm": _summed_products,
    "aten._trilinear": _trilinear,
    "aten._euclidean_dist": _distances,
    **dict.fromkeys(("aten.mkldnn_rnn_layer", "aten._cudnn_rnn", "aten.miopen_rnn"), _recurrent),
    **dict.fromkeys(
        ("aten.mkldnn_rnn_layer_backward", "aten._cudnn_rnn_backward", "aten.miopen_rnn_backward"), _recurrent_backward
    ),
    "aten._transformer_encoder_layer_fwd": _encoder_layer,
    "aten._native_multi_head_attention": _encoder_attention,
    "transformers.grouped_mm_fallback": _grouped_product,
    "transformers.grouped_mm_fallback_backward": _grouped_product_backward,
}


def formulas() -> Mapping[Any, Callable[..., Any]]:
    """Operator packet to counting function ``f(*args, out_val=..., **kwargs)``, ours over torch's."""
    return _table(len(flop_counter.flop_registry), "transformers.integrations.moe" in sys.modules)


@functools.lru_cache(maxsize=1)
def _table(registered: int, has_transformers: bool) -> Mapping[Any, Callable[..., Any]]:
    """Made anew when a formula was registered, or a package with operators of its own was imported."""
    table: dict[Any, Callable[..., Any]] = dict(flop_counter.flop_registry)
    for name, formula in _ADDED.items():
        namespace, operator = name.split(".")
        packet = getattr(getattr(torch.ops, namespace), operator, None)
        if packet is not None:
            table[packet] = _on_shapes(formula)
    for packet, flex in _of_flex().items():
        table.setdefault(packet, _on_shapes(flex))
    return table


def _of_flex() -> Mapping[Any, Formula]:
    """Attention by a kernel that is written for its scores and mask; all blocks count, as where a mask is causal."""
    from torch._higher_order_ops.flex_attention import flex_attention, flex_attention_backward

    def backward(query: Any, key: Any, value: Any, *args: Any, **kwargs: Any) -> Any:
        return _attention_backward(None, query, key, value)

    return {flex_attention: _attention, flex_attention_backward: backward}


def flops_of_own(func: Any, args: Any, kwargs: Any, result: Any) -> int | None:
    """FLOPs of an operator of the program's own by the formula that it has registered; ``None`` without one."""
    formula = formulas().get(func._overloadpacket) if is_own_operator(func) else None
    try:
        return None if formula is None else int(formula(*args, **kwargs, out_val=result))
    except Exception as error:  # the program's formula, which nobody else may ever have called
        let_through(error)
        log.debug("a formula of the program's own failed", exc_info=error)
        return None


def added_formulas() -> dict[Any, Callable[..., Any]]:
    """Only what ``formulas`` adds to torch's table, in the form of ``FlopCounterMode(custom_mapping=...)``."""
    ours = dict(formulas())
    return {packet: ours[packet] for packet in ours if ours[packet] is not flop_counter.flop_registry.get(packet)}


def _on_shapes(formula: Formula) -> Callable[..., Any]:
    def count(*args: Any, out_val: Any = None, **kwargs: Any) -> Any:
        total: Any = 0
        for place in range(_parts(args[0]) if args else 1):
            shaped = torch.utils._pytree.tree_map(functools.partial(_shape, place=place), (args, kwargs, out_val))
            shaped_args, shaped_kwargs, out_shape = shaped
            total += formula(*shaped_args, out_shape=out_shape, **shaped_kwargs)
        return total

    # FlopCounterMode wraps what does not say that it takes raw tensors.
    count._get_raw = True
    return count


def _shape(value: Any, place: int = 0) -> Any:
    """A tensor's shape; of a nested one, which has no sizes as a whole, the shape of one of its parts as a batch."""
    if not isinstance(value, torch.Tensor):
        return value
    return (1, *value._nested_tensor_size()[place].tolist()) if _is_nested(value) else tuple(value.shape)


def _parts(value: Any) -> int:
    return len(value._nested_tensor_size()) if isinstance(value, torch.Tensor) and _is_nested(value) else 1


def _is_nested(value: torch.Tensor) -> bool:
    return value.is_nested and value.layout == torch.strided
