"""The calls of one step, read from a trace: compiled graphs, eager operators, collectives, copies, synchronizations.

An operator is an entry where it does work itself; one that only calls others (``aten::linear``) is not, its parts are.
That is where a dispatch mode sees operators, so that both can be counted against each other. What an entry launched on
the device is found by time on its host thread; a launch outside every operator makes an entry of its own, so that all
device time belongs to one.
"""

from __future__ import annotations

import bisect
import re
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from torchledger.claims import claim
from torchledger.nouns import CallKind, Cost, DeviceEvent
from torchledger.stepping.marks import PACKAGE_MARK
from torchledger.stepping.unfolding import Recorded
from torchledger.traces.collective_messages import RECORDED_COLLECTIVE, collective_cost, collective_message
from torchledger.traces.recorded_calls import call_from_arguments
from torchledger.traces.trace import NONE, EventKind, Trace
from torchledger.work.collectives import OF_GROUPS, Message
from torchledger.work.kernel_names import kernel_label
from torchledger.work.op_costs import has_formula, op_cost
from torchledger.work.op_shapes import OpCall

IsComposite = Callable[[str], bool | None]
"""Whether an operator only calls others; ``None`` where that depends on its overload."""

GraphOf = Callable[[str], str | None]
"""The compiled graph whose call a range's name marks, or ``None``."""

_OPERATOR = re.compile(r"^[A-Za-z_]\w*::\w")
_AROUND = re.compile(r"^(autograd::|torch::|profiler::|prim::)")
_WRAPS = "c10d_functional::_wrap_tensor"
"""What only marks a tensor as one that a collective makes."""
_SUBCLASS = "PythonSubclass"
"""The range in which a tensor's subclass answers for an operator."""

_SYNCHRONIZES = re.compile(r"(Stream|Device|Event|Context)Synchronize")
_BETWEEN_HOST_AND_DEVICE = re.compile(r"HtoD|DtoH|HostToDevice|DeviceToHost|Host -> Device|Device -> Host")
_ALLOCATES = re.compile(r"^aten::(empty|as_strided|view|set_|resize|_unsafe_view|alias|detach)")
UNKNOWN = Cost(reason="nothing was recorded of its work")
BACKWARD_RANGE = "autograd::engine::evaluate_function"
"""How the ranges begin in which autograd's engine calls a node."""

_CLONE = "aten::clone"

_IN_PACKAGE = re.compile(r"^(?:graph_\w*?_(?=cpp_)|(?=aoti_torch_))")
"""What stands in front of a kernel's name in the ranges of a library that AOTInductor compiled with
``cpp.enable_kernel_profile``; its library calls have ranges of their own."""


@dataclass(frozen=True)
class Entry:
    """One call in a trace. ``around`` names the ranges and operators that it was made in, outermost first.

    ``row`` is its row in the trace, ``end_ns`` where its host part ends; ``events`` ran on the device for it, and
    ``host_work`` are the times in which it worked on the host itself (start and end, in nanoseconds). ``cost`` is the
    work of an eager call; a graph's stands in its launches, and ``mark`` is the range that named it. ``facts`` are what
    the profiler wrote of a collective, and ``message`` is its own by nccl-tests' count. ``part_of`` is row and name of
    the operator (a custom one, or one on nested tensors) that is known by its parts, of which this is one: a dispatch
    mode hears that operator alone.
    """

    kind: CallKind
    name: str
    row: int
    lane: int
    start_ns: int
    end_ns: int
    around: tuple[str, ...] = ()
    call: OpCall | None = None
    cost: Cost = UNKNOWN
    mark: str | None = None
    events: tuple[DeviceEvent, ...] = ()
    host_work: tuple[tuple[int, int], ...] = ()
    facts: Mapping[str, str] = field(default_factory=dict)
    message: Message | None = None
    part_of: tuple[int, str] | None = None

    @property
    def is_backward(self) -> bool:
        """True if autograd's engine called it."""
        return self.backward_node is not None

    @property
    def backward_node(self) -> str | None:
        """The innermost node of autograd's for which the engine called it; ``None`` outside of a backward."""
        ranges = (name for name in reversed(self.around) if name.startswith(BACKWARD_RANGE))
        return next((name.removeprefix(BACKWARD_RANGE).lstrip(": ") for name in ranges), None)

    @property
    def device_ns(self) -> int:
        """Time of what it launched on the device."""
        return sum(event.duration_ns for event in self.events)

    @property
    def host_work_ns(self) -> int:
        """Time in which it worked on the host itself."""
        return sum(end - start for start, end in self.host_work)


@dataclass
class _Node:
    row: int
    kind: int
    start: int
    end: int
    children: list[_Node]


def read_entries(
    trace: Trace,
    window: tuple[int, int],
    events: Sequence[DeviceEvent],
    *,
    graph_of: GraphOf,
    is_composite: IsComposite,
    whole: Collection[str] = (),
    list_dtype: str | None = None,
    parts: Mapping[int, Collection[int]] | None = None,
    nested: Collection[str] = (),
    counted: Collection[str] = (),
) -> list[Entry]:
    """The entries that start inside ``window`` (nanoseconds on the trace's clock), in order of their starts.

    ``events`` are the trace's device events (none on a CPU). ``whole`` names operators that are known to be called as
    they are, for those whose overloads differ and for custom ones that call others. ``list_dtype`` is the dtype of
    tensors in lists, which profilers do not record. ``parts`` holds, for rows of operators that
    are not entries themselves, the rows in them that are. ``nested`` names operators that were called on nested
    tensors, ``counted`` those of the program's own of which FLOPs are known.
    """
    reader = _Reader(trace, graph_of, is_composite, frozenset(whole), list_dtype, parts or {}, frozenset(nested))
    reader.counted = frozenset(counted)
    for lane, roots in _forest(trace, window).items():
        for node in roots:
            reader.visit(node, lane, ())
    return _with_events(trace, reader.found, events, window)


def recorded_operators(
    trace: Trace, window: tuple[int, int], *, graph_of: GraphOf, list_dtype: str | None = None
) -> dict[int, list[Recorded]]:
    """The outermost operators by thread, with those that ran in them, but for what ran in compiled graphs."""

    def below(nodes: Sequence[_Node]) -> Iterator[Recorded]:
        for node in nodes:
            name = trace.name(node.row)
            if graph_of(name) is not None or _is_collective(name):
                continue
            if node.kind == EventKind.OP and _OPERATOR.match(name) and not _AROUND.match(name):
                call = call_from_arguments(name, trace.arguments(node.row), list_dtype=list_dtype)
                yield Recorded(node.row, name, call, tuple(below(node.children)))
            else:
                yield from below(node.children)

    return {lane: list(below(roots)) for lane, roots in _forest(trace, window).items()}


def _forest(trace: Trace, window: tuple[int, int]) -> dict[int, list[_Node]]:
    """Host rows by thread, each below the row that it runs in."""
    columns = trace.events
    rows = trace.rows(EventKind.OP, EventKind.ANNOTATION, EventKind.RUNTIME)
    inside = rows[(columns.start_ns[rows] >= window[0]) & (columns.start_ns[rows] < window[1])]
    by_lane: dict[int, list[_Node]] = defaultdict(list)
    for row, kind, lane, start, end in zip(
        inside.tolist(),
        columns.kind[inside].tolist(),
        columns.lane[inside].tolist(),
        columns.start_ns[inside].tolist(),
        columns.end_ns[inside].tolist(),
        strict=True,
    ):
        by_lane[lane].append(_Node(row, kind, start, end, []))
    roots: dict[int, list[_Node]] = {}
    for lane, nodes in by_lane.items():
        nodes.sort(key=lambda node: (node.start, -node.end, node.kind == EventKind.RUNTIME))
        roots[lane] = []
        open_nodes: list[_Node] = []
        for node in nodes:
            while open_nodes and (open_nodes[-1].end <= node.start or open_nodes[-1].end < node.end):
                open_nodes.pop()
            (open_nodes[-1].children if open_nodes else roots[lane]).append(node)
            open_nodes.append(node)
    return roots


class _Reader:
    """Walks the host's ranges from the outside in, and stops at each that is an entry."""

    def __init__(
        self,
        trace: Trace,
        graph_of: GraphOf,
        is_composite: IsComposite,
        whole: frozenset[str],
        list_dtype: str | None,
        parts: Mapping[int, Collection[int]],
        nested: frozenset[str],
    ) -> None:
        self.found: list[Entry] = []
        self.counted: frozenset[str] = frozenset()
        self._parts, self._nested = parts, nested
        self._trace, self._graph_of, self._is_composite = trace, graph_of, is_composite
        self._whole, self._list_dtype = whole, list_dtype
        self._costs: dict[tuple[int, int], tuple[OpCall | None, Cost]] = {}

    def visit(self, node: _Node, lane: int, around: tuple[str, ...]) -> None:
        """Add the entries in a range and below it."""
        name = self._trace.name(node.row)
        if node.kind == EventKind.RUNTIME:
            if _SYNCHRONIZES.search(name):
                self.found.append(self._entry("synchronization", name, node, lane, around))
            return
        graph = self._graph_of(name)
        if graph is not None:
            entry = self._entry("graph", graph, node, lane, around)
            self.found.append(replace(entry, mark=name, host_work=tuple(self._work_in_graph(node))))
        elif node.kind == EventKind.OP and _is_collective(name):
            self.found.append(self._collective(name, node, lane, around))
        elif node.row in self._parts:
            self._add_parts(node, lane, around, self._parts[node.row])
        elif node.kind == EventKind.OP and self._is_handed_on(node):
            self._visit_below(node, lane, (*around, name))
        elif node.kind == EventKind.OP and PACKAGE_MARK in around and _IN_PACKAGE.match(name):
            begin = len(self.found)
            self._visit_below(node, lane, (*around, name))
            ended = max((entry.end_ns for entry in self.found[begin:]), default=node.start)
            self._add_operator(_IN_PACKAGE.sub("", name), node, lane, around, ended)
        elif node.kind == EventKind.OP and self._does_work(name, node):
            saved = self._saved_before(name, node)
            if saved is not None:
                self._add_operator(_CLONE, saved, lane, (*around, name), saved.start)
            self._add_operator(name, node, lane, around, node.start if saved is None else saved.end)
            self._synchronizations_below(node, lane, (*around, name))
        else:
            is_whole = node.kind == EventKind.OP and name in self._whole and self._is_heard_whole(name, node)
            self._add_below(node, lane, around, (node.row, name) if is_whole else None)

    def _add_parts(self, node: _Node, lane: int, around: tuple[str, ...], rows: Collection[int]) -> int:
        """Add those operators of a range that are in ``rows``; returns where the last of them ends, 0 for none."""
        name, ended = self._trace.name(node.row), 0
        if node.row in rows and self._is_of_nested(node):
            self._add_below(node, lane, around, (node.row, name))
            return node.end
        for child in node.children:
            if child.kind == EventKind.RUNTIME:
                self.visit(child, lane, (*around, name))
            else:
                ended = max(ended, self._add_parts(child, lane, (*around, name), rows))
        if node.row not in rows:
            return ended
        self._add_operator(name, node, lane, around, max(node.start, ended))
        return node.end

    def _add_below(self, node: _Node, lane: int, around: tuple[str, ...], part_of: tuple[int, str] | None) -> None:
        """Add what a range is made of, as parts of one operator if it was heard whole."""
        begin = len(self.found)
        self._visit_below(node, lane, (*around, self._trace.name(node.row)))
        if part_of is not None:
            self.found[begin:] = [replace(entry, part_of=part_of) for entry in self.found[begin:]]

    def _visit_below(self, node: _Node, lane: int, around: tuple[str, ...]) -> None:
        for child in node.children:
            self.visit(child, lane, around)

    def _add_operator(self, name: str, node: _Node, lane: int, around: tuple[str, ...], start: int) -> None:
        call, cost = self._cost(node)
        entry = self._entry("operator", name, node, lane, around)
        self.found.append(replace(entry, call=call, cost=cost, start_ns=start, host_work=((start, node.end),)))

    def _saved_before(self, name: str, node: _Node) -> _Node | None:
        """The copy that autograd keeps of what an in-place operator is about to overwrite: an operator of its own.

        It runs before the operator's own work; only what is called above autograd's level has a sequence number.
        """
        first = next(filter(self._is_operator, node.children), None)
        if first is None or not name.endswith("_") or self._trace.name(first.row) != _CLONE:
            return None
        return first if int(self._trace.events.sequence[first.row]) != NONE else None

    @staticmethod
    def _entry(kind: CallKind, name: str, node: _Node, lane: int, around: tuple[str, ...]) -> Entry:
        return Entry(kind, name, node.row, lane, node.start, node.end, around)

    @claim
    def _does_work(self, name: str, node: _Node) -> bool:
        if "kernel_backend" in self._trace.arguments(node.row):
            return True  # a Triton kernel that is launched outside a compiled graph
        if not _OPERATOR.match(name) or _AROUND.match(name):
            return False
        composite = self._is_composite(name)
        if composite is None:
            parts = [self._trace.name(child.row) for child in node.children if self._is_operator(child)]
            # An overload that only calls others (``where`` with a number) calls the one that does the work.
            return name not in parts and (name in self._whole or not parts)
        if composite:
            return False
        # A custom operator without a formula is known by the operators that it is made of.
        is_known = name.startswith("aten::") or has_formula(name) or name in self.counted
        return is_known or not any(map(self._holds_work, node.children))

    def _is_heard_whole(self, name: str, node: _Node) -> bool:
        """True for an operator that a mode does not take apart: a custom one, or one on nested tensors, which have
        kernels of their own and of which a profiler knows nothing."""
        return self._is_composite(name) is False or self._is_of_nested(node)

    def _is_of_nested(self, node: _Node) -> bool:
        if self._trace.name(node.row) not in self._nested:
            return False
        call = self._cost(node)[0]
        return call is not None and bool(call.arguments) and not any((*call.arguments, *call.constants))

    def _is_handed_on(self, node: _Node) -> bool:
        """True for an operator on tensors of a subclass, which calls others on what it holds: a distributed one its
        collectives, and the same operator on this rank's shard."""
        return any(
            self._trace.name(child.row) == _SUBCLASS and any(map(self._holds_operator, child.children))
            for child in node.children
        )

    def _holds_operator(self, node: _Node) -> bool:
        return self._is_operator(node) or any(map(self._holds_operator, node.children))

    def _holds_work(self, node: _Node) -> bool:
        if not self._is_operator(node):  # the function in which autograd calls a custom operator
            return any(map(self._holds_work, node.children))
        return not _ALLOCATES.match(self._trace.name(node.row))

    def _is_operator(self, node: _Node) -> bool:
        return node.kind == EventKind.OP and bool(_OPERATOR.match(self._trace.name(node.row)))

    def _cost(self, node: _Node) -> tuple[OpCall | None, Cost]:
        columns = self._trace.events
        key = (int(columns.name[node.row]), int(columns.argument[node.row]))
        if key not in self._costs:
            name, arguments = self._trace.name(node.row), self._trace.arguments(node.row)
            call = call_from_arguments(name, arguments, list_dtype=self._list_dtype)
            self._costs[key] = (call, Cost(reason="recorded without shapes") if call is None else op_cost(call))
        return self._costs[key]

    def _collective(self, name: str, node: _Node, lane: int, around: tuple[str, ...]) -> Entry:
        recorded = self._first_below(node, "record_param_comms") or node
        arguments = self._trace.arguments(recorded.row)
        facts = {key: str(value) for key, value in arguments.items() if isinstance(value, (str, int, float))}
        if name == "record_param_comms" and "Collective name" in facts:
            name = f"c10d::{facts['Collective name']}"
        return replace(
            self._entry("collective", name, node, lane, around),
            cost=collective_cost(arguments) or Cost(reason="the trace holds no message sizes for this collective"),
            call=self._cost(node)[0],
            host_work=((node.start, node.end),),
            facts=facts,
            message=collective_message(arguments),
        )

    def _first_below(self, node: _Node, name: str) -> _Node | None:
        for child in node.children:
            if self._trace.name(child.row) == name:
                return child
            if (found := self._first_below(child, name)) is not None:
                return found
        return None

    def _synchronizations_below(self, node: _Node, lane: int, around: tuple[str, ...]) -> None:
        for child in node.children:
            if child.kind == EventKind.RUNTIME:
                self.visit(child, lane, around)
            else:
                self._synchronizations_below(child, lane, (*around, self._trace.name(child.row)))

    def _work_in_graph(self, node: _Node) -> Iterator[tuple[int, int]]:
        """When the outermost operators and kernels inside a graph's call ran, allocations and views aside."""
        for child in node.children:
            name = self._trace.name(child.row)
            if child.kind != EventKind.OP or _is_region(name):
                yield from self._work_in_graph(child)
            elif not _ALLOCATES.match(name):
                yield child.start, child.end


def _is_collective(name: str) -> bool:
    return name == RECORDED_COLLECTIVE or (name.startswith(OF_GROUPS) and not name.lstrip("_").startswith(_WRAPS))


def _is_region(name: str) -> bool:
    return name.startswith(("## Call", "Torch-Compiled Region", "CompiledFunction", "inductor_wrapper_call"))


def _with_events(
    trace: Trace, entries: Sequence[Entry], events: Sequence[DeviceEvent], window: tuple[int, int]
) -> list[Entry]:
    """Give each device event to the entry in which it was launched, and make entries of what was launched elsewhere."""
    given: dict[int, list[DeviceEvent]] = defaultdict(list)
    others: dict[tuple[int, str], list[DeviceEvent]] = defaultdict(list)
    find = _finder(entries)
    columns = trace.events
    for event in events:
        launch = int(trace.launch_of[event.row]) if event.row is not None else NONE
        if launch == NONE or not window[0] <= int(columns.start_ns[launch]) < window[1]:
            continue
        index = find(int(columns.lane[launch]), int(columns.start_ns[launch]))
        if index is not None:
            given[index].append(event)
        else:
            op = int(trace.op_of[launch])
            name = kernel_label(event.name) if op == NONE else trace.name(op)
            others[launch if op == NONE else op, name].append(event)
    found = [_with_own_events(entry, given[index]) if index in given else entry for index, entry in enumerate(entries)]
    for (row, name), members in others.items():
        found.append(
            Entry(
                kind="copy" if all(_is_host_copy(event) for event in members) else "operator",
                name=name,
                row=row,
                lane=int(columns.lane[row]),
                start_ns=int(columns.start_ns[row]),
                end_ns=int(columns.end_ns[row]),
                cost=_sum(event.cost for event in members),
                events=tuple(members),
            )
        )
    return sorted(found, key=lambda entry: (entry.start_ns, -entry.end_ns))


def _finder(entries: Sequence[Entry]) -> Callable[[int, int], int | None]:
    """Which entry's host part covers a moment of a thread; the outermost where one lies inside another."""
    by_lane: dict[int, list[int]] = defaultdict(list)
    for index, entry in enumerate(entries):
        if entry.kind != "synchronization":
            by_lane[entry.lane].append(index)
    starts: dict[int, list[int]] = {}
    for lane, members in by_lane.items():
        members.sort(key=lambda index: entries[index].start_ns)
        starts[lane] = [entries[index].start_ns for index in members]

    def find(lane: int, moment: int) -> int | None:
        if lane not in starts:
            return None
        position = bisect.bisect_right(starts[lane], moment) - 1
        if position < 0:
            return None
        index = by_lane[lane][position]
        return index if entries[index].end_ns >= moment else None

    return find


def _with_own_events(entry: Entry, events: Sequence[DeviceEvent]) -> Entry:
    if entry.kind == "operator" and all(_is_host_copy(event) for event in events):
        return replace(entry, kind="copy", events=tuple(events), cost=_sum(event.cost for event in events))
    if entry.kind == "operator" and not entry.cost.is_known:
        cost = _sum(event.cost for event in events)
        return replace(entry, events=tuple(events), cost=cost if cost.is_known else entry.cost)
    if entry.kind == "collective" and not entry.cost.is_known:
        return replace(entry, events=tuple(events), cost=_sum(event.cost for event in events))
    return replace(entry, events=tuple(events))


def _is_host_copy(event: DeviceEvent) -> bool:
    return event.kind == "memcpy" and bool(_BETWEEN_HOST_AND_DEVICE.search(event.name))


def _sum(costs: Iterable[Cost]) -> Cost:
    """Work of several device events; unknown if any is."""
    members = list(costs)
    flops = [cost.flops for cost in members]
    moved = [cost.bytes_moved for cost in members]
    reasons = [cost.reason for cost in members if cost.reason]
    return Cost(
        None if None in flops else sum(each for each in flops if each is not None),
        None if None in moved else sum(each for each in moved if each is not None),
        "unavailable" if None in flops else "exact" if not any(flops) else "estimated",
        "unavailable" if None in moved else "estimated",
        reasons[0] if reasons else None,
    )
