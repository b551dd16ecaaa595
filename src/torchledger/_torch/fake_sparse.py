"""Sparse tensors (COO) without values: what is made of them keeps as many elements as they hold.

torch's own rules for them leave none, or there are none.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

_ATEN = torch.ops.aten


def is_sparse(args: Sequence[Any]) -> bool:
    """Whether an operator is given a sparse tensor first."""
    return bool(args) and isinstance(args[0], torch.Tensor) and args[0].layout is torch.sparse_coo


def _with(given: Any, indices: Any, values: Any, is_coalesced: bool | None = None) -> Any:
    return _ATEN._sparse_coo_tensor_with_dims_and_tensors(
        given.sparse_dim(),
        given.dense_dim(),
        given.shape,
        indices,
        values,
        dtype=values.dtype,
        layout=torch.sparse_coo,
        device=values.device,
        is_coalesced=given.is_coalesced() if is_coalesced is None else is_coalesced,
    )


def _same(given: Any) -> Any:
    return _with(given, given._indices(), given._values())


def _cloned(given: Any, *, memory_format: Any = None) -> Any:
    return _with(given, given._indices().clone(), given._values().clone())


def _coalesced(given: Any) -> Any:
    """All elements are taken for different ones: how many are not, their values say."""
    return _with(given, torch.empty_like(given._indices()), torch.empty_like(given._values()), True)


def _copied(
    given: Any, *, dtype: Any = None, device: Any = None, layout: Any = None, non_blocking: bool = False, **others: Any
) -> Any:
    indices = given._indices().to(device=device, non_blocking=non_blocking)
    return _with(given, indices, given._values().to(device=device, dtype=dtype, non_blocking=non_blocking))


def _masked(dense: Any, mask: Any) -> Any:
    return _with(mask, mask._indices(), dense.new_empty(mask._values().shape), mask.is_coalesced())


SPARSE: Mapping[Any, Callable[..., Any]] = {
    _ATEN.detach.default: _same,
    _ATEN.clone.default: _cloned,
    _ATEN._coalesce.default: _coalesced,
    _ATEN._to_copy.default: _copied,
}
"""Operators on a sparse tensor, and what makes their results."""

MASKED: Mapping[Any, Callable[..., Any]] = {_ATEN.sparse_mask.default: _masked}
"""Operators that make a sparse tensor like another one."""

MERGES = frozenset((_ATEN._coalesce.default,))
"""Those of which the values say how many elements are left."""
