"""The collectives of a planned step: what each was, who asked for it, and which call waits for it.

Eager ones were heard with their places on streams; those of compiled code are launches of their graphs.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from torchledger.nouns import Collective, Launch, StepCall
from torchledger.stepping.communication import launched_by_of, operation_of
from torchledger.work.collectives import collective_kind
from torchledger.work.graph_collectives import WAIT, GraphCollective, graph_collectives
from torchledger.work.op_shapes import OpCall

if TYPE_CHECKING:
    from torchledger._torch.eager_calls import EagerCall, HostWait
    from torchledger._torch.fakes.streams import Placed
    from torchledger.stepping.record import StepRecord

_BUCKET = "AccumulateGrad"


def place_calls(
    record: StepRecord,
    heard: Sequence[EagerCall],
    graphs: Sequence[tuple[str, Placed]],
    host_waits: Sequence[HostWait] = (),
) -> tuple[StepCall, ...]:
    """The calls of a step with the stream of each and what it waits for, by what was heard of their places.

    What launches nothing (a view, an allocation) waits for nothing: what comes after it does.
    """
    calls = list(record.calls)
    placed: list[tuple[Placed, int | None]] = []
    for place, each in enumerate(heard):
        order = record.places.get(place)
        if each.placed is not None and order is not None:
            calls[order] = replace(calls[order], replay=each.placed.replay)
        if each.placed is not None:
            placed.append((each.placed, order if order is not None and _does_work(calls[order]) else None))
    of_graphs = [call.order for call in calls if call.kind == "graph"]
    placed += [(at, order) for (_, at), order in zip(graphs, of_graphs, strict=True)]
    placed += [(each.placed, record.waits.get(place)) for place, each in enumerate(host_waits)]
    waits = waits_of_calls(placed)
    for at, order in placed:
        if order is not None:
            after = waits.get(order, ())
            calls[order] = replace(calls[order], streams=(at.stream,), waits_for=after, replay=at.replay)
    return tuple(calls)


def _does_work(call: StepCall) -> bool:
    return call.kind != "operator" or call.kernels > 0


def waits_of_calls(placed: Iterable[tuple[Placed, int | None]]) -> dict[int, tuple[int, ...]]:
    """By ``order``, the calls on other streams that each call of a step waits for.

    ``placed`` is all work that was put on streams, with the ``order`` of the step's call that it became; ``None`` for
    what is no call of the step (a view, an allocation), whose waits pass on to what comes after it on its stream.
    """
    order_of: dict[int, int] = {}
    stream_of: dict[int, str] = {}
    ends: dict[int, frozenset[int]] = {}
    last: dict[str, int] = {}
    carried: dict[str, frozenset[int]] = defaultdict(frozenset)
    found: dict[int, tuple[int, ...]] = {}
    for each, order in sorted(placed, key=lambda pair: pair[0].number):
        stream = each.stream
        needs = carried[stream].union(
            *(
                frozenset((order_of[number],)) if number in order_of else ends.get(number, frozenset())
                for number in each.waits_for
            )
        )
        if order is None:
            carried[stream] = needs
            ends[each.number] = needs | ({last[stream]} if stream in last else frozenset())
            continue
        carried[stream] = frozenset()
        order_of[each.number], stream_of[order], last[stream] = order, stream, order
        others = tuple(sorted(number for number in needs if stream_of[number] != stream))
        if others:
            found[order] = others
    return found


def collectives_of_step(
    calls: Sequence[StepCall],
    launches: Mapping[str, Sequence[Launch]],
    groups: Mapping[str, Sequence[int]],
    heard: Mapping[int, EagerCall] | None = None,
) -> list[Collective]:
    """The collectives of a step in the order in which the host asks for them, without times.

    ``launches`` are those of each compiled graph, ``groups`` the ranks of each process group by its name, ``heard``
    what was heard of the eager collectives, by the ``order`` of their calls.
    """
    waited: dict[int, int] = {}
    for call in calls:
        for order in call.waits_for:
            waited.setdefault(order, call.order)
    found: list[Collective] = []
    buckets = 0
    for call in calls:
        if call.kind == "graph":
            found += _of_graph(call, launches.get(call.name, ()), groups, len(found))
        elif call.kind == "collective":
            asked = (heard or {}).get(call.order)
            launched_by = None if asked is None else launched_by_of(asked)
            if launched_by is None and asked is not None and _BUCKET in (asked.node or ""):
                launched_by, buckets = f"bucket {buckets}", buckets + 1
            found.append(_eager(call, asked, groups, len(found), launched_by, waited.get(call.order)))
    return found


def _eager(
    call: StepCall,
    asked: EagerCall | None,
    groups: Mapping[str, Sequence[int]],
    order: int,
    launched_by: str | None,
    waited_by: int | None,
) -> Collective:
    operation = operation_of(call.name) or "other"
    ranks = tuple(groups.get(call.group or "", ()))
    return Collective(
        step=call.step,
        index=0,
        order=order,
        operation=operation,
        name=call.name,
        group=call.group,
        group_size=call.group_size or len(ranks) or None,
        ranks=ranks,
        peer=_peer(asked.call) if asked is not None and operation in ("send", "recv") else None,
        dtype=call.arguments[0].dtype if call.arguments else None,
        message_bytes=call.message_bytes,
        stream=call.streams[0] if call.streams else None,
        launched_by=launched_by,
        source=call.sources[-1] if call.sources else None,
        call=call.order,
        waited_by=waited_by,
        batch=asked.placed.batch if asked is not None and asked.placed is not None else None,
    )


def _peer(call: OpCall) -> int | None:
    """The rank, counted in the group, that a send or a receive names: its third argument."""
    text = call.constants[2] if len(call.constants) > 2 else ""
    return int(text) if text.isdigit() else None


def _of_graph(
    call: StepCall, launches: Sequence[Launch], groups: Mapping[str, Sequence[int]], first: int
) -> Iterator[Collective]:
    """Collectives that a compiled graph launches; what it waits for itself is waited for by its own call."""
    for place, (collective, is_awaited) in enumerate(_awaited(launches)):
        launch, group = collective.launch, collective.group
        ranks = tuple(groups.get(group or "", ()))
        size = len(ranks) or collective.group_size
        yield Collective(
            step=call.step,
            index=0,
            order=first + place,
            operation=operation_of(collective.operator) or "other",
            name=collective.operator,
            group=group,
            group_size=size,
            ranks=ranks,
            dtype=launch.buffers[0].dtype if launch.buffers else None,
            message_bytes=collective.message_bytes(size),
            stream=f"communication {group}" if group else None,
            launched_by=call.name,
            source=launch.source,
            call=call.order,
            launch=launch.order,
            waited_by=call.order if is_awaited else None,
        )


def _awaited(launches: Sequence[Launch]) -> Iterator[tuple[GraphCollective, bool]]:
    """The collectives of a compiled graph, each with whether the graph waits for it."""
    found = list(graph_collectives(launches).values())
    for place, collective in enumerate(found):
        if collective_kind(collective.name) is None:
            continue
        buffers = collective.launch.buffers
        made = {buffer.name for buffer in buffers if buffer.role != "input"} or {buffer.name for buffer in buffers}
        yield (
            collective,
            collective.waits_itself
            or any(
                later.name == WAIT and made & {buffer.name for buffer in later.launch.buffers}
                for later in found[place + 1 :]
            ),
        )
