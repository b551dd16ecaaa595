"""When the device ran nothing, and what the host did meanwhile."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from torchledger.nouns import DeviceEvent, IdleGap
from torchledger.traces.links import innermost_covering
from torchledger.traces.trace import NONE, EventKind, Trace
from torchledger.work.kernel_names import kernel_label

IntColumn = npt.NDArray[np.int64]

BETWEEN_KERNELS = "between kernels"
HOST_LATE = "host launched late"
AFTER_SYNCHRONIZATION = "host waited for the device, then launched"
QUEUED = "launched in time, waited on the device"
UNKNOWN = "launch not recorded"
CLOCKS = "host and device clocks disagree"

NOTHING_RECORDED = "nothing that the trace holds"

BACK_TO_BACK_NS = 2_000
"""A gap this short between kernels that are already queued is the device's own turnaround."""

_SYNCHRONIZES = re.compile(r"Synchronize|cudaMemcpy$|hipMemcpy$|cudaMemcpy2D$|StreamWaitEvent$|cudaEventQuery")
_STEP = re.compile(r"^ProfilerStep#\d+$")


@dataclass(frozen=True)
class IdleSummary:
    """Idle time of all devices: the longest gaps, and time by cause and by what the host did, in microseconds."""

    gaps: tuple[IdleGap, ...]
    causes: Mapping[str, float]
    host: Mapping[str, float]


@dataclass(frozen=True)
class BusyTime:
    """One device's busy time: the union of its events' intervals, in nanoseconds on one clock.

    ``gap_start``/``gap_end`` bound the idle times in between; ``before``/``after`` index the events around each.
    """

    device: int | str | None
    start: int
    end: int
    busy: int
    gap_start: IntColumn
    gap_end: IntColumn
    before: IntColumn
    after: IntColumn


def busy_time(device: int | str | None, start: IntColumn, end: IntColumn, index: IntColumn) -> BusyTime:
    """Union of intervals; ``index`` names the events, which need not be sorted."""
    order = np.argsort(start, kind="stable")
    start, end, index = start[order], end[order], index[order]
    reach = np.maximum.accumulate(end)
    is_gap = start[1:] > reach[:-1]
    gap_start, gap_end = reach[:-1][is_gap], start[1:][is_gap]
    # The event before a gap is the one that reaches furthest, not the one that starts last.
    furthest = np.maximum.accumulate(np.where(end == reach, np.arange(len(end)), 0))
    wall = int(reach[-1] - start[0])
    return BusyTime(
        device,
        int(start[0]),
        int(reach[-1]),
        wall - int((gap_end - gap_start).sum()),
        gap_start,
        gap_end,
        index[furthest[:-1][is_gap]],
        index[1:][is_gap],
    )


def explain_idle(
    trace: Trace, events: Sequence[DeviceEvent], busy: Sequence[BusyTime], *, longest: int = 20
) -> IdleSummary:
    """What kept each device idle, gap by gap: whether the next launch came late, and what the host ran then."""
    causes: Counter[str] = Counter()
    host: Counter[str] = Counter()
    gaps: list[IdleGap] = []
    syncs = _synchronizations(trace)
    for device in busy:
        if not len(device.gap_start):
            continue
        launch_rows, launch_start = _launches(trace, events, device.after)
        until = np.clip(launch_start, device.gap_start, device.gap_end)
        doing = _host_activity(trace, launch_rows, (device.gap_start + until) // 2)
        names = [_cause(trace, device, launch_rows, launch_start, syncs, i) for i in range(len(device.gap_start))]
        length = device.gap_end - device.gap_start
        for position, cause in enumerate(names):
            causes[cause] += int(length[position])
            if cause in (HOST_LATE, AFTER_SYNCHRONIZATION):
                host[doing[position] or NOTHING_RECORDED] += int(length[position])
        for position in np.argsort(-length, kind="stable")[:longest].tolist():
            cause = names[position]
            gaps.append(
                IdleGap(
                    start_us=int(device.gap_start[position]) / 1e3,
                    duration_us=int(length[position]) / 1e3,
                    cause=cause,
                    host=doing[position] if cause in (HOST_LATE, AFTER_SYNCHRONIZATION) else None,
                    before=kernel_label(events[int(device.before[position])].name),
                    after=kernel_label(events[int(device.after[position])].name),
                    device=device.device,
                )
            )
    gaps.sort(key=lambda gap: -gap.duration_us)
    return IdleSummary(tuple(gaps[:longest]), _in_us(causes), _in_us(host))


def idle_between(events: Sequence[DeviceEvent], busy: Sequence[BusyTime], *, longest: int = 20) -> tuple[IdleGap, ...]:
    """The longest gaps when there is no trace of the host to explain them."""
    gaps = [
        IdleGap(
            start_us=int(start) / 1e3,
            duration_us=int(end - start) / 1e3,
            cause=UNKNOWN,
            before=kernel_label(events[int(before)].name),
            after=kernel_label(events[int(after)].name),
            device=device.device,
        )
        for device in busy
        for start, end, before, after in zip(device.gap_start, device.gap_end, device.before, device.after, strict=True)
    ]
    return tuple(sorted(gaps, key=lambda gap: -gap.duration_us)[:longest])


def _launches(trace: Trace, events: Sequence[DeviceEvent], after: IntColumn) -> tuple[IntColumn, IntColumn]:
    rows = np.array([events[index].row if events[index].row is not None else NONE for index in after.tolist()])
    launch = np.where(rows == NONE, NONE, trace.launch_of[rows])
    start = np.where(launch == NONE, 0, trace.events.start_ns[launch])
    return launch, start


def _cause(
    trace: Trace,
    device: BusyTime,
    launch: IntColumn,
    launch_start: IntColumn,
    syncs: Mapping[int, tuple[IntColumn, IntColumn]],
    position: int,
) -> str:
    gap_start, gap_end = int(device.gap_start[position]), int(device.gap_end[position])
    if launch[position] == NONE:
        return UNKNOWN
    started = int(launch_start[position])
    if started > gap_end + 1000:
        return CLOCKS
    if started <= gap_start:
        return BETWEEN_KERNELS if gap_end - gap_start <= BACK_TO_BACK_NS else QUEUED
    lane = int(trace.events.lane[launch[position]])
    if lane in syncs:
        starts, ends = syncs[lane]
        last = int(np.searchsorted(starts, started)) - 1
        if last >= 0 and ends[last] >= gap_start:
            return AFTER_SYNCHRONIZATION
    return HOST_LATE


def _synchronizations(trace: Trace) -> dict[int, tuple[IntColumn, IntColumn]]:
    """Per host thread, sorted starts and ends of calls that wait for the device."""
    events = trace.events
    waits = np.array([bool(_SYNCHRONIZES.search(name)) for name in trace.names] or [False])
    rows = trace.rows(EventKind.RUNTIME)
    rows = rows[waits[events.name[rows]]]
    by_lane: dict[int, list[int]] = defaultdict(list)
    for row in rows[np.argsort(events.start_ns[rows], kind="stable")].tolist():
        by_lane[int(events.lane[row])].append(row)
    return {lane: (events.start_ns[some], events.end_ns[some]) for lane, some in by_lane.items()}


def _host_activity(trace: Trace, launch: IntColumn, moment: IntColumn) -> list[str | None]:
    """The innermost thing that the launching thread was in at each moment."""
    events = trace.events
    rows = trace.rows(EventKind.RUNTIME, EventKind.OP, EventKind.ANNOTATION, EventKind.PYTHON)
    is_step = np.array([bool(_STEP.match(name)) for name in trace.names] or [False])
    rows = rows[~is_step[events.name[rows]]]
    is_known = launch != NONE
    lane = np.where(is_known, events.lane[launch], NONE)
    # Moments are no events: rows outside the table keep them apart from the events around them.
    own_rows = len(events) + np.arange(len(moment), dtype=np.int64)
    found = innermost_covering(
        lane, moment, own_rows, events.lane[rows], events.start_ns[rows], events.end_ns[rows], rows
    )
    return [_activity_name(trace, row) if row != NONE else None for row in found.tolist()]


def _activity_name(trace: Trace, row: int) -> str:
    name = trace.name(row)
    if trace.events.kind[row] == EventKind.PYTHON:
        return f"python {re.sub(r'0x[0-9a-f]+', '0x…', name)}"
    return name


def _in_us(counter: Counter[str]) -> dict[str, float]:
    ordered: list[tuple[str, Any]] = counter.most_common()
    return {name: nanoseconds / 1e3 for name, nanoseconds in ordered}
