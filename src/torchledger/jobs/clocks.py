"""The ranks' clocks, put on one by their collectives: no rank ends one before every rank has begun it."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from torchledger.nouns import Collective

_ALL_TO_ALL = frozenset({"all_reduce", "all_gather", "reduce_scatter", "all_to_all", "barrier"})
"""Operations of which no rank can be done before every other has begun."""

_UNBOUNDED = 2**61
_SHARED_CLOCK_NS = 20_000
"""By how much two processes of one host can differ: each profiler puts its ticks on the host's clock by readings of
both, which lie some microseconds apart."""
_NAMELESS = frozenset({None, "", "localhost", "localhost.localdomain"})
_CLOSED_UP_TO = 128
"""Ranks up to which bounds over third ranks are looked for; their number grows with the cube."""


@dataclass(frozen=True)
class Alignment:
    """What to add to each rank's clock, and by how much that can be wrong (``None``: nothing bounds it), nanoseconds.

    ``is_consistent``: no two collectives contradict each other.
    """

    offset_ns: Mapping[int, int]
    error_ns: Mapping[int, int | None]
    is_consistent: bool = True


def align_clocks(
    matched: Sequence[Mapping[int, Collective]],
    ranks: Sequence[int],
    hosts: Mapping[int, str | None],
    *,
    on_device: Mapping[int, bool] | None = None,
) -> Alignment:
    """Offsets that bring all ranks to the first one's clock.

    ``matched`` holds each collective by rank. Ranks of one host share its clock, unless the collectives say otherwise;
    others end together what ends for all at once, and where nothing does, stand in the middle of what is possible.
    ``on_device`` tells whose collectives are timed by their kernels (all unless given).
    """
    place = {rank: index for index, rank in enumerate(ranks)}
    upper = np.full((len(ranks), len(ranks)), _UNBOUNDED, dtype=np.int64)
    for members in matched:
        _bound(members, place, upper, on_device or {})
    np.fill_diagonal(upper, 0)
    if len(ranks) <= _CLOSED_UP_TO:
        for middle in range(len(ranks)):
            through = np.minimum(upper[:, middle, None] + upper[None, middle, :], _UNBOUNDED)
            np.minimum(upper, through, out=upper)
    is_consistent = bool((upper + upper.T >= 0).all())
    offsets: dict[int, int] = {}
    errors: dict[int, int | None] = {}
    for rank in ranks:
        most, least = int(upper[0, place[rank]]), -int(upper[place[rank], 0])
        is_bounded = most < _UNBOUNDED and least > -_UNBOUNDED
        if not is_bounded or most < least:
            offsets[rank], errors[rank] = 0, None
            continue
        shares_clock = hosts.get(rank) not in _NAMELESS and hosts.get(rank) == hosts.get(ranks[0])
        wanted = 0 if shares_clock else _apart_at_ends(matched, ranks[0], rank)
        offsets[rank] = (most + least) // 2 if wanted is None else min(max(wanted, least), most)
        errors[rank] = max(most - offsets[rank], offsets[rank] - least)
        if shares_clock and abs(offsets[rank]) <= _SHARED_CLOCK_NS:
            errors[rank] = 0 if rank == ranks[0] else min(errors[rank] or 0, _SHARED_CLOCK_NS)
    return Alignment(offsets, errors, is_consistent)


def _apart_at_ends(matched: Sequence[Mapping[int, Collective]], first: int, rank: int) -> int | None:
    """How much earlier than the first rank another ends what both end together; ``None`` if they never do."""
    apart = [
        ours.ended_ns - theirs.ended_ns
        for members in matched
        if (ours := members.get(first)) is not None
        and (theirs := members.get(rank)) is not None
        and ours.operation in _ALL_TO_ALL
        and ours.ended_ns is not None
        and theirs.ended_ns is not None
    ]
    return round(statistics.median(apart)) if apart else None


def _bound(
    members: Mapping[int, Collective],
    place: Mapping[int, int],
    upper: npt.NDArray[np.int64],
    on_device: Mapping[int, bool],
) -> None:
    """Later end less earlier start, for each two ranks of which one cannot end before the other has begun.

    What a backend on the host sends is under way before its range begins: only that it was asked for is sure.
    """
    known = [
        (place[rank], _begun(each, is_on_device=on_device.get(rank, True)), each.ended_ns, each)
        for rank, each in members.items()
        if each.started_ns is not None and each.ended_ns is not None
    ]
    if len(known) < 2:
        return
    if all(each.operation in _ALL_TO_ALL for *_, each in known):
        index = np.array([at for at, *_ in known])
        start = np.array([begun for _, begun, _, _ in known], dtype=np.int64)
        end = np.array([done for _, _, done, _ in known], dtype=np.int64)
        block = np.ix_(index, index)
        upper[block] = np.minimum(upper[block], end[:, None] - start[None, :])
        return
    senders = [each for each in known if each[3].operation == "send"]
    receivers = [each for each in known if each[3].operation == "recv"]
    for sender, begun, _, _ in senders:
        for receiver, _, done, _ in receivers:
            upper[receiver, sender] = min(int(upper[receiver, sender]), done - begun)


def _begun(each: Collective, *, is_on_device: bool) -> int:
    assert each.started_ns is not None
    if each.operation != "send" or is_on_device or each.issued_ns is None:
        return each.started_ns
    return min(each.issued_ns, each.started_ns)
