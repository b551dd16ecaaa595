"""One rank out of its trace, whoever recorded it: its collectives, and what it did around them."""

from __future__ import annotations

import re
from os import PathLike

from torchledger.nouns import Collective, DeviceEvent, RankActivity, TimeCategory
from torchledger.stepping.activity import device_activity, host_activity
from torchledger.stepping.communication import read_collectives
from torchledger.stepping.entries import read_entries
from torchledger.traces.reading import read_trace
from torchledger.traces.trace import EventKind, Trace
from torchledger.work.kernel_names import category_of_kernel

_STEP = re.compile(r"^ProfilerStep#\d+$")
_STEP_NAME = "trace"


def rank_of_trace(path: str | PathLike[str]) -> tuple[int | None, int | None, list[Collective], RankActivity | None]:
    """A trace's rank and world size by its own word, its collectives, and what the rank did around them.

    Raises ``MeasureError`` if the file is no trace.
    """
    trace = read_trace(path, without="python_function")
    held = trace.metadata.get("distributedInfo")
    info = held if isinstance(held, dict) else {}
    rank, world = info.get("rank"), info.get("world_size")
    spans = _spans(trace)
    events = _events(trace)
    collectives: list[Collective] = []
    activity = None
    if spans:
        inside = [event for event in events if spans[0][0] <= _moment(event) < spans[-1][1]]
        collectives = read_collectives(trace, spans, inside, step=_STEP_NAME)
        if inside:
            activity = device_activity(trace, spans, inside, step=_STEP_NAME, clock="cupti", label_of=_label)
        elif collectives:
            entries = [
                entry
                for span in spans
                for entry in read_entries(trace, span, (), graph_of=lambda name: None, is_composite=lambda name: None)
            ]
            activity = host_activity(trace, spans, entries, collectives, step=_STEP_NAME, clock="cpu_profiler")
    return (
        rank if type(rank) is int else None,
        world if type(world) is int else None,
        collectives,
        activity,
    )


def _label(event: DeviceEvent) -> tuple[str, str]:
    return event.op or event.name, ""


def _moment(event: DeviceEvent) -> int:
    return event.start_ns if event.launch_start_ns is None else event.launch_start_ns


def _spans(trace: Trace) -> list[tuple[int, int]]:
    """The profiler's steps; without any, all that the trace holds is one."""
    columns = trace.events
    steps = [
        (int(columns.start_ns[row]), int(columns.end_ns[row]))
        for row in trace.rows(EventKind.ANNOTATION).tolist()
        if _STEP.match(trace.name(row))
    ]
    if steps:
        return sorted(steps)
    rows = trace.rows(EventKind.OP, EventKind.RUNTIME, EventKind.KERNEL, EventKind.MEMCPY, EventKind.MEMSET)
    return [(int(columns.start_ns[rows].min()), int(columns.end_ns[rows].max()))] if len(rows) else []


def _events(trace: Trace) -> list[DeviceEvent]:
    """What ran on the device, with no more than its name tells of it."""
    category: dict[str, TimeCategory] = {}
    found = []
    for kernel in trace.kernels():
        if kernel.name not in category:
            category[kernel.name] = category_of_kernel(kernel.name) if kernel.kind == "kernel" else "memory"
        found.append(
            DeviceEvent(
                name=kernel.name,
                kind=kernel.kind,
                category=category[kernel.name],
                start_ns=kernel.start_ns,
                duration_ns=kernel.duration_ns,
                device=kernel.device,
                stream=kernel.stream,
                op=None if kernel.op is None else trace.name(kernel.op),
                launch_start_ns=None if kernel.launch is None else int(trace.events.start_ns[kernel.launch]),
                row=kernel.row,
            )
        )
    return found
