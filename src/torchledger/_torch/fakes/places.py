"""How many different places a sparse gradient names whose places have no values: those of a table that is looked up
with inputs and again with targets, which are the same numbers one further on, are there twice.

What is copied of numbers is as many different ones as it was taken from.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import _disable_current_modes

_TAKEN = "_taken_from"
"""The attribute of a fake tensor that says which numbers it holds copies of."""

_COPIES = frozenset({"aten::clone", "aten::_to_copy"})
_SAME = frozenset(
    f"aten::{name}" for name in ("view", "_unsafe_view", "reshape", "detach", "alias", "unsqueeze", "squeeze")
)
_MAKES_SPARSE, _ITS_PLACES = "aten::_sparse_coo_tensor_with_dims_and_tensors", 3
_MOST = 1 << 24
"""Beyond so many addresses nobody counts."""


@dataclass(frozen=True)
class _Taken:
    """Numbers of a storage, which may be gone."""

    storage: StorageWeakRef
    size: tuple[int, ...]
    stride: tuple[int, ...]
    offset: int


def follow_places(func: Any, args: Sequence[Any], result: Any) -> None:
    """Keep with what an operator copies of whole numbers where these lie, and with a sparse tensor where those lie that
    name its places."""
    name = func._schema.name
    if name == _MAKES_SPARSE:
        setattr(result, _TAKEN, _taken(args[_ITS_PLACES]))
    elif name == "aten::add" and all(_is_sparse(each) for each in (*args[:2], result)):
        setattr(result, _TAKEN, (*_taken(args[0]), *_taken(args[1])))
    elif (name in _COPIES or (name in _SAME and hasattr(args[0], _TAKEN))) and _may_name_places(result):
        setattr(result, _TAKEN, _taken(args[0]))


def distinct_places(sparse: Any) -> int | None:
    """How many different places a sparse tensor may name at most, by where they were taken from; ``None`` where that is
    not known, and of more than one dimension."""
    taken = getattr(sparse, _TAKEN, ())
    if sparse.sparse_dim() != 1 or not taken:
        return None
    addresses: dict[int, set[_Taken]] = {}
    for each in taken:
        addresses.setdefault(each.storage.cdata, set()).add(each)
    counts = [_count(each) for each in addresses.values()]
    known = [each for each in counts if each is not None]
    return min(sum(known), sparse.shape[0]) if len(known) == len(counts) else None


def _taken(tensor: Any) -> tuple[_Taken, ...]:
    if _is_sparse(tensor) or hasattr(tensor, _TAKEN):
        return getattr(tensor, _TAKEN, ())
    storage = StorageWeakRef(tensor.untyped_storage())
    return (_Taken(storage, tuple(tensor.shape), tuple(tensor.stride()), tensor.storage_offset()),)


def _count(views: set[_Taken]) -> int | None:
    """Addresses of a storage that some of its views hold together."""
    spans = [
        each.offset + sum((size - 1) * stride for size, stride in zip(each.size, each.stride, strict=True)) + 1
        for each in views
    ]
    if not all(all(each.size) for each in views) or max(spans) > _MOST:
        return None
    with _disable_current_modes():
        held = torch.zeros(max(spans), dtype=torch.bool)
        for each in views:
            held.as_strided(each.size, each.stride, each.offset).fill_(True)
        return int(held.sum())


def _may_name_places(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and (_is_sparse(value) or value.dtype in (torch.int64, torch.int32))


def _is_sparse(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and value.layout is torch.sparse_coo
