"""From device events to where the time went.

``summarize`` adds up any list of ``DeviceEvent`` (of an imported trace, or of a profile with a ledger);
``breakdown_of_trace`` is all that a trace alone can tell.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import replace
from os import PathLike
from typing import Any

import numpy as np
import numpy.typing as npt

from torchledger.errors import MeasureError
from torchledger.nouns import Breakdown, Ceilings, Device, DeviceEvent, LaunchOverhead, Quality, TimeRow
from torchledger.roofline import Bound, bound, roofline_us
from torchledger.traces.costs import device_events, launches_before_call
from torchledger.traces.idle import BusyTime, busy_time, explain_idle, idle_between
from torchledger.traces.links import innermost_covering
from torchledger.traces.stream import Progress
from torchledger.traces.trace import NONE, EventKind, Trace, read_trace
from torchledger.traces.verdict import verdict
from torchledger.work.kernel_names import kernel_label

_QUALITIES: tuple[Quality, ...] = ("exact", "measured", "estimated", "upper_bound", "unavailable")
_JUMP_NS = 60_000_000_000
"""Device events further than this outside everything that the host did are taken for a clock that jumped."""

_MODULE = "nn.Module: "
_LIBRARY_FRAME = re.compile(
    r"^(torch/|<built-in|<string>|threading\.py|contextlib\.py|.*site-packages/|.*/torch/|runpy\.py|importlib|<frozen|"
    r"nn\.Module|PyTorch|autograd|typing\.py|functools\.py)"
)


def import_trace(path: str | PathLike[str], *, progress: Progress | None = None) -> tuple[Breakdown, list[DeviceEvent]]:
    """Read a Kineto trace that somebody recorded and say where its time went.

    Where nothing ran on a device, the operators' own time on the CPU is broken down. Raises ``MeasureError`` if the
    file is not a trace, or holds neither device events nor operators.
    """
    from torchledger.traces.cpu import cpu_breakdown, cpu_events

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
        raise MeasureError(
            f"{trace.source} holds no kernel: {len(trace.events):,} events, none of them on a device"
            + (", and the file is cut off. " if trace.is_truncated else ". ")
            + "Record it with activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]."
        )
    events = with_modules_and_lines(trace, list(events))
    near, problems = _without_jumps(trace, events)
    busy = _busy_times(events, near)
    idle = explain_idle(trace, events, busy)
    rank = trace.metadata["distributedInfo"].get("rank")
    result = summarize(events, source=trace.source, clock="trace", busy=busy, ceilings=ceilings)
    steps = step_durations(trace)
    texts = problem_texts(trace)
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
        is_partial=trace.is_truncated or any("left out" in text for text in texts),
        problems=(*texts, *problems),
        notes=_notes(trace, events),
    )
    return replace(result, verdict=verdict(result))


def summarize(
    events: Sequence[DeviceEvent],
    *,
    source: str,
    clock: str,
    ceilings: Ceilings | None = None,
    busy: Sequence[BusyTime] | None = None,
) -> Breakdown:
    """Add up device events: by category, operator, kernel, graph, module, source line and stream.

    Every table's times add up to ``device_us`` (the operators' with a row for events without one). Roofline fractions
    need measured ``ceilings``; without them they are ``None``.
    """
    sums = _Sums(events, ceilings)
    if busy is None:
        busy = _busy_times(events, np.ones(len(events), dtype=bool))
    by_kind = {
        kind: int(sums.duration[[event.kind == kind for event in events]].sum()) / 1e3 if events else 0.0
        for kind in ("kernel", "memcpy", "memset")
    }
    result = Breakdown(
        source=source,
        clock=clock,
        kernel_us=by_kind["kernel"],
        copy_us=by_kind["memcpy"],
        fill_us=by_kind["memset"],
        wall_us=sum(device.end - device.start for device in busy) / 1e3,
        busy_us=sum(device.busy for device in busy) / 1e3,
        events=len(events),
        categories=sums.table(lambda event: event.category, keep_category=True),
        ops=sums.table(_op_name),
        kernels=sums.table(lambda event: event.name, keep_category=True, keep_details=True),
        graphs=sums.table(lambda event: event.graph or "outside compiled graphs") if sums.has("graph") else (),
        modules=sums.table(lambda event: event.modules[-1] if event.modules else "no module recorded")
        if sums.has("modules")
        else (),
        lines=sums.table(lambda event: event.sources[-1] if event.sources else "no source line recorded")
        if sums.has("sources")
        else (),
        streams=sums.table(lambda event: f"device {event.device} stream {event.stream}"),
        gaps=idle_between(events, busy),
        known_kernel_us=sums.known_us([event.kind == "kernel" for event in events]),
        known_us=sums.known_us([True] * len(events)),
        known_by_quality_us=sums.by_quality(),
        unknown_us=sums.reasons(range(len(events))),
    )
    return replace(result, verdict=verdict(result))


def devices_of_trace(trace: Trace) -> tuple[Device, ...]:
    """The devices that a trace names and that ran something; nothing that only a data sheet knows."""
    used = {trace.kernel(row).device for row in _one_row_per_lane(trace)}
    described = trace.metadata.get("deviceProperties") or ()
    # A process that sees one of several devices describes it as number 0 and may still log its number in the machine.
    is_renumbered = used.isdisjoint(_int(properties.get("id")) for properties in described)
    devices = []
    for properties in described:
        index = _int(properties.get("id"))
        if used and index not in used and not is_renumbered:
            continue
        major, minor = properties.get("computeMajor"), properties.get("computeMinor")
        name = str(properties.get("name", "unknown"))
        is_amd = "amd" in name.lower() or "instinct" in name.lower() or "radeon" in name.lower()
        devices.append(
            Device(
                name=name,
                kind="hip" if is_amd else "cuda",
                index=index or 0,
                compute_capability=(major, minor) if isinstance(major, int) and isinstance(minor, int) else None,
                total_memory_bytes=_int(properties.get("totalGlobalMem")),
                num_multiprocessors=_int(properties.get("numSms")),
                max_threads_per_block=_int(properties.get("maxThreadsPerBlock")),
                max_threads_per_multiprocessor=_int(properties.get("maxThreadsPerMultiprocessor")),
                warp_size=_int(properties.get("warpSize")),
                max_shared_memory_per_multiprocessor_bytes=_int(properties.get("sharedMemPerMultiprocessor")),
            )
        )
    return tuple(devices)


def _int(value: Any) -> int | None:
    return value if isinstance(value, int) else None


class _Sums:
    """Columns of all events, and tables of sums over groups of them."""

    def __init__(self, events: Sequence[DeviceEvent], ceilings: Ceilings | None) -> None:
        self.events = events
        self.duration = np.array([event.duration_ns for event in events], dtype=np.int64)
        self.total = int(self.duration.sum()) if len(events) else 0
        self._flops = np.array([event.cost.flops or 0 for event in events], dtype=np.int64)
        self._has_flops = np.array([event.cost.flops is not None for event in events], dtype=bool)
        self._bytes = np.array([event.cost.bytes_moved or 0 for event in events], dtype=np.int64)
        self._has_bytes = np.array([event.cost.bytes_moved is not None for event in events], dtype=bool)
        self._known = np.array([event.cost.is_known for event in events], dtype=bool)
        self._flops_quality = np.array([_QUALITIES.index(event.cost.flops_quality) for event in events], dtype=np.int8)
        self._bytes_quality = np.array([_QUALITIES.index(event.cost.bytes_quality) for event in events], dtype=np.int8)
        self._ceilings = ceilings

    def known_us(self, of: Sequence[bool]) -> float:
        """Time of those events that have FLOPs or bytes, in microseconds."""
        return int(self.duration[self._known & np.array(of, dtype=bool)].sum()) / 1e3

    def has(self, field: str) -> bool:
        """True when any event has that fact."""
        return any(getattr(event, field) for event in self.events)

    def table(
        self, key: Callable[[DeviceEvent], str], *, keep_category: bool = False, keep_details: bool = False
    ) -> tuple[TimeRow, ...]:
        """One row per key, longest first."""
        groups: dict[str, list[int]] = defaultdict(list)
        for index, event in enumerate(self.events):
            groups[key(event)].append(index)
        rows = [
            self._row(name, np.array(members), keep_category=keep_category, keep_details=keep_details)
            for name, members in groups.items()
        ]
        return tuple(sorted(rows, key=lambda row: (-row.total_us, row.name)))

    def by_quality(self) -> dict[str, float]:
        """Known device time by the better-known of its two numbers, in microseconds."""
        best = np.where(
            (self._flops > 0) & self._has_flops,
            np.minimum(self._flops_quality, self._bytes_quality),
            self._bytes_quality,
        )
        return {
            quality: int(self.duration[self._known & (best == number)].sum()) / 1e3
            for number, quality in enumerate(_QUALITIES)
            if (self._known & (best == number)).any()
        }

    def reasons(self, members: Sequence[int] | npt.NDArray[Any]) -> dict[str, float]:
        """Why events have neither FLOPs nor bytes, with the time of those, longest first."""
        times: dict[str, int] = defaultdict(int)
        for index in members:
            if not self._known[index]:
                times[self.events[index].cost.reason or "not recorded"] += int(self.duration[index])
        return {reason: time / 1e3 for reason, time in sorted(times.items(), key=lambda item: -item[1])}

    def _row(self, name: str, members: npt.NDArray[Any], *, keep_category: bool, keep_details: bool) -> TimeRow:
        duration = self.duration[members]
        total = int(duration.sum())
        has_flops, has_bytes = self._has_flops[members], self._has_bytes[members]
        lower, median, upper = np.percentile(duration, [25, 50, 75])
        first = self.events[int(members[0])]
        detail: dict[str, str] = {}
        ops: tuple[str, ...] = ()
        if keep_details:
            ops = tuple(dict.fromkeys(op for i in members[:1000] if (op := self.events[i].op) is not None))
            detail = _details([self.events[i] for i in members[:1000]])
        roofline, roofline_of, limited_by = self._roofline(members)
        # Helpers with 0 FLOPs do not make a sum of 0 beside products whose FLOPs are unknown.
        flops = int(self._flops[members].sum())
        if not flops and not has_flops.all():
            has_flops = np.zeros_like(has_flops)
        return TimeRow(
            name=name,
            calls=len(members),
            total_us=total / 1e3,
            share=total / self.total if self.total else 0.0,
            median_us=float(median) / 1e3,
            iqr_us=float(upper - lower) / 1e3 if len(members) >= 4 else None,
            minimum_us=int(duration.min()) / 1e3,
            maximum_us=int(duration.max()) / 1e3,
            category=first.category if keep_category else None,
            flops=flops if has_flops.any() else None,
            flops_us=int(duration[has_flops].sum()) / 1e3,
            flops_quality=_QUALITIES[int(self._flops_quality[members][has_flops].max())]
            if has_flops.any()
            else "unavailable",
            bytes_moved=int(self._bytes[members].sum()) if has_bytes.any() else None,
            bytes_us=int(duration[has_bytes].sum()) / 1e3,
            bytes_quality=_QUALITIES[int(self._bytes_quality[members][has_bytes].max())]
            if has_bytes.any()
            else "unavailable",
            known_us=int(duration[self._known[members]].sum()) / 1e3,
            reasons=self.reasons(members),
            roofline_us=roofline,
            roofline_of_us=roofline_of,
            bound=limited_by,
            ops=ops,
            detail=detail,
        )

    def _roofline(self, members: npt.NDArray[Any]) -> tuple[float | None, float, Bound | None]:
        ceilings = self._ceilings
        if ceilings is None:
            return None, 0.0, None
        lower_bound, of_time = 0.0, 0
        times: dict[Bound, int] = defaultdict(int)
        for index in members:
            event = self.events[index]
            peak = ceilings.tflops_per_s.get((event.shapes or "").split("[", 1)[0])
            limits = {"peak_tflops_per_s": peak, "peak_gb_per_s": ceilings.copy_gb_per_s}
            least = roofline_us(event.cost.flops if peak else None, event.cost.bytes_moved, **limits)
            if least is None:
                continue
            lower_bound += least
            of_time += event.duration_ns
            limited_by = bound(
                event.cost.flops if peak else None,
                event.cost.bytes_moved,
                duration_us=event.duration_us,
                launch_overhead_us=ceilings.launch_overhead_us,
                **limits,
            )
            if limited_by is not None:
                times[limited_by] += event.duration_ns
        if not of_time:
            return None, 0.0, None
        return lower_bound, of_time / 1e3, max(times.items(), key=lambda item: item[1])[0] if times else None


def _op_name(event: DeviceEvent) -> str:
    if event.op is not None:
        return event.op
    return {"memcpy": "copies outside operators", "memset": "fills outside operators"}.get(
        event.kind, "no operator recorded"
    )


def _details(events: Sequence[DeviceEvent]) -> dict[str, str]:
    """What is the same for all launches of a kernel; "varies" where it is not."""
    detail = {"label": kernel_label(events[0].name)}
    facts: tuple[tuple[str, Callable[[DeviceEvent], Any]], ...] = (
        ("grid", lambda event: event.grid),
        ("block", lambda event: event.block),
        ("n_regs", lambda event: event.n_regs),
        ("shared_bytes", lambda event: event.shared_bytes),
        ("shapes", lambda event: event.shapes),
        ("basis", lambda event: event.cost.basis),
    )
    for name, fact in facts:
        values = {fact(event) for event in events} - {None}
        if len(values) == 1:
            (value,) = values
            detail[name] = ",".join(map(str, value)) if isinstance(value, tuple) else str(value)
        elif values:
            detail[name] = f"{len(values)} different"
    return detail


def _busy_times(events: Sequence[DeviceEvent], near: npt.NDArray[np.bool_]) -> list[BusyTime]:
    by_device: dict[Any, list[int]] = defaultdict(list)
    for index, event in enumerate(events):
        if near[index]:
            by_device[event.device].append(index)
    result = []
    for device, members in by_device.items():
        start = np.array([events[index].start_ns for index in members], dtype=np.int64)
        duration = np.array([events[index].duration_ns for index in members], dtype=np.int64)
        result.append(busy_time(device, start, start + duration, np.array(members, dtype=np.int64)))
    return result


def _without_jumps(trace: Trace, events: Sequence[DeviceEvent]) -> tuple[npt.NDArray[np.bool_], list[str]]:
    """Which events lie on the host's clock, and what is wrong with the rest."""
    near = np.ones(len(events), dtype=bool)
    problems: list[str] = []
    columns = trace.events
    host = trace.rows(EventKind.RUNTIME, EventKind.OP)
    start = np.array([event.start_ns for event in events], dtype=np.int64)
    if len(host):
        earliest, latest = int(columns.start_ns[host].min()), int(columns.end_ns[host].max())
    else:
        earliest, latest = int(np.median(start)), int(np.median(start))
    near = (start >= earliest - _JUMP_NS) & (start <= latest + _JUMP_NS)
    if not near.any():
        problems.append("host and device clocks do not meet: no device event lies within a minute of the host's events")
        near = np.ones(len(events), dtype=bool)
    elif not near.all():
        time = sum(event.duration_us for event, is_near in zip(events, near, strict=True) if not is_near)
        problems.append(
            f"{int((~near).sum())} device events ({time:.1f} us) lie more than a minute outside the host's events: "
            "the clock jumped; they count in the sums and not in wall time and gaps"
        )
    early, lead = launches_before_call(trace)
    if early:
        problems.append(
            f"{early} device events start before the call that launches them, by up to {lead:.1f} us: host and device "
            "clocks disagree, so causes of idle time are doubtful"
        )
    return near, problems


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


def step_durations(trace: Trace) -> list[float]:
    """Wall times of the profiler's steps, in microseconds, where the trace marks any."""
    rows = trace.rows(EventKind.ANNOTATION)
    steps = [row for row in rows.tolist() if re.match(r"^ProfilerStep#\d+$", trace.name(row))]
    return [int(trace.events.duration_ns[row]) / 1e3 for row in steps]


def with_modules_and_lines(trace: Trace, events: list[DeviceEvent]) -> list[DeviceEvent]:
    """Add the innermost ``nn.Module`` and the user's source line, where the trace holds Python frames."""
    columns = trace.events
    python = trace.rows(EventKind.PYTHON)
    if not len(python):
        return events
    is_module = np.array([name.startswith(_MODULE) for name in trace.names])
    is_user = np.array([".py(" in name and not _LIBRARY_FRAME.match(name) for name in trace.names])
    rows = np.array([NONE if event.row is None else event.row for event in events], dtype=np.int64)
    launch = np.where(rows == NONE, NONE, trace.launch_of[rows])
    on_the_host = (rows != NONE) & (columns.kind[rows] == EventKind.OP)
    launch = np.where(on_the_host, rows, launch)
    lane = np.where(launch == NONE, NONE, columns.lane[launch])
    start = columns.start_ns[launch]
    own_rows = len(columns) + np.arange(len(events), dtype=np.int64)
    found = []
    for wanted in (is_module, is_user):
        some = python[wanted[columns.name[python]]]
        found.append(
            innermost_covering(
                lane, start, own_rows, columns.lane[some], columns.start_ns[some], columns.end_ns[some], some
            ).tolist()
        )
    return [
        event
        if module == NONE and line == NONE
        else replace(
            event,
            modules=(trace.name(module).removeprefix(_MODULE),) if module != NONE else (),
            sources=(trace.name(line),) if line != NONE else (),
        )
        for event, module, line in zip(events, *found, strict=True)
    ]


def problem_texts(trace: Trace) -> list[str]:
    """What the trace leaves out or what is doubtful in it, in words."""
    texts = [f"{problem.events} {problem.what}" if problem.events else problem.what for problem in trace.problems]
    missing, launches = trace.launches_without_kernel
    if missing > launches / 100:
        is_captured = any("BeginCapture" in name or "GraphInstantiate" in name for name in trace.names)
        why = "CUDA graphs were recorded in it" if is_captured else "their time is left out"
        texts.append(f"{missing:,} of {launches:,} launches have no kernel in the trace: {why}")
    is_cut = trace.is_truncated and bool(trace.metadata.get("deviceProperties"))
    if not len(trace.device_rows) and (launches or is_cut):
        texts.append("nothing that ran on the device is in the file: these are times of the host")
    processes: dict[int | str | None, set[int | str | None]] = defaultdict(set)
    for row in _one_row_per_lane(trace):
        processes[trace.kernel(row).device].add(trace.lanes[int(trace.events.lane[row])].process)
    if shared := [f"{device}" for device, found in processes.items() if len(found) > 1]:
        texts.append(
            f"device {', '.join(shared)} has kernels of several processes: if these are ranks, import their own traces"
        )
    return texts


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
    world = trace.metadata["distributedInfo"].get("world_size")
    if isinstance(world, int) and world > 1:
        notes.append(f"one rank of {world}: only this rank's devices are in the trace")
    return tuple(notes)


def _one_row_per_lane(trace: Trace) -> list[int]:
    rows = trace.device_rows
    _, first = np.unique(trace.events.lane[rows], return_index=True)
    lanes: list[int] = rows[first].tolist()
    return lanes
