"""Profilers that a program starts itself, on a device that is not there: they hear the host alone.

Asked for a device, torch's profiler would record an event of CUDA's for each operator. Without the device each of them
fails, and says so with a stack of C++. One that the program leaves open ends with the plan: torch would take down its
callbacks while the process ends, when threads of loaders are gone, and fail at it.
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
    _end_open_profilers(patches)
    for owner in (torch.cuda, torch.cuda.profiler):
        patches.set(owner, "cudart", lambda: _RUNTIME)
        patches.set(owner, "check_error", lambda result: None)


def _of_host(original: Callable[..., None], self: Any, *args: Any, **kwargs: Any) -> None:
    original(self, *args, **{name: value for name, value in kwargs.items() if name not in _ABOUT_DEVICE})


_ABOUT_DEVICE = ("use_cuda", "use_device", "use_cpu")
"""What says whether the device is heard; left out it is the host."""


def _end_open_profilers(patches: Patches) -> None:
    """Have profilers that begin from now on end with the patches, where the program has not ended them."""
    was_enabled = torch.autograd._profiler_enabled()

    def end() -> None:
        if not was_enabled and torch.autograd._profiler_enabled():
            torch.autograd._disable_profiler()
            torch.autograd.profiler._run_on_profiler_stop()

    patches.on_undo(end)


def _switched_off(original: Callable[..., None], self: Any, *args: Any, **kwargs: Any) -> None:
    original(self, *args, **kwargs)
    self.enabled = False


class _Runtime(types.SimpleNamespace):
    """CUDA's runtime, of which all calls succeed (a profiler's begin and end, memory that is pinned where it lies)."""

    def __getattr__(self, name: str) -> Callable[..., int]:
        return lambda *args: 0


_RUNTIME = _Runtime()
