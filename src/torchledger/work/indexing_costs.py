"""Gathers and scatters, of which the indices decide how much moves."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from torchledger.nouns import Cost
from torchledger.work.cost_parts import (
    Formula,
    dense,
    memory_cost,
    named,
    revised,
)
from torchledger.work.op_shapes import OpCall, Tensor, broadcast_shape


def _embedding(call: OpCall) -> Cost | None:
    table, indices = call.tensor(0), call.tensor(1)
    if table is None or indices is None or len(table.shape) != 2:
        return None
    return _gathered(table, indices, Tensor((*indices.shape, table.shape[1]), table.dtype))


def _index_select(call: OpCall) -> Cost | None:
    table, axis, indices = call.tensor(0), call.ints(1), call.tensor(2)
    if table is None or axis is None or indices is None or not table.shape:
        return None
    shape = list(table.shape)
    shape[axis[0]] = indices.numel
    return _gathered(table, indices, Tensor(tuple(shape), table.dtype))


def _gather(call: OpCall) -> Cost | None:
    table, indices = call.tensor(0), call.tensor(2)
    if table is None or indices is None:
        return None
    return _gathered(table, indices, Tensor(indices.shape, table.dtype))


def _take(call: OpCall) -> Cost | None:
    table, indices = call.tensor(0), call.tensor(1)
    if table is None or indices is None:
        return None
    return _gathered(table, indices, Tensor(indices.shape, table.dtype))


def _index(call: OpCall) -> Cost | None:
    table, indices = call.tensor(0), call.tensor_list(1)
    if table is None:
        return None
    if call.taken is not None:
        return _by_mask(table, indices[0], call.taken)
    shape = broadcast_shape([index.shape for index in indices]) if indices else None
    if shape is None or any(index.dtype == "bool" for index in indices):
        basis = "the indices are a mask, or were not recorded: a result as large as the table"
        return revised(memory_cost([table, *indices], [dense(table)]), bytes_quality="estimated", basis=basis)
    indexed = call.ints(1) or range(len(indices))
    rest = (size for dim, size in enumerate(table.shape) if dim not in indexed)
    return _gathered(table, indices[0], Tensor((*shape, *rest), table.dtype))


def _by_mask(table: Tensor, mask: Tensor, taken: int) -> Cost:
    """The mask is read, and the places where it is true, a number for each of its dimensions, are written and read."""
    output = Tensor((taken, table.numel // max(1, mask.numel)), table.dtype)
    places = Tensor((2 * taken, len(mask.shape)), "int64")
    cost = _gathered(table, places, output)
    return cost if cost.bytes_moved is None else replace(cost, bytes_moved=cost.bytes_moved + (mask.bytes or 0))


def _gathered(table: Tensor, indices: Tensor, output: Tensor) -> Cost:
    """Rows may repeat, so what is read of the table is at most the output, and at most the table."""
    if None in (table.bytes, output.bytes, indices.bytes):
        return Cost(flops=0, flops_quality="exact", reason=f"element size of {table.dtype} is not known here")
    read = min(table.bytes or 0, output.bytes or 0)
    total = read + (output.bytes or 0) + (indices.bytes or 0)
    return Cost(0, total, "exact", "upper_bound", basis="each row that is gathered read once; repeated rows cost less")


def _embedding_bag(call: OpCall) -> Cost | None:
    table, indices, ends = call.tensor(0), call.tensor(1), call.tensor(2)
    if table is None or indices is None or ends is None or len(table.shape) != 2:
        return None
    rows = Tensor((min(indices.numel, table.shape[0]), table.shape[1]), table.dtype)
    bags = [Tensor((ends.numel, table.shape[1]), table.dtype), dense(indices), dense(ends)]
    cost = memory_cost([rows, indices, ends], bags)
    return revised(cost, bytes_quality="upper_bound", basis="each row that is gathered read once")


def _embedding_bag_backward(call: OpCall) -> Cost | None:
    is_either = call.base_name == "_embedding_bag_backward"  # which may be asked for a sparse gradient
    gradient, rows = call.tensor(0), call.ints(6 if is_either else 5)
    if gradient is None or rows is None:
        return None
    indices, bag_of = call.tensor(1), call.tensor(3)
    if is_either and call.constant(_IS_SPARSE) == "True":
        if indices is None or bag_of is None:
            return None
        return _gathered(gradient, bag_of, Tensor((indices.numel, gradient.shape[-1]), gradient.dtype))
    table = Tensor((rows[0], gradient.shape[-1]), gradient.dtype)
    return revised(memory_cost(call.tensors, [table]), bytes_quality="estimated")


_IS_SPARSE = 9


def _embedding_backward(call: OpCall) -> Cost | None:
    gradient, indices, rows = call.tensor(0), call.tensor(1), call.ints(2)
    if gradient is None or indices is None or rows is None:
        return None
    table = Tensor((rows[0], gradient.shape[-1]), gradient.dtype)
    return revised(memory_cost([gradient, indices], [table]), bytes_quality="estimated")


def _scatter(call: OpCall) -> Cost | None:
    """Writes where the indices say: what changes is read and written, at most once per source element."""
    target = call.tensor(0)
    others = [tensor for tensor in call.tensors[1:] if not tensor.is_scalar]
    if target is None:
        return None
    # A mask, or indices that are not recorded, may mean every element.
    touched = max((tensor for tensor in others if tensor.dtype != "bool"), key=lambda each: each.numel, default=target)
    changed = Tensor((min(touched.numel, target.numel),), target.dtype)
    whole = [] if call.is_inplace else [target]
    written = [changed] if call.is_inplace else [dense(target)]
    adds = [changed] if "add" in call.base_name or "reduce" in call.base_name or "accumulate" in call.base_name else []
    return revised(memory_cost([*whole, *others, *adds], written), bytes_quality="upper_bound")


INDEXING_COSTS: Mapping[str, Formula] = {
    "embedding": _embedding,
    **named("embedding_dense_backward", _embedding_backward),
    **named("_embedding_bag _embedding_bag_forward_only", _embedding_bag),
    **named("_embedding_bag_backward _embedding_bag_dense_backward", _embedding_bag_backward),
    "index_select": _index_select,
    "gather": _gather,
    "take": _take,
    **named("index _unsafe_index", _index),
    **named(
        """scatter scatter_add scatter_reduce index_add index_copy index_fill index_put _index_put_impl
        _unsafe_index_put put index_reduce masked_scatter""",
        _scatter,
    ),
}
"""Operator name (without namespace and in-place mark) to its formula."""
