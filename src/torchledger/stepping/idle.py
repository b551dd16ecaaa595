"""The part of a step in which nothing worked, by cause; each cause is measured, none is what remains."""

from __future__ import annotations

import bisect
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from torchledger.nouns import DeviceEvent
from torchledger.stepping.entries import Entry
from torchledger.stepping.marks import IN_PACKAGE, PACKAGE_MARK, STEP_MARK
from torchledger.traces.idle import BusyTime, busy_time, explain_idle
from torchledger.traces.spans import merge_spans
from torchledger.traces.trace import EventKind, Trace

BEFORE_FIRST = "before the first kernel: the host had not launched yet"
AFTER_LAST = "after the last kernel: the host went on"
BETWEEN_OPERATORS = "Python between operators"
BETWEEN_KERNELS_OF_PACKAGE = "in a package compiled ahead of time, between its kernels"

_CAUSES: tuple[tuple[re.Pattern[str], str], ...] = (
    (re.compile(rf"^({STEP_MARK}|ProfilerStep)#"), BETWEEN_OPERATORS),
    # On a CPU nobody sees the C++ kernels in its library, unless it was compiled with ranges around them.
    (re.compile(rf"^{PACKAGE_MARK}$"), IN_PACKAGE),
    (re.compile(r"^(## Call|torchledger::|inductor_wrapper_call)"), "compiled code: Python between its kernels"),
    (
        re.compile(r"^(Torch-Compiled Region|TorchDynamo|Pregraph|AOTDispatcher|CompiledFunction)"),
        "on the way into compiled code (guards, runtime wrappers)",
    ),
    (re.compile(r"^(autograd::|torch::autograd::|\w+Backward\d*$|\w+BackwardBackward)"), "autograd's engine"),
    (re.compile(r"^Optimizer\."), "the optimizer's Python"),
    (re.compile(r"DataLoader|^enumerate\("), "waiting for data"),
    (re.compile(r"^\w+::"), "dispatch of operators"),
)


def device_busy_and_idle(
    trace: Trace, events: Sequence[DeviceEvent], window: tuple[int, int]
) -> tuple[int, Mapping[str, int], tuple[int, int]]:
    """Busy nanoseconds of the devices in a window, idle ones by cause, and the window that they fill together.

    The window is lengthened to where the last event ends: a step's kernels may run on after its host part. With several
    devices the one that is busy longest is accounted for.
    """
    by_device: dict[int | str | None, list[int]] = {}
    for index, event in enumerate(events):
        by_device.setdefault(event.device, []).append(index)
    each = [_busy(events, members, device) for device, members in by_device.items()]
    busy = max(each, key=lambda one: one.busy)
    idle = explain_idle(trace, events, [busy], longest=0)
    causes = Counter({cause: round(us * 1e3) for cause, us in idle.causes.items()})
    end = max(window[1], busy.end)
    start = min(window[0], busy.start)
    causes[BEFORE_FIRST] += busy.start - start
    causes[AFTER_LAST] += end - busy.end
    return busy.busy, {cause: ns for cause, ns in causes.most_common() if ns}, (start, end)


def _busy(events: Sequence[DeviceEvent], members: Sequence[int], device: int | str | None) -> BusyTime:
    start = np.array([events[index].start_ns for index in members], dtype=np.int64)
    length = np.array([events[index].duration_ns for index in members], dtype=np.int64)
    return busy_time(device, start, start + length, np.array(members, dtype=np.int64))


def host_busy_and_idle(
    trace: Trace, entries: Sequence[Entry], window: tuple[int, int]
) -> tuple[int, Mapping[str, int]]:
    """Nanoseconds in which the host thread that made most calls worked on operators, and the others by what the thread
    was in meanwhile."""
    lane = Counter(entry.lane for entry in entries).most_common(1)[0][0] if entries else 0
    work = merge_spans(
        (max(start, window[0]), min(end, window[1]))
        for entry in entries
        if entry.lane == lane
        for start, end in entry.host_work
    )
    busy = sum(end - start for start, end in work)
    causes: Counter[str] = Counter()
    ranges = host_ranges(trace, lane, window)
    edges = [window[0], *(edge for span in work for edge in span), window[1]]
    for start, end in zip(edges[::2], edges[1::2], strict=True):
        if end > start:
            _share_out(start, end, ranges, causes)
    is_marked = any(PACKAGE_MARK in entry.around and "::" not in entry.name for entry in entries)
    if is_marked and IN_PACKAGE in causes:
        causes[BETWEEN_KERNELS_OF_PACKAGE] = causes.pop(IN_PACKAGE)
    return busy, dict(causes.most_common())


def middle_places(lengths: Sequence[int]) -> list[int]:
    """Where the median of some lengths stands: in one place, or in two of which it is the mean."""
    order = sorted(range(len(lengths)), key=lengths.__getitem__)
    return order[(len(order) - 1) // 2 : len(order) // 2 + 1]


def host_ranges(trace: Trace, lane: int, window: tuple[int, int]) -> list[tuple[int, int, str]]:
    """What a thread was in, as pieces that do not overlap: start, end and cause of the innermost range."""
    columns = trace.events
    rows = trace.rows(EventKind.OP, EventKind.ANNOTATION)
    rows = rows[
        (columns.lane[rows] == lane) & (columns.end_ns[rows] > window[0]) & (columns.start_ns[rows] < window[1])
    ]
    rows = rows[np.lexsort((-columns.end_ns[rows], columns.start_ns[rows]))]
    cause_of = {name: _cause(trace.names[name]) for name in np.unique(columns.name[rows]).tolist()}
    pieces: list[tuple[int, int, str]] = []
    stack: list[tuple[int, str]] = []
    reached = window[0]

    def advance(moment: int) -> None:
        nonlocal reached
        if moment > reached:
            pieces.append((reached, moment, stack[-1][1] if stack else BETWEEN_OPERATORS))
            reached = moment

    held = (columns.start_ns[rows].tolist(), columns.end_ns[rows].tolist(), columns.name[rows].tolist())
    for start, end, name in zip(*held, strict=True):
        while stack and stack[-1][0] <= start:
            advance(min(stack[-1][0], window[1]))
            stack.pop()
        advance(min(start, window[1]))
        stack.append((end, cause_of[name] or (stack[-1][1] if stack else BETWEEN_OPERATORS)))
    while stack:
        advance(min(stack[-1][0], window[1]))
        stack.pop()
    advance(window[1])
    return pieces


def _cause(name: str) -> str | None:
    """What a range of this name says of the thread; ``None``: what the range around it says."""
    return next((cause for pattern, cause in _CAUSES if pattern.search(name)), None)


def pieces_between(pieces: Sequence[tuple[int, int, str]], start: int, end: int) -> Iterator[tuple[int, int, str]]:
    """What of a host thread's ranges, which are in order and do not overlap, lies between two moments."""
    at = bisect.bisect_right(pieces, start, key=lambda piece: piece[1])
    while at < len(pieces) and pieces[at][0] < end:
        piece_start, piece_end, cause = pieces[at]
        yield max(start, piece_start), min(end, piece_end), cause
        at += 1


def _share_out(start: int, end: int, pieces: Sequence[tuple[int, int, str]], causes: Counter[str]) -> None:
    for piece_start, piece_end, cause in pieces_between(pieces, start, end):
        causes[cause] += piece_end - piece_start
