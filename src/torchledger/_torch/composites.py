"""Operators that only call others."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch._guards import TracingContext
from torch._subclasses.fake_tensor import FakeTensor

from torchledger._torch.patching import Patches
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


def taken_apart(operator: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    """What a composite operator makes, by the operators that it calls where it runs eagerly; ``NotImplemented`` where
    nothing says which.

    Under ``inference_mode`` composites arrive whole. Of some torch has a second form in Python, for tracing, which does
    other work: a dropout that drops nothing copies there, a recurrent layer is written step by step. Others go another
    way in C++ for tensors without values.
    """
    key = torch._C.DispatchKey.CompositeImplicitAutograd
    if operator in _WITH_VALUES and type(args[0]) is FakeTensor and TracingContext.try_get() is None:
        return _WITH_VALUES[operator](*args, **kwargs)
    if key in operator.py_kernels and _has_kernel(operator.name(), key.name) and TracingContext.try_get() is None:
        return operator._op_dk(key, *args, **kwargs)
    return operator.decompose(*args, **kwargs)


def go_as_with_values(patches: Patches) -> None:
    """Until ``patches`` are undone composites that look whether tensors have values make what they make of such that
    have, where the program calls them; what compiles is traced as ever. Those that have a kernel of their own on a
    device are whole, as in a build of torch that has it."""
    library = torch.library.Library("aten", "IMPL")

    def as_with_values(operator: Any) -> Callable[..., Any]:
        return lambda *args, **kwargs: taken_apart(operator, args, kwargs)

    for operator in _WITH_VALUES:
        library.impl(operator, as_with_values(operator), "AutogradCUDA", allow_override=True)
    for operator in _WHOLE_ON_DEVICE:
        if not _has_kernel(operator.name(), "CUDA"):
            library.impl(operator, _never_called, "CUDA", allow_override=True)
    patches.on_undo(library._destroy)


def is_fused_with_collective(name: str) -> bool:
    """Whether an operator (``"symm_mem::fused_all_gather_matmul"``) is products and a collective in one."""
    return name.removeprefix("symm_mem::") in _FUSED


def unfused(operator: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    """What such an operator makes, by its products and its collective one after the other, as torch writes it down for
    its own tests."""
    from torch.distributed import _symmetric_memory

    apart = getattr(_symmetric_memory, f"_{operator._opname}_fallback")
    return apart(*args, **kwargs)


def fused_with_collectives() -> Sequence[Any]:
    """Those operators; none where the program has not imported what defines them."""
    if "torch.distributed._symmetric_memory" not in sys.modules:
        return ()
    return [getattr(torch.ops.symm_mem, name).default for name in _FUSED]


_FUSED = (
    *("fused_all_gather_matmul", "fused_all_gather_scaled_matmul"),
    *("fused_matmul_reduce_scatter", "fused_scaled_matmul_reduce_scatter"),
)


def _never_called(*args: Any, **kwargs: Any) -> Any:
    raise AssertionError("a kernel of the device's was called without it")


_WHOLE_ON_DEVICE = [
    getattr(torch.ops.aten, name).default
    for name in ("silu_backward", "mish_backward", "_fused_rms_norm")
    if hasattr(torch.ops.aten, name)
]
"""Operators that a device has kernels for, and that are made of others where torch was built without."""


def _one_hot(chosen: Any, num_classes: int = -1) -> Any:
    """As in ``aten/src/ATen/native/Onehot.cpp``, which compares with all numbers where there are no values."""
    if num_classes == -1 and chosen.numel():
        num_classes = int(chosen.max().item()) + 1
    if num_classes < 1:
        raise RuntimeError("one_hot is given no number of classes of 1 or more")
    make = torch.zeros if chosen.numel() else torch.empty
    made = make((*chosen.shape, num_classes), dtype=chosen.dtype, device=chosen.device)
    return made.scatter_(-1, chosen.unsqueeze(-1), 1) if chosen.numel() else made


def _split_at(rows: Any, places: Any, dim: int = 0) -> Any:
    """By numbers that C++ reads from the host's memory (``tensor_split`` in ``TensorShape.cpp``)."""
    if places.device.type != "cpu":
        raise RuntimeError(f"tensor_split is given places on {places.device}, and takes them on the CPU alone")
    return rows.tensor_split(places.tolist(), dim)


_WITH_VALUES: Mapping[Any, Callable[..., Any]] = {
    torch.ops.aten.one_hot.default: _one_hot,
    torch.ops.aten.tensor_split.tensor_indices_or_sections: _split_at,
}
"""Composites that go another way for tensors without values, and the one that they go on a device."""

_has_kernel: Callable[[str, str], bool] = torch._C._dispatch_has_kernel_for_dispatch_key
_BACKENDS = ("CPU", "CUDA")
"""A few operators (``mish_backward``) are made of others but for devices that have a kernel of their own."""


def _overloads(name: str) -> list[str]:
    return [
        f"{schema.name}.{schema.overload_name}" if schema.overload_name else schema.name
        for schema in schemas_named(name)
    ]
