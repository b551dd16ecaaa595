"""What the formulas of operators are made of: costs from tensors read and written."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from torchledger.nouns import Cost, Quality
from torchledger.work.op_shapes import OpCall, Tensor

Formula = Callable[[OpCall], Cost | None]


def product_cost(flops: int, read: Sequence[Tensor], output: Tensor) -> Cost:
    """Products of so many FLOPs that read some tensors and write one."""
    return work_cost(flops, read, [output])


def work_cost(flops: int, read: Iterable[Tensor], written: Iterable[Tensor]) -> Cost:
    """So many FLOPs, each tensor read or written once."""
    memory = memory_cost(read, written)
    return revised(memory, flops=flops, flops_quality="exact")


def memory_cost(read: Iterable[Tensor], written: Iterable[Tensor]) -> Cost:
    """No FLOPs; each tensor read or written once, at distinct addresses; unknown where an element's size is."""
    total = 0
    for tensor in (*read, *written):
        size = tensor.bytes
        if size is None:
            return Cost(0, None, "exact", "unavailable", reason=f"element size of {tensor.dtype} is not known here")
        total += size
    return Cost(0, total, "exact", "exact", basis="recorded shapes")


def revised(
    cost: Cost,
    *,
    flops: int | None = None,
    flops_quality: Quality | None = None,
    bytes_quality: Quality | None = None,
    basis: str | None = None,
) -> Cost:
    """A cost with some of its facts replaced."""
    return Cost(
        cost.flops if flops is None else flops,
        cost.bytes_moved,
        flops_quality or cost.flops_quality,
        cost.bytes_quality if cost.bytes_moved is None or bytes_quality is None else bytes_quality,
        cost.reason,
        basis or cost.basis,
    )


def dense(tensor: Tensor) -> Tensor:
    """A tensor of the same shape without gaps or repeated elements: what an operator makes."""
    return Tensor(tensor.shape, tensor.dtype)


def spread(values: Sequence[int], rank: int) -> tuple[int, ...]:
    """One value for each dimension, where one was given for all."""
    return tuple(values) if len(values) == rank else (values[0],) * rank


def named(text: str, formula: Formula) -> dict[str, Formula]:
    """The same formula for each of some names, divided by spaces."""
    return dict.fromkeys(text.split(), formula)


def like_first(*, extra_outputs: Iterable[str] = ()) -> Formula:
    """Reads every tensor, writes one like the first, and others of its shape with the given dtypes."""
    extra = tuple(extra_outputs)

    def cost(call: OpCall) -> Cost | None:
        first = call.tensor(0)
        if first is None:
            return None
        tensors = [tensor for tensor in call.tensors if tensor.dtype != "generator"]
        return memory_cost(tensors, [dense(first), *(Tensor(first.shape, dtype) for dtype in extra)])

    return cost
