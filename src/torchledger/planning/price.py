"""The price of a recorded step over ranks: entries out of each distinct rank's calls, played together on a fabric."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain
from typing import Any

import numpy as np

from torchledger.errors import PredictError
from torchledger.fitting.learning import COVERAGE
from torchledger.fitting.machine import Machine
from torchledger.fitting.time_model import TimeModel
from torchledger.nouns import Fabric, Host, Launch, PlannedRank, PlannedStep, Prediction, StepCall
from torchledger.planning.fabric import placement_of, price_collective
from torchledger.planning.sharing import find_sharing, rounds_beside, sharing_of
from torchledger.planning.tiles import tiles_of_calls, tiles_of_launches
from torchledger.planning.timeline import COMPUTE_STREAM, PlayedStep, Sharing, TimedEntry, play
from torchledger.predicting.launches import predict_launches
from torchledger.predicting.operators import ROOFLINE
from torchledger.predicting.overheads import (
    Mode,
    call_host_us,
    eager_call_us,
    further_kernels,
    graph_collective_us,
    idle_call_us,
    launch_kind,
    overheads_of,
    overheads_on,
)
from torchledger.predicting.power import StepWork, is_product, mean_clock, sustained_share, work_of
from torchledger.predicting.step_calls import price_calls
from torchledger.work.collectives import collective_kind
from torchledger.work.graph_collectives import WAIT, GraphCollective, graph_collectives
from torchledger.work.graph_names import direction_of
from torchledger.work.step_traffic import step_traffic, step_trains

_COUNTS = 0.02
"""A share of the device's time that is worth a sentence."""

_MOST_NAMED = 4

_PRICED = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all", "broadcast", "reduce", "p2p")
_POINT_TO_POINT = ("send", "recv", "isend", "irecv")


@dataclass(frozen=True)
class RankProgram:
    """The step of one rank, as it was recorded with or without devices.

    ``calls`` are in the order in which the host makes them, ``launches`` those of each compiled graph. ``groups`` names
    the global ranks of each process group, ``stands_for`` the ranks whose step is like this one's (itself among them).
    ``waits`` maps a call's ``order`` to the collectives (by ``order``) that must have ended before it; one that
    no call waits for is waited for by the next call of the rank, or, in the backward, by the first call after it.
    ``by_fsdp`` are the collectives, by ``order``, that FSDP's hooks ask for. ``peers`` maps the ``order`` of a send or
    a receive to the other rank. ``knows_waits``: ``waits`` holds all waits between streams, of any call, and nothing
    else is waited for.
    """

    rank: int
    calls: Sequence[StepCall]
    launches: Mapping[str, Sequence[Launch]]
    groups: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    stands_for: tuple[int, ...] = ()
    waits: Mapping[int, tuple[int, ...]] = field(default_factory=dict)
    peers: Mapping[int, int] = field(default_factory=dict)
    by_fsdp: frozenset[int] = frozenset()
    peak_allocated_bytes: int | None = None
    ran_on_cpu: bool = False
    knows_waits: bool = False

    @property
    def graph_calls(self) -> Counter[str]:
        """How often the step calls each compiled graph."""
        return Counter(call.name for call in self.calls if call.kind == "graph")


@dataclass(frozen=True)
class _Timed:
    """A rank's entries, how far each may be off, and what could not be priced as it should."""

    entries: list[TimedEntry]
    spread_us: list[float]
    collective_spread_us: float
    launches: int
    notes: set[str]
    worked: Mapping[int, tuple[StepWork, float]]
    """By place among the entries what draws power, and by what fraction the entry is longer than in a short run."""
    unlearned_us: float
    unlearned_calls: Mapping[str, int]
    """What is priced at its roofline: its time, and the calls of operators among it."""

    def slow_down(self, duration_us: float, machine: Machine) -> bool:
        """Make entries as long as the power limit leaves them in a run of steps of ``duration_us``; whether any is."""
        clock = mean_clock(sum((work for work, _ in self.worked.values()), StepWork()), duration_us, machine)
        found = False
        for place, (work, longer) in self.worked.items():
            slower = (1 + sustained_share(work, clock, machine)) / (1 + longer)
            if slower > 1:
                entry = self.entries[place]
                self.entries[place] = replace(entry, duration_us=entry.duration_us * slower)
                found = True
        return found


def plan_price(
    programs: Sequence[RankProgram],
    model: TimeModel,
    fabric: Fabric | None,
    ranks_per_node: int | None = None,
    *,
    subject: str = "step",
    mode: Mode = "eager",
    host: Host | None = None,
    sharing: Sharing | None = None,
    allow_tf32: bool = False,
    convolution_tf32: bool = True,
) -> PlannedStep:
    """The step of a world of which each distinct rank is given once.

    ``ranks_per_node`` is how many of the world's ranks share a node (``None``: as the fabric's nodes have). Raises
    ``PredictError`` for collectives without a fabric, and for ranks whose collectives do not meet.
    """
    if ranks_per_node is not None and fabric is not None:
        fabric = replace(fabric, ranks_per_node=ranks_per_node)
    sharing = find_sharing(model.device) if sharing is None else sharing
    stands_in = {rank: program.rank for program in programs for rank in (*program.stands_for, program.rank)}
    trains = any(step_trains(program.graph_calls, program.calls) for program in programs)
    overheads = overheads_on(host, overheads_of(model), trains=trains)
    settings = {"allow_tf32": allow_tf32, "convolution_tf32": convolution_tf32}
    timed = {
        program.rank: _entries(_Maker(program, model, fabric, stands_in, overheads, mode, sharing), settings)
        for program in programs
    }
    _drop_absent(timed)
    played = play({rank: each.entries for rank, each in timed.items()}, sharing=sharing)
    slowed = [each.slow_down(played.duration_us, model.machine) for each in timed.values()]
    if any(slowed):
        played = play({rank: each.entries for rank, each in timed.items()}, sharing=sharing)
    return _as_step(programs, model, fabric, timed, played, subject, overheads, sharing)


def roofline_note(unlearned_us: float, device_us: float, calls: Mapping[str, int]) -> str | None:
    """What is priced at its roofline alone, where that is a share of the device's time that counts; ``calls`` are those
    of operators among it."""
    if not unlearned_us or unlearned_us < _COUNTS * device_us:
        return None
    named = ", ".join(f"{name} ({count:,})" for name, count in Counter(calls).most_common(_MOST_NAMED))
    more = ", and others" if len(calls) > _MOST_NAMED else ""
    share = f"{unlearned_us / device_us:.0%} of the device's time"
    return f"{share} is at its roofline alone, as the device's model has not learned it: {named or 'launches'}{more}"


def _as_step(
    programs: Sequence[RankProgram],
    model: TimeModel,
    fabric: Fabric | None,
    timed: Mapping[int, _Timed],
    played: PlayedStep,
    subject: str,
    overheads: Mapping[str, float],
    sharing: Sharing,
) -> PlannedStep:
    duration = played.duration_us
    ranks = []
    for program in programs:
        line = played.ranks[program.rank]
        busy = line.compute_us + line.exposed_us
        ranks.append(
            PlannedRank(
                program.rank,
                line.compute_us,
                line.communication_us,
                line.exposed_us,
                max(0.0, duration - busy - line.bubble_us),
                line.host_us,
                line.bubble_us,
                max(1, len(set(program.stands_for))),
                program.peak_allocated_bytes,
            )
        )
    slowest = max(programs, key=lambda program: played.ranks[program.rank].end_us)
    line = played.ranks[slowest.rank]
    spread = np.array(timed[slowest.rank].spread_us)
    exposed_share = line.exposed_us / line.communication_us if line.communication_us else 0.0
    half = overheads["step error"] * duration + float(np.sqrt(np.square(spread).sum()))
    half += timed[slowest.rank].collective_spread_us * exposed_share
    total = sum(played.decided_by.values())
    peaks = [each.peak_allocated_bytes for each in programs if each.peak_allocated_bytes is not None]
    notes = sorted(set().union(*(each.notes for each in timed.values())))
    own = timed[slowest.rank]
    if (said := roofline_note(own.unlearned_us, line.compute_us, own.unlearned_calls)) is not None:
        notes.append(said)
    if sharing.note and line.communication_us > line.exposed_us:
        notes.append(sharing.note)
    return PlannedStep(
        subject=subject,
        device=model.device,
        fabric=None if fabric is None else fabric.name,
        world_size=len({rank for program in programs for rank in (*program.stands_for, program.rank)}),
        duration_us=duration,
        low_us=max(duration - half, 0.0),
        high_us=duration + half,
        coverage=COVERAGE,
        device_us=max(rank.compute_us + rank.exposed_us for rank in ranks),
        host_us=max(rank.host_us for rank in ranks),
        decided_by={kind: us / total for kind, us in played.decided_by.items()} if total else {},
        communication_us=line.communication_us,
        exposed_us=line.exposed_us,
        bubble_us=sum(rank.bubble_us for rank in ranks) / len(ranks),
        peak_allocated_bytes=max(peaks, default=None),
        launches=max(each.launches for each in timed.values()),
        ranks=tuple(ranks),
        notes=tuple(notes),
    )


class _Maker:
    """Makes the entries of one rank, in the order in which its host launches them."""

    def __init__(
        self,
        program: RankProgram,
        model: TimeModel,
        fabric: Fabric | None,
        stands_in: Mapping[int, int],
        overheads: Mapping[str, float],
        mode: Mode,
        sharing: Sharing,
    ) -> None:
        self.taken = sharing.multiprocessors
        self.program, self.model, self.fabric, self.stands_in = program, model, fabric, stands_in
        self.overheads, self.mode = overheads, mode
        self.entries: list[TimedEntry] = []
        self.spread_us: list[float] = []
        self.collective_spread_us = 0.0
        self.launches = 0
        self.notes: set[str] = set()
        self.counted: dict[tuple[Any, ...], int] = defaultdict(int)
        self.gap_us = overheads["graphs gap us" if mode == "graphs" else "gap us"]
        self.sustained = overheads["sustained products"]
        self.worked: dict[int, tuple[StepWork, float]] = {}
        self.unlearned_us = 0.0
        self.unlearned_calls: Counter[str] = Counter()

    def kernel(
        self,
        found: Prediction,
        host_us: float,
        after: tuple[int, ...],
        stream: str,
        kernels: int = 1,
        *,
        piece: Launch | StepCall,
        tiles: int | None = None,
    ) -> int:
        """A kernel, or an operator's, and the gap behind it; ``tiles`` are those of a product's output."""
        longer = self.sustained * is_product(found.model)
        if found.model == ROOFLINE:
            self.unlearned_us += found.duration_us
            if isinstance(piece, StepCall):
                self.unlearned_calls[piece.name] += 1
        self.worked[len(self.entries)] = (work_of(piece, found), longer)
        time_us = found.duration_us * (1 + longer) + self.gap_us * kernels
        # Of few measurements an interval's upper end may be ten times the time: that is no width of a sum.
        widest = max(found.high_us - found.duration_us, found.duration_us - found.low_us)
        self.spread_us.append(min(widest, found.duration_us))
        rounds = None
        if tiles is not None and self.taken is not None:
            rounds = rounds_beside(tiles, self.model.machine.num_multiprocessors, self.taken)
        kind = sharing_of(piece)
        self.entries.append(
            TimedEntry(found.subject, "compute", time_us, stream, host_us, after, sharing=kind, rounds=rounds)
        )
        self.launches += 1
        return len(self.entries) - 1

    def host(self, label: str, host_us: float) -> None:
        """Work of the host alone: an entry that keeps the device busy for no time."""
        if host_us > 0:
            self.entries.append(TimedEntry(label, "compute", 0.0, "host", host_us))
            self.spread_us.append(0.0)

    def collective(
        self,
        name: str,
        message_bytes: int | None,
        group: str | None,
        group_size: int | None,
        *,
        host_us: float,
        after: tuple[int, ...],
        stream: str | None = None,
        peer: int | None = None,
    ) -> int:
        """A collective on its group's stream."""
        rank = self.program.rank
        operation = name.rpartition("::")[2].rpartition(":")[2].removesuffix("_").removesuffix(".default")
        is_pair = operation in _POINT_TO_POINT
        ranks = self.program.groups.get(group or "", ())
        if is_pair and peer is not None:
            ranks = tuple(sorted((rank, peer)))
        size = len(ranks) or group_size or 0
        kind = collective_kind(operation) or operation
        if size < 2 or kind in ("barrier",) or not message_bytes:
            price_us = spread_us = 0.0
            if size != 1 and kind in _PRICED:
                unknown = "size" if size > 1 else "group"
                self.notes.add(f"the {unknown} of some {kind} is not known: counted as nothing")
        elif self.fabric is None:
            raise PredictError(f"rank {rank} calls {name} over {size} ranks, and no fabric prices it: give --fabric.")
        else:
            placement = placement_of(ranks or range(size), self.fabric.ranks_per_node)
            price = price_collective(self.fabric, kind, message_bytes, placement)
            price_us, spread_us = price.duration_us, price.high_us - price.duration_us
            if price.note and placement.nodes == 1:
                self.notes.add(price.note)
        self.collective_spread_us += spread_us
        self.entries.append(
            TimedEntry(
                f"{operation} {group or ''}".strip(),
                "communication",
                price_us,
                stream or f"communication {group or ''}".strip(),
                host_us,
                after,
                meets=self._meets(operation, ranks, peer),
                is_bubble=is_pair,
            )
        )
        self.spread_us.append(0.0)
        self.launches += 1
        return len(self.entries) - 1

    def _meets(self, operation: str, ranks: tuple[int, ...], peer: int | None) -> tuple[Any, ...] | None:
        """The key that a collective shares with its other given ranks; ``None`` where there are none."""
        rank = self.program.rank
        if operation in _POINT_TO_POINT:
            if peer is None or self.stands_in.get(peer, rank) == rank:
                return None
            ends = (rank, self.stands_in[peer])
            key: tuple[Any, ...] = ("pair", *(ends if "send" in operation else ends[::-1]))
        else:
            members = tuple(sorted({self.stands_in.get(member, rank) for member in ranks}))
            if len(members) < 2:
                return None
            key = (operation, members)
        self.counted[key] += 1
        return (*key, self.counted[key])


def _entries(maker: _Maker, settings: Mapping[str, bool]) -> _Timed:
    program, model, overheads = maker.program, maker.model, maker.overheads
    compiled: dict[str, Prediction | GraphCollective] = {}
    traffic = step_traffic(chain.from_iterable(program.launches.values()), program.graph_calls, program.calls)
    for graph in sorted(program.graph_calls.keys() & program.launches.keys()):
        launches = program.launches[graph]
        collectives = graph_collectives(launches)
        others = [launch for launch in launches if launch.launch_id not in collectives]
        predictions = predict_launches(model, others, traffic=traffic, **settings)
        compiled |= {found.subject: found for found in predictions}
        compiled |= collectives
    eager = {
        call.order: found
        for call, found in price_calls(
            model, [call for call in program.calls if call.kind == "operator"], ran_on_cpu=program.ran_on_cpu
        )
    }
    calls_tiles = tiles_of_calls(program.calls, model.machine)
    tiles = tiles_of_launches(
        [each for graph in program.graph_calls for each in program.launches.get(graph, ())], model.machine
    )
    waits = _all_waits(program)
    main = _main_stream(program.calls)
    placed: dict[int, int] = {}
    in_step = overheads["graphs step host us" if maker.mode == "graphs" else "step host us"]
    maker.host("step", in_step)
    carried: tuple[int, ...] = ()
    for call in program.calls:
        after = (*carried, *(placed[order] for order in waits.get(call.order, ()) if order in placed))
        carried = ()
        if call.kind == "graph":
            _graph(maker, call, program.launches.get(call.name, ()), compiled, tiles, after)
            for place in _last_of(maker.entries):
                placed[call.order] = place
        elif call.kind == "collective":
            before = (len(maker.entries) - 1,) if maker.entries else ()
            last = _last_of(maker.entries)
            placed[call.order] = maker.collective(
                call.name,
                call.message_bytes,
                call.group,
                call.group_size,
                host_us=call_host_us(call, overheads, by_fsdp=call.order in program.by_fsdp),
                after=after if program.knows_waits else (*after, *(before if call.streams else last)),
                stream=_stream(call, main, is_collective=True),
                peer=program.peers.get(call.order),
            )
        elif call.kind == "operator" and call.order in eager:
            host_us = call_host_us(call, overheads)
            stream = _stream(call, main)
            placed[call.order] = maker.kernel(
                eager[call.order],
                host_us,
                after,
                stream or COMPUTE_STREAM,
                max(1, call.kernels),
                piece=call,
                tiles=calls_tiles.get(call.order),
            )
        else:
            carried = after  # what is not priced holds back what comes after it
        if call.kind == "operator" and call.order not in eager:
            maker.host(call.name, idle_call_us(overheads))
    return _Timed(
        maker.entries,
        maker.spread_us,
        maker.collective_spread_us,
        maker.launches,
        maker.notes,
        maker.worked,
        maker.unlearned_us,
        maker.unlearned_calls,
    )


def _graph(
    maker: _Maker,
    call: StepCall,
    launches: Sequence[Launch],
    compiled: Mapping[str, Prediction | GraphCollective],
    tiles: Mapping[Hashable, int],
    after: tuple[int, ...],
) -> None:
    """The launches of one call of a compiled graph; a wait inside it keeps what follows back."""
    overheads = maker.overheads
    is_backward = call.phase == "backward" or direction_of(call.name) == "backward"
    usual = overheads["graph call host us"]
    training = overheads.get("training call host us", 2 * usual)
    call_us = max(usual, training - usual) if is_backward else usual
    if maker.mode == "graphs" and "replay host us" in overheads:
        call_us = overheads["replay host us"]
    collective_us = graph_collective_us(overheads)
    inside = [found for each in launches if isinstance(found := compiled.get(each.launch_id), GraphCollective)]
    asked = sum(found.name != WAIT for found in inside)
    maker.host(call.name, call_us + asked * collective_us)
    pending: list[int] = []
    for launch in launches:
        found = compiled.get(launch.launch_id)
        kind = launch_kind(launch)
        host_us = 0.0 if maker.mode == "graphs" or kind is None else overheads[f"{kind} launch host us"]
        if host_us and kind == "library":
            host_us += eager_call_us(overheads) * further_kernels(launch)
        if isinstance(found, Prediction):
            maker.kernel(found, host_us, after, COMPUTE_STREAM, piece=launch, tiles=tiles.get(launch.launch_id))
            after = ()
        elif found is not None and found.name == WAIT:
            after, pending = (*after, *pending), []
        elif found is not None:
            size = len(maker.program.groups.get(found.group or "", ())) or found.group_size
            message, last = found.message_bytes(size), _last_of(maker.entries)
            asked_us = collective_us if host_us else 0.0
            pending.append(maker.collective(found.name, message, found.group, None, host_us=asked_us, after=last))


def _all_waits(program: RankProgram) -> dict[int, tuple[int, ...]]:
    """What each call waits for: as the program says, and where it says nothing by the usual rule."""
    waits = {order: tuple(orders) for order, orders in program.waits.items()}
    if program.knows_waits:
        return waits
    awaited = {each for orders in waits.values() for each in orders}
    calls = list(program.calls)
    for index, call in enumerate(calls):
        if call.kind != "collective" or call.order in awaited:
            continue
        # What backward hooks ask for is waited for when the backward is over; what anything else asks for, at once.
        is_hook = call.phase == "backward" or (call.phase == "communication" and _is_inside_backward(calls, index))
        behind = (
            each
            for each in calls[index + 1 :]
            if each.kind != "collective" and (not is_hook or each.phase in ("clipping", "optimizer"))
        )
        if (first := next(behind, None)) is not None:
            waits[first.order] = (*waits.get(first.order, ()), call.order)
    return waits


def _is_inside_backward(calls: Sequence[StepCall], index: int) -> bool:
    before = next((call.phase for call in reversed(calls[:index]) if call.kind != "collective"), None)
    return before == "backward"


def _main_stream(calls: Sequence[StepCall]) -> str | None:
    counted: dict[str, int] = defaultdict(int)
    for call in calls:
        if call.kind != "collective":
            for stream in call.streams[:1]:
                counted[stream] += 1
    return max(counted, key=lambda stream: counted[stream], default=None)


def _stream(call: StepCall, main: str | None, *, is_collective: bool = False) -> str | None:
    if not call.streams:
        return None
    first = call.streams[0]
    return COMPUTE_STREAM if first == main and not is_collective else first


def _last_of(entries: Sequence[TimedEntry]) -> tuple[int, ...]:
    """The last kernel of the compute stream: a collective takes what it made."""
    for place in range(len(entries) - 1, -1, -1):
        if entries[place].stream == COMPUTE_STREAM:
            return (place,)
    return ()


def _drop_absent(timed: Mapping[int, _Timed]) -> None:
    """Collectives whose other ranks were not given go on alone: what is like a rank comes when it does."""
    present: dict[Any, int] = defaultdict(int)
    for each in timed.values():
        for entry in each.entries:
            if entry.meets is not None:
                present[entry.meets] += 1
    for each in timed.values():
        for place, entry in enumerate(each.entries):
            if entry.meets is not None:
                expected = 2 if entry.meets[0] == "pair" else len(entry.meets[1])
                if present[entry.meets] < expected:
                    each.entries[place] = replace(entry, meets=None)
