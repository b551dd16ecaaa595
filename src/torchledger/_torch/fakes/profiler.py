"""Profilers that a program starts itself, on a device that is not there: they hear the host alone.

Asked for a device, torch's profiler would record an event of CUDA's for each operator. Without the device each of them
fails, and says so with a stack of C++.
"""

from __future__ import annotations

import types
from collections.abc import Callable
from typing import Any

import torch
import torch.autograd.profiler
import torch.cuda.profiler

from torchledger._torch.patching import Patches


def profile_host_alone(patches: Patches) -> None:
    """Have the program's profilers leave the device out until the patches are undone, and tools' ranges do nothing."""
    patches.around(torch.autograd.profiler.profile, "__init__", _of_host)
    patches.around(torch.autograd.profiler.emit_nvtx, "__init__", _switched_off)
    for owner in (torch.cuda, torch.cuda.profiler):
        patches.set(owner, "cudart", lambda: _RUNTIME)
        patches.set(owner, "check_error", lambda result: None)


def _of_host(original: Callable[..., None], self: Any, *args: Any, **kwargs: Any) -> None:
    original(self, *args, **{name: value for name, value in kwargs.items() if name not in _ABOUT_DEVICE})


_ABOUT_DEVICE = ("use_cuda", "use_device", "use_cpu")
"""What says whether the device is heard; left out it is the host."""


def _switched_off(original: Callable[..., None], self: Any, *args: Any, **kwargs: Any) -> None:
    original(self, *args, **kwargs)
    self.enabled = False


class _Runtime(types.SimpleNamespace):
    """CUDA's runtime, of which all calls succeed (a profiler's begin and end, memory that is pinned where it lies)."""

    def __getattr__(self, name: str) -> Callable[..., int]:
        return lambda *args: 0


_RUNTIME = _Runtime()
