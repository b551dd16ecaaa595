"""From a trace alone to where the time went."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from os import PathLike
from typing import Any

import numpy as np
import numpy.typing as npt

from torchledger.errors import MeasureError
from torchledger.nouns import Breakdown, Ceilings, DeviceEvent, LaunchOverhead
from torchledger.traces.collective_messages import collective_notes
from torchledger.traces.contents import devices_of_trace, problems_of, step_durations, with_modules_and_lines
from torchledger.traces.costs import device_events, launches_before_call
from torchledger.traces.cpu import cpu_breakdown, cpu_events
from torchledger.traces.idle import explain_idle
from torchledger.traces.reading import read_trace
from torchledger.traces.stream import Progress
from torchledger.traces.summary import busy_times, summarize
from torchledger.traces.trace import NONE, EventKind, Trace
from torchledger.traces.verdict import verdict

_JUMP_NS = 60_000_000_000
"""Device events further than this outside everything that the host did are taken for a clock that jumped."""


def import_trace(path: str | PathLike[str], *, progress: Progress | None = None) -> tuple[Breakdown, list[DeviceEvent]]:
    """Read a Kineto trace that somebody recorded and say where its time went.

    Where nothing ran on a device, the operators' own time on the CPU is broken down. Raises ``MeasureError`` if the
    file is not a trace, or holds neither device events nor operators.
    """
    trace = read_trace(path, progress=progress)
    if not len(trace.device_rows) and len(trace.rows(EventKind.OP)):
        events = cpu_events(trace)
        return cpu_breakdown(trace, events), events
    events = device_events(trace)
    return breakdown_of_trace(trace, events), events


def breakdown_of_trace(
    trace: Trace, events: Sequence[DeviceEvent] | None = None, *, ceilings: Ceilings | None = None
) -> Breakdown:
    """The breakdown of a trace; ``events`` if they are already at hand (``device_events(trace)``)."""
    if events is None:
        events = device_events(trace)
    if not events:
        number = f"{len(trace.events):,} event{'s'[: len(trace.events) != 1]}"
        raise MeasureError(
            f"{trace.source} holds no kernel: {number}, none of them on a device"
            + (", and the file is cut off. " if trace.is_truncated else ". ")
            + "Record it with activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]."
        )
    events = with_modules_and_lines(trace, list(events))
    is_on_clock, problems = _without_jumps(trace, events)
    busy = busy_times(events, is_on_clock)
    idle = explain_idle(trace, events, busy)
    rank = trace.metadata["distributedInfo"].get("rank")
    result = summarize(events, source=trace.source, clock="trace", busy=busy, ceilings=ceilings)
    steps = step_durations(trace)
    known = problems_of(trace)
    result = replace(
        result,
        devices=devices_of_trace(trace),
        rank=rank if isinstance(rank, int) else None,
        steps=len(steps) or None,
        step_us=tuple(steps),
        gaps=idle.gaps,
        idle_causes=idle.causes,
        host_during_idle=dict(list(idle.host.items())[:50]),
        launch_overhead=_launch_overhead(trace, events),
        is_partial=trace.is_truncated or any(problem.leaves_out for problem in known),
        problems=(*(problem.text for problem in known), *problems),
        notes=_notes(trace, events),
    )
    return replace(result, verdict=verdict(result))


def _without_jumps(trace: Trace, events: Sequence[DeviceEvent]) -> tuple[npt.NDArray[np.bool_], list[str]]:
    """Which events lie on the host's clock, and what is wrong with the rest."""
    is_on_clock = np.ones(len(events), dtype=bool)
    problems: list[str] = []
    columns = trace.events
    host = trace.rows(EventKind.RUNTIME, EventKind.OP)
    start = np.array([event.start_ns for event in events], dtype=np.int64)
    if len(host):
        earliest, latest = int(columns.start_ns[host].min()), int(columns.end_ns[host].max())
    else:
        earliest, latest = int(np.median(start)), int(np.median(start))
    is_on_clock = (start >= earliest - _JUMP_NS) & (start <= latest + _JUMP_NS)
    if not is_on_clock.any():
        problems.append("host and device clocks do not meet: no device event lies within a minute of the host's events")
        is_on_clock = np.ones(len(events), dtype=bool)
    elif not is_on_clock.all():
        time = sum(event.duration_us for event, is_counted in zip(events, is_on_clock, strict=True) if not is_counted)
        problems.append(
            f"{int((~is_on_clock).sum())} device events ({time:.1f} us) lie more than a minute outside the host's "
            "events: the clock jumped; they count in the sums and not in wall time and gaps"
        )
    early, lead = launches_before_call(trace)
    if early:
        problems.append(
            f"{early} device events start before the call that launches them, by up to {lead:.1f} us: host and device "
            "clocks disagree, so causes of idle time are doubtful"
        )
    return is_on_clock, problems


def _overlaps(events: Sequence[DeviceEvent]) -> int:
    reach: dict[Any, int] = {}
    number = 0
    for event in events:
        if event.is_graph_replay:
            continue
        lane = (event.device, event.stream)
        if event.start_ns < reach.get(lane, event.start_ns) - 1000:
            number += 1
        reach[lane] = max(reach.get(lane, 0), event.start_ns + event.duration_ns)
    return number


def _launch_overhead(trace: Trace, events: Sequence[DeviceEvent]) -> LaunchOverhead:
    launch = trace.launch_of[trace.device_rows]
    rows = np.unique(launch[launch != NONE])
    durations = trace.events.duration_ns[rows]
    with_launch = [event for event in events if event.launch_start_ns is not None]
    waits = np.array([event.start_ns - (event.launch_start_ns or 0) for event in with_launch], dtype=np.int64)
    graph = np.array(["GraphLaunch" in name for name in trace.names] or [False])
    return LaunchOverhead(
        launches=len(rows),
        host_us=int(durations.sum()) / 1e3,
        median_us=float(np.median(durations)) / 1e3 if len(rows) else None,
        queue_us=float(np.median(waits)) / 1e3 if len(waits) else None,
        queue_minimum_us=int(waits.min()) / 1e3 if len(waits) else None,
        launches_missing=int((launch == NONE).sum()),
        graph_launches=int(graph[trace.events.name[rows]].sum()) if len(rows) else 0,
        launches_before_call=int((waits < -1000).sum()) if len(waits) else 0,
    )


def _notes(trace: Trace, events: Sequence[DeviceEvent]) -> tuple[str, ...]:
    notes = []
    if overlaps := _overlaps(events):
        notes.append(
            f"{overlaps} kernels overlap the one before on their stream (programmatic launches do; so does a "
            "clock that jumped)"
        )
    ops = trace.rows(EventKind.OP)
    texts = [trace.argument_texts[i] for i in np.unique(trace.events.argument[ops]).tolist()]
    if inferred := [event.duration_us for event in events if event.op_is_inferred]:
        notes.append(
            f"{len(inferred)} device events ({sum(inferred):.1f} us) have no launch in the trace; operator, FLOPs and "
            "bytes are those of launches of the same kernel, grid and block in the same surroundings"
        )
    if len(ops) and not any(b"Input Dims" in text for text in texts):
        notes.append("recorded without record_shapes=True: FLOPs and bytes of library calls cannot be computed")
    if not len(ops):
        notes.append("recorded without host activity: kernels have no operator")
    notes += collective_notes(trace)
    world = trace.metadata["distributedInfo"].get("world_size")
    if isinstance(world, int) and world > 1:
        notes.append(f"one rank of {world}: only this rank's devices are in the trace")
    return tuple(notes)
