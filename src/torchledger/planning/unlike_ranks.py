"""Which ranks of a job do unlike things, where a program sends messages between ranks by hand: each such rank is run.

Messages are followed from rank 0 on. Whoever does the same as the rank that it is reached from (the next one of a ring)
is like it; whoever does not is another stage. Other ranks have such stages too, period after period; the last rank of
the world is run to see whether it is as its place in a period says. Where ranks that were run are not, their borders
are sought by halves.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from pathlib import Path

from torchledger.nouns import Collective, Launch, StepCall
from torchledger.store import open_ledger
from torchledger.work.collectives import exchanges_nothing

MOST_RUN = 16
"""So many ranks of a job are run; of a longer pipeline the first stages, and the last two."""

_LAST_STAGES = 2

_MOST_PEERS = 4
"""Of so many ranks with which one exchanges messages each is run, of more as many of them."""

_AHEAD = 2
"""A chain of stages that goes on is taken to go on so far: they are run beside each other."""

_SAME = 0.05
"""Ranks whose work differs by less do the same: one of them prints, or has the shorter share of an uneven split."""


@dataclass(frozen=True)
class RankTraits:
    """What tells one rank's step from another's: the ranks that it exchanges messages with, its collectives and
    messages in order (operation and size of group), and sums over its step (bytes that it exchanges, launches, FLOPs,
    bytes that these move)."""

    peers: tuple[int, ...] = ()
    exchanges: tuple[tuple[str, int | None], ...] = ()
    sums: tuple[int, ...] = ()

    def is_like(self, other: RankTraits) -> bool:
        """Whether another rank does the same, with whomever it does."""
        return self.exchanges == other.exchanges and all(
            math.isclose(one, two, rel_tol=_SAME) for one, two in zip(self.sums, other.sums, strict=True)
        )


@dataclass(frozen=True)
class AlikeRanks:
    """A rank that was run, the ranks that it ``stands_for``, and which of these are ``guessed`` to be like it: they lie
    between ranks that differ, and no more were run."""

    rank: int
    stands_for: tuple[int, ...]
    guessed: tuple[int, ...] = ()


Run = Callable[[Sequence[int]], Sequence[RankTraits]]


def traits_of(path: Path) -> RankTraits:
    """The traits of the step that a planned rank's ledger holds."""
    with open_ledger(path) as ledger:
        calls = ledger.read(StepCall)
        exchanged = [each for each in ledger.read(Collective) if each.group_size != 1]
        graphs = Counter(call.name for call in calls if call.kind == "graph")
        launches = [each for each in ledger.read(Launch) if each.is_call and each.graph in graphs]
    # Copies are left out: reading a value is what the one rank does that prints.
    eager = [call for call in calls if call.kind == "operator" and call.device not in (None, "cpu")]
    messages = [each for each in exchanged if each.operation in ("send", "recv")]
    return RankTraits(
        tuple(sorted({rank for each in messages for place, rank in enumerate(each.ranks) if place == each.peer})),
        tuple((each.operation, each.group_size) for each in exchanged if not exchanges_nothing(each.name)),
        (
            sum(each.message_bytes or 0 for each in exchanged),
            len(eager) + sum(graphs[each.graph] for each in launches),
            *(
                sum(getattr(call, amount) or 0 for call in eager)
                + sum((getattr(each, amount) or 0) * graphs[each.graph] for each in launches)
                for amount in ("flops", "bytes_moved")
            ),
        ),
    )


def find_unlike_ranks(first: RankTraits, run: Run, world: int, *, in_order: bool = False) -> list[AlikeRanks]:
    """The ranks that stand for a world of which rank 0 has run (``first``), each once; ``run`` runs others.

    ``in_order``: ranks tell each other what they send, so that one is run behind those that send to it, and none that
    no message leads to.
    """
    search = _Search(first, run, world, in_order)
    search.follow_messages()
    if not in_order:
        search.find_borders()
    return search.found()


class _Search:
    """The ranks that have run, and what their messages say about the others."""

    def __init__(self, first: RankTraits, run: Run, world: int, in_order: bool) -> None:
        self._run, self._world, self._in_order = run, world, in_order
        self._traits = {0: first}
        self._stages = {0}
        self._to_stages: set[int] = set()
        self._to_mates: set[int] = set()
        self._cut_apart: int | None = None
        """Of a pipeline that is too long for all stages to be run, how far apart these are."""

    def follow_messages(self) -> None:
        """Find the stages of rank 0's pipeline, or that it is like those with whom it exchanges messages."""
        waiting = dict.fromkeys(self._peers_of(0), 0)
        while waiting:
            ranks = sorted(waiting)[: 1 if self._in_order else None]
            self._run_some([*ranks, *self._ahead(ranks, waiting)], MOST_RUN - _LAST_STAGES)
            if not all(rank in self._traits for rank in ranks):
                self._cut()
                return
            for rank in ranks:
                source = waiting.pop(rank)
                if self._is_stage(rank, source):
                    self._stages.add(rank)
                    waiting |= {peer: rank for peer in self._peers_of(rank) if peer not in waiting}

    def find_borders(self) -> None:
        """Run the last rank of the world, and ranks between those that ran and are unlike, until none is between."""
        wanted = [self._world - 1]
        while wanted and len(self._traits) < MOST_RUN:
            self._run_some(wanted, MOST_RUN)
            wanted = [(before + after) // 2 for before, after in self._gaps()]

    def found(self) -> list[AlikeRanks]:
        """The ranks that stand for all."""
        stood: dict[int, list[int]] = {}
        below = 0
        for rank in range(self._world):
            if rank in self._stages or (rank in self._traits and not self._traits[rank].is_like(self._traits[below])):
                below = rank
            chosen = self._by_place(rank) if self._fits(below) else below
            stood.setdefault(chosen, []).append(rank)
        guessed = {rank for before, after in self._gaps() for rank in range(before + 1, after)}
        return [
            AlikeRanks(rank, tuple(some), tuple(each for each in some if each in guessed))
            for rank, some in sorted(stood.items())
        ]

    def _run_some(self, ranks: Sequence[int], most: int) -> None:
        """Run those that have not run, until so many ranks have."""
        new = [rank for rank in dict.fromkeys(ranks) if rank not in self._traits][: max(0, most - len(self._traits))]
        if new:
            self._traits.update(zip(new, self._run(sorted(new)), strict=True))

    def _peers_of(self, rank: int) -> list[int]:
        """Ranks to which its messages lead that may be other stages."""
        found = [
            peer
            for peer in self._traits[rank].peers
            if peer not in self._stages and peer - rank not in self._to_mates and 0 <= peer < self._world
        ]
        if len(found) <= _MOST_PEERS:
            return found
        return [found[0], found[1], found[len(found) // 2], found[-1]]

    def _is_stage(self, rank: int, source: int) -> bool:
        """Whether a rank is another stage than the one it was reached from. Two stages in the middle of a pipeline may
        do the same: how far apart stages are is told by the first."""
        apart = rank - source
        if apart not in self._to_stages and self._traits[rank].is_like(self._traits[source]):
            self._to_mates.add(apart)
            return False
        self._to_stages |= {apart, -apart}
        return True

    def _ahead(self, ranks: Sequence[int], waiting: dict[int, int]) -> Iterator[int]:
        """The next stages of chains that go on, if they do."""
        if self._in_order:
            return
        for rank in ranks:
            apart = rank - waiting[rank]
            if apart in self._to_stages:
                further = (rank + apart * count for count in range(1, _AHEAD + 1))
                yield from (each for each in further if 0 <= each < self._world)

    def _cut(self) -> None:
        """A pipeline is longer than ranks may be run: its last stages, if they are as far apart as the first."""
        self._cut_apart = apart = min((each for each in self._to_stages if each > 0), default=1)
        last = (self._world - 1) // apart * apart
        self._run_some([last - apart, last], MOST_RUN)
        self._stages = set(self._traits)

    # --- by place in a period -------------------------------------------------------------------------------------

    @cached_property
    def _chain(self) -> list[int] | None:
        """The stages where they are evenly apart and fill the world, period after period; ``None`` where not."""
        chain = sorted(self._stages)
        apart = self._apart(chain)
        is_even = all(after - before == apart for before, after in pairwise(chain))
        return chain if is_even and self._world % (apart * len(chain)) == 0 and self._cut_apart is None else None

    def _apart(self, chain: Sequence[int]) -> int:
        return chain[1] - chain[0] if len(chain) > 1 else self._world

    def _by_place(self, rank: int) -> int:
        """The stage that a rank is by its place."""
        assert self._chain is not None
        return self._chain[(rank // self._apart(self._chain)) % len(self._chain)]

    def _fits(self, rank: int) -> bool:
        """Whether a rank that ran does what its place in a period says."""
        return self._chain is not None and self._traits[rank].is_like(self._traits[self._by_place(rank)])

    def _gaps(self) -> list[tuple[int, int]]:
        """Neighbours among those that ran, with others between them, that are unlike."""
        return [
            (before, after)
            for before, after in pairwise(sorted(self._traits))
            if after - before > 1 and not self._agree(before, after)
        ]

    def _agree(self, before: int, after: int) -> bool:
        """Whether those between two are taken to be like the first with reason."""
        if self._cut_apart is not None:  # what stages between wait for is not known, even where all do the same
            return after - before <= self._cut_apart
        fits = self._fits(before), self._fits(after)
        return all(fits) or (not any(fits) and self._traits[before].is_like(self._traits[after]))
