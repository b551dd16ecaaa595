"""Give every device kernel of a profiled run to the ledger's entry that launched it.

Three facts decide, none of them a guess about time: which compiled graph's call a launch was made in (the capture marks
each call with the graph's name), which operator inside that call made it, and the order of the entries, which the
wrapper runs one after the other. Kernels that a CUDA graph replays have no operator; they are matched in order with the
kernels that the same graph's un-graphed first run was seen to launch, or with the entries' own names.
"""

from __future__ import annotations

import bisect
import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from torchledger.capturing.conditionals import Fork
from torchledger.nouns import Cost, DeviceEvent, Launch, Quality
from torchledger.profiling.name_matching import CPU_PREFIX, DECIDES, NAMED_IN_TRACES, match_operators, match_replay
from torchledger.profiling.time_categories import time_category
from torchledger.stepping.marks import PACKAGE_MARK
from torchledger.traces.graph_marks import GRAPH_MARK, parse_graph_mark
from torchledger.traces.trace import NONE, EventKind, Trace
from torchledger.work.categories import naming_operator

_INDUCTOR_MARK = re.compile(r"^## Call CompiledFxGraph (\S+) ##$")
"""What Inductor itself writes: the graph's cache key."""


_REGIONS = ("## Call", GRAPH_MARK, "Torch-Compiled Region", "CompiledFunction", "inductor_wrapper_call")
"""Marks around a whole graph call, which are no operators."""


LearnedSequences = Mapping[str, Sequence[tuple[str, int]]]
"""Graph name to ``(device kernel name, launch order)`` in the order in which an un-graphed run launched them."""


@dataclass(frozen=True)
class _Call:
    """One call of a compiled graph on one host thread, with its outermost operators in order of time."""

    graph: str
    lane: int
    start_ns: int
    end_ns: int
    op_rows: tuple[int, ...]
    op_starts: tuple[int, ...]
    op_ends: tuple[int, ...]
    launches: Mapping[int, int] = field(default_factory=dict)


@dataclass(frozen=True)
class Attribution:
    """Device events with their entries, and what found none.

    ``inside_ns`` is the time of kernels launched inside calls of compiled graphs, ``matched_ns`` that of those given to
    an entry, ``copied_ns`` that of copies to where a CUDA graph reads its inputs, ``decided_ns`` that of reading which
    way a conditional takes or whether a loop goes on; ``unmatched`` maps why the rest was not given to its time.
    ``call_starts_ns`` says of each event when the graph call that launched it began, where that is known.
    """

    events: tuple[DeviceEvent, ...]
    inside_ns: int
    matched_ns: int
    copied_ns: int = 0
    decided_ns: int = 0
    unmatched: Mapping[str, int] = field(default_factory=dict)
    calls: Mapping[str, int] = field(default_factory=dict)
    entries_seen: int = 0
    entries: int = 0
    call_starts_ns: tuple[int | None, ...] = ()

    @property
    def matched_share(self) -> float | None:
        """Share of the kernel time inside compiled graphs, input copies of CUDA graphs aside, that entries have."""
        asked_for_ns = self.inside_ns - self.copied_ns
        return self.matched_ns / asked_for_ns if asked_for_ns else None


def launches_by_graph(launches: Iterable[Launch]) -> dict[str, list[Launch]]:
    """The launches of each graph, in the order of its wrapper."""
    groups: dict[str, list[Launch]] = defaultdict(list)
    for launch in sorted(launches, key=lambda launch: launch.order):
        groups[launch.graph].append(launch)
    return dict(groups)


def _launching(launches: Iterable[Launch]) -> Iterator[Launch]:
    return (launch for launch in launches if launch.category != "nop")


def attribute_events(
    trace: Trace,
    events: Sequence[DeviceEvent],
    launches: Sequence[Launch],
    *,
    learned: LearnedSequences | None = None,
    graph_keys: Mapping[str, str] | None = None,
    forks: Mapping[str, Sequence[Fork]] | None = None,
) -> Attribution:
    """Match the device events of a trace (``trace_costs.device_events``) with the entries that launched them.

    ``graph_keys`` maps cache keys to graph names, for traces that were recorded without a capture's marks,
    ``forks`` holds those of each graph that has any.
    """
    by_graph = launches_by_graph(_launching(launches))
    calls = _graph_calls(trace, by_graph, graph_keys or {}, forks or {})
    finder = _CallFinder(calls)
    place_of_name = {graph: _places_of_lone_names(entries) for graph, entries in by_graph.items()}
    unmatched: Counter[str] = Counter()
    replayed: dict[int, list[int]] = defaultdict(list)
    graph_of_replay: dict[int, _Call] = {}
    found: list[DeviceEvent] = []
    inside = matched = copied = 0
    order_of: dict[int, Launch] = {}
    call_of: dict[int, _Call] = {}
    for index, event in enumerate(events):
        row = event.row
        launch_row = int(trace.launch_of[row]) if row is not None else NONE
        if launch_row == NONE:
            continue
        call = finder.around(int(trace.events.lane[launch_row]), int(trace.events.start_ns[launch_row]))
        if call is None:
            continue
        call_of[index] = call
        if "GraphLaunch" in trace.name(launch_row):
            replayed[id(call)].append(index)
            graph_of_replay[id(call)] = call
            continue
        order = _order_of_launch(call, int(trace.events.start_ns[launch_row]))
        if order is None:
            order = place_of_name[call.graph].get(event.name)
        if order is not None:
            order_of[index] = by_graph[call.graph][order]
    for key, indices in replayed.items():
        call = graph_of_replay[key]
        entries = by_graph[call.graph]
        names = [events[index].name for index in indices]
        for index, order in match_replay(names, entries, (learned or {}).get(call.graph)):
            order_of[indices[index]] = entries[order]
    main = _main_events(events, order_of, call_of)
    for index, event in enumerate(events):
        call_around = call_of.get(index)
        entry = order_of.get(index)
        if call_around is not None and event.kind == "kernel":
            inside += event.duration_ns
            if entry is not None:
                matched += event.duration_ns
            elif id(call_around) in replayed and not event.is_graph_replay and "copy" in (event.op or ""):
                copied += event.duration_ns
            else:
                unmatched[_why_unmatched(trace, event)] += event.duration_ns
        if entry is not None:
            event = with_entry(event, entry, is_main=index in main)
        elif call_around is not None:
            event = replace(event, graph=call_around.graph)
        found.append(event)
    return Attribution(
        events=tuple(found),
        inside_ns=inside,
        matched_ns=matched,
        copied_ns=copied,
        unmatched=dict(unmatched.most_common()),
        calls=Counter(call.graph for call in {id(call): call for call in call_of.values()}.values()),
        entries_seen=len({entry.launch_id for entry in order_of.values()}),
        entries=len([launch for launch in launches if launch.category != "nop"]),
        call_starts_ns=tuple(call_of[index].start_ns if index in call_of else None for index in range(len(events))),
    )


def cpu_events(
    trace: Trace,
    launches: Sequence[Launch],
    *,
    window: tuple[int, int] | None = None,
    graph_keys: Mapping[str, str] | None = None,
    forks: Mapping[str, Sequence[Fork]] | None = None,
) -> Attribution:
    """The same for a CPU: each entry's operator on the host is its kernel; time is the operator's.

    Only graph calls that start inside ``window`` (nanoseconds on the trace's clock) count.
    """
    by_graph = launches_by_graph(_launching(launches))
    calls = [
        call
        for call in _graph_calls(trace, by_graph, graph_keys or {}, forks or {})
        if window is None or window[0] <= call.start_ns <= window[1]
    ]
    found: list[DeviceEvent] = []
    seen: set[str] = set()
    unmatched: Counter[str] = Counter()
    inside = decided = 0
    for call in calls:
        for position, row in enumerate(call.op_rows):
            order = call.launches.get(position)
            duration = call.op_ends[position] - call.op_starts[position]
            if order is None:
                if call.graph in (forks or {}) and trace.name(row) in DECIDES:
                    inside += duration
                    decided += duration
                elif not trace.name(row).startswith(("aten::empty", "aten::as_strided", "aten::view")):
                    inside += duration
                    unmatched[trace.name(row)] += duration
                continue
            inside += duration
            entry = by_graph[call.graph][order]
            seen.add(entry.launch_id)
            event = DeviceEvent(
                name=entry.kernel_name,
                kind="kernel",
                category=time_category(entry, trace.name(row)),
                start_ns=call.op_starts[position],
                duration_ns=duration,
                device="cpu",
                stream=call.lane,
                op=trace.name(row),
                row=row,
            )
            found.append(with_entry(event, entry, is_main=True))
    return Attribution(
        events=tuple(sorted(found, key=lambda event: event.start_ns)),
        inside_ns=inside,
        matched_ns=sum(event.duration_ns for event in found),
        decided_ns=decided,
        unmatched=dict(unmatched.most_common()),
        calls=Counter(call.graph for call in calls),
        entries_seen=len(seen),
        entries=len([launch for launch in launches if launch.category != "nop"]),
    )


def learn_sequence(
    trace: Trace, events: Sequence[DeviceEvent], launches: Sequence[Launch]
) -> dict[str, list[tuple[str, int]]]:
    """What each graph's entries launch on the device, from a trace of un-graphed calls (the first of each graph)."""
    attribution = attribute_events(trace, events, launches)
    order_of = {
        launch.launch_id: order
        for group in launches_by_graph(_launching(launches)).values()
        for order, launch in enumerate(group)
    }
    entry_of = {launch.launch_id: launch for launch in launches}
    learned: dict[str, list[tuple[str, int]]] = defaultdict(list)
    taught: set[tuple[str, str, int]] = set()
    for event in attribution.events:
        if event.launch_id is None or event.graph is None:
            continue
        entry, pair = entry_of[event.launch_id], (event.name, order_of[event.launch_id])
        # A first call may try several configurations of a generated kernel, and flush the cache between: a later one
        # launches it once.
        is_known = (event.graph, *pair) in taught
        if entry.category not in NAMED_IN_TRACES or (event.name == entry.kernel_name and not is_known):
            learned[event.graph].append(pair)
            taught.add((event.graph, *pair))
    return {graph: sequence for graph, sequence in learned.items() if attribution.calls.get(graph) == 1}


def cache_keys_in(trace: Trace) -> set[str]:
    """The cache keys of the compiled graphs that a trace says it called."""
    found = (_INDUCTOR_MARK.match(trace.name(row)) for row in trace.rows(EventKind.ANNOTATION, EventKind.OP).tolist())
    return {match[1] for match in found if match}


def graph_of_mark(mark: str, graphs: Mapping[str, Any], graph_keys: Mapping[str, str] | None = None) -> str | None:
    """The graph whose call a range marks: by a capture's own mark, or Inductor's with ``graph_keys``; or ``None``."""
    name: str | None
    if (call := parse_graph_mark(mark)) is not None:
        name, _ = call
    else:
        match = _INDUCTOR_MARK.match(mark) if graph_keys else None
        name = graph_keys.get(match[1]) if match and graph_keys else None
    return name if name in graphs else None


def _graph_calls(
    trace: Trace,
    by_graph: Mapping[str, Sequence[Launch]],
    graph_keys: Mapping[str, str],
    forks: Mapping[str, Sequence[Fork]],
) -> list[_Call]:
    columns = trace.events
    ops = trace.rows(EventKind.OP)
    ops_of_lane: dict[int, list[int]] = defaultdict(list)
    for row in ops[np.lexsort((-columns.end_ns[ops], columns.start_ns[ops]))].tolist():
        ops_of_lane[int(columns.lane[row])].append(row)
    starts_of_lane = {lane: [int(columns.start_ns[row]) for row in rows] for lane, rows in ops_of_lane.items()}
    calls = []
    for mark in trace.rows(EventKind.ANNOTATION, EventKind.OP).tolist():
        graph = graph_of_mark(trace.name(mark), by_graph, graph_keys)
        is_package = graph is None and trace.name(mark) == PACKAGE_MARK
        if graph is None and not is_package:
            continue
        lane, start, end = int(columns.lane[mark]), int(columns.start_ns[mark]), int(columns.end_ns[mark])
        rows = ops_of_lane.get(lane, [])
        first = bisect.bisect_left(starts_of_lane.get(lane, []), start)
        outer: list[int] = []
        reach = start
        for row in rows[first:]:
            if int(columns.start_ns[row]) > end:
                break
            if int(columns.start_ns[row]) >= reach and not trace.name(row).startswith(_REGIONS):
                outer.append(row)
                reach = int(columns.end_ns[row])
        names = [trace.name(row) for row in outer]
        if is_package:
            graph = _graph_of_library(names, by_graph)
        if graph is None:
            continue
        calls.append(
            _Call(
                graph,
                lane,
                start,
                end,
                tuple(outer),
                tuple(int(columns.start_ns[row]) for row in outer),
                tuple(int(columns.end_ns[row]) for row in outer),
                match_operators(names, by_graph[graph], forks.get(graph, ())),
            )
        )
    return calls


def _graph_of_library(names: Sequence[str], by_graph: Mapping[str, Sequence[Launch]]) -> str | None:
    """The graph that a library was made of, by the ranges in one of its calls: the only one whose every entry fits.

    A library has ranges around its C++ kernels if it was compiled with ``cpp.enable_kernel_profile``.
    """
    if not any(map(CPU_PREFIX.match, names)):
        return None
    fitting = [name for name, entries in by_graph.items() if len(match_operators(names, entries)) == len(entries)]
    return fitting[0] if len(fitting) == 1 else None


class _CallFinder:
    """The innermost graph call around a moment of a host thread."""

    def __init__(self, calls: Sequence[_Call]) -> None:
        self._by_lane: dict[int, list[_Call]] = defaultdict(list)
        for call in sorted(calls, key=lambda call: call.start_ns):
            self._by_lane[call.lane].append(call)
        self._starts = {lane: [call.start_ns for call in group] for lane, group in self._by_lane.items()}

    def around(self, lane: int, moment: int) -> _Call | None:
        starts = self._starts.get(lane)
        if starts is None:
            return None
        for index in range(bisect.bisect_right(starts, moment) - 1, -1, -1):
            call = self._by_lane[lane][index]
            if call.end_ns >= moment:
                return call
            if index and self._by_lane[lane][index - 1].end_ns < moment:
                return None
        return None


def _order_of_launch(call: _Call, moment: int) -> int | None:
    position = bisect.bisect_right(call.op_starts, moment) - 1
    if position < 0 or call.op_ends[position] < moment:
        return None
    return call.launches.get(position)


def _places_of_lone_names(entries: Sequence[Launch]) -> dict[str, int]:
    """For launches outside any operator: a generated kernel says its own name, if only one entry has it."""
    counts = Counter(entry.kernel_name for entry in entries)
    return {entry.kernel_name: place for place, entry in enumerate(entries) if counts[entry.kernel_name] == 1}


def _main_events(
    events: Sequence[DeviceEvent], entry_of: Mapping[int, Launch], call_of: Mapping[int, _Call]
) -> set[int]:
    """Of the kernels that one entry launched in one call, the longest: it carries the entry's work."""
    longest: dict[tuple[int, str], int] = {}
    for index, entry in entry_of.items():
        key = (id(call_of[index]), entry.launch_id)
        if key not in longest or events[index].duration_ns > events[longest[key]].duration_ns:
            longest[key] = index
    return set(longest.values())


def with_entry(event: DeviceEvent, entry: Launch, *, is_main: bool) -> DeviceEvent:
    """The event with what its entry says; of an entry's kernels the main one carries its work."""
    if is_main:
        bytes_quality: Quality = (
            "unavailable"
            if entry.bytes_moved is None
            else "upper_bound"
            if any(buffer.bytes_quality == "upper_bound" for buffer in entry.buffers)
            else "exact"
        )
        cost = Cost(
            entry.flops,
            entry.bytes_moved,
            "unavailable" if entry.flops is None else entry.flops_quality,
            bytes_quality,
            reason=(entry.reason or "not recorded") if entry.flops is None or entry.bytes_moved is None else None,
            basis="the ledger's entry",
        )
    else:
        cost = Cost(0, 0, "exact", "exact", basis="its work counts at the entry's longest kernel")
    return replace(
        event,
        category=time_category(entry, event.op, event),
        launch_id=entry.launch_id,
        graph=entry.graph,
        ops=entry.aten_ops,
        op=naming_operator(entry.aten_ops) or event.op,
        modules=entry.modules,
        sources=tuple(f"{source.file}:{source.line}" for source in entry.sources),
        cost=cost,
    )


def _why_unmatched(trace: Trace, event: DeviceEvent) -> str:
    if event.is_graph_replay:
        return "replayed by a CUDA graph, in a place that no entry's sequence explains"
    op = event.op or "no operator"
    if "copy" in op:
        return f"launched by {op}: a copy that no entry makes"
    return f"launched by {op}, which no entry calls"
