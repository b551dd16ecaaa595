"""Fake quantization on a device that is not there: values that are rounded as if they were whole numbers.

After ``aten/src/ATen/native/quantized/FakeQuantPerTensorAffine.cpp`` and its likes of torch 2.11 and 2.13.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch


def _rounded_and_mask(rows: Any, *others: Any) -> Any:
    """The rounded values, and which of them a gradient goes through."""
    return torch.empty_like(rows), torch.empty_like(rows, dtype=torch.bool)


def _rounded(rows: Any, *others: Any) -> Any:
    return torch.empty_like(rows)


def _gradients_of_all(grad: Any, rows: Any, scale: Any, *others: Any) -> Any:
    """Of the values, and of one scale and one zero, which are summed into a row of one."""
    return torch.empty_like(rows), rows.new_empty(1), rows.new_empty(1)


def _gradients_of_channels(grad: Any, rows: Any, scale: Any, zero_point: Any, axis: int, *others: Any) -> Any:
    """Of bfloat16 all are computed in float32, and left so."""
    dtype = torch.float32 if rows.dtype is torch.bfloat16 else rows.dtype
    sums = (rows.new_empty(rows.shape[axis], dtype=dtype) for _ in range(2))
    return torch.empty_like(rows, dtype=dtype), *sums


_ATEN = torch.ops.aten
QUANTIZED: Mapping[Any, Callable[..., Any]] = {
    _ATEN.fake_quantize_per_tensor_affine_cachemask.default: _rounded_and_mask,
    _ATEN._fake_quantize_per_tensor_affine_cachemask_tensor_qparams.default: _rounded_and_mask,
    _ATEN.fake_quantize_per_channel_affine_cachemask.default: _rounded_and_mask,
    _ATEN._fake_quantize_learnable_per_tensor_affine.default: _rounded,
    _ATEN._fake_quantize_learnable_per_channel_affine.default: _rounded,
    _ATEN._fake_quantize_learnable_per_tensor_affine_backward.default: _gradients_of_all,
    _ATEN._fake_quantize_learnable_per_channel_affine_backward.default: _gradients_of_channels,
}
"""Operators that torch has no meta functions for, and what makes their results."""
