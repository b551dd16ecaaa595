"""Entries of ranks played on their hosts and streams: when each starts and ends, and what decides the length.

An entry starts when its host has launched it, what stands before it on its stream has ended, and what it waits for
has. A collective, or a message, moves when the last of its ranks has come; until then it holds the multiprocessors of
those that are there. Beside one kernels go on slower by a measured factor, and it beside them, for as long as they are
beside each other. Messages that leave or reach a rank at the same time share what its links carry. A product that has a
block on every multiprocessor lets no collective begin before it has ended, and beside one it needs more rounds of
blocks.
"""

from __future__ import annotations

import heapq
import itertools
from collections import defaultdict, deque
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from torchledger.errors import PredictError
from torchledger.traces.spans import merge_spans

Kind = Literal["compute", "communication", "host"]
"""``"host"`` is a stream that waits for its host to launch."""

COMPUTE_STREAM = "compute"


@dataclass(frozen=True)
class Rounds:
    """Rounds of blocks in which the multiprocessors compute a product's tiles: alone, and beside a collective."""

    alone: int
    beside: int

    @property
    def slowdown(self) -> float:
        """How many times as long it takes beside a collective."""
        return self.beside / self.alone


@dataclass(frozen=True)
class TimedEntry:
    """One entry of a rank's step. Entries stand in the order in which the host launches them.

    ``duration_us`` is its time alone, ``host_us`` what the host needs to launch it. ``after`` are places in the rank's
    list whose end it waits for besides its own stream; ``host_after`` those that the host waits for before it launches
    this one. Entries of several ranks with the same ``meets`` are one collective. ``sharing`` is what kind of kernel
    it is to a collective beside it (a key of ``Sharing.kernels``); ``rounds`` stands in for that kind's factor where
    they are known. ``is_message`` says that it goes from one rank to another, as between stages of a pipeline; ``port``
    names which of its rank's links such a message takes, out or in, and ``port_share`` is the share of what that one
    carries that it fills alone.
    """

    label: str
    kind: Kind
    duration_us: float
    stream: str = COMPUTE_STREAM
    host_us: float = 0.0
    after: tuple[int, ...] = ()
    host_after: tuple[int, ...] = ()
    meets: tuple[Any, ...] | None = None
    sharing: str = "other"
    is_message: bool = False
    rounds: Rounds | None = None
    port: str | None = None
    port_share: float = 0.0

    @property
    def fills_device(self) -> bool:
        """Whether it leaves no multiprocessor to a collective that comes later."""
        return self.rounds is not None and self.rounds.beside > self.rounds.alone


@dataclass(frozen=True)
class Sharing:
    """How many times as long a kernel takes beside a collective, by the kernel's kind, and a collective beside one.

    ``delay_us`` is what a collective takes longer beside a kernel whatever its length: until there is room for it.
    ``multiprocessors`` is how many of them a collective holds (``None``: unknown).
    """

    kernels: Mapping[str, float] = field(default_factory=dict)
    collectives: Mapping[str, float] = field(default_factory=dict)
    delay_us: Mapping[str, float] = field(default_factory=dict)
    note: str | None = None
    multiprocessors: int | None = None

    def collective_factor(self, kernel: str, duration_us: float, crowd: float = 1.0) -> float:
        """How many times as long a collective takes beside kernels of a kind, that takes ``duration_us`` alone, and
        ``crowd`` times as long beside other messages."""
        return crowd * self.collectives.get(kernel, 1.0) + self.delay_us.get(kernel, 0.0) / max(duration_us, 1.0)


ALONE = Sharing(note="kernels and collectives beside each other are taken to be as quick as alone")


@dataclass(frozen=True)
class PlayedEntry:
    """When an entry was launched, was ready on its stream, began and ended: microseconds from the step's beginning.

    ``ready_us`` is before ``start_us`` where it waited for other ranks. ``cause`` is the rank and place of what it
    started right after, or ``None`` where the host's launch was the last to come.
    """

    launched_us: float
    ready_us: float
    start_us: float
    end_us: float
    cause: tuple[int, int] | None


@dataclass(frozen=True)
class RankTimeline:
    """What one rank did; ``entries`` in the order of what was given.

    ``communication_us`` is how long collectives and messages move, ``exposed_us`` of that with no kernel beside them.
    ``bubble_us`` is how long it does nothing but wait in them for other ranks, as for other stages of a pipeline, also
    behind its own last entry. ``held_us`` is how long collectives hold multiprocessors: they move, or wait for ranks;
    messages while they move.
    """

    entries: tuple[PlayedEntry, ...]
    compute_us: float
    communication_us: float
    exposed_us: float
    bubble_us: float
    host_us: float
    held_us: float

    @property
    def end_us(self) -> float:
        """End of its last entry."""
        return max((entry.end_us for entry in self.entries), default=0.0)


@dataclass(frozen=True)
class PlayedStep:
    """All ranks played together. ``decided_by`` splits the way that decides the length, in microseconds by cause."""

    duration_us: float
    ranks: Mapping[int, RankTimeline]
    decided_by: Mapping[str, float]


Place = tuple[int, int]


def play(ranks: Mapping[int, Sequence[TimedEntry]], *, sharing: Sharing = ALONE) -> PlayedStep:
    """Play the ranks' entries together.

    Raises ``PredictError`` naming an entry that never starts: it waits for itself, or for a rank that never comes.
    """
    player = _Player(ranks, sharing)
    player.run()
    timelines = {rank: player.timeline(rank) for rank in ranks}
    duration = max((timeline.end_us for timeline in timelines.values()), default=0.0)
    host_ends = max(player.host_clock.values(), default=0.0)
    duration = max(duration, host_ends)
    for rank, timeline in timelines.items():
        if _begins_by_waiting(ranks[rank], timeline):
            left_us = max(0.0, duration - max(timeline.end_us, player.host_clock[rank]))
            timelines[rank] = replace(timeline, bubble_us=timeline.bubble_us + left_us)
    return PlayedStep(duration, timelines, _deciding(ranks, timelines, player.host_cause, duration))


def _begins_by_waiting(entries: Sequence[TimedEntry], timeline: RankTimeline) -> bool:
    """Whether a rank's step begins by waiting for another stage: having ended, it waits for the others' next step."""
    first = next((played for played, entry in zip(timeline.entries, entries, strict=True) if entry.is_message), None)
    return first is not None and first.start_us > first.ready_us


class _Player:
    def __init__(self, ranks: Mapping[int, Sequence[TimedEntry]], sharing: Sharing) -> None:
        self.ranks, self.sharing = ranks, sharing
        self.streams: dict[tuple[int, str], deque[int]] = defaultdict(deque)
        self.members: dict[Hashable, list[Place]] = defaultdict(list)
        self.waiting: dict[Place, list[Place]] = defaultdict(list)
        self.host_waiting: dict[Place, list[int]] = defaultdict(list)
        self.host_at = dict.fromkeys(ranks, 0)
        self.host_clock = dict.fromkeys(ranks, 0.0)
        self.host_busy = dict.fromkeys(ranks, 0.0)
        self.launched: dict[Place, float] = {}
        self.ready: dict[Place, tuple[float, Place | None]] = {}
        self.started: dict[Place, tuple[float, Place | None]] = {}
        self.ended: dict[Place, float] = {}
        self.arrived: dict[Hashable, list[Place]] = defaultdict(list)
        self.held: dict[Place, list[Place]] = defaultdict(list)
        self.crowded: set[Place] = set()
        self.waits_inside: set[Place] = set()
        self.running: dict[int, dict[Place, None]] = {rank: {} for rank in ranks}
        self.left: dict[Place, float] = {}
        self.rate: dict[Place, float] = {}
        self.touched: dict[Place, float] = {}
        self.version: dict[Place, int] = defaultdict(int)
        self.queue: list[tuple[float, int, str, Place, int]] = []
        self.numbers = itertools.count()
        self.host_cause: dict[Place, Place] = {}
        self.previous: dict[Place, Place] = {}
        for rank, entries in ranks.items():
            for place, entry in enumerate(entries):
                stream = self.streams[rank, entry.stream]
                if stream:
                    self.previous[rank, place] = (rank, stream[-1])
                stream.append(place)
                if entry.meets is not None:
                    self.members[entry.meets].append((rank, place))

    def run(self) -> None:
        for rank in self.ranks:
            self._launch(rank)
        while self.queue:
            now, _, what, place, version = heapq.heappop(self.queue)
            if what == "ready":
                self._arrive(place, now)
            elif version == self.version[place] and place in self.left:
                self._end(place, now)
        total = sum(len(entries) for entries in self.ranks.values())
        if len(self.ended) < total:
            rank, at = next(
                (rank, at)
                for rank, entries in self.ranks.items()
                for at in range(len(entries))
                if (rank, at) not in self.ended
            )
            raise PredictError(
                f"{self.ranks[rank][at].label} of rank {rank} never starts: it waits for itself, or for a rank that "
                "does not come. Do all ranks call the same collectives in the same order?"
            )

    def _launch(self, rank: int) -> None:
        """The host goes on until it waits for something that has not ended."""
        entries = self.ranks[rank]
        while (at := self.host_at[rank]) < len(entries):
            entry = entries[at]
            open_waits = [other for other in entry.host_after if (rank, other) not in self.ended]
            if open_waits:
                self.host_waiting[rank, open_waits[0]].append(rank)
                return
            if entry.host_after:
                waited_us, last = max((self.ended[rank, other], other) for other in entry.host_after)
                if waited_us > self.host_clock[rank]:
                    self.host_clock[rank], self.host_cause[rank, at] = waited_us, (rank, last)
            self.host_clock[rank] += entry.host_us
            self.host_busy[rank] += entry.host_us
            self.launched[rank, at] = self.host_clock[rank]
            self.host_at[rank] = at + 1
            if self.streams[rank, entry.stream][0] == at:
                self._consider((rank, at))

    def _consider(self, place: Place) -> None:
        """The head of a stream: ready once it is launched and all that it waits for has ended."""
        if place in self.ready or place not in self.launched:
            return
        rank, at = place
        entry = self.ranks[rank][at]
        for other in entry.after:
            if (rank, other) not in self.ended:
                self.waiting[rank, other].append(place)
                return
        moment, cause = self.launched[place], None
        previous = self.previous.get(place)
        for before in (*((previous,) if previous is not None else ()), *((rank, other) for other in entry.after)):
            if self.ended[before] >= moment:
                moment, cause = self.ended[before], before
        self.ready[place] = (moment, cause)
        heapq.heappush(self.queue, (moment, next(self.numbers), "ready", place, 0))

    def _arrive(self, place: Place, now: float) -> None:
        rank, at = place
        entry = self.ranks[rank][at]
        if entry.kind == "communication":
            filling = next((each for each in self.running[rank] if self.ranks[rank][each[1]].fills_device), None)
            if filling is not None and filling not in self.crowded:
                self.held[filling].append(place)
                return
        if entry.meets is None:
            self._begin(place, now, self.ready[place][1])
            self._share([rank], now)
            return
        arrived = self.arrived[entry.meets]
        arrived.append(place)
        if len(arrived) == len(self.members[entry.meets]):
            for each in arrived:
                self.waits_inside.discard(each)
                # Whoever came last decides for all.
                cause = self.ready[each][1] if each == place else place
                self._begin(each, now, cause)
            self._share([each[0] for each in arrived], now)
        else:
            self.waits_inside.add(place)
            self.running[rank][place] = None
            self._share([rank], now)

    def _begin(self, place: Place, now: float, cause: Place | None) -> None:
        rank, at = place
        self.started[place] = (now, cause)
        self.left[place] = max(self.ranks[rank][at].duration_us, 0.0)
        self.touched[place] = now
        self.rate[place] = 0.0
        if self.ranks[rank][at].fills_device and any(
            self._kind(each) == "communication" for each in self.running[rank]
        ):
            self.crowded.add(place)
        self.running[rank][place] = None

    def _end(self, place: Place, now: float) -> None:
        rank, at = place
        entry = self.ranks[rank][at]
        self.ended[place] = now
        del self.left[place]
        del self.running[rank][place]
        stream = self.streams[rank, entry.stream]
        stream.popleft()
        self._share([rank], now)
        self.crowded.discard(place)
        for collective in self.held.pop(place, ()):  # it comes before what the stream has next
            self.ready[collective] = (now, place)
            heapq.heappush(self.queue, (now, next(self.numbers), "ready", collective, 0))
        if stream:
            self._consider((rank, stream[0]))
        for other in self.waiting.pop(place, ()):
            self._consider(other)
        for waiting_rank in self.host_waiting.pop(place, ()):
            self._launch(waiting_rank)

    def _share(self, changed: Sequence[int], now: float) -> None:
        """New rates on ranks where something began or ended, and on those that a collective ties to them."""
        if all(len(self.running[rank]) <= 1 for rank in changed) and not self._is_tied(changed):
            for rank in changed:
                for place in self._moving(rank):
                    self._uncrowd(place, now)
            return
        ranks = set(changed)
        for rank in changed:
            for _, at in self.running[rank]:
                if (key := self.ranks[rank][at].meets) is not None:
                    ranks.update(member for member, _ in self.members[key])
        for rank in ranks:
            for place in self._moving(rank):
                entry = self.ranks[rank][place[1]]
                if entry.kind == "compute":
                    if any(self._kind(each) == "communication" for each in self.running[rank]):
                        self._pace(place, self._slowdown(entry, place), now)
                    else:
                        self._uncrowd(place, now)
                elif entry.kind == "host":
                    self._pace(place, 1.0, now)
                else:
                    members = self.members[entry.meets] if entry.meets is not None else [place]
                    crowd = max(self._crowd(each) for each in members)
                    factors = [
                        self.sharing.collective_factor(self.ranks[member][each].sharing, entry.duration_us, crowd)
                        for member, _ in members
                        for _, each in self.running[member]
                        if self.ranks[member][each].kind == "compute"
                    ]
                    self._pace(place, max(factors, default=crowd), now)

    def _crowd(self, place: Place) -> float:
        """How many times as long a message takes for the others that move through the same port of its rank."""
        rank, at = place
        port = self.ranks[rank][at].port
        if port is None:
            return 1.0
        others = (self.ranks[rank][each] for _, each in self._moving(rank) if each != at)
        return 1.0 + sum(each.port_share for each in others if each.port == port)

    def _moving(self, rank: int) -> list[Place]:
        """What runs on a rank, without collectives that wait for others."""
        return [place for place in self.running[rank] if place not in self.waits_inside]

    def _slowdown(self, entry: TimedEntry, place: Place) -> float:
        if entry.rounds is None:
            return self.sharing.kernels.get(entry.sharing, 1.0)
        return entry.rounds.slowdown if place in self.crowded else 1.0

    def _uncrowd(self, place: Place, now: float) -> None:
        """Alone from now on; blocks that found no place until now take a round of their own, which may have begun."""
        entry = self.ranks[place[0]][place[1]]
        at_least_us = 0.0
        if place in self.crowded and entry.rounds is not None:
            self.crowded.discard(place)
            at_least_us = entry.duration_us / entry.rounds.alone
        self._pace(place, 1.0, now, at_least_us=at_least_us)

    def _is_tied(self, ranks: Sequence[int]) -> bool:
        return any(self.ranks[rank][at].meets is not None for rank in ranks for _, at in self.running[rank])

    def _kind(self, place: Place) -> Kind:
        return self.ranks[place[0]][place[1]].kind

    def _pace(self, place: Place, slowdown: float, now: float, *, at_least_us: float = 0.0) -> None:
        rate = 1.0 / slowdown
        if rate == self.rate[place]:
            return
        left_us = max(0.0, self.left[place] - (now - self.touched[place]) * self.rate[place])
        self.left[place] = max(left_us, min(at_least_us, left_us / self.rate[place])) if at_least_us else left_us
        self.touched[place], self.rate[place] = now, rate
        self.version[place] += 1
        heapq.heappush(
            self.queue, (now + self.left[place] / rate, next(self.numbers), "end", place, self.version[place])
        )

    def timeline(self, rank: int) -> RankTimeline:
        entries = self.ranks[rank]
        played = tuple(
            PlayedEntry(
                self.launched[rank, at],
                self.ready[rank, at][0],
                self.started[rank, at][0],
                self.ended[rank, at],
                self.started[rank, at][1],
            )
            for at in range(len(entries))
        )
        compute = merge_spans(
            [(p.start_us, p.end_us) for p, e in zip(played, entries, strict=True) if e.kind == "compute"]
        )
        communication = [(p, e) for p, e in zip(played, entries, strict=True) if e.kind == "communication"]
        moving = merge_spans([(p.start_us, p.end_us) for p, _ in communication])
        waits = merge_spans([(p.ready_us, p.start_us) for p, _ in communication])
        held = merge_spans([(p.start_us if e.is_message else p.ready_us, p.end_us) for p, e in communication])
        compute_us, moving_us = _length(compute), _length(moving)
        covered = merge_spans([*compute, *moving])
        exposed_us = _length(covered) - compute_us
        bubble_us = _length(merge_spans([*covered, *waits])) - _length(covered)
        return RankTimeline(played, compute_us, moving_us, exposed_us, bubble_us, self.host_busy[rank], _length(held))


def _deciding(
    ranks: Mapping[int, Sequence[TimedEntry]],
    timelines: Mapping[int, RankTimeline],
    host_causes: Mapping[Place, Place],
    duration_us: float,
) -> dict[str, float]:
    """Back from the last end, each entry to what it started right after: which kinds of work that way is made of."""
    found: dict[str, float] = defaultdict(float)
    last = max(
        ((rank, at) for rank, line in timelines.items() for at in range(len(line.entries))),
        key=lambda place: timelines[place[0]].entries[place[1]].end_us,
        default=None,
    )
    if last is None:
        return {"host": duration_us} if duration_us else {}
    place: Place | None = last
    moment = timelines[last[0]].entries[last[1]].end_us
    found["host"] += duration_us - moment
    while place is not None:
        rank, at = place
        entry, played = ranks[rank][at], timelines[rank].entries[at]
        found[entry.kind] += max(0.0, moment - played.start_us)
        moment = min(moment, played.start_us)
        place = played.cause
        if place is None:
            # The host launched it late: back to what the host had waited for.
            place = next((host_causes[rank, k] for k in range(at, -1, -1) if (rank, k) in host_causes), None)
            since = 0.0 if place is None else timelines[place[0]].entries[place[1]].end_us
            found["host"] += moment - since
            moment = since
    return dict(sorted(((kind, us) for kind, us in found.items() if us > 0), key=lambda item: -item[1]))


def _length(spans: Sequence[tuple[float, float]]) -> float:
    return sum(end - start for start, end in spans)
