"""Operators on sparse tensors: they cost what these hold, their values and the places of these, whatever their shape.

A dense tensor beside a sparse one is read and written where that one has values alone, unless its result is a new one.
Counts are those of ATen's sources (``SparseCUDATensorMath.cu``, ``SparseCUDATensor.cu``, ``SparseTensor.cpp``).
"""

from __future__ import annotations

from collections.abc import Mapping

from torchledger.nouns import Cost
from torchledger.work.cost_parts import Formula, dense, memory_cost, named, revised
from torchledger.work.op_shapes import OpCall, Tensor


def is_of_sparse(call: OpCall) -> bool:
    """True for a call that is given a sparse tensor."""
    return any(tensor.is_sparse for tensor in call.tensors)


def sparse_cost(call: OpCall) -> Cost:
    """The cost of a call that is given a sparse tensor; its bytes are unknown where it is not known which part of a
    dense tensor an operator goes over."""
    formula = _FORMULAS.get(call.base_name, _as_first)
    cost = formula(call)
    if cost is not None:
        return cost
    return Cost(reason=f"what {call.name} reads of a dense tensor beside a sparse one is not known here")


def _as_first(call: OpCall) -> Cost | None:
    """Another operator: what sparse tensors hold read once, a result like the largest; unknown beside dense ones."""
    if any(not tensor.is_sparse and tensor.shape for tensor in call.tensors):
        return None
    largest = max(call.tensors, key=lambda tensor: tensor.held_bytes or 0)
    cost = memory_cost(call.tensors, [largest])
    basis = "what is held read once, one result that holds as much as the largest"
    return Cost(None, cost.bytes_moved, "unavailable", "estimated", f"no FLOP formula for {call.name}", basis)


def _copied(call: OpCall) -> Cost | None:
    """Values and their places, read and written."""
    held = call.tensor(1 if call.base_name == "copy" else 0)
    return None if held is None or not held.is_sparse else memory_cost([held], [held])


def _coalesced(call: OpCall) -> Cost | None:
    """Places are put in order, in several passes over them alone, and the values of each added up."""
    cost = _copied(call)
    basis = "what is held read and written once, without the passes that put its places in order"
    return None if cost is None else revised(cost, bytes_quality="estimated", basis=basis)


def _scaled(call: OpCall) -> Cost | None:
    """Each value by itself; places are copied where the result is a new tensor."""
    held, *others = call.tensors
    if not held.is_sparse or any(each.shape for each in others):
        return _as_first(call)
    part = _values(held) if call.is_inplace else held
    return memory_cost([part, *others], [part])


def _added(call: OpCall) -> Cost | None:
    """Onto the rows that the second tensor names; two sparse tensors are put one behind the other."""
    first, second = call.tensor(0), call.tensor(1)
    if first is None or second is None or not second.is_sparse:
        return _scaled(call)
    if first.is_sparse:
        return memory_cost([first, second], [first, second])
    rows = _rows(first, second)
    whole = [] if call.is_inplace else [dense(first)]
    cost = memory_cost([*whole, second, rows], [*whole, rows])
    return revised(cost, bytes_quality="upper_bound", basis="each value's place read and written once")


def _multiplied(call: OpCall) -> Cost | None:
    first, second = call.tensor(0), call.tensor(1)
    if first is None or second is None or first.is_sparse == second.is_sparse or not (first.shape and second.shape):
        return _scaled(call)
    held, other = (first, second) if first.is_sparse else (second, first)
    return memory_cost([held, _rows(other, held)], [held])


def _masked(call: OpCall) -> Cost | None:
    """What a dense tensor has at a sparse one's places."""
    source, mask = call.tensor(0), call.tensor(1)
    if source is None or mask is None or source.is_sparse or mask.held_bytes is None or mask.value_bytes is None:
        return _as_first(call)
    taken = _rows(source, mask)
    places = Tensor((), mask.dtype, None, mask.held_bytes - mask.value_bytes, 0)
    return memory_cost([places, taken], [places, taken])


def _spread(call: OpCall) -> Cost | None:
    """A dense tensor of zeros, with the values where they belong."""
    held = call.tensor(0)
    if held is None or not held.is_sparse:
        return None
    rows = _rows(held, held)
    cost = memory_cost([held, rows], [dense(held), rows])
    return revised(cost, bytes_quality="estimated", basis="all of the result written once, its values once more")


def _product(call: OpCall) -> Cost | None:
    """A sparse matrix and a dense one: each value takes a row of the other, or a column."""
    *biases, left, right = call.tensors[:3] if "addmm" in call.base_name else call.tensors[:2]
    held, other = (left, right) if left.is_sparse else (right, left)
    if other.is_sparse or held.values is None or len(left.shape) < 1 or len(right.shape) < 1:
        return None
    columns = right.shape[-1] if len(right.shape) > 1 else 1
    rows = left.shape[-2] if len(left.shape) > 1 else 1
    output = Tensor((rows, columns), other.dtype)
    taken = min(other.bytes or 0, held.values * (columns if held is left else rows) * (other.element_size or 0))
    read = Tensor((), other.dtype, None, taken, taken)
    cost = memory_cost([*biases, held, read], [output])
    flops = 2 * held.values * (columns if held is left else rows)
    return revised(cost, flops=flops, flops_quality="exact", bytes_quality="upper_bound")


def _nothing(call: OpCall) -> Cost | None:
    """The list of values is made empty."""
    return Cost(0, 0, "exact", "exact")


def _values(held: Tensor) -> Tensor:
    """The values alone."""
    return Tensor(held.shape, held.dtype, None, held.value_bytes, held.value_bytes)


def _rows(whole: Tensor, held: Tensor) -> Tensor:
    """What a dense tensor has at a sparse one's places."""
    size = None if held.values is None or whole.element_size is None else held.values * whole.element_size
    return Tensor(whole.shape, whole.dtype, None, size, size)


_FORMULAS: Mapping[str, Formula] = {
    **named("clone _to_copy copy", _copied),
    **named("_coalesce coalesce", _coalesced),
    **named(
        """neg pow sqrt square abs sign sgn sin tanh relu log1p expm1 floor ceil round trunc nan_to_num div divide
        true_divide threshold_backward""",
        _scaled,
    ),
    **named("add sub", _added),
    **named("mul multiply", _multiplied),
    "sparse_mask": _masked,
    **named("to_dense _to_dense", _spread),
    **named("mm mv matmul _sparse_mm addmm _sparse_addmm hspmm sspaddmm", _product),
    "zero": _nothing,
}
"""Operator name (without namespace and in-place mark) to its formula for sparse tensors; what launches nothing has none
of its own."""
