"""Operators that only call others."""

from __future__ import annotations

import functools
from collections.abc import Callable

import torch

from torchledger._torch.schemas import schemas_named


@functools.cache
def is_composite(name: str) -> bool | None:
    """True for an operator (``"aten::linear"``, with or without overload) that only calls others.

    ``False`` for one that does work itself, ``None`` for one whose overloads differ in that (``"aten::max"``).
    """
    overloads = [name] if "." in name.rpartition("::")[2] else _overloads(name)
    kinds = {
        _has_kernel(each, "CompositeImplicitAutograd") and not any(_has_kernel(each, key) for key in _BACKENDS)
        for each in overloads
        if torch._C._dispatch_has_kernel(each) and (each == name or not each.endswith("out"))
    }
    return None if len(kinds) == 2 else True in kinds


_has_kernel: Callable[[str, str], bool] = torch._C._dispatch_has_kernel_for_dispatch_key
_BACKENDS = ("CPU", "CUDA")
"""A few operators (``mish_backward``) are made of others but for devices that have a kernel of their own."""


def _overloads(name: str) -> list[str]:
    return [
        f"{schema.name}.{schema.overload_name}" if schema.overload_name else schema.name
        for schema in schemas_named(name)
    ]
