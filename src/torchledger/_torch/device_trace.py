"""Device activity of many operator calls in one profiler session, cut into pieces by marker kernels.

Starting and stopping the profiler costs milliseconds, so a session covers many shapes. Between two iterations a spin
kernel of no length is launched; on the stream it stands between their kernels, so that the k-th piece of the device's
timeline is the k-th iteration, without any host-side marker or correlation id. Only device activity is recorded
(``use_cpu=False``): torch then installs no observer on its operators, and an operator call costs what it always does.

``torch.cuda._sleep`` (its kernel is named ``spin_kernel``) and ``profile.kineto_results`` are private but present from
torch 2.0 to 2.13. Events are read from the latter directly: building torch's ``FunctionEvent`` objects, which the
public properties do on first use, costs tens of microseconds per event.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

MARKER_NAME = "spin_kernel"

_NOT_WORK = ("Context Sync", "Event Sync", "Stream Sync", "Stream Wait", "Event Record", "Unknown Sync")
"""Beginnings of the names of records on the device's timeline that are no activity of it (as Kineto names them)."""


@dataclass(frozen=True)
class Piece:
    """The device's activity between two markers: names and (start, end) in nanoseconds, in order of start."""

    names: tuple[str, ...]
    intervals: tuple[tuple[int, int], ...]

    @property
    def busy_us(self) -> float:
        """Length of the union of the intervals."""
        total, reached = 0, None
        for start, end in self.intervals:
            if reached is None or start >= reached:
                total += end - start
                reached = end
            elif end > reached:
                total += end - reached
                reached = end
        return total / 1e3

    def named(self, part: str) -> Piece:
        """The activity whose name holds ``part``, in any case."""
        kept = [each for each in zip(self.names, self.intervals, strict=True) if part in each[0].lower()]
        return Piece(tuple(name for name, _ in kept), tuple(interval for _, interval in kept))

    @property
    def span_us(self) -> float:
        """From the first start to the last end."""
        if not self.intervals:
            return 0.0
        return (max(end for _, end in self.intervals) - self.intervals[0][0]) / 1e3


class DeviceTrace:
    """Context manager: one profiler session on the present CUDA device, with ``mark`` to cut it."""

    def __init__(self) -> None:
        import torch

        self._profile = torch.autograd.profiler.profile(use_cpu=False, use_device="cuda", use_kineto=True)
        self._sleep = torch.cuda._sleep
        self.marks = 0

    def __enter__(self) -> DeviceTrace:
        self._profile.__enter__()
        return self

    def __exit__(self, kind: Any, error: Any, traceback: Any) -> None:
        self._profile.__exit__(kind, error, traceback)

    def mark(self, cycles: int = 0) -> int:
        """Cut here, with a marker that spins for so many clock cycles; returns the index of the piece that begins."""
        self._sleep(cycles)
        self.marks += 1
        return self.marks

    def pieces(self) -> list[Piece] | None:
        """Piece 0 is what came before the first mark. ``None`` if the number of marks on the timeline is not the number
        that was set: then records were lost and nothing can be told apart."""
        activity = _device_activity(self._profile.kineto_results)
        pieces: list[Piece] = []
        names: list[str] = []
        intervals: list[tuple[int, int]] = []
        for start, end, name in activity:
            if MARKER_NAME in name:
                pieces.append(Piece(tuple(names), tuple(intervals)))
                names, intervals = [], []
            else:
                names.append(name)
                intervals.append((start, end))
        pieces.append(Piece(tuple(names), tuple(intervals)))
        return pieces if len(pieces) == self.marks + 1 else None


def device_trace_available() -> bool:
    """True if a session on the present device sees a kernel that is launched in it."""
    import torch

    if not torch.cuda.is_available() or not torch.profiler.kineto_available():
        return False
    try:
        with DeviceTrace() as trace:
            trace.mark()
            torch.ones(8, device="cuda")
            trace.mark()
    except (RuntimeError, AssertionError):
        # A torch built without CUPTI asserts that device-only profiling is impossible.
        return False
    pieces = trace.pieces()
    return pieces is not None and bool(pieces[1].names)


def _device_activity(results: Any) -> list[tuple[int, int, str]]:
    """(start, end, name) of kernels, copies and sets, by start; times in nanoseconds.

    Launch calls are events of the CPU, so the device type tells them apart.
    """
    import torch

    cuda = torch.autograd.DeviceType.CUDA
    activity = []
    for event in results.events():
        if event.device_type() != cuda:
            continue
        name = event.name()
        if name.startswith(_NOT_WORK):
            continue
        start = event.start_ns()
        activity.append((start, start + event.duration_ns(), name))
    activity.sort()
    return activity
