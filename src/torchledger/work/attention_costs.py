"""Attention operators: where each keeps queries, keys and values."""

from __future__ import annotations

from collections.abc import Mapping

from torchledger.nouns import Cost
from torchledger.work.cost_parts import (
    Formula,
    dense,
    revised,
    work_cost,
)
from torchledger.work.flops import (
    attention_backward_flops,
    attention_flops,
)
from torchledger.work.op_shapes import OpCall, Tensor


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
        written = [dense(query), dense(key), dense(value)] if backward else [output, statistics]
        result = work_cost(flops, read, written)
        if not is_bound:
            return result
        return revised(
            result,
            flops_quality="upper_bound",
            basis="the whole square of scores; a mask or packing skips part of it",
        )

    return cost


ATTENTION_COSTS: Mapping[str, Formula] = {
    "_scaled_dot_product_flash_attention": _attention_reader(0, heads_second=True, causal=4),
    "_scaled_dot_product_flash_attention_for_cpu": _attention_reader(0, heads_second=True, causal=4),
    "_scaled_dot_product_efficient_attention": _attention_reader(0, heads_second=True, causal=6),
    "_scaled_dot_product_cudnn_attention": _attention_reader(0, heads_second=True, causal=6),
    "_scaled_dot_product_attention_math": _attention_reader(0, heads_second=True, causal=5),
    "_scaled_dot_product_fused_attention_overrideable": _attention_reader(0, heads_second=True, causal=5),
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
}
"""Operator name (without namespace and in-place mark) to its formula."""
