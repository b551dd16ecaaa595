"""Scaled dot-product attention, fused: of one length, and of many packed together."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from torchledger.operators.declaration import Input, Number, Operator, Parameters, Work
from torchledger.operators.formulas import (
    attention,
)


class Sdpa(Operator):
    """Scaled dot product attention on [b, h, l, d], by the backend that torch picks. ``h_kv`` heads of keys and values
    (0: as many as h), ``l_kv`` their length (0: l). Backward: gradients of q, k and v.

    FLOPs count the pairs of positions that see each other: two products forward, five backward (the scores are
    computed again). A causal mask is aligned to the upper left corner, as torch's is.
    """

    name = "sdpa"
    parameters = ("b", "h", "l", "d")
    defaults: ClassVar[Mapping[str, Any]] = {"causal": 0, "h_kv": 0, "l_kv": 0}
    ratio_bounds = (0.8, 12.0)

    def check(self, p: Parameters) -> str | None:
        if p.h_kv and p.h % p.h_kv:
            return f"h_kv={p.h_kv} does not divide h={p.h}"
        return None

    def tensors(self, p: Parameters) -> dict[str, Input]:
        heads, length = p.h_kv or p.h, p.l_kv or p.l
        key = Input((p.b, heads, length, p.d), gradient=True)
        return {"query": Input((p.b, p.h, p.l, p.d), gradient=True), "key": key, "value": key}

    def forward(self, p: Parameters, query: Any, key: Any, value: Any) -> Any:
        import torch

        return torch.nn.functional.scaled_dot_product_attention(
            query, key, value, is_causal=bool(p.causal), enable_gqa=key.shape[1] != query.shape[1]
        )

    def work(self, p: Parameters, direction: str, item_size: int) -> tuple[Work, ...]:
        heads_kv, length_kv = _or_default(p.h_kv, p.h), _or_default(p.l_kv, p.l)
        pairs = _visible_pairs(p.l, length_kv, p.causal)
        return (attention(p.b * p.h, p.b * heads_kv, p.l, length_kv, p.d, pairs, direction, item_size),)


class SdpaVarlen(Operator):
    """Attention over ``sequences`` packed sequences of equal length l (``torch.nn.attention.varlen``), [tokens, h, d].
    Backward: gradients of q, k and v."""

    name = "sdpa_varlen"
    parameters = ("sequences", "h", "l", "d")
    defaults: ClassVar[Mapping[str, Any]] = {"causal": 1}
    dtypes = ("bfloat16", "float16")
    ratio_bounds = (0.8, 12.0)

    def tensors(self, p: Parameters) -> dict[str, Input]:
        tokens = Input((p.sequences * p.l, p.h, p.d), gradient=True)
        starts = Input((p.sequences + 1,), dtype="int32", values="starts", high=p.sequences * p.l)
        return {"query": tokens, "key": tokens, "value": tokens, "starts": starts}

    def forward(self, p: Parameters, query: Any, key: Any, value: Any, starts: Any) -> Any:
        from torchledger._torch.attention import varlen_attention

        return varlen_attention(query, key, value, starts, p.l, causal=bool(p.causal))

    def work(self, p: Parameters, direction: str, item_size: int) -> tuple[Work, ...]:
        heads = p.sequences * p.h
        return (attention(heads, heads, p.l, p.l, p.d, _visible_pairs(p.l, p.l, p.causal), direction, item_size),)


def _or_default(value: Number, default: Number) -> Number:
    import numpy

    if isinstance(value, int) and isinstance(default, int):
        return value or default
    return numpy.where(value, value, default)


def _visible_pairs(length: Number, length_kv: Number, causal: Number) -> Number:
    """Pairs of positions that see each other; causal: position i sees min(i, l_kv) keys, i from 1."""
    import numpy

    everything = length * length_kv
    short = numpy.minimum(length, length_kv)
    below = short * (short + 1) // 2 + (length - short) * length_kv
    pairs = numpy.where(causal, below, everything)
    return pairs if pairs.ndim else int(pairs)
