"""Counts that nobody computed: what a router sends to whom, if every expert is given an equal share of the tokens.

A count of chosen numbers (``bincount``, ``histc``, a sum over a mask or ``one_hot``) is given the values that it
would have if each were chosen as often; what plain operators make of it, and what like ranks send of it, keeps them. A
program that asks for them as sizes of its messages gets them in place of ones.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor
from torch.utils._python_dispatch import _disable_current_modes

from torchledger._torch.tensors import tensors_in, tree_map

_SHARES = "_shares"
"""The attribute of a fake tensor that holds them: a tensor of the host."""

_MOST = 1 << 14
"""So many numbers are kept at most: there are few experts and ranks."""

_KEEPS = frozenset(
    f"aten::{name}"
    for name in (
        "view", "_unsafe_view", "reshape", "transpose", "permute", "t", "unsqueeze", "squeeze", "select", "slice",
        "clone", "_to_copy", "detach", "alias", "expand", "contiguous", "lift_fresh", "sum", "cumsum", "cat", "stack",
        "split", "split_with_sizes", "unbind", "chunk", "add", "sub", "mul", "div", "floor_divide", "remainder",
        "max", "amax", "clamp", "roll", "flatten", "ceil", "floor", "constant_pad_nd", "index",
    )
)  # fmt: skip


_FUNCTIONAL = frozenset(
    f"_c10d_functional::{name}" for name in ("all_to_all_single", "all_gather_into_tensor", "wait_tensor")
)


def shares_of(tensor: Any) -> Any:
    """The values that stand for those of a fake tensor, as a tensor of the host; ``None`` where none are known."""
    return getattr(tensor, _SHARES, None) if isinstance(tensor, FakeTensor) else None


def count_shares(func: Any, args: Sequence[Any], kwargs: Mapping[str, Any], result: Any) -> None:
    """Keep with the ``result`` of an operator on fake tensors what its values would be with equal shares."""
    name = func._schema.name
    if (counter := _COUNTERS.get(name)) is not None:
        sizes = counter(args, kwargs, result)
        if sizes is not None:
            setattr(result, _SHARES, sizes)
    elif name == "aten::sum" and hasattr(args[0], "_share"):
        taken = args[0].numel() / max(1, result.numel()) * args[0]._share
        setattr(result, _SHARES, _full(tuple(result.shape), round(taken), result.dtype))
    elif name in _FUNCTIONAL:
        send_shares(result, args[0])
    elif name in _KEEPS and any(shares_of(each) is not None for each in tensors_in((args, kwargs))):
        _follow(func, args, kwargs, result)
    elif name == "aten::copy_" and isinstance(args[0], FakeTensor) and (known := shares_of(args[1])) is not None:
        if known.shape == args[0].shape:
            setattr(args[0], _SHARES, known)
    elif func._schema.is_mutable and shares_of(args[0] if args else None) is not None:
        delattr(args[0], _SHARES)


def send_shares(outputs: Any, inputs: Any) -> None:
    """What ranks that are like this one send it: as much as it sends them."""
    received, sent = list(tensors_in((outputs,))), list(tensors_in((inputs,)))
    known = [shares_of(each) for each in sent]
    if not received or not known or any(each is None for each in known):
        return
    with _disable_current_modes():
        every = torch.cat([each.flatten() for each in known])
        for tensor in received:
            if isinstance(tensor, FakeTensor) and every.numel() and tensor.numel() % every.numel() == 0:
                repeated = every.repeat(tensor.numel() // every.numel())
                setattr(tensor, _SHARES, repeated.reshape(tuple(tensor.shape)).to(tensor.dtype))


def _follow(func: Any, args: Sequence[Any], kwargs: Mapping[str, Any], result: Any) -> None:
    """Run an operator on what is known of its arguments; nothing is kept where one of them is not known."""
    unknown = False

    def real(value: Any) -> Any:
        nonlocal unknown
        if isinstance(value, torch.device):
            return torch.device("cpu")
        if not isinstance(value, FakeTensor):
            return value
        unknown |= shares_of(value) is None
        return shares_of(value)

    given, options = tree_map(real, (list(args), {**kwargs}))
    made = list(tensors_in((result,)))
    if unknown or sum(each.numel() for each in made) > _MOST:
        return
    with _disable_current_modes():
        try:
            values = list(tensors_in((func(*given, **options),)))
        except (RuntimeError, TypeError, NotImplementedError):
            return  # what is not known of it is not kept
    for tensor, value in zip(made, values, strict=False):
        if isinstance(tensor, FakeTensor) and tensor.shape == value.shape:
            setattr(tensor, _SHARES, value)


def _full(shape: tuple[int, ...], value: int, dtype: torch.dtype) -> Any:
    with _disable_current_modes():
        return torch.full(shape, value, dtype=dtype)


def _equal(total: int, parts: int, dtype: torch.dtype) -> Any:
    """A total in so many parts that differ by one at most.

    >>> _equal(10, 4, torch.int64).tolist()
    [3, 3, 2, 2]
    """
    if not 0 < parts <= _MOST:
        return None
    with _disable_current_modes():
        sizes = torch.full((parts,), total // parts, dtype=torch.int64)
        sizes[: total % parts] += 1
        return sizes.to(dtype)


def _of_bincount(args: Sequence[Any], kwargs: Mapping[str, Any], result: Any) -> Any:
    is_weighted = (len(args) > 1 and args[1] is not None) or kwargs.get("weights") is not None
    return None if is_weighted else _equal(args[0].numel(), result.numel(), result.dtype)


def _of_histogram(args: Sequence[Any], kwargs: Mapping[str, Any], result: Any) -> Any:
    return _equal(args[0].numel(), result.numel(), result.dtype)


_COUNTERS: Mapping[str, Callable[[Sequence[Any], Mapping[str, Any], Any], Any]] = {
    "aten::bincount": _of_bincount,
    "aten::histc": _of_histogram,
}
