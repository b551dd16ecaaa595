"""One recorded step as device events: what its breakdown and its timeline are made of.

On a GPU these are the events that the step launched; on a CPU every operator and kernel is one, inside compiled graphs
and outside. Eager ones carry the lines and modules of their calls.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from statistics import median
from typing import cast

from torchledger.nouns import Breakdown, Ceilings, Cost, DeviceEvent, StepCall, TimeCategory
from torchledger.profiling.steps import Steps
from torchledger.stepping.idle import host_busy_and_idle
from torchledger.stepping.record import StepRecord
from torchledger.traces.breakdown import breakdown_of_trace
from torchledger.traces.summary import summarize
from torchledger.traces.trace import Trace
from torchledger.traces.verdict import verdict


def events_of_step(
    trace: Trace,
    record: StepRecord,
    span: tuple[int, int],
    events: Sequence[DeviceEvent],
    *,
    is_on_device: bool,
) -> list[DeviceEvent]:
    """The events of the recorded step, in order of their starts; ``events`` are those with entries, of all steps."""
    if is_on_device:
        inside = [
            event
            for event in events
            if span[0] <= (event.start_ns if event.launch_start_ns is None else event.launch_start_ns) < span[1]
        ]
        return [_with_origin(event, record) for event in inside]
    inside = [event for event in events if span[0] <= event.start_ns < span[1]]
    # What a library of AOTInductor calls is in the step, and what its graph's entries launched.
    taken = {event.row for event in inside}
    entries = record.entries[record.index]
    eager = [
        _as_event(call, span[0])
        for call, entry in zip(record.calls, entries, strict=True)
        if call.kind in ("operator", "copy", "collective") and entry.row not in taken
    ]
    return sorted([*inside, *eager], key=lambda event: event.start_ns)


def _with_origin(event: DeviceEvent, record: StepRecord) -> DeviceEvent:
    place = record.call_of.get(event.row) if event.row is not None else None
    if place is None or event.launch_id is not None:
        return event
    call = record.calls[place]
    return replace(event, modules=call.modules or event.modules, sources=call.sources or event.sources)


def _as_event(call: StepCall, origin_ns: int) -> DeviceEvent:
    return DeviceEvent(
        name=call.name,
        kind="kernel",
        category=cast(TimeCategory, call.category or "other"),
        start_ns=origin_ns + round((call.start_us or 0.0) * 1e3),
        duration_ns=round((call.host_us or 0.0) * 1e3),
        device="cpu",
        stream=call.thread,
        op=call.name,
        modules=call.modules,
        sources=call.sources,
        cost=Cost(call.flops, call.bytes_moved, call.flops_quality, call.bytes_quality, call.reason),
        row=-2 - call.order,
    )


def phases_of_events(record: StepRecord, events: Sequence[DeviceEvent]) -> dict[int, str]:
    """Row of an event to the phase of the call that it belongs to."""
    found = {row: record.calls[place].phase for row, place in record.call_of.items()}
    found |= {-2 - call.order: call.phase for call in record.calls}
    graphs = [call for call in record.calls if call.kind == "graph"]
    for event in events:
        if event.row is not None and event.row not in found:
            around = next((call for call in graphs if call.name == event.graph), None)
            if around is not None:
                found[event.row] = around.phase
    return {row: str(phase) for row, phase in found.items()}


def breakdown_of_step(
    trace: Trace,
    record: StepRecord,
    span: tuple[int, int],
    events: Sequence[DeviceEvent],
    ceilings: Ceilings | None,
    steps: Steps,
) -> Breakdown:
    """Where the time of the recorded step went; on a CPU no time in which an operator ran is idle."""
    step = record.step
    length_us = (span[1] - span[0]) / 1e3
    if step.clock == "cupti":
        result = breakdown_of_trace(trace, events, ceilings=ceilings)
    else:
        result = summarize(events, source="cpu profile", clock=step.clock, ceilings=ceilings)
        busy, idle = host_busy_and_idle(trace, record.entries[record.index], span)
        idle_causes = {cause: ns / 1e3 for cause, ns in idle.items()}
        result = replace(result, wall_us=length_us, busy_us=busy / 1e3, idle_causes=idle_causes, gaps=())
    plain_us = median(steps.plain_us) if steps.plain_us and steps.profiled_us else None
    notes = list(result.notes)
    if plain_us is not None:
        ratio = median(steps.profiled_us) / plain_us
        notes.append(
            f"a step takes {plain_us / 1e3:.3f} ms without the profiler and {median(steps.profiled_us) / 1e3:.3f} ms "
            f"under it (x{ratio:.3f}, host clock)"
        )
    result = replace(result, clock=step.clock, steps=1, step_us=(length_us,), notes=tuple(notes))
    return replace(result, verdict=verdict(result, plain_us=plain_us))
