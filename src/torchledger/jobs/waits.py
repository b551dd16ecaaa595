"""Who waited for whom, and why: for each collective what its last rank did while the others were there already.

Where all ranks of a group run the same program, what the last one did longer than the others since they last met is the
cause. Where they do not (stages of a pipeline), it is what the last one did while the other waited. A rank that was
late because it had itself waited passes the cause on.
"""

from __future__ import annotations

import bisect
import statistics
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from torchledger.nouns import CollectiveMatch, RankActivity, Straggler

COMPUTE, COMMUNICATION, IDLE = 0, 1, 2

_LEAST_WAIT_US = 20.0
_LEAST_SHARE = 0.01
"""Of a step: what a straggler costs at the least to be one."""


@dataclass(frozen=True)
class Place:
    """What a rank did: an entry or a cause of idle time, with the user's line or the module where known."""

    kind: int
    label: str
    source: str = ""

    @property
    def words(self) -> str:
        """The place in a sentence."""
        if self.kind == COMPUTE:
            return f"{self.label} at {self.source}" if self.source else self.label
        return f"{self.label} ({self.source})" if self.source else self.label


@dataclass(frozen=True)
class RankPieces:
    """A rank's activity on the job's clock: starts and ends in order, and what each piece is."""

    start_ns: Sequence[int]
    end_ns: Sequence[int]
    places: Sequence[Place]

    def during(self, start: int, end: int) -> Counter[Place]:
        """Nanoseconds by place between two moments."""
        found: Counter[Place] = Counter()
        at = max(bisect.bisect_right(self.start_ns, start) - 1, 0)
        while at < len(self.start_ns) and self.start_ns[at] < end:
            length = min(self.end_ns[at], end) - max(self.start_ns[at], start)
            if length > 0:
                found[self.places[at]] += length
            at += 1
        return found


def pieces_of(activity: RankActivity, shift_ns: int) -> RankPieces:
    """A rank's pieces, ``shift_ns`` later than its own clock; an idle piece says after which entry it came.

    Steps are alike: what stands before the first recorded one is the last entry of a step.
    """
    starts, ends, places = [], [], []
    known: dict[tuple[int, str, str], Place] = {}
    entries = [place for place, kind in enumerate(activity.kind) if kind == COMPUTE]
    before = ""
    if entries:
        last = entries[-1]
        before = _after(activity.labels[activity.label[last]], activity.sources[activity.source[last]])
    for start, length, kind, label, source in zip(
        activity.piece_start_ns, activity.piece_ns, activity.kind, activity.label, activity.source, strict=True
    ):
        name, line = activity.labels[label], activity.sources[source]
        if kind == COMPUTE:
            before = _after(name, line)
        elif kind == IDLE and not line:
            line = before
        starts.append(activity.start_ns + shift_ns + start)
        ends.append(activity.start_ns + shift_ns + start + length)
        key = (kind, name, line)
        places.append(known.get(key) or known.setdefault(key, Place(*key)))
    return RankPieces(starts, ends, places)


def _after(name: str, line: str) -> str:
    return f"after {name} at {line}" if line else f"after {name}"


@dataclass
class _Episode:
    """One time that ranks waited for a place of another: from when to when, how long at most, and who did."""

    start_ns: int
    end_ns: int
    since: int
    cost_us: float
    waiters: frozenset[int]


def explain_waits(
    matches: Sequence[CollectiveMatch],
    pieces: Mapping[int, RankPieces],
    *,
    step_us: float,
    steps: int,
    least_us: float = _LEAST_WAIT_US,
) -> tuple[list[CollectiveMatch], list[Straggler]]:
    """The matches with the causes of their waits, and the places that cost the job most, dearest first.

    ``pieces`` are each rank's on the clock of the matches; waits below ``least_us`` have no cause.
    """
    found: list[CollectiveMatch] = []
    episodes: dict[tuple[int, str, int], list[_Episode]] = defaultdict(list)
    order = sorted(range(len(matches)), key=lambda place: max(matches[place].arrived_ns))
    explained: dict[int, CollectiveMatch] = {}
    meetings: dict[object, list[int]] = defaultdict(list)
    for place in order:
        match = matches[place]
        last = match.last
        longest = max(match.waited_us, default=0.0)
        met = _last_meeting(match, [explained[other] for other in meetings[match.group, match.ranks]])
        meetings[match.group, match.ranks].append(place)
        if longest < least_us or last not in pieces:
            explained[place] = match
            continue
        cause, late_us = _cause(match, met, pieces)
        rank = last
        if cause is not None and cause.kind == COMMUNICATION:
            passed = _waited_before(match, last, [explained[other] for other in order if other in explained])
            if passed is not None and passed.cause is not None and passed.cause_rank is not None:
                explained[place] = replace(
                    match, cause=passed.cause, cause_rank=passed.cause_rank, cause_us=min(longest, late_us)
                )
                continue
        if cause is None:
            explained[place] = match
            continue
        cost = min(longest, late_us)
        explained[place] = replace(match, cause=cause.words, cause_rank=rank, cause_us=cost)
        if cause.kind == COMMUNICATION:  # messages under way: slow, but nobody is late
            continue
        since = -1 if met is None else max(met.ended_ns)
        waiters = frozenset(
            other for other, waited in zip(match.ranks, match.waited_us, strict=True) if waited >= least_us
        )
        episodes[rank, cause.words, match.index].append(
            _Episode(min(match.arrived_ns), max(match.arrived_ns), since, cost, waiters)
        )
    found = [explained[place] for place in range(len(matches))]
    return found, _stragglers(episodes, step_us, steps)


def _stragglers(
    episodes: Mapping[tuple[int, str, int], Sequence[_Episode]], step_us: float, steps: int
) -> list[Straggler]:
    per_step: dict[tuple[int, str], dict[int, float]] = defaultdict(dict)
    waiters: dict[tuple[int, str], set[int]] = defaultdict(set)
    for (rank, where, index), some in episodes.items():
        per_step[rank, where][index] = _cost_of(some)
        waiters[rank, where] |= set().union(*(episode.waiters for episode in some))
    found = []
    for (rank, where), costs in per_step.items():
        cost = statistics.median([*costs.values(), *[0.0] * (steps - len(costs))])
        if cost >= _LEAST_SHARE * step_us and cost > 0:
            found.append(Straggler(rank, where, cost, tuple(sorted(waiters[rank, where])), len(costs)))
    return sorted(found, key=lambda each: -each.cost_us)


def _cost_of(episodes: Sequence[_Episode]) -> float:
    """Their costs together; what others waited for at the same time, or since the same meeting, is one delay."""
    total, longest = 0.0, 0.0
    reach: int | None = None
    meetings: set[int] = set()
    for episode in sorted(episodes, key=lambda each: each.start_ns):
        if reach is not None and episode.start_ns >= reach and episode.since not in meetings:
            total, longest, meetings = total + longest, 0.0, set()
        longest = max(longest, episode.cost_us)
        meetings.add(episode.since)
        reach = episode.end_ns if reach is None else max(reach, episode.end_ns)
    return total + longest


def _last_meeting(match: CollectiveMatch, before: Sequence[CollectiveMatch]) -> CollectiveMatch | None:
    """The last collective of the same ranks that all of them had done before any came to this one."""
    first = min(match.arrived_ns)
    done = [other for other in before if max(other.ended_ns) <= first]
    return max(done, key=lambda other: max(other.ended_ns), default=None)


def _cause(
    match: CollectiveMatch, met: CollectiveMatch | None, pieces: Mapping[int, RankPieces]
) -> tuple[Place | None, float]:
    """What the last rank did while others waited, and how long, in microseconds."""
    last = match.last
    arrived = dict(zip(match.ranks, match.arrived_ns, strict=True))
    others = [rank for rank in match.ranks if rank != last and rank in pieces]
    if met is not None and others and match.operation not in ("send", "recv"):
        ended = dict(zip(met.ranks, met.ended_ns, strict=True))
        own = pieces[last].during(ended[last], arrived[last])
        theirs = [pieces[rank].during(ended[rank], arrived[rank]) for rank in others]
        excess = {place: ns - statistics.median(each[place] for each in theirs) for place, ns in own.items()}
        place = max(excess, key=lambda each: excess[each], default=None)
        if place is not None and excess[place] > 0:
            return place, excess[place] / 1e3
    own = pieces[last].during(min(match.arrived_ns), arrived[last])
    if not own:
        return None, 0.0
    place, ns = own.most_common(1)[0]
    return place, ns / 1e3


def _waited_before(match: CollectiveMatch, rank: int, before: Sequence[CollectiveMatch]) -> CollectiveMatch | None:
    """The collective in which a rank itself waited longest before it came late to this one."""
    arrived = match.arrived_ns[match.ranks.index(rank)]
    first = min(match.arrived_ns)
    longest, found = 0.0, None
    for other in before:
        if rank not in other.ranks or other.last == rank:
            continue
        at = other.ranks.index(rank)
        start, end = max(other.arrived_ns[at], first), min(max(other.arrived_ns), arrived)
        if end - start > longest:
            longest, found = end - start, other
    return found
