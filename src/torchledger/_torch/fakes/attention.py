"""Which kernel ``scaled_dot_product_attention`` would run on a device, by the rules of torch's own C++.

After ``aten/src/ATen/native/transformers/cuda/sdp_utils.cpp`` of torch 2.11: cuDNN first on compute capabilities 9.0
and 10.0, then flash, then memory-efficient attention, then plain products; each is taken if it can do the call. Where a
program said which it would rather have (``sdpa_kernel(..., set_priority=True)``), in its order.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch

from torchledger._torch.fakes.library import AttentionQuestion
from torchledger._torch.patching import Patches

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


def answer_for_kernels(patches: Patches, capability: tuple[int, int]) -> None:
    """Have ``torch.backends.cuda.can_use_flash_attention`` and its like answer for the device, as attention with a
    causal bias asks them before it names its kernel itself."""
    for name, backend in _ASKED.items():
        patches.set(torch._C, name, _answer_for(backend, capability))


def _answer_for(backend: int, capability: tuple[int, int]) -> Callable[..., bool]:
    def answer(params: Any, debug: bool = False) -> bool:
        return _IS_ON[backend]() and _CAN[backend](_question_of(params), capability)

    return answer


def _question_of(params: Any) -> AttentionQuestion:
    """What ``SDPAParams`` ask, as the library in place of the device's asks it."""
    asked, query, mask = AttentionQuestion(), params.query, params.attn_mask
    asked.rank = query.dim()
    for name in ("query", "key", "value"):
        tensor = getattr(params, name)
        if asked.rank == tensor.dim() == 4:
            for place, size in enumerate(tensor.shape):
                setattr(asked, f"{name}_{place}", int(size))
            setattr(asked, f"{name}_stride", int(tensor.stride(3)))
    asked.dtype_bytes = query.element_size()
    asked.is_half = query.dtype in (torch.float16, torch.bfloat16)
    if mask is not None:
        asked.mask_rank, asked.mask_requires_grad = mask.dim(), mask.requires_grad
        for place, size in enumerate(mask.shape[-4:], start=4 - min(4, mask.dim())):
            setattr(asked, f"mask_{place}", int(size))
        asked.mask_stride = int(mask.stride(-1)) if mask.dim() else 0
    asked.is_causal, asked.enable_gqa = params.is_causal, params.enable_gqa
    asked.has_dropout = params.dropout > 0
    return asked


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
_ASKED = {
    "_can_use_flash_attention": FLASH,
    "_can_use_mem_efficient_attention": EFFICIENT,
    "_can_use_cudnn_attention": CUDNN,
}
"""What asks whether a kernel can do a call."""
