"""Catches the scheduler nodes of small functions, kernel by kernel, while Inductor still knows them.

Nothing is built or run: the functions are lowered, forward and backward, and the compilation ends there.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any, TypeVar
from unittest import mock

import torch
from torch._functorch import config as functorch_config
from torch._inductor import config
from torch._inductor.codecache import PyCodeCache
from torch._inductor.codegen.cpp import CppScheduling
from torch._inductor.scheduler import Scheduler
from torch._inductor.virtualized import V

Result = TypeVar("Result")


@dataclass(frozen=True)
class CaughtKernel:
    """One fused C++ kernel: its scheduler nodes, and its arguments as groups of buffers that share one argument."""

    snodes: tuple[Any, ...]
    arguments: tuple[tuple[str, ...], ...]
    source: str
    kernel_args: Any = None

    @property
    def names(self) -> frozenset[str]:
        return frozenset(name for group in self.arguments for name in group)


class _LoweredEnough(BaseException):
    """Ends a call of a compiled function that was lowered but not built."""


def argument_groups(kernel_args: Any) -> tuple[tuple[str, ...], ...]:
    groups: dict[str, tuple[str, ...]] = {}
    inplaced: set[str] = set()
    for value in kernel_args.inplace_buffers.values():
        if hasattr(value, "inner_name"):
            groups[value.inner_name] = tuple(value.other_names)
            inplaced |= set(value.other_names)
    for buffers in (kernel_args.input_buffers, kernel_args.output_buffers):
        for name, inner in buffers.items():
            if isinstance(inner, str) and name not in inplaced:
                groups[inner] = (name,)
    return tuple(groups.values())


def hint(value: Any) -> int | None:
    if isinstance(value, int) or getattr(value, "is_Integer", False):
        return int(value)
    return int(V.graph.sizevars.optimization_hint(value))


def examine_kernels(
    function: Callable[..., Any],
    *inputs: Any,
    examine: Callable[[CaughtKernel], Result],
    dynamic: bool | None = None,
    **settings: Any,
) -> list[Result]:
    """Lower ``function`` (and its backward, if an input requires grad); what ``examine`` makes of each fused kernel."""
    results: list[Result] = []
    waiting: list[CaughtKernel] = []
    define, codegen = CppScheduling.define_kernel, Scheduler.codegen

    def catching_define(self: Any, source: Any, nodes: Any, kernel_args: Any = None) -> Any:
        snodes = tuple(node for group in nodes for node in group.get_nodes())
        arguments = kernel_args or self.kernel_group.args
        waiting.append(CaughtKernel(snodes, argument_groups(arguments), str(source), arguments))
        return define(self, source, nodes, kernel_args)

    def examining_codegen(self: Any) -> Any:
        result = codegen(self)
        results.extend(examine(kernel) for kernel in waiting)
        waiting.clear()
        return result

    def stop(*_: Any) -> Any:
        raise _LoweredEnough

    def load_nothing(key: str, path: str, *_: Any, **__: Any) -> Any:
        return SimpleNamespace(call=stop, __file__=path, key=key)

    torch._dynamo.reset()
    with (
        mock.patch.object(CppScheduling, "define_kernel", catching_define),
        mock.patch.object(Scheduler, "codegen", examining_codegen),
        mock.patch.object(PyCodeCache, "load_by_key_path", load_nothing),
        config.patch(force_disable_caches=True, **settings),
        functorch_config.patch(force_non_lazy_backward_lowering=True),
        contextlib.suppress(_LoweredEnough),
    ):
        torch.compile(function, dynamic=dynamic)(*inputs)
    torch._dynamo.reset()
    return results
