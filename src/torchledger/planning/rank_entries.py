"""A rank's step as entries on streams: kernels, collectives, and what the host needs for each."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain
from typing import Any

from torchledger.errors import PredictError
from torchledger.expecting.machine import Machine
from torchledger.fitting.time_model import TimeModel
from torchledger.jobs.planned import alike_collectives
from torchledger.nouns import Fabric, Launch, PlannedCollective, Prediction, StepCall
from torchledger.planning.fabric import placement_of, port_of, port_share, price_collective
from torchledger.planning.rank_host import RankHost
from torchledger.planning.sharing import rounds_beside, sharing_of
from torchledger.planning.tiles import tiles_of_calls, tiles_of_launches
from torchledger.planning.timeline import COMPUTE_STREAM, Sharing, TimedEntry
from torchledger.predicting.bus_copies import main_stream
from torchledger.predicting.call_sizes import at_usual_sizes, predict_at_sizes, sizes_of_calls
from torchledger.predicting.host_work import host_work_notes, host_work_us, own_work_notes, own_work_us
from torchledger.predicting.launches import predict_launches
from torchledger.predicting.operators import ROOFLINE, half_width_us, tail_us
from torchledger.predicting.overheads import Mode, begins_backward
from torchledger.predicting.power import StepWork, is_product, mean_clock, sustained_share, work_of
from torchledger.predicting.step_calls import price_calls
from torchledger.predicting.waits import waits_for_device
from torchledger.stepping.communication import operation_of
from torchledger.work.collectives import collective_kind, exchanges_nothing
from torchledger.work.graph_collectives import WAIT, GraphCollective, graph_collectives
from torchledger.work.step_traffic import step_traffic

_HOST = "host"
"""The stream of what keeps no device busy."""


@dataclass(frozen=True)
class RankProgram:
    """The step of one rank, as it was recorded with or without devices.

    ``calls`` are in the order in which the host makes them, ``launches`` those of each compiled graph. ``groups`` names
    the global ranks of each process group, ``stands_for`` the ranks whose step is like this one's (itself among them).
    ``waits`` maps a call's ``order`` to the collectives (by ``order``) that must have ended before it; one that
    no call waits for is waited for by the next call of the rank, or, in the backward, by the first call after it.
    ``by_fsdp`` are the collectives, by ``order``, that FSDP's hooks ask for, and ``by_hand`` messages between two ranks
    that no schedule of a pipeline asks for. ``peers`` maps the ``order`` of a send or
    a receive to the other rank. ``knows_waits``: ``waits`` holds all waits between streams, of any call, and nothing
    else is waited for. ``notes`` are those of the step.
    """

    rank: int
    calls: Sequence[StepCall]
    launches: Mapping[str, Sequence[Launch]]
    groups: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    stands_for: tuple[int, ...] = ()
    waits: Mapping[int, tuple[int, ...]] = field(default_factory=dict)
    peers: Mapping[int, int] = field(default_factory=dict)
    by_fsdp: frozenset[int] = frozenset()
    by_hand: frozenset[int] = frozenset()
    peak_allocated_bytes: int | None = None
    ran_on_cpu: bool = False
    knows_waits: bool = False
    notes: tuple[str, ...] = ()

    @property
    def graph_calls(self) -> Counter[str]:
        """How often the step calls each compiled graph."""
        return Counter(call.name for call in self.calls if call.kind == "graph")

    @property
    def exchanged_bytes(self) -> int | None:
        """Bytes of the step's messages between ranks, as far as they are known; ``None`` where it has no collective of
        several ranks."""
        found = [
            call.message_bytes
            for call in self.calls
            if call.kind == "collective"
            and collective_kind(call.name)
            and self._size_of(call.group, call.group_size) != 1
        ]
        for graph, count in self.graph_calls.items():
            for each in graph_collectives(self.launches.get(graph, ())).values():
                if each.name != WAIT and (size := self._size_of(each.group, each.group_size)) != 1:
                    found.append(count * (each.message_bytes(size) or 0))
        return sum(nbytes or 0 for nbytes in found) if found else None

    def _size_of(self, group: str | None, said: int | None) -> int | None:
        """How many ranks a group has, by itself or as a call says."""
        return len(self.groups.get(group or "", ())) or said


@dataclass(frozen=True)
class TimedRank:
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
    collectives: tuple[PlannedCollective, ...]
    waits: tuple[StepCall, ...]
    """Where the host waits for the device."""

    times_us: Mapping[int, float]
    """What each call takes on the device alone, by its ``order``."""

    host_work_us: float = 0.0
    """What the host computes itself."""

    host_work_notes: tuple[str, ...] = ()

    def without_waits(self) -> list[TimedEntry]:
        """The same entries, launched by a host that goes on at once."""
        return [replace(entry, host_after=()) if entry.host_after else entry for entry in self.entries]

    def slow_down(self, duration_us: float, held_us: float, machine: Machine) -> bool:
        """Make entries as long as the power limit leaves them in a run of steps of ``duration_us``; whether any is.
        Collectives run, or wait for their ranks, for ``held_us`` of a step."""
        step = sum((work for work, _ in self.worked.values()), StepWork(collectives_us=held_us))
        clock = mean_clock(step, duration_us, machine, is_lasting=True)
        found = False
        for place, (work, longer) in self.worked.items():
            slower = (1 + sustained_share(work, clock, machine)) / (1 + longer)
            if slower > 1:
                entry = self.entries[place]
                self.entries[place] = replace(entry, duration_us=entry.duration_us * slower)
                found = True
        return found


class EntryMaker:
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
        slowness: float = 1.0,
    ) -> None:
        self.taken = sharing.multiprocessors
        self.program, self.model, self.fabric, self.stands_in = program, model, fabric, stands_in
        self.needs = RankHost(slowness, mode)
        self.entries: list[TimedEntry] = []
        self.spread_us: list[float] = []
        self.collective_spread_us = 0.0
        self.launches = 0
        self.notes: set[str] = set(program.notes)
        self.counted: dict[tuple[Any, ...], int] = defaultdict(int)
        self.gap_us = overheads["graphs gap us" if mode == "graphs" else "gap us"]
        self.sustained = overheads["sustained products"]
        self.worked: dict[int, tuple[StepWork, float]] = {}
        self.unlearned_us = 0.0
        self.unlearned_calls: Counter[str] = Counter()
        self.last_of_group: dict[str, int] = {}
        self.asked: list[PlannedCollective] = []
        self.waits: list[StepCall] = []
        self._waits_for: tuple[int, ...] = ()

    def host_waits(self, call: StepCall, places: tuple[int, ...]) -> None:
        """The host goes on once the entries at these places have ended."""
        if self.program.knows_waits:
            self._waits_for = (*self._waits_for, *places)
            self.waits.append(call)

    def _add(self, entry: TimedEntry, spread_us: float) -> int:
        """An entry that the host launches now; its place."""
        waits_for, self._waits_for = self._waits_for, ()
        self.entries.append(replace(entry, host_after=waits_for) if waits_for else entry)
        self.spread_us.append(spread_us)
        return len(self.entries) - 1

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
        tail = tail_us(found) if isinstance(piece, Launch) else 0.0
        time_us = found.duration_us * (1 + longer) + tail + self.gap_us * kernels
        rounds = None
        if tiles is not None and self.taken is not None:
            rounds = rounds_beside(tiles, self.model.machine.num_multiprocessors, self.taken)
        kind = sharing_of(piece)
        self.launches += 1
        return self._add(
            TimedEntry(found.subject, "compute", time_us, stream, host_us, after, sharing=kind, rounds=rounds),
            half_width_us(found),
        )

    def by_host(self, label: str, host_us: float) -> None:
        """Work of the host alone: an entry that keeps the device busy for no time."""
        if host_us > 0:
            self._add(TimedEntry(label, "compute", 0.0, _HOST, host_us), 0.0)

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
        """A collective on its group's stream.

        Collectives of one group run in the order in which they were asked for, whatever their streams: a communicator's
        kernels wait for each other. Messages between two ranks have a communicator of their own.
        """
        rank = self.program.rank
        operation = name.rpartition("::")[2].rpartition(":")[2].removesuffix("_").removesuffix(".default")
        kind = collective_kind(name)
        is_pair = kind == "p2p"
        ranks = self.program.groups.get(group or "", ())
        if is_pair and peer is not None:
            ranks = tuple(sorted((rank, peer)))
        size = len(ranks) or group_size or 0
        price_us = spread_us = share = 0.0
        port: str | None = None
        is_known = size == 1 or message_bytes == 0 or exchanges_nothing(name)
        if is_known:
            pass
        elif kind is None:
            self.notes.add(f"what {operation} exchanges is not known: counted as nothing")
        elif size < 2 or message_bytes is None:
            unknown = "size" if size > 1 else "group"
            self.notes.add(f"the {unknown} of some {kind} is not known: counted as nothing")
        elif self.fabric is None:
            raise PredictError(f"rank {rank} calls {name} over {size} ranks, and no fabric prices it: give --fabric.")
        else:
            placement = placement_of(ranks or range(size), self.fabric.ranks_per_node)
            price = price_collective(self.fabric, kind, message_bytes, placement)
            price_us, spread_us, is_known = price.duration_us, price.high_us - price.duration_us, True
            if is_pair:
                port, share = port_of(operation, placement), port_share(self.fabric, message_bytes, placement)
            if price.note and placement.nodes == 1:
                self.notes.add(price.note)
        self.asked.append(
            PlannedCollective(
                *(rank, operation_of(name) or kind or operation, group, size or None, 1, message_bytes),
                price_us if is_known else None,
            )
        )
        self.collective_spread_us += spread_us
        if not is_pair and group is not None:
            if (before := self.last_of_group.get(group)) is not None and before not in after:
                after = (*after, before)
            self.last_of_group[group] = len(self.entries)
        self.launches += 1
        return self._add(
            TimedEntry(
                f"{operation} {group or ''}".strip(),
                "communication",
                price_us,
                stream or f"communication {group or ''}".strip(),
                host_us,
                after,
                meets=self._meets(operation, ranks, peer),
                is_message=is_pair,
                port=port,
                port_share=share,
            ),
            0.0,
        )

    def _meets(self, operation: str, ranks: tuple[int, ...], peer: int | None) -> tuple[Any, ...] | None:
        """The key that a collective shares with its other given ranks; ``None`` where there are none."""
        rank = self.program.rank
        if collective_kind(operation) == "p2p":
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


def time_entries(maker: EntryMaker, settings: Mapping[str, bool]) -> TimedRank:
    """The entries of one rank's step; ``settings`` are those of ``predict_launches``."""
    program, model, needs = maker.program, maker.model, maker.needs
    compiled: dict[str, Prediction | GraphCollective] = {}
    sizes = sizes_of_calls(program.calls)
    whole = at_usual_sizes(chain.from_iterable(program.launches.values()), sizes)
    traffic = step_traffic(whole, program.graph_calls, program.calls)
    for graph in sorted(program.graph_calls.keys() & program.launches.keys()):
        launches = program.launches[graph]
        collectives = graph_collectives(launches)
        others = [launch for launch in launches if launch.launch_id not in collectives]
        predictions = predict_at_sizes(
            others, sizes, lambda some: predict_launches(model, some, traffic=traffic, **settings)
        )
        compiled |= {found.subject: found for found in predictions}
        compiled |= collectives
    eager = {
        call.order: found
        for call, found in price_calls(
            model,
            [call for call in program.calls if call.kind in ("operator", "copy")],
            ran_on_cpu=program.ran_on_cpu,
            **settings,
        )
    }
    calls_tiles = tiles_of_calls(program.calls, model.machine)
    tiles = tiles_of_launches(
        [each for graph in program.graph_calls for each in program.launches.get(graph, ())], model.machine
    )
    waits = _all_waits(program)
    main = main_stream(program.calls)
    backwards = begins_backward(program.calls)
    placed: dict[int, int] = {}
    maker.by_host("step", needs.step_us())
    carried: tuple[int, ...] = ()
    times_us: dict[int, float] = {}
    work_us = host_work_us(program.calls)
    for call in program.calls:
        first = len(maker.entries)
        after = (*carried, *(placed[order] for order in waits.get(call.order, ()) if order in placed))
        carried = ()
        maker.by_host("the program", call.own_us or 0.0)
        if call.kind == "graph":
            _graph(
                maker,
                call,
                program.launches.get(call.name, ()),
                compiled,
                tiles,
                after,
                wakes_autograd=call.order in backwards,
            )
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
                host_us=needs.collective_us(
                    call, by_fsdp=call.order in program.by_fsdp, by_hand=call.order in program.by_hand
                ),
                after=after if program.knows_waits else (*after, *(before if call.streams else last)),
                stream=_stream(call, main, is_collective=True),
                peer=program.peers.get(call.order),
            )
        elif call.kind in ("operator", "copy") and call.order in eager:
            host_us = needs.operator_us(call, launches=True)
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
            if waits_for_device(call):
                maker.host_waits(call, after or _awaited(call, placed, maker.entries))
            carried = after  # what is not priced holds back what comes after it
        if len(maker.entries) > first:
            times_us[call.order] = sum(entry.duration_us for entry in maker.entries[first:])
        if call.kind == "operator" and call.order not in eager:
            computes_us = needs.slowness * work_us.get(call.order, 0.0)
            maker.by_host(call.name, needs.operator_us(call, launches=False) + computes_us)
    return TimedRank(
        maker.entries,
        maker.spread_us,
        maker.collective_spread_us,
        maker.launches,
        maker.notes,
        maker.worked,
        maker.unlearned_us,
        maker.unlearned_calls,
        alike_collectives(maker.asked),
        tuple(maker.waits),
        times_us,
        needs.slowness * sum(work_us.values(), 0.0) + own_work_us(program.calls),
        (*host_work_notes(program.calls, work_us), *own_work_notes(program.calls)),
    )


def _awaited(call: StepCall, placed: Mapping[int, int], entries: Sequence[TimedEntry]) -> tuple[int, ...]:
    """What a wait waits for that does not say it: what the copy before it copies, or all that was launched."""
    copied = placed.get(call.order - 1)
    return _last_of(entries) if copied is None else (copied,)


def _graph(
    maker: EntryMaker,
    call: StepCall,
    launches: Sequence[Launch],
    compiled: Mapping[str, Prediction | GraphCollective],
    tiles: Mapping[Hashable, int],
    after: tuple[int, ...],
    *,
    wakes_autograd: bool,
) -> None:
    """The launches of one call of a compiled graph; a wait inside it keeps what follows back."""
    needs, times = maker.needs, dict(call.times)
    launches = [each for launch in launches for each in [launch] * times.get(launch.order, 1)]
    inside = [found for each in launches if isinstance(found := compiled.get(each.launch_id), GraphCollective)]
    asked = sum(found.name != WAIT for found in inside)
    maker.by_host(call.name, needs.graph_us(call, launches, wakes_autograd=wakes_autograd, collectives=asked))
    pending: list[int] = []
    for launch in launches:
        found = compiled.get(launch.launch_id)
        if isinstance(found, Prediction):
            tiles_of = tiles.get(launch.launch_id)
            maker.kernel(found, needs.launch_us(launch), after, COMPUTE_STREAM, piece=launch, tiles=tiles_of)
            after = ()
        elif found is not None and found.name == WAIT:
            after, pending = (*after, *pending), []
        elif found is not None:
            size = len(maker.program.groups.get(found.group or "", ())) or found.group_size
            message, last = found.message_bytes(size), _last_of(maker.entries)
            asked_us = needs.graph_collective_us()
            place = maker.collective(found.operator, message, found.group, None, host_us=asked_us, after=last)
            if found.waits_itself:
                after = (*after, place)
            else:
                pending.append(place)


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
