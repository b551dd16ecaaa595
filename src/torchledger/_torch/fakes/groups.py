"""Products of groups of rows, which have one kernel on some devices and for some dtypes alone.

Any other are a product for each group, one after the other, for whose ends the host waits (``_grouped_mm_fallback`` in
``GroupedMMUtils.h``); torch's rule for tensors without values refuses them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch._guards import TracingContext

_GROUPED = getattr(torch.ops.aten, "_grouped_mm", None)
_WITH_KERNEL = ((9, 0), (10, 0))
"""Compute capabilities with a kernel for all groups, of bfloat16 (``_scaled_mm_allowed_device`` in ``Blas.cpp``)."""


def goes_by_groups(func: Any, args: Sequence[Any]) -> bool:
    """Whether an operator that the program calls on the device is a product for each group there."""
    if _GROUPED is None or func is not _GROUPED.default or TracingContext.try_get() is not None:
        return False
    left, right = args[:2]
    if left.device.type != "cuda" or {left.dtype, right.dtype} - {torch.bfloat16, torch.float16, torch.float32}:
        return False
    has_kernel = torch.cuda.get_device_capability() in _WITH_KERNEL
    return not (has_kernel and left.dtype == right.dtype == torch.bfloat16)


def by_groups(left: Any, right: Any, offs: Any = None, bias: Any = None, out_dtype: torch.dtype | None = None) -> Any:
    """The products of such an operator; groups have equal shares of what is split, as only values know their ends."""
    if left.dtype != right.dtype:
        raise RuntimeError(f"expected both operands to have one dtype, got {left.dtype} and {right.dtype}")
    split_rows, split_columns = left.dim() == 2, right.dim() == 2
    made = _empty(left, right, offs, split_rows, split_columns)
    if offs is None:
        return torch.ops.aten.bmm.out(left, right, out=made)
    offs.cpu()
    groups = offs.shape[0]
    whole = left.shape[-1] if split_rows and split_columns else left.shape[0] if split_rows else right.shape[1]
    for place in range(groups):
        part = slice(whole * place // groups, whole * (place + 1) // groups)
        if split_rows and split_columns:
            given, into = (left[:, part], right[part]), made[place]
        elif split_rows:
            given, into = (left[part], right[place]), made[part]
        else:
            given, into = (left[place], right[:, part]), made[:, part]
        torch.ops.aten.mm.out(*given, out=into)
    return made


def _empty(left: Any, right: Any, offs: Any, split_rows: bool, split_columns: bool) -> Any:
    """The result, whose rows begin at multiples of 16 bytes."""
    shape: tuple[int, ...] = (left.shape[-2], right.shape[-1])
    if split_rows == split_columns:
        shape = (offs.shape[0] if split_rows else left.shape[0], *shape)
    each = 16 // left.element_size()
    row = (shape[-1] + each - 1) // each * each
    strides = (row, 1) if len(shape) == 2 else (shape[1] * row, row, 1)
    return left.new_empty_strided(shape, strides)
