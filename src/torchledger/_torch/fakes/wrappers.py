"""What generated wrappers call, for a device that is not there: tensors without values, and kernels that do nothing.

A wrapper makes some hundred allocations, views and calls of libraries each time, with sizes that are written in it, and
a step calls it for each block and microbatch. Nothing has to be found out about them, so that fake tensors are made
at once, where the way through the dispatcher costs several times as much and ends in the same tensors.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor, in_kernel_invocation_manager
from torch.utils._python_dispatch import _get_current_dispatch_mode

from torchledger._torch.fakes.tensors import FakeTensors, pinned
from torchledger._torch.patching import Patches


class FakeKernel:
    """What a generated wrapper holds in place of a kernel."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.fn = None

    def run(self, *args: Any, **kwargs: Any) -> None:
        """Do nothing."""

    def __call__(self, *args: Any, **kwargs: Any) -> None:
        """Do nothing."""


def run_without_kernels(patches: Patches, mode: FakeTensors) -> None:
    """A generated wrapper allocates fake tensors, takes views of them, and calls kernels that do nothing."""
    from torch._inductor import select_algorithm
    from torch._inductor.async_compile import AsyncCompile

    patches.set(AsyncCompile, "triton", lambda self, name, source, device_str="cuda": FakeKernel(name))
    patches.set(AsyncCompile, "multi_kernel", lambda self, *args, **kwargs: FakeKernel("multi_kernel"))
    patches.set(AsyncCompile, "cpp_pybinding", lambda self, types, source, *args, **kwargs: FakeKernel("cpp"))
    patches.set(AsyncCompile, "wait", lambda self, scope: None)
    guards: Any = torch._C._dynamo.guards
    patches.set(guards, "_empty_strided_cuda", functools.partial(_empty, mode))
    patches.set(guards, "_empty_strided_cpu", functools.partial(_empty_on_host, mode))
    if hasattr(guards, "_empty_strided_cpu_pinned"):  # not in all versions
        patches.set(guards, "_empty_strided_cpu_pinned", lambda *asked: pinned(_empty_on_host(mode, *asked)))
    patches.set(guards, "_reinterpret_tensor", functools.partial(_reinterpret, mode, guards._reinterpret_tensor))
    if hasattr(guards, "copy_if_misaligned"):  # not in all versions
        patches.set(guards, "copy_if_misaligned", functools.partial(_copied, guards.copy_if_misaligned))
    patches.set(select_algorithm, "extern_kernels", _Libraries(select_algorithm.extern_kernels, mode))


def _empty(mode: FakeTensors, size: Any, stride: Any, dtype: Any) -> Any:
    told = _who_is_told(mode)
    if told is None:
        return torch.empty_strided(size, stride, dtype=dtype, device="cuda")
    with torch._C._DisableTorchDispatch():
        made = torch.empty_strided(size, stride, dtype=dtype, device="meta")
    result = FakeTensor(mode, made, torch.device("cuda"))
    told(result)
    return result


def _empty_on_host(mode: FakeTensors, size: Any, stride: Any, dtype: Any) -> Any:
    with torch.utils._python_dispatch._disable_current_modes():
        made = torch.empty_strided(size, stride, dtype=dtype, device="meta")
    return FakeTensor(mode, made, torch.device("cpu"))


def _reinterpret(mode: FakeTensors, original: Any, tensor: Any, size: Any, stride: Any, offset: int = 0) -> Any:
    if not isinstance(tensor, FakeTensor):
        return original(tensor, size, stride, offset)
    told = _who_is_told(mode) if mode.made(tensor) else None
    # Autograd takes it for no view, as it does the real one.
    with torch._C._AutoDispatchBelowAutograd(), torch._C._ExcludeDispatchKeyGuard(_NOTES_VIEWS):
        if told is None:
            return torch.as_strided(tensor, size, stride, tensor.storage_offset() + offset)
        with in_kernel_invocation_manager(mode):
            made = torch.as_strided(tensor, size, stride, tensor.storage_offset() + offset)
    result = FakeTensor(mode, made, tensor.fake_device)
    told(result)
    return result


_NOTES_VIEWS = torch._C.DispatchKeySet(torch._C.DispatchKey.ADInplaceOrView)


def _copied(original: Any, tensor: Any) -> Any:
    """What a wrapper is given, as it is where it is aligned: asking C++ for its address makes torch warn."""
    if isinstance(tensor, FakeTensor) and tensor.storage_offset() * tensor.element_size() % _ALIGNED_BYTES == 0:
        return tensor
    return original(tensor)


_ALIGNED_BYTES = 16
"""What kernels take for granted of addresses; a block of the allocator begins at one of its own."""


class _Libraries:
    """The libraries' calls by name, of which those that write into a tensor they are given have nothing to do."""

    def __init__(self, original: Any, mode: FakeTensors) -> None:
        vars(self).update(_original=original, _mode=mode, _made={})

    def __getattr__(self, name: str) -> Any:
        call = getattr(self._original, name)
        if self._made.get(name, (None, None))[0] is not call:
            self._made[name] = call, functools.wraps(call)(functools.partial(_call_library, self._mode, call))
        return self._made[name][1]

    def __setattr__(self, name: str, value: Any) -> None:
        setattr(self._original, name, value)


def _call_library(mode: FakeTensors, call: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    out = kwargs.get("out")
    told = _who_is_told(mode) if isinstance(out, FakeTensor) and mode.made(out) else None
    if told is None:
        return call(*args, **kwargs)
    told(out)
    return out


def _who_is_told(mode: FakeTensors) -> Callable[[Any], Any] | None:
    """What is to be told of results made at once; ``None`` where some other mode has to see the call itself."""
    top = _get_current_dispatch_mode()
    if top is mode:
        return None if mode.is_over else _nobody
    told: Callable[[Any], Any] | None = getattr(top, "hear_inside", None)
    return told


def _nobody(result: Any) -> None:
    """Nobody listens."""
