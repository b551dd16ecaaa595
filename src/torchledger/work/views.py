"""Calls of compiled code that make a view: they stand in a wrapper and launch nothing."""

from __future__ import annotations

from collections.abc import Sequence

from torchledger.nouns import Buffer, Launch
from torchledger.work.categories import operation_of
from torchledger.work.op_costs import VIEWS

_MAY_COPY = frozenset({"reshape", "reshape_as", "flatten"})
_MAKE_TENSORS = frozenset(name for name in VIEWS if name.startswith(("empty", "new_empty", "resize")))


def launches_nothing(launch: Launch) -> bool:
    """True for a library call that only makes a view, as compiled code calls for complex numbers.

    >>> launches_nothing(Launch("forward_0", 0, "", "torch.ops.aten.permute.default", "extern", "cuda:0"))
    True
    """
    return launch.category == "extern" and makes_view(operation_of(launch), launch.buffers)


def makes_view(operation: str, buffers: Sequence[Buffer]) -> bool:
    """Whether an operator makes a view of what it is given; one that copies where it has to, makes one where its result
    goes over its operand's elements as they lie."""
    if operation not in VIEWS or operation in _MAKE_TENSORS:
        return False
    if operation not in _MAY_COPY:
        return True
    given = [_runs(each) for each in buffers if each.role == "input"]
    made = [_runs(each) for each in buffers if each.role == "output"]
    return len(given) == len(made) == 1 and given == made


def _runs(buffer: Buffer) -> list[tuple[int, int]]:
    """Sizes and strides, dimensions that go on where the next one ends taken together: equal where elements lie in the
    same order at the same distances."""
    found: list[tuple[int, int]] = []
    for size, stride in zip(buffer.shape, buffer.stride, strict=True):
        if size == 1:
            continue
        if found and found[-1][1] == size * stride:
            size *= found.pop()[0]
        found.append((size, stride))
    return found
