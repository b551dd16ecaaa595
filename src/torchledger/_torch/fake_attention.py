"""Which kernel ``scaled_dot_product_attention`` would run on a device, by the rules of torch's own C++.

After ``aten/src/ATen/native/transformers/cuda/sdp_utils.cpp`` of torch 2.11: cuDNN first on compute capabilities 9.0
and 10.0, then flash, then memory-efficient attention, then plain products; each is taken if it can do the call. Where a
program said which it would rather have (``sdpa_kernel(..., set_priority=True)``), in its order.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch

MATH, FLASH, EFFICIENT, CUDNN = 0, 1, 2, 3
"""``sdp::SDPBackend``."""

_UNSAID = [FLASH, EFFICIENT, MATH, CUDNN, 4]
"""The order of a process in which nothing was said, and no device asked yet; the last one is for other devices."""


def choose_attention(asked: Any, capability: tuple[int, int]) -> int:
    """The number of torch's ``SDPBackend`` for an ``AttentionQuestion``."""
    order = torch._C._get_sdp_priority_order()
    if order == _UNSAID and capability in ((9, 0), (10, 0)):
        order = [CUDNN, FLASH, EFFICIENT, MATH]
    for backend in order:
        if backend in _CAN and _IS_ON[backend]() and _CAN[backend](asked, capability):
            return backend
    return MATH


def _can_cudnn(asked: Any, capability: tuple[int, int]) -> bool:
    widest = 256 if capability == (9, 0) else 128
    return (
        capability >= (8, 0)
        and _is_dense(asked)
        and bool(asked.is_half)
        and _broadcasts_mask(asked)
        and (not torch.are_deterministic_algorithms_enabled() or torch.is_deterministic_algorithms_warn_only_enabled())
        and asked.query_3 % 8 == 0
        and asked.value_3 % 8 == 0
        and max(asked.query_3, asked.value_3) <= widest
        and (asked.query_2 > 1 or not asked.has_dropout)
        and asked.key_2 > 1
        and _shares_heads(asked)
    )


def _can_flash(asked: Any, capability: tuple[int, int]) -> bool:
    return (
        capability >= (8, 0)
        and _is_dense(asked)
        and bool(asked.is_half)
        and not asked.mask_rank
        and asked.query_3 == asked.key_3 == asked.value_3
        and asked.query_3 <= 256
        and not (asked.is_causal and asked.query_2 != asked.key_2)
        and _shares_heads(asked)
    )


def _can_efficient(asked: Any, capability: tuple[int, int]) -> bool:
    multiple = 16 // asked.dtype_bytes
    return (
        _is_dense(asked)
        and not asked.enable_gqa
        and asked.query_1 == asked.key_1 == asked.value_1
        and asked.query_3 == asked.key_3
        and (asked.query_3 % multiple == 0 and asked.value_3 % multiple == 0)
    )


def _is_dense(asked: Any) -> bool:
    return (
        asked.rank == 4
        and asked.query_0 == asked.key_0 == asked.value_0
        and asked.query_2 > 0
        and asked.key_2 > 0
        and asked.query_stride == asked.key_stride == asked.value_stride == 1
        # One number for all keys, expanded, is a mask that no fused kernel reads.
        and (not asked.mask_rank or asked.mask_stride == 1)
    )


def _broadcasts_mask(asked: Any) -> bool:
    if not asked.mask_rank:
        return True
    asked_for = ((asked.query_0, asked.query_1) if asked.mask_rank == 4 else ()) + (asked.query_2, asked.key_2)
    sizes = (asked.mask_0, asked.mask_1, asked.mask_2, asked.mask_3)[4 - len(asked_for) :]
    return (
        asked.mask_rank in (2, 4)
        and not asked.mask_requires_grad
        and all(size in (1, whole) for size, whole in zip(sizes, asked_for, strict=True))
    )


def _shares_heads(asked: Any) -> bool:
    if not asked.enable_gqa:
        return bool(asked.query_1 == asked.key_1 == asked.value_1)
    return bool(asked.key_1 == asked.value_1 and asked.key_1 > 0 and asked.query_1 % asked.key_1 == 0)


_CAN: Mapping[int, Callable[[Any, tuple[int, int]], bool]] = {
    CUDNN: _can_cudnn,
    FLASH: _can_flash,
    EFFICIENT: _can_efficient,
    MATH: lambda asked, capability: True,
}
_IS_ON = {
    MATH: lambda: bool(torch._C._get_math_sdp_enabled()),
    CUDNN: lambda: bool(torch._C._get_cudnn_sdp_enabled()),
    FLASH: lambda: bool(torch._C._get_flash_sdp_enabled()),
    EFFICIENT: lambda: bool(torch._C._get_mem_efficient_sdp_enabled()),
}
