"""Give every device kernel of a profiled run to the ledger's entry that launched it.

Three facts decide, none of them a guess about time: which compiled graph's call a launch was made in (the capture marks
each call with the graph's name), which operator inside that call made it, and the order of the entries, which the
wrapper runs one after the other. Kernels that a CUDA graph replays have no operator; they are matched in order with the
kernels that the same graph's un-graphed first run was seen to launch, or with the entries' own names.
"""

from __future__ import annotations

import bisect
import difflib
import re
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import cast

from torchledger.measuring.kernel_names import category_of_kernel
from torchledger.measuring.trace import NONE, EventKind, Trace
from torchledger.nouns import Cost, DeviceEvent, Launch, Quality
from torchledger.nouns.breakdown import TimeCategory

GRAPH_MARK = "torchledger::"
"""What the capture puts in front of a graph's name to mark its calls in a trace."""

_REGIONS = ("## Call", GRAPH_MARK, "Torch-Compiled Region", "CompiledFunction", "inductor_wrapper_call")
"""Marks around a whole graph call, which are no operators."""

_CPU_PREFIX = re.compile(r"^graph_\w*?_(?=cpp_)")
_GENERATED = frozenset(
    {"pointwise", "reduction", "persistent_reduction", "split_scan", "template", "foreach", "combo", "user_triton"}
)

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
    an entry; ``unmatched`` maps why the rest was not to its time.
    """

    events: tuple[DeviceEvent, ...]
    inside_ns: int
    matched_ns: int
    unmatched: Mapping[str, int] = field(default_factory=dict)
    calls: Mapping[str, int] = field(default_factory=dict)
    entries_seen: int = 0
    entries: int = 0

    @property
    def matched_share(self) -> float | None:
        """Share of the kernel time inside compiled graphs that belongs to entries."""
        return self.matched_ns / self.inside_ns if self.inside_ns else None


def attribute_events(
    trace: Trace,
    events: Sequence[DeviceEvent],
    launches: Sequence[Launch],
    *,
    learned: LearnedSequences | None = None,
) -> Attribution:
    """Match the device events of a trace (``trace_costs.device_events``) with the entries that launched them."""
    by_graph = _by_graph(launches)
    calls = _graph_calls(trace, by_graph)
    finder = _CallFinder(calls)
    unmatched: Counter[str] = Counter()
    replayed: dict[int, list[int]] = defaultdict(list)
    graph_of_replay: dict[int, _Call] = {}
    found: list[DeviceEvent] = []
    inside = matched = 0
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
            order = _by_kernel_name(event, by_graph[call.graph])
        if order is not None:
            order_of[index] = by_graph[call.graph][order]
    for key, indices in replayed.items():
        call = graph_of_replay[key]
        entries = by_graph[call.graph]
        sequence = (learned or {}).get(call.graph) or _expected_sequence(entries)
        for index, order in _match_replay([events[i].name for i in indices], sequence):
            order_of[indices[index]] = entries[order]
    main = _main_events(events, order_of, call_of)
    for index, event in enumerate(events):
        call_around = call_of.get(index)
        entry = order_of.get(index)
        if call_around is not None and event.kind == "kernel":
            inside += event.duration_ns
            if entry is not None:
                matched += event.duration_ns
            else:
                unmatched[_why_unmatched(trace, event)] += event.duration_ns
        if entry is not None:
            event = _with_entry(event, entry, is_main=index in main)
        elif call_around is not None:
            event = replace(event, graph=call_around.graph)
        found.append(event)
    return Attribution(
        events=tuple(found),
        inside_ns=inside,
        matched_ns=matched,
        unmatched=dict(unmatched.most_common()),
        calls=Counter(call.graph for call in {id(call): call for call in call_of.values()}.values()),
        entries_seen=len({entry.launch_id for entry in order_of.values()}),
        entries=len([launch for launch in launches if launch.category != "nop"]),
    )


def cpu_events(trace: Trace, launches: Sequence[Launch], *, window: tuple[int, int] | None = None) -> Attribution:
    """The same for a CPU: each entry's operator on the host is its kernel; time is the operator's.

    Only graph calls that start inside ``window`` (nanoseconds on the trace's clock) count.
    """
    by_graph = _by_graph(launches)
    calls = [
        call for call in _graph_calls(trace, by_graph) if window is None or window[0] <= call.start_ns <= window[1]
    ]
    found: list[DeviceEvent] = []
    seen: set[str] = set()
    unmatched: Counter[str] = Counter()
    inside = 0
    for call in calls:
        for position, row in enumerate(call.op_rows):
            order = call.launches.get(position)
            duration = call.op_ends[position] - call.op_starts[position]
            if order is None:
                if not trace.name(row).startswith(("aten::empty", "aten::as_strided", "aten::view")):
                    inside += duration
                    unmatched[trace.name(row)] += duration
                continue
            inside += duration
            entry = by_graph[call.graph][order]
            seen.add(entry.launch_id)
            event = DeviceEvent(
                name=entry.kernel_name,
                kind="kernel",
                category=_library_category(entry, trace.name(row)),
                start_ns=call.op_starts[position],
                duration_ns=duration,
                device="cpu",
                stream=call.lane,
                op=trace.name(row),
                row=row,
            )
            found.append(_with_entry(event, entry, is_main=True))
    return Attribution(
        events=tuple(sorted(found, key=lambda event: event.start_ns)),
        inside_ns=inside,
        matched_ns=sum(event.duration_ns for event in found),
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
    order_of = {launch.launch_id: order for group in _by_graph(launches).values() for order, launch in enumerate(group)}
    learned: dict[str, list[tuple[str, int]]] = defaultdict(list)
    for event in attribution.events:
        if event.launch_id is not None and event.graph is not None:
            learned[event.graph].append((event.name, order_of[event.launch_id]))
    return {graph: sequence for graph, sequence in learned.items() if attribution.calls.get(graph) == 1}


def _by_graph(launches: Sequence[Launch]) -> dict[str, list[Launch]]:
    groups: dict[str, list[Launch]] = defaultdict(list)
    for launch in launches:
        if launch.category != "nop":
            groups[launch.graph].append(launch)
    return {graph: sorted(group, key=lambda launch: launch.order) for graph, group in groups.items()}


def _graph_calls(trace: Trace, by_graph: Mapping[str, Sequence[Launch]]) -> list[_Call]:
    columns = trace.events
    ops = trace.rows(EventKind.OP)
    ops_of_lane: dict[int, list[int]] = defaultdict(list)
    for row in sorted(ops.tolist(), key=lambda row: (int(columns.start_ns[row]), -int(columns.end_ns[row]))):
        ops_of_lane[int(columns.lane[row])].append(row)
    starts_of_lane = {lane: [int(columns.start_ns[row]) for row in rows] for lane, rows in ops_of_lane.items()}
    calls = []
    for mark in trace.rows(EventKind.ANNOTATION, EventKind.OP).tolist():
        name = trace.name(mark)
        if not name.startswith(GRAPH_MARK) or name.removeprefix(GRAPH_MARK) not in by_graph:
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
        graph = name.removeprefix(GRAPH_MARK)
        names = [trace.name(row) for row in outer]
        calls.append(
            _Call(
                graph,
                lane,
                start,
                end,
                tuple(outer),
                tuple(int(columns.start_ns[row]) for row in outer),
                tuple(int(columns.end_ns[row]) for row in outer),
                match_operators(names, by_graph[graph]),
            )
        )
    return calls


def match_operators(names: Sequence[str], entries: Sequence[Launch]) -> dict[int, int]:
    """Position of an operator to the place of its entry; both run in the same order.

    An entry without an operator of its name gets the lone operator that stands between its neighbours', if there is
    exactly one (a library function that goes by another name inside).
    """
    matched: dict[int, int] = {}
    places: dict[int, int] = {}
    position = 0
    for place, entry in enumerate(entries):
        for candidate in range(position, len(names)):
            if _fits(names[candidate], entry):
                matched[candidate] = place
                places[place] = candidate
                position = candidate + 1
                break
    for place, entry in enumerate(entries):
        if place in places or entry.category in _GENERATED:
            continue
        before = places.get(place - 1, -1)
        after = places.get(place + 1, len(names))
        between = [at for at in range(before + 1, after) if at not in matched and not _allocates(names[at])]
        if len(between) == 1:
            matched[between[0]] = place
            places[place] = between[0]
    return matched


def _fits(name: str, entry: Launch) -> bool:
    if entry.category not in ("extern", "inline"):
        kernel = _CPU_PREFIX.sub("", name)
        return kernel == entry.kernel_name or (
            entry.category == "multi_kernel" and kernel.startswith("triton_") and _shares_stem(kernel, entry)
        )
    called = (entry.call or entry.kernel_name).removeprefix("torch.ops.").removeprefix("extern_kernels.")
    operator = name.split("::")[-1].rstrip("_")
    parts = [part.rstrip("_") for part in called.strip(".").split(".")]
    return operator in parts or operator in [part.rstrip("_") for part in entry.kernel_name.split(".")]


def _shares_stem(kernel: str, entry: Launch) -> bool:
    return any(op.split(".")[-1] in kernel for op in entry.aten_ops)


def _allocates(name: str) -> bool:
    return name.startswith(("aten::empty", "aten::as_strided", "aten::view", "aten::set_", "aten::resize"))


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


def _by_kernel_name(event: DeviceEvent, entries: Sequence[Launch]) -> int | None:
    """A launch outside any operator: a generated kernel says its own name, if only one entry has it."""
    places = [place for place, entry in enumerate(entries) if entry.kernel_name == event.name]
    return places[0] if len(places) == 1 else None


def _expected_sequence(entries: Sequence[Launch]) -> list[tuple[str, int]]:
    """What the entries' names alone tell of the device's kernels: generated ones by name, library calls by kind."""
    return [(entry.kernel_name, place) for place, entry in enumerate(entries)]


def _match_replay(names: Sequence[str], sequence: Sequence[tuple[str, int]]) -> list[tuple[int, int]]:
    """Align replayed kernels with the known sequence; kernels between two aligned ones belong to the entry between."""
    known = [name for name, _ in sequence]
    if list(names) == known:
        return [(index, order) for index, (_, order) in enumerate(sequence)]
    blocks = difflib.SequenceMatcher(None, known, list(names), autojunk=False).get_matching_blocks()
    pairs = {block.b + step: sequence[block.a + step][1] for block in blocks for step in range(block.size)}
    orders = sorted({order for _, order in sequence})
    result = []
    for index in range(len(names)):
        if index in pairs:
            result.append((index, pairs[index]))
            continue
        before = next((pairs[at] for at in range(index - 1, -1, -1) if at in pairs), -1)
        after = next((pairs[at] for at in range(index + 1, len(names)) if at in pairs), orders[-1] + 1 if orders else 0)
        between = [order for order in orders if before < order < after]
        if len(between) == 1:
            result.append((index, between[0]))
    return result


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


def _with_entry(event: DeviceEvent, entry: Launch, *, is_main: bool) -> DeviceEvent:
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
        category=_library_category(entry, event.op, event),
        launch_id=entry.launch_id,
        graph=entry.graph,
        ops=entry.aten_ops,
        op=entry.aten_ops[-1] if entry.aten_ops else event.op,
        modules=entry.modules,
        sources=tuple(f"{source.file}:{source.line}" for source in entry.sources),
        cost=cost,
    )


def _library_category(entry: Launch, op: str | None, event: DeviceEvent | None = None) -> TimeCategory:
    """What a library call computes, from its operator; its kernels' names only where that says nothing."""
    if entry.category in _GENERATED:
        return cast(TimeCategory, entry.category)
    if entry.category == "multi_kernel":
        return "persistent_reduction" if "_per_" in (event.name if event else entry.kernel_name) else "reduction"
    text = f"{entry.kernel_name} {op or ''} {' '.join(entry.aten_ops)}".lower()
    families: tuple[tuple[tuple[str, ...], TimeCategory], ...] = (
        (("attention", "flash", "sdpa"), "attention"),
        (("conv",), "convolution"),
        (("mm", "linear", "bmm", "matmul", "dot"), "gemm"),
        (("all_reduce", "all_gather", "reduce_scatter", "c10d", "broadcast", "all_to_all"), "collective"),
        (("copy", "zero", "fill", "clone", "index", "gather", "scatter", "cat"), "memory"),
    )
    for words, category in families:
        if any(word in text for word in words):
            return category
    return category_of_kernel(event.name) if event is not None else "other"


def _why_unmatched(trace: Trace, event: DeviceEvent) -> str:
    if event.is_graph_replay:
        return "replayed by a CUDA graph, in a place that no entry's sequence explains"
    op = event.op or "no operator"
    return f"launched by {op}, which no entry calls"
