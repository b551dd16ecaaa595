"""torch's profiler and the calls of compiled graphs: the private names that a profile needs."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch._inductor import config, output_code

from torchledger._torch.kernel_marks import kernel_marks, make_cpp_wrappers_visible
from torchledger._torch.patching import Patches

GraphCall = Callable[[Any, Callable[[], Any]], Any]
"""``around(compiled, proceed)``: called for each call of a compiled graph; returns what ``proceed()`` returns."""


def watch_graph_calls(around: GraphCall) -> Patches:
    """Hear every call of every compiled graph, until the patches are undone."""
    patches = Patches()

    def call(original: Callable[..., Any], self: Any, *args: Any, **kwargs: Any) -> Any:
        return around(self, lambda: original(self, *args, **kwargs))

    patches.around(output_code.CompiledFxGraph, "__call__", call)
    return patches


def make_kernels_visible() -> Patches:
    """What a profiler needs of code that is compiled from now on, to tell kernels apart.

    Kernels that a Python wrapper calls need nothing: a ``Recording`` marks those of C++ while it records, and Triton's
    say their names. Only C++ wrappers (``cpp_wrapper=True``) have to be compiled with ranges.
    """
    return make_cpp_wrappers_visible()


def mark(name: str) -> Any:
    """A context manager that puts a named range into a running profile."""
    return torch.autograd.profiler.record_function(name)


def is_profiling() -> bool:
    """True while some torch profiler records."""
    return bool(torch.autograd.profiler._is_profiler_enabled)


def compiles_cuda_graphs() -> bool:
    """True while Inductor compiles for CUDA graphs (``mode="reduce-overhead"``); ask during compilation."""
    return bool(config.triton.cudagraphs)


def has_cuda() -> bool:
    """True once the program has used CUDA."""
    return bool(torch.cuda.is_available() and torch.cuda.is_initialized())


def synchronize() -> None:
    """Wait for the GPU, if there is one in use."""
    if has_cuda():
        torch.cuda.synchronize()


class Recording:
    """One recording of host and (where in use) device activity, with a range around each C++ kernel.

    torch has one profiler session a process. If the program starts its own meanwhile, this one ends first and
    ``is_lost``: there is nothing to stop or export.
    """

    def __init__(self) -> None:
        activities = [torch.profiler.ProfilerActivity.CPU]
        if has_cuda():
            activities.append(torch.profiler.ProfilerActivity.CUDA)
        self._profile = torch.profiler.profile(activities=activities)
        self._patches = Patches()
        self.is_lost = False

    def start(self) -> None:
        """Begin to record; the first kernels under a new recording are slower."""
        self._profile.start()
        self._patches.on_undo(kernel_marks().undo)
        self._patches.around(torch.autograd.profiler.profile, "_prepare_trace", self._give_way)

    def stop(self) -> None:
        """End the recording, once the device has finished. Raises ``RuntimeError`` if it is lost."""
        if self.is_lost:
            raise RuntimeError("another profiler took over")
        self._patches.undo()
        synchronize()
        self._profile.stop()

    def _give_way(self, prepare: Callable[..., Any], *args: Any) -> Any:
        self.stop()
        self.is_lost = True
        return prepare(*args)

    def saw_device(self) -> bool:
        """True if the recording, once stopped, holds anything that ran on a GPU."""
        cuda = torch.autograd.DeviceType.CUDA
        return any(event.device_type() == cuda for event in self._profile.profiler.kineto_results.events())

    def export(self) -> Path:
        """The recording as a Kineto trace in a temporary file, which the caller removes."""
        with tempfile.NamedTemporaryFile(suffix=".json", prefix="torchledger-", delete=False) as file:
            path = Path(file.name)
        self._profile.export_chrome_trace(str(path))
        return path


class CallTimer:
    """Times calls on the GPU between two events each, on the stream that they are made on."""

    def __init__(self) -> None:
        self._pairs: list[tuple[str, Any, Any]] = []

    def call(self, name: str, proceed: Callable[[], Any]) -> Any:
        """Do ``proceed()`` between two events; not timed while a CUDA graph is being recorded."""
        if torch.cuda.is_current_stream_capturing():
            return proceed()
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        try:
            return proceed()
        finally:
            end.record()
            self._pairs.append((name, start, end))

    def spans(self) -> list[tuple[str, int, int]]:
        """Name, start after the first call's start, and duration of each call, in nanoseconds."""
        synchronize()
        return [
            (name, round(self._pairs[0][1].elapsed_time(start) * 1e6), round(start.elapsed_time(end) * 1e6))
            for name, start, end in self._pairs
        ]
