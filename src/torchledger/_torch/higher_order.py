"""Higher-order operators (``torch.cond``, ``while_loop``, ``flex_attention``) under a mode that wants to see inside."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

_CALLS = frozenset(
    {"cond", "while_loop", "while_loop_stack_output", "scan", "associative_scan", "map_impl", "invoke_subgraph"}
)
"""Operators whose work is in the functions that they are given; their kernels refuse to run under a mode."""

_WORKS = frozenset({"flex_attention", "flex_attention_backward"})
"""Operators whose kernels work with others, beside what they are given."""


def run_inside(func: Any, mode: TorchDispatchMode, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    """The result of a higher-order operator, of which the operators inside come to ``mode``, which is off meanwhile.

    Of an operator that is not known here ``mode`` sees nothing.
    """
    if func.name() in _WORKS:
        with mode:
            return func.py_kernels[torch._C.DispatchKey.CompositeExplicitAutograd](*args, **kwargs)
    if func.name() in _CALLS:
        args = [_under(mode, each) if callable(each) else each for each in args]
    return func(*args, **kwargs)


def _under(mode: TorchDispatchMode, function: Callable[..., Any]) -> Callable[..., Any]:
    def call(*args: Any, **kwargs: Any) -> Any:
        with mode:
            return function(*args, **kwargs)

    return call
