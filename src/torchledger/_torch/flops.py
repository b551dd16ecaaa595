"""FLOP formulas by operator: torch's registry, completed.

``torch.utils.flop_counter`` is the reference that everybody uses; what it lacks or gets wrong in a supported version is
added here, and the same table serves the entries, the reference count and the eager check:

- flash attention on CPU has no formula (absent in 2.9, 2.11 and 2.13);
- attention formulas raise on grouped-query shapes in 2.11;
- oneDNN/MKL linear and convolution, which freezing puts in, have none;
- the expert products of ``transformers`` are an operator of that package, without one.

A formula that a program adds with ``torch.utils.flop_counter.register_flop_formula`` counts from then on.

One multiply-add is 2 FLOPs. Causal attention is counted in full, as torch does.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch.utils import flop_counter

Formula = Callable[..., int]
"""Called with the operator's arguments, tensors given as shapes, and ``out_shape``."""


def _product(*factors: int) -> int:
    total = 1
    for factor in factors:
        total *= factor
    return total


def _attention(query: Any, key: Any, value: Any, *args: Any, **kwargs: Any) -> int:
    """Two products per query head: scores and output. Key/value heads may be fewer (grouped query)."""
    *batch, queries, width = query
    return 2 * _product(*batch) * queries * key[-2] * (width + value[-1])


def _attention_backward(grad_out: Any, query: Any, key: Any, value: Any, *args: Any, **kwargs: Any) -> int:
    """Five products per query head: scores again, and the gradients of scores, value, query and key."""
    *batch, queries, width = query
    return 2 * _product(*batch) * queries * key[-2] * (3 * width + 2 * value[-1])


def _linear(x: Any, weight: Any, *args: Any, out_shape: Any = None, **kwargs: Any) -> int:
    return 2 * _product(*out_shape) * x[-1]


def _convolution(x: Any, weight: Any, *args: Any, out_shape: Any = None, **kwargs: Any) -> int:
    """Each output element takes one multiply-add per weight of its filter."""
    return 2 * _product(*out_shape) * _product(*weight[1:])


def _grouped_product(a: Any, b: Any, *args: Any, out_shape: Any = None, **kwargs: Any) -> int:
    """Every row of ``a`` meets one group's matrix: rows x inner x columns."""
    return 2 * _product(*a) * b[-1]


def _grouped_product_backward(a: Any, b: Any, *args: Any, out_shape: Any = None, **kwargs: Any) -> int:
    """The gradients of both operands, a product each."""
    return 2 * _grouped_product(a, b)


_ATTENTION = (
    "_scaled_dot_product_flash_attention_for_cpu",
    "_scaled_dot_product_flash_attention",
    "_scaled_dot_product_efficient_attention",
    "_scaled_dot_product_cudnn_attention",
    "_scaled_dot_product_fused_attention_overrideable",
)
_ADDED: Mapping[str, Formula] = {
    **{f"aten.{name}": _attention for name in _ATTENTION},
    **{f"aten.{name}_backward": _attention_backward for name in _ATTENTION},
    "aten._scaled_dot_product_flash_attention_for_cpu_backward": _attention_backward,
    "mkldnn._linear_pointwise": _linear,
    "mkl._mkl_linear": _linear,
    "mkldnn._convolution_pointwise": _convolution,
    "mkldnn._convolution_pointwise_": _convolution,
    "mkldnn._convolution_transpose_pointwise": _convolution,
    "aten.mkldnn_convolution": _convolution,
    "aten.cudnn_convolution": _convolution,
    "aten.cudnn_convolution_relu": _convolution,
    "aten.miopen_convolution": _convolution,
    "aten._int_mm": lambda a, b, *args, **kwargs: 2 * a[0] * a[1] * b[1],
    "aten._grouped_mm": _grouped_product,
    "aten._scaled_grouped_mm": _grouped_product,
    "transformers.grouped_mm_fallback": _grouped_product,
    "transformers.grouped_mm_fallback_backward": _grouped_product_backward,
}


def formulas() -> Mapping[Any, Callable[..., int]]:
    """Operator packet to counting function ``f(*args, out_val=..., **kwargs)``, ours over torch's."""
    return _table(len(flop_counter.flop_registry), "transformers.integrations.moe" in sys.modules)


@functools.lru_cache(maxsize=1)
def _table(registered: int, has_transformers: bool) -> Mapping[Any, Callable[..., int]]:
    """Made anew when a formula was registered, or a package with operators of its own was imported."""
    table: dict[Any, Callable[..., int]] = dict(flop_counter.flop_registry)
    for name, formula in _ADDED.items():
        namespace, operator = name.split(".")
        packet = getattr(getattr(torch.ops, namespace), operator, None)
        if packet is not None:
            table[packet] = _on_shapes(formula)
    return table


def added_formulas() -> dict[Any, Callable[..., int]]:
    """Only what ``formulas`` adds to torch's table, in the form of ``FlopCounterMode(custom_mapping=...)``."""
    ours = dict(formulas())
    return {packet: ours[packet] for packet in ours if ours[packet] is not flop_counter.flop_registry.get(packet)}


def _on_shapes(formula: Formula) -> Callable[..., int]:
    def count(*args: Any, out_val: Any = None, **kwargs: Any) -> int:
        shaped_args, shaped_kwargs, out_shape = torch.utils._pytree.tree_map(_shape, (args, kwargs, out_val))
        return formula(*shaped_args, out_shape=out_shape, **shaped_kwargs)

    # FlopCounterMode wraps what does not say that it takes raw tensors.
    count._get_raw = True
    return count


def _shape(value: Any) -> Any:
    return tuple(value.shape) if isinstance(value, torch.Tensor) else value
