"""Private names of tensors, their memory, and the kinds of operators that call them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch._ops import HigherOrderOperator, OperatorBase, OpOverloadPacket
from torch.utils._pytree import tree_map

from torchledger.work.element_sizes import ELEMENT_SIZES

__all__ = [
    "copy_into",
    "dtype_named",
    "is_higher_order",
    "is_nested",
    "is_operator",
    "memory_key",
    "operator_name",
    "tensors_in",
    "tree_map",
]


def memory_key(storage: Any) -> int:
    """What tells a storage from others while it is alive, also where it holds no bytes and has no address."""
    return int(storage._cdata)


def is_nested(tensor: torch.Tensor) -> bool:
    """True for a tensor of several of different sizes, which has no shape and no strides itself."""
    return bool(tensor.is_nested)


def tensors_in(values: Any) -> Iterator[torch.Tensor]:
    """The tensors among arguments or results, in order; those of nested dicts, lists and tuples too."""
    if isinstance(values, torch.Tensor):
        yield values
    elif isinstance(values, dict):
        for value in values.values():
            yield from tensors_in(value)
    elif isinstance(values, (list, tuple)):
        for value in values:
            yield from tensors_in(value)


def dtype_named(name: str) -> torch.dtype:
    """The dtype of a name in the table of element sizes, whatever file the name is from.

    Raises ``ValueError`` for any other name, and for one that this version of torch lacks.

    >>> dtype_named("bfloat16")
    torch.bfloat16
    """
    found = getattr(torch, name, None) if name in ELEMENT_SIZES else None
    if not isinstance(found, torch.dtype):
        raise ValueError(f"{name!r} is no dtype of torch {torch.__version__}")
    return found


def copy_into(tensors: Sequence[torch.Tensor], values: Sequence[torch.Tensor]) -> None:
    """Give each tensor its values, all in few launches."""
    torch._foreach_copy_(list(tensors), list(values))


def is_operator(target: Any) -> bool:
    """True for an operator without its overload (``torch.ops.aten.add``), and for a higher-order one."""
    return isinstance(target, OpOverloadPacket | OperatorBase)


def is_higher_order(target: Any) -> bool:
    """True for an operator that is given graphs to run: a condition, a loop, a checkpoint."""
    return isinstance(target, HigherOrderOperator)


def operator_name(target: Any) -> str:
    """``"aten.add"``, or a function's own name."""
    return str(target) if isinstance(target, OpOverloadPacket) else str(getattr(target, "__name__", target))
