"""A rank's collectives out of a trace: what each was, when the host asked for it, and when it ran.

NCCL writes what it needs to say of itself into ``record_param_comms``. gloo does not: its operator holds the tensors, a
range on its own thread holds when it ran, and the group is known from the step that a dispatch mode heard.
"""

from __future__ import annotations

import re
from collections import defaultdict, deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from difflib import SequenceMatcher
from typing import TYPE_CHECKING, Any

from torchledger.nouns import Collective, CollectiveOperation, DeviceEvent
from torchledger.stepping.process_groups import ProcessGroups, text_of, whole_number
from torchledger.traces.collective_messages import collective_message
from torchledger.traces.graph_marks import parse_graph_mark
from torchledger.traces.recorded_calls import call_from_arguments
from torchledger.traces.trace import NONE, EventKind, Trace
from torchledger.work.collectives import collective_kind, message_of_call
from torchledger.work.op_shapes import OpCall

if TYPE_CHECKING:
    from torchledger._torch.eager_calls import EagerCall

RECORDED = "record_param_comms"
FUNCTIONAL = re.compile(r"^(_?c10d_functional(_autograd)?::(?!wait_tensor|_wrap_tensor)|_dtensor::shard_dim_alltoall$)")
_SITE = re.compile(rf"^(c10d::(?!.*Work)|{RECORDED}$)")
_RANGE = re.compile(r"^(gloo|mpi|ucc|nccl|xccl|hccl):(?P<name>\w+)$")
_ALGORITHM = re.compile(
    r"_(?P<algorithm>RING|TREE|NVLS_TREE|NVLS|COLLNET_\w+?|PAT)_(?P<protocol>LL128|LL|SIMPLE)", re.I
)
_BUCKET = "torch::autograd::AccumulateGrad"
_STANDS_FOR: Mapping[str, tuple[str, ...]] = {"reduce_scatter": ("reduce_scatter", "all_reduce")}
"""What a backend runs in place of an operation that it lacks: gloo reduces everywhere and keeps a part."""


_OPERATIONS: Mapping[str, CollectiveOperation] = {
    "all_reduce": "all_reduce",
    "all_gather": "all_gather",
    "reduce_scatter": "reduce_scatter",
    "all_to_all": "all_to_all",
    "broadcast": "broadcast",
    "reduce": "reduce",
    "gather": "gather",
    "scatter": "scatter",
    "recv_any_source": "recv",
    "barrier": "barrier",
    "monitored_barrier": "barrier",
}


@dataclass
class _Site:
    """Where the host asked for a collective: its row, and the rows of what the backend wrote inside."""

    row: int
    lane: int
    start: int
    end: int
    recorded: list[int] = field(default_factory=list)
    functional: int | None = None

    @property
    def called(self) -> int:
        """The row of what the program, or the code that was compiled from it, called."""
        return self.row if self.functional is None else self.functional


def read_collectives(
    trace: Trace,
    spans: Sequence[tuple[int, int]],
    events: Sequence[DeviceEvent],
    *,
    step: str,
    heard: Sequence[EagerCall] = (),
    sources: Mapping[int, str] | None = None,
) -> list[Collective]:
    """The collectives that were asked for inside the ``spans`` (one for each recorded step, nanoseconds in the trace).

    ``events`` are the trace's device events; ``heard`` the collectives that a dispatch mode heard in another step, with
    their groups. ``sources`` maps rows of host events to the user's lines. Moments become those of the rank's clock.
    """
    sites = _sites(trace, (spans[0][0], spans[-1][1]))
    origin = clock_origin_ns(trace)
    kernels = _kernels_by_site(trace, sites, events)
    ranges = _ranges_by_site(trace, sites) if not kernels else {}
    groups = ProcessGroups(trace)
    calls = _heard_by_site(trace, sites, spans, heard)
    found = []
    for index, (start, end) in enumerate(spans):
        members = [place for place, site in enumerate(sites) if start <= site.start < end]
        buckets = 0
        for order, place in enumerate(members):
            site, call = sites[place], calls.get(place)
            facts = _facts(trace, site)
            ran = kernels.get(place) or ranges.get(place)
            launched_by = _launched_by(trace, site, call)
            if launched_by is None and _is_in_bucket(trace, site):
                launched_by, buckets = f"bucket {buckets}", buckets + 1
            source = (sources or {}).get(site.row)
            if source is None and call is not None and call.sources:
                source = call.sources[-1]
            group = text_of(facts.get("Process Group Name")) or (call.group if call is not None else None)
            size, ranks = groups.of(group, facts)
            nbytes, dtype = _message(trace, site, facts, call, size, ran)
            name = trace.name(site.called)
            if name == RECORDED:
                name = f"c10d::{facts.get('Collective name', 'unknown')}"
            found.append(
                Collective(
                    step=step,
                    index=index,
                    order=order,
                    operation=_operation(trace, site, facts),
                    name=name,
                    issued_ns=origin + site.start,
                    started_ns=None if ran is None else origin + ran.start,
                    ended_ns=None if ran is None else origin + ran.end,
                    group=group or groups.only,
                    group_size=size,
                    ranks=ranks,
                    sequence=whole_number(facts.get("Seq")),
                    peer=_peer(trace, site, facts),
                    dtype=dtype,
                    message_bytes=nbytes,
                    stream=None if ran is None else ran.stream,
                    algorithm=None if ran is None else ran.algorithm,
                    launched_by=launched_by,
                    source=source,
                )
            )
    return found


def clock_origin_ns(trace: Trace) -> int:
    """What is added to a trace's nanoseconds to have those of the clock of the machine that wrote it."""
    base = trace.metadata.get("baseTimeNanoseconds")
    return round(trace.origin_us * 1e3) + (base if isinstance(base, int) else 0)


def operation_of(name: str) -> CollectiveOperation | None:
    """What an operator of c10d's, or a backend's range, does; ``None`` for what is no collective.

    >>> operation_of("c10d::_allgather_base_"), operation_of("gloo:recv"), operation_of("c10d::barrier")
    ('all_gather', 'recv', 'barrier')
    """
    tail = name.rsplit(":", 1)[-1].strip("_")
    kind = collective_kind(name)
    if kind == "p2p":
        return "send" if tail.startswith("send") else "recv"
    return _OPERATIONS.get(kind or tail)


# --- where they were asked for --------------------------------------------------------------------------------------


def _sites(trace: Trace, window: tuple[int, int]) -> list[_Site]:
    """Outermost operators of c10d in the window, in order of their starts, each with the records inside it."""
    columns = trace.events
    by_name = {place: bool(_SITE.match(name)) for place, name in enumerate(trace.names)}
    functional = {place for place, name in enumerate(trace.names) if FUNCTIONAL.match(name)}
    rows = trace.rows(EventKind.OP)
    rows = rows[(columns.start_ns[rows] >= window[0]) & (columns.start_ns[rows] < window[1])]
    by_lane: dict[int, list[tuple[int, int, int]]] = defaultdict(list)
    for row, name, lane, start, end in zip(
        rows.tolist(),
        columns.name[rows].tolist(),
        columns.lane[rows].tolist(),
        columns.start_ns[rows].tolist(),
        columns.end_ns[rows].tolist(),
        strict=True,
    ):
        if by_name[name] or name in functional:
            by_lane[lane].append((start, -end, row))
    found: list[_Site] = []
    for lane, members in by_lane.items():
        around: _Site | None = None
        outer: tuple[int, int] | None = None
        for start, negative_end, row in sorted(members):
            end = -negative_end
            if int(columns.name[row]) in functional:
                outer = (row, end)
                continue
            if around is None or start >= around.end:
                inside = outer[0] if outer is not None and start < outer[1] else None
                around = _Site(row, lane, start, end, functional=inside)
                if _counts(trace, row):
                    found.append(around)
            if trace.name(row) == RECORDED:
                around.recorded.append(row)
    return sorted(found, key=lambda site: site.start)


def _counts(trace: Trace, row: int) -> bool:
    """False for what the backend notes of itself and for operators that ask for nothing."""
    name = trace.name(row)
    if name == RECORDED:
        called = str(trace.arguments(row).get("Collective name", ""))
        return called not in ("wait", "init", "") or not called
    return operation_of(name) is not None


def _operation(trace: Trace, site: _Site, facts: Mapping[str, Any]) -> CollectiveOperation:
    name = trace.name(site.row)
    if name == RECORDED:
        name = str(facts.get("Collective name", ""))
    return operation_of(name) or "other"


def _facts(trace: Trace, site: _Site) -> Mapping[str, Any]:
    """What the backend recorded; of several calls that it put together, the first's."""
    for row in site.recorded:
        arguments = trace.arguments(row)
        if "Collective name" in arguments:
            return arguments
    return {}


def _launched_by(trace: Trace, site: _Site, call: EagerCall | None) -> str | None:
    """The compiled graph, or the part of torch and the module, that asked."""
    graph = _graph_around(trace, site)
    if graph is not None:
        return graph
    return None if call is None else launched_by_of(call)


def launched_by_of(call: EagerCall) -> str | None:
    """The part of torch and the module that asked for an eager collective (``"FSDP: blocks.3"``), by its stack."""
    parts = [part for file in call.library if (part := _part_of_torch(file)) is not None]
    owner = call.module
    if parts:
        return f"{parts[0]}: {owner}" if owner else parts[0]
    return owner


PIPELINE = "pipeline"
"""``Collective.launched_by`` of messages that a schedule of ``torch.distributed.pipelining`` asks for."""

_PARTS = (
    (re.compile(r"_fully_shard|/fsdp/"), "FSDP"),
    (re.compile(r"distributed/pipelining/"), PIPELINE),
    (re.compile(r"context_parallel|_attention"), "context parallel"),
    (re.compile(r"distributed/tensor/"), "DTensor"),
    (re.compile(r"nn/parallel/distributed|_composable/replicate"), "DDP"),
)


def _part_of_torch(file: str) -> str | None:
    return next((part for pattern, part in _PARTS if pattern.search(file)), None)


def _graph_around(trace: Trace, site: _Site) -> str | None:
    columns = trace.events
    rows = trace.rows(EventKind.ANNOTATION)
    inside = rows[
        (columns.lane[rows] == site.lane) & (columns.start_ns[rows] <= site.start) & (columns.end_ns[rows] >= site.end)
    ]
    for row in inside.tolist()[::-1]:
        marked = parse_graph_mark(trace.name(row))
        if marked is not None:
            return marked[0]
    return None


def _is_in_bucket(trace: Trace, site: _Site) -> bool:
    """True where a parameter's gradient was the last of its bucket."""
    return any(_BUCKET in trace.name(row) for row in trace.op_chain(site.row))


# --- when they ran --------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Ran:
    start: int
    end: int
    stream: str | None = None
    dtype: str | None = None
    algorithm: str | None = None


def _kernels_by_site(trace: Trace, sites: Sequence[_Site], events: Sequence[DeviceEvent]) -> dict[int, _Ran]:
    """From the first kernel's start to the last one's end of what a site launched on the device."""
    by_lane: dict[int, list[int]] = defaultdict(list)
    for place, site in enumerate(sites):
        by_lane[site.lane].append(place)
    given: dict[int, list[DeviceEvent]] = defaultdict(list)
    position: dict[int, int] = {}
    columns = trace.events
    launched = []
    for event in events:
        if event.row is None or event.category != "collective":
            continue
        launch = int(trace.launch_of[event.row])
        if launch != NONE:
            launched.append((int(columns.start_ns[launch]), int(columns.lane[launch]), event))
    for moment, lane, event in sorted(launched, key=lambda each: each[0]):
        places, at = by_lane.get(lane, []), position.get(lane, 0)
        while at + 1 < len(places) and sites[places[at + 1]].start <= moment:
            at += 1
        position[lane] = at
        if places and sites[places[at]].start <= moment:
            given[places[at]].append(event)
    found = {
        place: _Ran(
            min(event.start_ns for event in some),
            max(event.start_ns + event.duration_ns for event in some),
            f"{some[0].device}/{some[0].stream}",
            algorithm=_algorithm(some[0].name),
        )
        for place, some in given.items()
    }
    if found:
        for places in by_lane.values():
            _share_batches(trace, sites, places, found)
    return found


def _algorithm(kernel: str) -> str | None:
    """How a collective moves its message, by its kernel's name.

    >>> _algorithm("ncclDevKernel_AllReduce_Sum_bf16_RING_LL(ncclDevKernelArgsStorage<4096ul>)")
    'ring, LL'
    """
    match = _ALGORITHM.search(kernel)
    return None if match is None else f"{match['algorithm'].lower()}, {match['protocol']}"


def _share_batches(trace: Trace, sites: Sequence[_Site], places: Sequence[int], found: dict[int, _Ran]) -> None:
    """Sends and receives that were put together run in the kernel that the last of them launched."""
    for before, after in zip(places[-2::-1], places[:0:-1], strict=True):
        both = {_operation(trace, sites[place], _facts(trace, sites[place])) for place in (before, after)}
        if before not in found and after in found and both <= {"send", "recv"}:
            found[before] = found[after]


def _ranges_by_site(trace: Trace, sites: Sequence[_Site]) -> dict[int, _Ran]:
    """A backend's ranges on its own threads: each belongs to the first site before it that asked for such a thing."""
    columns = trace.events
    waiting: dict[tuple[str, int | None], deque[tuple[int, _Ran]]] = defaultdict(deque)
    for row in trace.rows(EventKind.ANNOTATION).tolist():
        match = _RANGE.match(trace.name(row))
        operation = operation_of(match["name"]) if match is not None else None
        if operation is None:
            continue
        arguments = trace.arguments(row)
        call = call_from_arguments(trace.name(row), arguments)
        tensor = call.tensors[0] if call is not None and call.tensors else None
        start, end = int(columns.start_ns[row]), int(columns.end_ns[row])
        ran = _Ran(start, end, trace.lanes[columns.lane[row]].name, None if tensor is None else tensor.dtype)
        waiting[operation, None if tensor is None else tensor.numel].append((start, ran))
    for queue in waiting.values():
        ordered = sorted(queue, key=lambda each: each[0])
        queue.clear()
        queue.extend(ordered)
    found: dict[int, _Ran] = {}
    for place, site in enumerate(sites):
        operation = _operation(trace, site, {})
        elements = _elements(trace, site)
        for name in _STANDS_FOR.get(operation, (operation,)):
            keys = [(name, size) for size in (*elements, None)]
            ready = [key for key in keys if _drop_before(waiting.get(key), site.start)]
            if ready:
                best = min(ready, key=lambda key: waiting[key][0][0])
                found[place] = waiting[best].popleft()[1]
                break
    return found


def _drop_before(queue: deque[tuple[int, _Ran]] | None, moment: int) -> bool:
    while queue and queue[0][0] < moment:
        queue.popleft()
    return bool(queue)


def _elements(trace: Trace, site: _Site) -> tuple[int, ...]:
    call = _call(trace, site)
    return tuple(dict.fromkeys(tensor.numel for tensor in call.tensors)) if call is not None else ()


def _call(trace: Trace, site: _Site, list_dtype: str | None = None) -> OpCall | None:
    return call_from_arguments(trace.name(site.row), trace.arguments(site.row), list_dtype=list_dtype)


# --- what they were -------------------------------------------------------------------------------------------------


def _message(
    trace: Trace, site: _Site, facts: Mapping[str, Any], call: EagerCall | None, size: int | None, ran: _Ran | None
) -> tuple[int | None, str | None]:
    """Bytes of the message and the dtype, by the best that is known."""
    if _operation(trace, site, facts) == "barrier":
        return 0, None
    recorded = [message for row in site.recorded if (message := collective_message(trace.arguments(row))) is not None]
    if recorded:
        return sum(message.nbytes for message in recorded), text_of(facts.get("dtype"))
    shapes = call.call if call is not None and call.call.name == trace.name(site.row) else None
    if shapes is None:
        shapes = _call(trace, site, None if ran is None else ran.dtype)
    if shapes is None:
        return None, None
    message = message_of_call(shapes, size)
    if message is None and (beside := _backend_range(trace, site)) is not None:
        shapes, message = beside, message_of_call(beside, size)
    dtype = next((tensor.dtype for tensor in shapes.tensors if tensor.bytes is not None), None)
    return None if message is None else message.nbytes, dtype


def _backend_range(trace: Trace, site: _Site) -> OpCall | None:
    """What the backend's own range around the launch was given; before 2024 that alone holds an all_reduce's size."""
    columns = trace.events
    rows = trace.rows(EventKind.ANNOTATION)
    inside = rows[
        (columns.lane[rows] == site.lane) & (columns.start_ns[rows] >= site.start) & (columns.end_ns[rows] <= site.end)
    ]
    for row in inside.tolist():
        if _RANGE.match(trace.name(row)):
            return call_from_arguments(trace.name(row), trace.arguments(row))
    return None


def _peer(trace: Trace, site: _Site, facts: Mapping[str, Any]) -> int | None:
    operation = _operation(trace, site, facts)
    if operation not in ("send", "recv"):
        return None
    recorded = whole_number(facts.get("Dst Rank" if operation == "send" else "Src Rank"))
    if recorded is not None and recorded >= 0:
        return recorded
    inputs = trace.arguments(site.row).get("Concrete Inputs")
    if isinstance(inputs, list) and len(inputs) > 2:
        return whole_number(inputs[2])
    return None


def _heard_by_site(
    trace: Trace, sites: Sequence[_Site], spans: Sequence[tuple[int, int]], heard: Sequence[EagerCall]
) -> dict[int, EagerCall]:
    """What the mode heard of each site: calls of one step, in order, by name; functional ones by their own."""
    calls = [call for call in heard if _SITE.match(call.call.name) or FUNCTIONAL.match(call.call.name)]
    names = [call.call.name for call in calls]
    found: dict[int, EagerCall] = {}
    for start, end in spans:
        members = [place for place, site in enumerate(sites) if start <= site.start < end]
        ours = [trace.name(sites[place].called) for place in members]
        found |= {members[left]: calls[right] for left, right in _pairs(ours, names)}
    return found


def _pairs(left: Sequence[str], right: Sequence[str]) -> Iterator[tuple[int, int]]:
    for block in SequenceMatcher(None, left, right, autojunk=False).get_matching_blocks():
        yield from ((block.a + offset, block.b + offset) for offset in range(block.size))
