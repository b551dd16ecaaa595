"""What a profile says of the entries: their times, the breakdown of the steps, and the profile's account of itself."""

from __future__ import annotations

import uuid
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any

from torchledger.capturing.conditionals import Fork
from torchledger.device.ceilings import known_ceilings
from torchledger.errors import MeasureError
from torchledger.memory.record import Heard, record_memory
from torchledger.nouns import (
    Breakdown,
    Ceilings,
    Clock,
    Device,
    DeviceEvent,
    Direction,
    EagerCount,
    Gap,
    Graph,
    Launch,
    Measurement,
    Profile,
    Step,
    StepCall,
    StepKind,
)
from torchledger.profiling.attribution import (
    Attribution,
    attribute_events,
    cache_keys_in,
    cpu_events,
    graph_of_mark,
    launches_by_graph,
    learn_sequence,
)
from torchledger.profiling.by_name import join_by_name
from torchledger.profiling.communication import communication_of_steps
from torchledger.profiling.step_events import breakdown_of_step, events_of_step, phases_of_events
from torchledger.profiling.steps import Steps
from torchledger.stepping.marks import STEP_MARK
from torchledger.stepping.record import Ledgered, StepFacts, overcounted, record_step
from torchledger.stepping.recording import StepRecording
from torchledger.stepping.unasked import with_unasked
from torchledger.store import LedgerWriter, open_ledger
from torchledger.store.latest import latest_measurements
from torchledger.traces.breakdown import breakdown_of_trace
from torchledger.traces.chrome_export import annotate_trace, facts_by_row
from torchledger.traces.costs import device_events
from torchledger.traces.graph_marks import parse_graph_mark
from torchledger.traces.nsight import is_report
from torchledger.traces.reading import read_trace
from torchledger.traces.stream import Progress
from torchledger.traces.summary import summarize
from torchledger.traces.timeline import step_timeline
from torchledger.traces.trace import EventKind, Trace
from torchledger.traces.verdict import verdict
from torchledger.work.graph_names import direction_of
from torchledger.work.sizes import sizes_at

if TYPE_CHECKING:
    from torchledger._torch.eager_calls import EagerCall
    from torchledger._torch.storages import HeardMemory


def profile_records(
    trace: Trace,
    launches: Sequence[Launch],
    *,
    steps: Steps,
    learned: Mapping[str, Sequence[tuple[str, int]]],
    devices: Sequence[Device],
    n_steps: int,
    trace_name: str | None = None,
    graph_keys: Mapping[str, str] | None = None,
    directions: Mapping[str, Direction] | None = None,
    forks: Mapping[str, Sequence[Fork]] | None = None,
    facts: StepFacts | None = None,
    heard: Sequence[EagerCall] | None = None,
    memory: HeardMemory | None = None,
    allocations: Sequence[Sequence[tuple[int, int]]] | None = None,
) -> tuple[list[Any], tuple[DeviceEvent, ...]]:
    """What a trace of some steps says of the ledger's launches: their times, where the time went, and the step.

    With ``facts`` (what is known of the steps beside the trace) and marked steps there is a ``Step`` with its calls,
    and the breakdown and the timeline are of one step; without, they are of all that the trace holds. ``heard`` is what
    a dispatch mode heard of another step, ``memory`` the storages of that step, ``allocations`` what a CPU's allocator
    gave and took back in each recorded one. Also returns the device events with what the ledger says of them.

    Raises ``MeasureError`` if the trace holds none of the ledger's graphs, and no marked step either.
    """
    window = _step_window(trace, n_steps)
    by_graph = launches_by_graph(launches)
    launches = _at_sizes_of_calls(trace, by_graph)
    on_device = [event for event in device_events(trace) if _is_inside(event.launch_start_ns, window)]
    clock: Clock = "cupti" if on_device else "cpu_profiler"
    timed = (device for device in devices if (device.kind != "cpu") == bool(on_device))
    ceilings = known_ceilings(next(timed, None))
    if on_device:
        attribution = attribute_events(trace, on_device, launches, learned=learned, graph_keys=graph_keys, forks=forks)
    else:
        attribution = cpu_events(trace, launches, window=window, graph_keys=graph_keys, forks=forks)
    spans = _step_spans(trace, n_steps)
    record = None
    if facts is not None and spans:
        from torchledger._torch.composites import is_composite
        from torchledger._torch.schemas import parameters_of_recorded

        record = record_step(
            trace,
            spans,
            attribution.events if on_device else (),
            facts,
            Ledgered(directions or {}, by_graph, () if on_device else attribution.events, forks or {}),
            graph_of=lambda mark: graph_of_mark(mark, by_graph, graph_keys),
            is_composite=is_composite,
            parameters_of=parameters_of_recorded,
            heard=heard,
            name=f"step_{uuid.uuid4().hex[:8]}",
            clock=clock,
        )
    elif not attribution.calls:
        raise MeasureError("the trace holds no call of this ledger's graphs: it was taken from other code.")
    elif not on_device and not attribution.events:
        raise MeasureError(
            "the profile holds no kernel of the ledger. What a C++ wrapper (cpp_wrapper=True) calls is visible only if "
            "the profile was on when it was compiled: use `torchledger run --profile`, or capture(path, profile=True)."
        )
    if record is not None:
        span = spans[record.index]
        events = events_of_step(trace, record, span, attribution.events, is_on_device=bool(on_device))
        breakdown = breakdown_of_step(trace, record, span, events, ceilings, steps)
        pictures = []
        if events:
            phases = phases_of_events(record, events)
            timeline = step_timeline(events, clock=clock, step=record.index, phases=phases)
            pictures = [replace(timeline, origin_ns=min(event.start_ns for event in events) - span[0])]
    else:
        events = list(attribution.events)
        breakdown = _breakdown_of_all(trace, attribution, steps, n_steps, ceilings, clock, is_on_device=bool(on_device))
        breakdown = replace(breakdown, notes=(*breakdown.notes, *(facts.notes if facts is not None else ())))
        pictures = [step_timeline(events, clock=clock)] if events else []
    profile = _profile(attribution, steps, n_steps, clock, trace_name)
    gaps = [
        Gap("device_time", reason, "kernel time inside compiled graphs that no entry explains", ns / 1e3)
        for reason, ns in attribution.unmatched.items()
    ]
    gaps += _entries_without_time(attribution, launches)
    if record is not None and memory is not None and memory.unasked:
        record = replace(record, calls=with_unasked(record.calls, memory.entries, memory.unasked))
    stepped: list[Any] = [] if record is None else [record.step, *record.calls, *overcounted(record)]
    if record is not None:
        stepped += communication_of_steps(trace, spans, record, attribution.events, heard, is_on_device=bool(on_device))
    if record is not None and memory is not None:
        counted = allocations[record.index] if allocations is not None else None
        stepped += record_memory(
            Heard(memory, heard or ()), record, launches_by_graph(launches), devices=devices, allocations=counted
        )
    return [*_measurements(attribution, launches, clock), breakdown, profile, *stepped, *pictures, *gaps], tuple(events)


def _breakdown_of_all(
    trace: Trace,
    attribution: Attribution,
    steps: Steps,
    n_steps: int,
    ceilings: Ceilings | None,
    clock: Clock,
    *,
    is_on_device: bool,
) -> Breakdown:
    """Where the time of all that a trace without marked steps holds went, a step on average."""
    if is_on_device:
        breakdown = breakdown_of_trace(trace, attribution.events, ceilings=ceilings)
    else:
        breakdown = summarize(attribution.events, source="cpu profile", clock=clock, ceilings=ceilings)
    breakdown = over_steps(breakdown, trace, steps, n_steps, clock)
    uneven = [f"{graph} {calls}" for graph, calls in attribution.calls.items() if steps.plain_us and calls % n_steps]
    if not uneven:
        return breakdown
    note = f"the {n_steps} steps are not alike ({', '.join(uneven[:3])} calls): end them with torchledger.step()"
    return replace(breakdown, notes=(*breakdown.notes, note))


def _profile(attribution: Attribution, steps: Steps, n_steps: int, clock: Clock, trace_name: str | None) -> Profile:
    """How much of the kernel time inside compiled graphs the entries explain, and what the profiler cost."""
    return Profile(
        clock=clock,
        steps=n_steps,
        plain_step_us=median(steps.plain_us) if steps.plain_us else None,
        profiled_step_us=median(steps.profiled_us) if steps.profiled_us else None,
        inside_us=attribution.inside_ns / 1e3,
        matched_us=attribution.matched_ns / 1e3,
        copied_us=attribution.copied_ns / 1e3,
        decided_us=attribution.decided_ns / 1e3,
        unmatched_us={reason: ns / 1e3 for reason, ns in attribution.unmatched.items()},
        entries=attribution.entries,
        entries_seen=attribution.entries_seen,
        graph_calls=dict(attribution.calls),
        trace=trace_name,
    )


def _at_sizes_of_calls(trace: Trace, by_graph: Mapping[str, Sequence[Launch]]) -> list[Launch]:
    """The launches with FLOPs and bytes at the sizes that the trace's calls were made with, where those are alike."""
    sizes: dict[str, set[tuple[tuple[str, int], ...]]] = {}
    for row in trace.rows(EventKind.ANNOTATION).tolist():
        marked = parse_graph_mark(trace.name(row))
        if marked is not None:
            sizes.setdefault(marked[0], set()).add(tuple(sorted(marked[1].items())))
    found: list[Launch] = []
    for graph, members in by_graph.items():
        called = sizes.get(graph, set())
        symbols = dict(next(iter(called))) if len(called) == 1 else {}
        found += sizes_at(members, symbols) if symbols else members
    return found


def records_of_recording(
    recording: StepRecording,
    launches: Sequence[Launch],
    *,
    devices: Sequence[Device],
    trace_path: Path,
    forks: Mapping[str, Sequence[Fork]] | None = None,
) -> list[Any]:
    """What a recording of a program's steps says of the ledger's launches; its trace goes to ``trace_path``.

    The recording's files are removed. Raises ``MeasureError`` as ``profile_records``; ``ValueError`` without a trace.
    """
    if recording.times is None:
        raise ValueError("this recording holds no trace")
    learned: dict[str, Sequence[tuple[str, int]]] = {}
    for name, path in recording.first_calls:
        learned.update(_sequence_of_first_call(path, [launch for launch in launches if launch.graph == name]))
    try:
        records, events = profile_records(
            read_trace(recording.times),
            launches,
            steps=Steps(plain_times_us(recording), recording.profiled_us),
            learned=learned,
            devices=devices,
            n_steps=recording.n_steps,
            trace_name=trace_path.name,
            directions={launch.graph: direction_of(launch.graph) for launch in launches},
            forks=forks,
            facts=facts_of_recording(recording),
            heard=recording.heard,
            memory=recording.memory,
            allocations=recording.allocations,
        )
        if recording.found_by is not None and not any(isinstance(record, Step) for record in records):
            records.append(Gap("device_time", "profile", "the trace holds no mark of a step: none is recorded"))
        if recording.eager_flops is not None:
            done = sum(record.flops or 0 for record in records if isinstance(record, StepCall))
            records.append(EagerCount(recording.eager_flops, done, is_step=True))
        annotate_trace(recording.times, trace_path, facts_by_row(events), force=True)
    finally:
        recording.times.unlink(missing_ok=True)
    return records


def plain_times_us(recording: StepRecording) -> tuple[float, ...]:
    """Steps without the profiler: those after the recording, if there are several. Those before it are few, may still
    warm up, and were listened to."""
    return recording.plain_after_us if _has_plain_after(recording) else (*recording.plain_us, *recording.plain_after_us)


def _has_plain_after(recording: StepRecording) -> bool:
    return len(recording.plain_after_us) > 1


def facts_of_recording(recording: StepRecording) -> StepFacts | None:
    """What a recording says of its steps beside the trace; ``None`` if no step was found."""
    if recording.found_by is None:
        return None
    return StepFacts(
        recording.found_by,
        plain_us=plain_times_us(recording),
        issued_us=(*(() if _has_plain_after(recording) else recording.issued_us), *recording.issued_after_us),
        profiled_us=recording.profiled_us,
        seen=recording.seen,
        kinds=recording.kinds,
        optimizers=recording.optimizers,
        notes=notes_of_recording(recording),
    )


def notes_of_recording(recording: StepRecording) -> tuple[str, ...]:
    """What to know of the recorded steps, and which others there were."""
    notes = list(recording.notes)
    if len(recording.kinds) > 1:
        first, *others = recording.kinds
        notes.append(
            f"steps differ: of {recording.seen} seen, {first.count} are of the recorded kind "
            f"({_calls_in_words(first)}), {sum(kind.count for kind in others)} of "
            f"{len(others)} other kind{'s'[: len(others) > 1]} "
            f"({'; '.join(f'{kind.count} {_apart_in_words(kind, first)}' for kind in others[:3])})"
        )
    return tuple(notes)


def _apart_in_words(kind: StepKind, other: StepKind) -> str:
    """In which calls a kind of step differs from another."""
    names = [name for name in {**kind.calls, **other.calls} if kind.calls.get(name, 0) != other.calls.get(name, 0)]
    said = [f"{name} x{kind.calls[name]}" if name in kind.calls else f"no {name}" for name in names]
    return f"with {', '.join([*said[:4], *(['...'] if len(said) > 4 else [])])}"


def _calls_in_words(kind: StepKind) -> str:
    said = [name if count == 1 else f"{name} x{count}" for name, count in kind.calls.items()]
    return ", ".join([*said[:4], *(["..."] if len(said) > 4 else [])]) or "no call of a graph"


def _sequence_of_first_call(path: Path, launches: Sequence[Launch]) -> dict[str, list[tuple[str, int]]]:
    try:
        trace = read_trace(path)
    finally:
        path.unlink(missing_ok=True)
    return learn_sequence(trace, device_events(trace), launches)


def pair_with_ledger(
    trace: Trace, launches: Sequence[Launch], graphs: Sequence[Graph], devices: Sequence[Device]
) -> list[Any]:
    """Profile records from a trace that was recorded without a capture, of the same compiled graphs.

    Graphs are recognised by the cache key that Inductor writes into a profile. Raises ``MeasureError`` naming the
    mismatch if the trace was taken from other code than the ledger's.
    """
    keys = {graph.cache_key: graph.name for graph in graphs if graph.cache_key}
    found = cache_keys_in(trace)
    if not found & set(keys):
        first = f"of the {len(found)} graphs in it ({', '.join(sorted(found)[:1])}, ...) this ledger holds none"
        said = first if found else "it names no compiled graph"
        raise MeasureError(
            f"{trace.source} was taken from other code than this ledger's: {said}, by their keys. "
            "Profile with `torchledger run --profile`."
        )
    n_calls = max(
        len([row for row in trace.rows(EventKind.ANNOTATION) if trace.name(row).startswith("ProfilerStep")]), 1
    )
    records, _ = profile_records(
        trace, launches, steps=Steps(), learned={}, devices=devices, n_steps=n_calls, graph_keys=keys
    )
    return records


def name_with_ledger(trace: Trace, launches: Sequence[Launch], measured: Sequence[Measurement]) -> list[Any]:
    """Profile records from a recording that knows kernels by name alone, of a program that the ledger is of.

    Raises ``MeasureError`` if no kernel can be given to an entry.
    """
    found = join_by_name(device_events(trace), launches, measured)
    if not found.matched_ns:
        why = f": {next(iter(found.unmatched))}" if found.unmatched else ", none bears the name of one"
        raise MeasureError(f"no kernel of {trace.source} belongs to an entry of this ledger{why}.")
    clock: Clock = "cupti"
    breakdown = breakdown_of_trace(trace, found.events)
    share = found.matched_ns / 1e3 / breakdown.kernel_us
    notes = [f"{share:.1%} of the kernel time was given to {found.entries_seen:,} of {found.entries:,} entries by name"]
    notes += [f"{ns / 1e3:.1f} us of kernels have no entry: {why}" for why, ns in found.unmatched.items()]
    profile = Profile(
        clock=clock,
        steps=1,
        inside_us=found.inside_ns / 1e3,
        matched_us=found.matched_ns / 1e3,
        unmatched_us={why: ns / 1e3 for why, ns in found.unmatched.items()},
        entries=found.entries,
        entries_seen=found.entries_seen,
        graph_calls=dict(found.calls),
    )
    breakdown = replace(breakdown, clock=clock, notes=(*breakdown.notes, *notes))
    return [breakdown, profile, *_measurements(found, launches, clock)]


def add_trace_to_ledger(trace: Path, ledger: Path, *, progress: Progress | None = None) -> Breakdown:
    """Read a trace, pair it with a ledger of the same graphs and write the times into that ledger.

    A report of Nsight Systems names no graph: its kernels are paired by their names. Raises ``MeasureError`` as
    ``read_trace``, ``pair_with_ledger`` and ``name_with_ledger``, ``StoreError`` as ``open_ledger``.
    """
    with open_ledger(ledger) as reader:
        launches, graphs, devices = reader.read(Launch), reader.read(Graph), reader.run().devices
        measured = latest_measurements(reader)
    read = read_trace(trace, progress=progress)
    if is_report(trace):
        records = name_with_ledger(read, launches, measured)
    else:
        records = pair_with_ledger(read, launches, graphs, devices)
    with LedgerWriter(ledger, append=True) as writer:
        writer.add(*records)
    return next(record for record in records if isinstance(record, Breakdown))


def _step_window(trace: Trace, n_steps: int) -> tuple[int, int] | None:
    """From the first recorded step's start to the last one's end; what the profiler saw before it is warm-up."""
    spans = _step_spans(trace, n_steps)
    return (min(start for start, _ in spans), max(end for _, end in spans)) if spans else None


def _step_spans(trace: Trace, n_steps: int) -> list[tuple[int, int]]:
    """Start and end on the trace's clock of each recorded step; one more may have been under way at the end."""
    wanted = {f"{STEP_MARK}#{index}" for index in range(n_steps)}
    marks = [row for row in trace.rows(EventKind.ANNOTATION).tolist() if trace.name(row) in wanted]
    return [(int(trace.events.start_ns[row]), int(trace.events.end_ns[row])) for row in marks]


def _is_inside(moment: int | None, window: tuple[int, int] | None) -> bool:
    return moment is None or window is None or window[0] <= moment <= window[1]


def _entries_without_time(attribution: Attribution, launches: Sequence[Launch]) -> list[Gap]:
    """Entries of graphs that ran in the profiled steps for which no kernel was seen."""
    seen = {event.launch_id for event in attribution.events}
    missing: dict[str, list[str]] = {}
    for launch in launches:
        if launch.category != "nop" and launch.graph in attribution.calls and launch.launch_id not in seen:
            missing.setdefault(launch.graph, []).append(launch.kernel_name)
    return [
        Gap(
            "device_time",
            graph,
            f"it ran, and of {len(names)} of its entries no kernel was seen: {', '.join(names[:3])}",
        )
        for graph, names in missing.items()
    ]


def _measurements(attribution: Attribution, launches: Sequence[Launch], clock: Clock) -> list[Measurement]:
    """Per entry one sample for each call of its graph: the time of all its kernels in that call."""
    per_entry: dict[str, list[DeviceEvent]] = {}
    calls: dict[str, list[int | None]] = {}
    starts = attribution.call_starts_ns or (None,) * len(attribution.events)
    for event, start in zip(attribution.events, starts, strict=True):
        if event.launch_id is not None:
            per_entry.setdefault(event.launch_id, []).append(event)
            calls.setdefault(event.launch_id, []).append(start)
    graph_of = {launch.launch_id: launch.graph for launch in launches}
    found = []
    for subject, events in per_entry.items():
        samples = _by_call(events, calls[subject]) or _per_call(events, attribution.calls.get(graph_of[subject], 0))
        longest = max(events, key=lambda event: event.duration_ns)
        found.append(
            Measurement(
                subject=subject,
                kind="profile",
                clock=clock,
                samples_us=samples,
                l2_state="step",
                symbols=tuple(dict.fromkeys(event.name for event in events)),
                grid=longest.grid,
                block=longest.block,
                n_regs=longest.n_regs,
                n_spills=longest.n_spills,
                shared_bytes=longest.shared_bytes,
            )
        )
    return found


def _by_call(events: Sequence[DeviceEvent], starts: Sequence[int | None]) -> tuple[float, ...]:
    """Sum an entry's kernels by the call that launched them, in order of the calls: a library may launch one in some
    of them and several in others. Nothing where a call is not known."""
    sums: Counter[int] = Counter()
    for event, start in zip(events, starts, strict=True):
        if start is None:
            return ()
        sums[start] += event.duration_ns
    return tuple(sums[start] / 1e3 for start in sorted(sums))


def _per_call(events: Sequence[DeviceEvent], n_calls: int) -> tuple[float, ...]:
    """Sum an entry's kernels by call; events come in order of time, the same number in each call."""
    ordered = sorted(events, key=lambda event: event.start_ns)
    if n_calls and len(ordered) % n_calls == 0:
        size = len(ordered) // n_calls
        return tuple(
            sum(event.duration_ns for event in ordered[start : start + size]) / 1e3
            for start in range(0, len(ordered), size)
        )
    return tuple(event.duration_ns / 1e3 for event in ordered)


def over_steps(breakdown: Breakdown, trace: Trace, steps: Steps, n_steps: int, clock: str) -> Breakdown:
    """A breakdown that also says how long its steps took, with the profiler and without."""
    step_us = tuple((end - start) / 1e3 for start, end in _step_spans(trace, n_steps)) if steps.profiled_us else ()
    notes = list(breakdown.notes)
    if steps.plain_us and steps.profiled_us:
        ratio = median(steps.profiled_us) / median(steps.plain_us)
        notes.append(
            f"a step takes {median(steps.plain_us) / 1e3:.3f} ms without the profiler and "
            f"{median(steps.profiled_us) / 1e3:.3f} ms under it (x{ratio:.3f}, host clock)"
        )
        busy_us = breakdown.busy_us / n_steps
        if busy_us > 1.1 * median(steps.plain_us):
            notes.append(
                "kernels outlast the step that holds them: other work on this machine disturbed the profile, or the "
                "profiler itself; compare medians, and record it again on a quiet machine"
            )
        notes.append(
            f"corrected for that, the device is busy {busy_us / 1e3:.3f} ms of a {median(steps.plain_us) / 1e3:.3f} ms "
            f"step ({busy_us / median(steps.plain_us):.1%}; device time over host time: two clocks)"
        )
    result = replace(breakdown, clock=clock, steps=n_steps, step_us=step_us, notes=tuple(notes))
    plain_us = median(steps.plain_us) if steps.plain_us and steps.profiled_us else None
    return replace(result, verdict=verdict(result, plain_us=plain_us))
