"""Sparse tensors (COO) without values: what is made of them keeps as many elements as they hold.

torch's own rules for them leave none, or there are none.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from torchledger._torch.fakes.places import distinct_places

_ATEN = torch.ops.aten


def transposes(func: Any, args: Sequence[Any]) -> bool:
    """Whether an operator transposes a sparse tensor, which its kernel makes of copies of places and values."""
    return func in _TRANSPOSES and _is_sparse(args[0])


def put_in_order(func: Any, args: Sequence[Any]) -> Any:
    """What a product holds beside its arguments: its matrix once more, its places put in order if they are not, each
    time anew (``s_addmm_out_sparse_dense_cuda`` in ``SparseCUDATensorMath.cu``); ``None`` for any other operator."""
    place = _MATRIX_OF.get(func)
    if place is None or not _is_sparse(args[place]) or _is_sparse(args[place + 1]) or args[place].is_coalesced():
        return None
    return args[place].coalesce()


def leaves_out_padding(func: Any, args: Sequence[Any]) -> bool:
    """Whether an operator makes the sparse gradient of an ``EmbeddingBag`` with a ``padding_idx``: its kernel takes the
    elements alone whose place is another one."""
    return func is _ATEN._embedding_bag_backward.default and len(args) > _PADDING and args[_SPARSE] and args[-1] >= 0


def with_padding(args: Sequence[Any]) -> tuple[Any, ...]:
    """The arguments of such an operator, for a gradient of all elements."""
    return (*args[:_PADDING], -1)


def is_sparse(args: Sequence[Any]) -> bool:
    """Whether an operator is given a sparse tensor as one of its first two arguments."""
    return any(map(_is_sparse, args[:2]))


def _is_sparse(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and value.layout is torch.sparse_coo


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
    """Elements are taken for different ones where they were not taken from the same numbers: what is so besides, values
    say."""
    indices, values = given._indices(), given._values()
    left = distinct_places(given)
    if left is not None and left < given._nnz():
        indices, values = indices[:, :left], values[:left]
    return _with(given, torch.empty_like(indices), torch.empty_like(values), True)


def _added(left: Any, right: Any, *, alpha: Any = 1) -> Any:
    """Two of them are put one behind the other (``add_out_sparse_cuda``, ``SparseCUDATensorMath.cu``)."""
    if not (_is_sparse(left) and _is_sparse(right)) or left.sparse_dim() != right.sparse_dim():
        return NotImplemented
    places = torch.cat([left._indices(), right._indices()], 1)
    values = [left._values(), right._values()]
    dtype = torch.promote_types(*(each.dtype for each in values))
    return _with(left, places, torch.cat([each.to(dtype) for each in values]), False)


def transposed(given: Any, first: int = 0, second: int = 1) -> Any:
    """A copy two of whose rows of places change with each other (``sparse_transpose_``, ``TensorShape.cpp``); they are
    in order no more."""
    shape = list(given.shape)
    first, second = first % given.dim(), second % given.dim()
    copied = given.clone()
    if first == second:
        return copied
    shape[first], shape[second] = shape[second], shape[first]
    indices, values = copied._indices(), copied._values()
    if max(first, second) < given.sparse_dim():
        rows = indices.select(0, first), indices.select(0, second)
        kept = torch.zeros_like(rows[0]).copy_(rows[0])
        rows[0].copy_(rows[1])
        rows[1].copy_(kept)
    return _ATEN._sparse_coo_tensor_with_dims_and_tensors(
        given.sparse_dim(),
        given.dense_dim(),
        shape,
        indices,
        values,
        dtype=copied.dtype,
        layout=torch.sparse_coo,
        device=copied.device,
        is_coalesced=False,
    )


def _product(left: Any, right: Any) -> Any:
    """Of a sparse matrix and a dense one; of two sparse ones nobody knows how many elements it has."""
    if _is_sparse(right):
        return NotImplemented
    return right.new_empty(left.shape[0], right.shape[1])


def _product_added(given: Any, left: Any, right: Any, **factors: Any) -> Any:
    return _product(left, right)


def _copied(
    given: Any, *, dtype: Any = None, device: Any = None, layout: Any = None, non_blocking: bool = False, **others: Any
) -> Any:
    indices = given._indices().to(device=device, non_blocking=non_blocking)
    return _with(given, indices, given._values().to(device=device, dtype=dtype, non_blocking=non_blocking))


def _masked(dense: Any, mask: Any) -> Any:
    return _with(mask, mask._indices(), dense.new_empty(mask._values().shape), mask.is_coalesced())


def _made_sparse(
    dense: Any,
    sparse_dim: int | None = None,
    *,
    layout: Any = None,
    blocksize: Any = None,
    dense_dim: int | None = None,
) -> Any:
    """What ``to_sparse`` makes of a tensor with values: as many elements as may be other than zero
    (``dense_to_sparse``, ``TensorConversions.cpp``)."""
    if dense.layout is not torch.strided or layout not in (None, torch.sparse_coo):
        return NotImplemented
    n_sparse = dense.dim() - (dense_dim or 0) if sparse_dim is None else sparse_dim
    places = (dense if n_sparse == dense.dim() else dense.flatten(n_sparse).select(-1, 0)).nonzero()
    return _ATEN._sparse_coo_tensor_with_dims_and_tensors(
        n_sparse,
        dense.dim() - n_sparse,
        dense.shape,
        places.t().contiguous(),
        dense.new_empty(places.shape[0], *dense.shape[n_sparse:]),
        dtype=dense.dtype,
        layout=torch.sparse_coo,
        device=dense.device,
        is_coalesced=True,
    )


def _made_dense(given: Any, dtype: Any = None, masked_grad: bool | None = None) -> Any:
    return given._values().new_empty(given.shape, dtype=dtype)


def _elementwise(operator: Any) -> Callable[..., Any]:
    """What an operator on values makes that leaves zeros zero: new values at the places of the tensor with fewer."""

    def made(*args: Any, **kwargs: Any) -> Any:
        sparse = min(filter(_is_sparse, args), key=lambda each: int(each._nnz()))
        example = operator(*map(_like_in_kind, args), **kwargs)
        return _with(sparse, sparse._indices(), torch.empty_like(sparse._values(), dtype=example.dtype))

    return made


def _like_in_kind(value: Any) -> Any:
    """A tensor without elements in place of one with any, and a single number as it is: what dtype comes of them."""
    if not isinstance(value, torch.Tensor) or not value.dim():
        return value
    return torch.empty(0, dtype=value.dtype, device=value.device)


def _summed(given: Any, dims: Sequence[int]) -> Any:
    """Over some dimensions: sparse ones leave as many elements as there were, as if none met another."""
    n_sparse = given.sparse_dim()
    gone = {dim % given.dim() for dim in dims}
    kept = [dim for dim in range(n_sparse) if dim not in gone]
    shape = [size for dim, size in enumerate(given.shape) if dim not in gone]
    values = given._values()
    if dense := [dim - n_sparse + 1 for dim in gone if dim >= n_sparse]:
        values = values.sum(dense)
    if not kept:
        return values.sum(0)
    return _ATEN._sparse_coo_tensor_with_dims_and_tensors(
        len(kept),
        values.dim() - 1,
        shape,
        given._indices().new_empty(len(kept), given._nnz()),
        values,
        dtype=values.dtype,
        layout=torch.sparse_coo,
        device=values.device,
        is_coalesced=True,
    )


def _sum_of_all(given: Any, *, dtype: Any = None) -> Any:
    return given._values().sum(dtype=dtype)


_SPARSE, _PADDING = 9, 11
"""Where ``_embedding_bag_backward`` is told that its gradient is sparse, and what place is the padding."""

_TRANSPOSES = frozenset((_ATEN.t.default, _ATEN.transpose.int))
_MATRIX_OF = {_ATEN.mm.default: 0, _ATEN.addmm.default: 1, _ATEN._sparse_addmm.default: 1}
"""Products, and which of their arguments is the matrix that may be sparse."""

SPARSE: Mapping[Any, Callable[..., Any]] = {
    _ATEN.detach.default: _same,
    _ATEN.clone.default: _cloned,
    _ATEN._coalesce.default: _coalesced,
    _ATEN.t.default: transposed,
    _ATEN.transpose.int: transposed,
    _ATEN._to_copy.default: _copied,
    _ATEN._to_dense.default: _made_dense,
    **{
        operator: _elementwise(operator)
        for operator in (_ATEN.mul.Tensor, _ATEN.div.Tensor, _ATEN.div.Tensor_mode, _ATEN.neg.default)
    },
    _ATEN.add.Tensor: _added,
    _ATEN._sparse_sum.dim: _summed,
    _ATEN.sum.default: _sum_of_all,
    _ATEN.mm.default: _product,
    _ATEN.addmm.default: _product_added,
    _ATEN._sparse_addmm.default: _product_added,
}
"""Operators on a sparse tensor, and what makes their results, or ``NotImplemented`` where torch's own rule does."""

MASKED: Mapping[Any, Callable[..., Any]] = {
    _ATEN.sparse_mask.default: _masked,
    _ATEN._to_sparse.default: _made_sparse,
    _ATEN._to_sparse.sparse_dim: _made_sparse,
}
"""Operators that make a sparse tensor, like another one or of values, or ``NotImplemented`` where torch's rule does."""

MERGES = frozenset((_ATEN._coalesce.default,))
"""Those of which the values say how many elements are left."""
