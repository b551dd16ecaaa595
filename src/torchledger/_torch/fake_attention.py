"""Which kernel ``scaled_dot_product_attention`` would run on a device, by the rules of torch's own C++.

After ``aten/src/ATen/native/transformers/cuda/sdp_utils.cpp`` of torch 2.11: cuDNN first on compute capabilities 9.0
and 10.0, then flash, then memory-efficient attention, then plain products; each is taken if it can do the call.
"""

from __future__ import annotations

from typing import Any

import torch

MATH, FLASH, EFFICIENT, CUDNN = 0, 1, 2, 3
"""``sdp::SDPBackend``."""


def choose_attention(asked: Any, capability: tuple[int, int]) -> int:
    """The number of torch's ``SDPBackend`` for an ``AttentionQuestion``."""
    order = (CUDNN, FLASH, EFFICIENT) if capability in ((9, 0), (10, 0)) else (FLASH, EFFICIENT, CUDNN)
    for backend in order:
        if _IS_ON[backend]() and _CAN[backend](asked, capability):
            return backend
    return MATH


def _can_cudnn(asked: Any, capability: tuple[int, int]) -> bool:
    widest = 256 if capability == (9, 0) else 128
    return (
        capability >= (8, 0)
        and _is_dense(asked)
        and bool(asked.is_half)
        and not asked.mask_requires_grad
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
        and not asked.has_mask
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
        and not asked.mask_requires_grad
        and asked.query_1 == asked.key_1 == asked.value_1
        and asked.query_3 == asked.key_3
        and (asked.query_3 % multiple == 0 and asked.value_3 % multiple == 0)
        and not (asked.is_causal and asked.query_2 != asked.key_2)
    )


def _is_dense(asked: Any) -> bool:
    return (
        asked.rank == 4
        and asked.query_0 == asked.key_0 == asked.value_0
        and asked.query_2 > 0
        and asked.key_2 > 0
        and asked.query_stride == asked.key_stride == asked.value_stride == 1
    )


def _shares_heads(asked: Any) -> bool:
    if not asked.enable_gqa:
        return bool(asked.query_1 == asked.key_1 == asked.value_1)
    return bool(asked.key_1 == asked.value_1 and asked.key_1 > 0 and asked.query_1 % asked.key_1 == 0)


_CAN = {CUDNN: _can_cudnn, FLASH: _can_flash, EFFICIENT: _can_efficient}
_IS_ON = {
    CUDNN: lambda: bool(torch._C._get_cudnn_sdp_enabled()),
    FLASH: lambda: bool(torch._C._get_flash_sdp_enabled()),
    EFFICIENT: lambda: bool(torch._C._get_mem_efficient_sdp_enabled()),
}
