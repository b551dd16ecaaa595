"""The work of a compiled graph's call in a step: how often it made each of its launches, at which sizes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from torchledger.capturing.conditionals import Fork, Loop, Regions, stands_in
from torchledger.nouns import DeviceEvent, Direction, Launch, Quality, StepCall
from torchledger.stepping.entries import Entry
from torchledger.stepping.inner_work import InnerWork
from torchledger.traces.graph_marks import parse_graph_mark
from torchledger.work.sizes import sizes_at


@dataclass(frozen=True)
class Ledgered:
    """What the ledger holds of compiled graphs: directions and launches, at the sizes of their capture; ``kernels`` are
    their kernels on a CPU, ``forks`` the places where a graph takes one of several ways or goes in circles.
    ``assumed`` says by graph how often launches are taken to be made (``launch_id``) in a call of which no kernel was
    seen, where that is not once."""

    directions: Mapping[str, Direction]
    launches: Mapping[str, Sequence[Launch]]
    kernels: Sequence[DeviceEvent] = ()
    forks: Mapping[str, Sequence[Fork]] = field(default_factory=dict)
    assumed: Mapping[str, Mapping[str, int]] = field(default_factory=dict)


def with_graph(
    call: StepCall, entry: Entry, ledgered: Ledgered, number: int, inside: Mapping[str, InnerWork] | None = None
) -> StepCall:
    """A graph's call with its work: the graph's ``number``-th of the step, at the sizes that its mark holds.

    ``inside`` is the work of launches that have none of their own.
    """
    launches = ledgered.launches.get(entry.name, ())
    seen = _launches_seen(entry, ledgered.kernels)
    times = _times(
        launches, seen, ledgered.forks.get(entry.name, ()), {} if seen else ledgered.assumed.get(entry.name, {})
    )
    orders = [(launch.order, times.get(launch.launch_id, 1)) for launch in launches]
    calls = [times.get(launch.launch_id, 1) for launch in launches if launch.is_call]
    launches = [launch for launch in launches if times.get(launch.launch_id) != 0]
    marked = parse_graph_mark(entry.mark) if entry.mark is not None else None
    symbols = marked[1] if marked is not None else {}
    if symbols:
        launches = sizes_at(launches, symbols)
    known = inside or {}
    seen_inside = {launch.order: known[launch.launch_id] for launch in launches if launch.launch_id in known}
    launches = [
        replace(launch, flops=work.flops, flops_quality=work.quality)
        if (work := seen_inside.get(launch.order)) is not None
        else launch
        for launch in launches
    ]
    each = [times.get(launch.launch_id, 1) for launch in launches]
    flops, unknown_flops = _known([launch.flops for launch in launches], each)
    moved, unknown_bytes = _known([launch.bytes_moved for launch in launches], each)
    unknown = [
        f"the {what} of {count} of its {len(launches)} entries are unknown"
        for what, count in (("FLOPs", unknown_flops), ("bytes", unknown_bytes))
        if count
    ]
    return replace(
        call,
        call=number,
        launches=sum(times.get(launch, 1) for launch in seen) or None,
        not_taken=calls.count(0),
        repeated=sum(count - 1 for count in calls if count),
        times=tuple((order, count) for order, count in orders if count != 1),
        flops=flops,
        flops_quality=_weakest([launch.flops_quality for launch in launches]) if flops is not None else "unavailable",
        bytes_moved=moved,
        bytes_quality=_weakest([launch.bytes_quality for launch in launches]) if moved is not None else "unavailable",
        reason="; ".join(unknown) or None,
        sizes=tuple(symbols.items()),
        inside=tuple((order, work.flops) for order, work in seen_inside.items()),
    )


def _launches_seen(entry: Entry, kernels: Sequence[DeviceEvent]) -> Counter[str]:
    """How many kernels of which of a graph's launches were seen in a call; none where they were not told apart."""
    ran = entry.events or [event for event in kernels if entry.start_ns <= event.start_ns < entry.end_ns]
    return Counter(event.launch_id for event in ran if event.launch_id is not None)


def _times(
    launches: Sequence[Launch], seen: Counter[str], forks: Sequence[Fork], assumed: Mapping[str, int]
) -> dict[str, int]:
    """How often launches were made in a call, where that is not once.

    A loop made as many turns as that launch of its body was seen of which least was: one may have several kernels. Ways
    of a conditional of which nothing was seen were not taken. Where nothing at all was seen it is as ``assumed``. A
    region is made as often as lines call it.
    """
    times = _turns_and_ways(launches, seen, forks) if seen else dict(assumed)
    for regions in (fork for fork in forks if isinstance(fork, Regions)):
        for launch in launches:
            if launch.launch_id not in times and launch.wrapper_line is not None:
                count = regions.times(regions.function_at(launch.wrapper_line))
                times |= {launch.launch_id: count} if count > 1 else {}
    return times


def _turns_and_ways(launches: Sequence[Launch], seen: Counter[str], forks: Sequence[Fork]) -> dict[str, int]:
    times: dict[str, int] = {}
    for loop in (fork for fork in forks if isinstance(fork, Loop)):
        body = [launch.launch_id for launch in launches if stands_in(launch, loop.body)]
        turns = min((seen[launch] for launch in body if seen[launch]), default=0)
        times |= dict.fromkeys(body, turns)
        times |= {launch.launch_id: turns + 1 for launch in launches if stands_in(launch, loop.check)}
    for way in (way for fork in forks if not isinstance(fork, (Loop, Regions)) for way in fork):
        inside = [launch.launch_id for launch in launches if stands_in(launch, way)]
        if not any(seen[launch] for launch in inside):
            times |= dict.fromkeys(inside, 0)
    return times


def _known(values: Sequence[int | None], times: Sequence[int]) -> tuple[int | None, int]:
    """The sum of what is known, each so many times (``None`` for nothing), and how many are not."""
    known = [count * value for value, count in zip(values, times, strict=True) if value is not None]
    return (sum(known) if known or not values else None), len(values) - len(known)


_WEAKER: tuple[Quality, ...] = ("exact", "measured", "estimated", "upper_bound", "unavailable")


def _weakest(qualities: Sequence[Quality]) -> Quality:
    return max(qualities, key=_WEAKER.index, default="exact")
