"""Which collectives of different ranks are one: by their group and their number in it, sends with their receives."""

from __future__ import annotations

import statistics
from collections import Counter, defaultdict
from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from difflib import SequenceMatcher

from torchledger.nouns import Collective

_SHIFTS = (0, 1, -1, 2, -2)
"""By how many steps ranks may have begun to record apart from each other."""


@dataclass(frozen=True)
class Matched:
    """Collectives by rank, in order of their first arrival, and what was not matched, by reason."""

    collectives: tuple[Mapping[int, Collective], ...]
    unmatched: Mapping[str, int] = field(default_factory=dict)
    notes: tuple[str, ...] = ()


def match_collectives(ranks: Mapping[int, Sequence[Collective]], *, step_ns: float = 0.0) -> Matched:
    """Put together what the ranks say of the same collective. ``step_ns`` is about how long a step takes.

    Ranks that began to record some steps apart are shifted to where their collectives overlap in time.
    """
    notes: list[str] = []
    shifted: dict[int, Sequence[Collective]] = {}
    first = next(iter(ranks), None)
    for rank, collectives in ranks.items():
        shift = 0 if first is None or rank == first else _shift(ranks[first], collectives, step_ns)
        if shift:
            notes.append(
                f"rank {rank} began to record {abs(shift)} step{'s'[: abs(shift) > 1]} apart from rank {first}"
            )
        shifted[rank] = [replace(each, index=each.index + shift) for each in collectives] if shift else collectives
    by_key: dict[Hashable, dict[int, Collective]] = defaultdict(dict)
    for key, rank, each in _keyed(shifted):
        by_key[key][rank] = each
    found: list[Mapping[int, Collective]] = []
    unmatched: Counter[str] = Counter()
    for members in by_key.values():
        some = next(iter(members.values()))
        expected = 2 if some.operation in ("send", "recv") else some.group_size
        if len({_kind(each) for each in members.values()}) > 1:
            unmatched["ranks call different collectives at the same place of a group"] += len(members)
        elif expected is not None and len(members) < min(expected, len(ranks)):
            unmatched["other ranks of the group did not record it"] += len(members)
        elif len(members) > 1:
            found.append(members)
        elif expected == 1:
            continue
        else:
            unmatched["the other ranks' ledgers are not here"] += 1
    found.sort(key=lambda members: min(each.issued_ns or 0 for each in members.values()))
    return Matched(tuple(found), dict(unmatched), tuple(notes))


def _kind(each: Collective) -> tuple[str, str | None]:
    return "send" if each.operation == "recv" else each.operation, each.dtype


def _likeness(each: Collective) -> Hashable:
    """What is the same on all ranks of a collective; an all_to_all gives each rank a size of its own."""
    return _kind(each), each.message_bytes if each.operation != "all_to_all" else None


def _keyed(ranks: Mapping[int, Sequence[Collective]]) -> Iterator[tuple[Hashable, int, Collective]]:
    """Each collective with what it is called on every rank.

    Its number in the group is its name. Where a rank has others than the rest (its trace is cut), those that are alike
    and in the same order are one.
    """
    places: dict[Hashable, dict[int, list[Collective]]] = defaultdict(lambda: defaultdict(list))
    for rank, collectives in ranks.items():
        for each in collectives:
            places[_place(rank, each)][rank].append(each)
    for place, lists in places.items():
        longest = max(lists.values(), key=len)
        usual = list(map(_likeness, longest))
        for rank, members in lists.items():
            own = list(map(_likeness, members))
            numbers = dict(enumerate(range(len(own)))) if own == usual else _aligned(own, usual)
            for position, each in enumerate(members):
                number: Hashable = numbers.get(position, (rank, position))
                yield (place, number), rank, each


def _aligned(left: Sequence[Hashable], right: Sequence[Hashable]) -> dict[int, int]:
    blocks = SequenceMatcher(None, left, right, autojunk=False).get_matching_blocks()
    return {block.a + offset: block.b + offset for block in blocks for offset in range(block.size)}


def _place(rank: int, each: Collective) -> Hashable:
    """Where a collective stands: its group, and its number there, or the step that is recorded."""
    group: Hashable = (each.group, each.ranks or each.group_size)
    if each.operation in ("send", "recv"):
        peer = each.ranks[each.peer] if each.peer is not None and each.peer < len(each.ranks) else each.peer
        return group, each.index, (rank, peer) if each.operation == "send" else (peer, rank)
    if each.sequence is not None:
        return group, "sequence", each.sequence
    return group, each.index


def _shift(ours: Sequence[Collective], theirs: Sequence[Collective], step_ns: float) -> int:
    """By how many steps the other rank's numbers are to be moved; 0 where nothing tells."""
    if any(each.sequence is not None for each in theirs) or not step_ns:
        return 0
    for shift in _SHIFTS:
        apart = _apart_ns(ours, theirs, shift)
        if apart is not None and abs(apart) < step_ns / 2:
            return shift
    return 0


def _apart_ns(ours: Sequence[Collective], theirs: Sequence[Collective], shift: int) -> float | None:
    """How far apart the same places of the same steps end."""
    ends = {(each.group, each.index, each.order): each.ended_ns for each in ours if each.ended_ns is not None}
    apart = [
        each.ended_ns - ends[key]
        for each in theirs
        if each.ended_ns is not None and (key := (each.group, each.index + shift, each.order)) in ends
    ]
    return statistics.median(apart) if apart else None
