"""Attention entry points whose names moved between torch versions, and the optional flash-attn package."""

from __future__ import annotations

import functools
from typing import Any


@functools.cache
def flash_attn_function() -> Any:
    """``flash_attn.flash_attn_func`` if that package is installed, else ``None``."""
    try:
        from flash_attn import flash_attn_func  # type: ignore[import-not-found]
    except ImportError:
        return None
    return flash_attn_func


def flash_attention(query: Any, key: Any, value: Any) -> Any:
    """Unmasked attention of [b, l, h, d] tensors: flash-attn where it is installed and fits, else torch's own."""
    function = flash_attn_function()
    if function is not None and query.is_cuda and query.element_size() == 2:
        return function(query, key, value)
    import torch

    heads_first = (x.transpose(1, 2) for x in (query, key, value))
    return torch.nn.functional.scaled_dot_product_attention(*heads_first).transpose(1, 2)


def varlen_attention(query: Any, key: Any, value: Any, starts: Any, longest: int, *, causal: bool) -> Any:
    """Attention of packed sequences, [tokens, h, d]; ``torch.nn.attention.varlen`` came with torch 2.10.

    Without it, or on the CPU, which it does not serve, sequences of equal length are attended to as a batch.
    """
    import torch

    if query.is_cuda:
        from torch.nn.attention.varlen import varlen_attn

        window = (-1, 0) if causal else (-1, -1)
        return varlen_attn(query, key, value, starts, starts, longest, longest, window_size=window)
    _, heads, d = query.shape
    batched = (x.view(-1, longest, heads, d).transpose(1, 2) for x in (query, key, value))
    output = torch.nn.functional.scaled_dot_product_attention(*batched, is_causal=causal)
    return output.transpose(1, 2).reshape(-1, heads, d)
