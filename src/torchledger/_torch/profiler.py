"""torch's profiler and the calls of compiled graphs: the private names that a profile needs."""

from __future__ import annotations

import bisect
import contextlib
import ctypes
import os
import tempfile
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from torch._inductor import config, output_code

from torchledger._torch.devices import has_cuda
from torchledger._torch.kernel_marks import kernel_marks, make_cpp_wrappers_visible
from torchledger._torch.patching import Patches

_PATIENCE_S = 0.5
"""How long a profiler of the program waits for the thread that ours records to end that."""

GraphCall = Callable[[Any, Sequence[Any], Callable[[], Any]], Any]
"""``around(compiled, inputs, proceed)``: called for each call of a graph; returns what ``proceed()`` returns."""


def watch_graph_calls(around: GraphCall, on_fault: Callable[[Exception], None] = lambda error: None) -> Patches:
    """Hear every call of every compiled graph, until the patches are undone; what fails in hearing goes to
    ``on_fault``, and the call is made."""
    patches = Patches(lambda where, error: on_fault(error))

    def call(original: Callable[..., Any], self: Any, *args: Any, **kwargs: Any) -> Any:
        return around(self, args[0] if args else (), lambda: original(self, *args, **kwargs))

    patches.around(output_code.CompiledFxGraph, "__call__", call)
    return patches


def count_graph_calls(called: Callable[[Any], None]) -> Patches:
    """Tell ``called``, which may not raise, of every call of every compiled graph before it is made, and of nothing
    else, at the least cost to the program, until the patches are undone."""
    patches = Patches()
    original = output_code.CompiledFxGraph.__call__

    def call(self: Any, *args: Any, **kwargs: Any) -> Any:
        called(self)
        return original(self, *args, **kwargs)

    patches.set(output_code.CompiledFxGraph, "__call__", call)
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


def synchronize() -> None:
    """Wait for the GPU, if there is one in use."""
    if has_cuda():
        torch.cuda.synchronize()


class Recording:
    """One recording of host and (where in use) device activity, with a range around each C++ kernel.

    It belongs to the thread that starts it: torch ends the process with a segmentation fault when another one stops it.
    torch has one profiler session a process. If the program starts its own meanwhile, this one ends first and
    ``is_lost``: there is nothing to stop or export.

    What was recorded lies in memory that the next recording takes over. ``export`` and ``discard`` free it before:
    torch's object is part of a circle, and ends the process if Python collects it while another recording runs.
    """

    def __init__(self, *, with_shapes: bool = False, with_memory: bool = False) -> None:
        activities = [torch.profiler.ProfilerActivity.CPU]
        if has_cuda():
            activities.append(torch.profiler.ProfilerActivity.CUDA)
        self._counts_memory = with_memory and not has_cuda()
        self._profile = torch.profiler.profile(
            activities=activities, record_shapes=with_shapes, profile_memory=self._counts_memory
        )
        self._patches = Patches()
        self._thread: int | None = None
        self._has_ended = threading.Event()
        self.is_lost = False

    def start(self) -> None:
        """Begin to record what the calling thread does; the first kernels under a new recording are slower."""
        if self._counts_memory:
            self._patches.on_undo(_without_warnings_of_allocator())
        with _without_advice():
            self._profile.start()
        self._thread = threading.get_ident()
        self._patches.on_undo(kernel_marks().undo)
        self._patches.around(torch.autograd.profiler.profile, "_prepare_trace", self._give_way)

    @property
    def is_open(self) -> bool:
        """True from ``start`` on until it was stopped or lost."""
        return self._thread is not None and not self._has_ended.is_set()

    @property
    def is_here(self) -> bool:
        """True on the one thread that may stop it."""
        return self._thread == threading.get_ident()

    def stop(self) -> None:
        """End the recording, once the device has finished. Raises ``RuntimeError`` if it is lost or not this thread's.

        What was recorded has to be exported or discarded before the next recording begins.
        """
        if self.is_lost:
            raise RuntimeError("another profiler took over")
        if not self.is_here:
            raise RuntimeError("a recording is stopped by the thread that started it")
        self._end()

    def _end(self, *, discards: bool = False) -> None:
        self._patches.undo()
        synchronize()
        try:
            with _cupti_given_back():
                self._profile.stop()
            if discards:
                self.discard()
        finally:
            self._has_ended.set()

    def _give_way(self, prepare: Callable[..., Any], *args: Any) -> Any:
        if self.is_here:
            self.stop()
            self.discard()
        self.is_lost = True
        if not self._has_ended.wait(_PATIENCE_S):
            self._patches.undo()  # it stays open: the program's own profiler ends both
            self._has_ended.set()
        return prepare(*args)

    def leave(self) -> None:
        """End a lost recording on its own thread, while the program's profiler waits for that on another."""
        if self.is_here and self.is_open:
            self._end(discards=True)

    def saw_device(self) -> bool:
        """True if the recording, once stopped, holds anything that ran on a GPU."""
        cuda = torch.autograd.DeviceType.CUDA
        return any(event.device_type() == cuda for event in self._profile.profiler.kineto_results.events())

    def allocations(self, spans: Sequence[str]) -> tuple[tuple[tuple[int, int], ...], ...] | None:
        """For each named range, what the CPU's allocator gave (bytes above 0) and took back in it, in order.

        Each with nanoseconds since the range began. Of what was allocated before the recording, the end is not seen.
        ``None`` if memory was not recorded.
        """
        if not self._counts_memory:
            return None
        events = self._profile.profiler.kineto_results.events()
        bounds = {event.name(): (event.start_ns(), event.end_ns()) for event in events if event.name() in spans}
        changes = [(event.start_ns(), int(event.nbytes())) for event in events if event.name() == "[memory]"]
        changes.sort(key=lambda change: change[0])
        moments = [moment for moment, _ in changes]
        found = []
        for name in spans:
            start, end = bounds.get(name, (0, 0))
            inside = changes[bisect.bisect_left(moments, start) : bisect.bisect_left(moments, end)]
            found.append(tuple((moment - start, nbytes) for moment, nbytes in inside))
        return tuple(found)

    def operators(self, spans: Sequence[str]) -> tuple[Counter[str], ...]:
        """How often each named range has which operators in it, on whatever thread, those that others call too."""
        events = self._profile.profiler.kineto_results.events()
        bounds = {event.name(): (event.start_ns(), event.end_ns()) for event in events if event.name() in spans}
        moments = sorted((event.start_ns(), event.name()) for event in events if "::" in event.name())
        found = []
        for name in spans:
            start, end = bounds.get(name, (0, 0))
            inside = moments[bisect.bisect_left(moments, (start, "")) : bisect.bisect_left(moments, (end, ""))]
            found.append(Counter(operator for _, operator in inside))
        return tuple(found)

    def export(self) -> Path:
        """The recording as a Kineto trace in a temporary file, which the caller removes; it is in there alone then."""
        with tempfile.NamedTemporaryFile(suffix=".json", prefix="torchledger-", delete=False) as file:
            path = Path(file.name)
        try:
            self._profile.export_chrome_trace(str(path))
        finally:
            self.discard()
        return path

    def discard(self) -> None:
        """Free what a stopped recording holds, now."""
        if self._profile.profiler is not None:
            self._profile.profiler.kineto_results = None


_LOG_LEVEL = "FLAGS_caffe2_log_level"
_ERROR_LEVEL = 2


@contextlib.contextmanager
def _without_advice() -> Iterator[None]:
    """Keep from the user what torch 2.11 says of every profiler: that later cycles clear its events, of which we have
    one."""
    patches = Patches()
    if hasattr(torch.profiler.profiler, "_warn_once"):
        patches.set(torch.profiler.profiler, "_warn_once", lambda *_, **__: None)
    try:
        yield
    finally:
        patches.undo()


def _without_warnings_of_allocator() -> Callable[[], None]:
    """Have torch's allocator not write to stderr that it frees what was there before; returns what undoes that.

    It warns of every thousandth such block, through a log whose level no Python name reaches.
    """
    try:
        level = ctypes.c_int.in_dll(ctypes.CDLL(os.path.join(os.path.dirname(torch.__file__), _CORE)), _LOG_LEVEL)
    except (OSError, ValueError):  # another build of torch: it will say so once
        return lambda: None
    former = level.value
    level.value = max(former, _ERROR_LEVEL)

    def undo() -> None:
        level.value = former

    return undo


_CORE = os.path.join("lib", "libc10.so")


@contextlib.contextmanager
def _cupti_given_back() -> Iterator[None]:
    """Have Kineto give CUPTI back when a recording ends in here, unless the user says otherwise.

    It keeps CUPTI attached by default, and every later launch of the program costs the host more.
    """
    name = "TEARDOWN_CUPTI"
    is_asked = name in os.environ
    os.environ.setdefault(name, "1")
    try:
        yield
    finally:
        if not is_asked:
            os.environ.pop(name, None)


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
