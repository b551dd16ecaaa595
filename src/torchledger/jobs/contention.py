"""What a collective does to the kernels beside it: an entry's time there, and its time in launches without one."""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Mapping, Sequence

from torchledger.jobs.waits import COMPUTE, RankPieces
from torchledger.nouns import Collective, Contention
from torchledger.traces.spans import merge_spans

_ALONE, _BESIDE = 0.0, 0.5
"""Share of an entry's time in which a collective ran: none to be alone, at least half to be beside it."""

_LEAST_SHARE = 0.1
"""Shorter kernels than this share of an entry's longest clear or copy something for that one, and are left out: half of
an entry's times would be theirs."""

_LEAST = 3
"""Launches of each kind that a comparison takes at the least."""


def find_contention(
    collectives: Mapping[int, Sequence[Collective]],
    pieces: Mapping[int, RankPieces],
    shifts: Mapping[int, int],
    *,
    steps: int,
) -> list[Contention]:
    """Entries that ran both beside a collective and without, over all ranks, the dearest first.

    ``shifts`` bring each rank's clock to that of the pieces. Only what ran several times of each kind is compared.
    """
    alone: dict[str, list[float]] = defaultdict(list)
    beside: dict[str, list[float]] = defaultdict(list)
    for rank, own in pieces.items():
        moving = merge_spans(
            [
                (each.started_ns + shifts[rank], each.ended_ns + shifts[rank])
                for each in collectives[rank]
                if each.started_ns is not None and each.ended_ns is not None
            ]
        )
        at = 0
        for start, end, place in zip(own.start_ns, own.end_ns, own.places, strict=True):
            if place.kind != COMPUTE or end <= start:
                continue
            while at < len(moving) and moving[at][1] <= start:
                at += 1
            share = _inside(moving, at, start, end) / (end - start)
            if share <= _ALONE:
                alone[place.label].append((end - start) / 1e3)
            elif share >= _BESIDE:
                beside[place.label].append((end - start) / 1e3)
    found = []
    for label in alone.keys() & beside.keys():
        least_us = _LEAST_SHARE * max(*alone[label], *beside[label])
        apart, within = ([us for us in some[label] if us >= least_us] for some in (alone, beside))
        if min(len(apart), len(within)) < _LEAST:
            continue
        without, there = statistics.median(apart), statistics.median(within)
        cost = (there - without) * len(within) / steps / len(pieces)
        found.append(Contention(label, without, there, len(apart), len(within), cost))
    return sorted(found, key=lambda each: -each.cost_us)


def _inside(spans: Sequence[tuple[int, int]], at: int, start: int, end: int) -> int:
    total = 0
    while at < len(spans) and spans[at][0] < end:
        total += max(0, min(spans[at][1], end) - max(spans[at][0], start))
        at += 1
    return total
