"""What a program was told that ran without its device."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import pairwise

from torchledger.nouns.step import StepCall


@dataclass(frozen=True)
class StandIn:
    """A value that the program was given in place of one that was not computed.

    ``source`` is the line that asked (``"train.py:12"``), ``asked`` what for, ``value`` what it got, and ``count`` how
    often.
    """

    source: str
    asked: str
    value: str
    count: int = 1


RUNNING = ".running"
"""Beside a request for a rank (``request_4.json``) lies a file of this suffix while that rank is recorded."""

NUMBERS = "numbers_"
"""So begin the names of the files, in a world's ``mail``, that hold the small whole numbers which ranks send others."""


@dataclass(frozen=True)
class WorldSpec:
    """One rank of a world that is not there: ``ranks_per_node`` of its ranks share a node. ``mail`` is the folder in
    which ranks that are run one after another leave the shapes, and the small whole numbers, that they send each other.
    """

    rank: int
    size: int
    ranks_per_node: int = 8
    mail: str | None = None

    @property
    def local_rank(self) -> int:
        """The rank's number in its node."""
        return self.rank % self.ranks_per_node

    @property
    def local_size(self) -> int:
        """How many of its ranks are on one node."""
        return min(self.size, self.ranks_per_node)


@dataclass(frozen=True)
class MadeGroup:
    """A process group that a program made and this rank is in: its name, its ranks in order, what it is for."""

    name: str
    ranks: tuple[int, ...]
    description: str = ""


@dataclass(frozen=True)
class RareCollective:
    """A collective that a program asked for in other steps than the one that was recorded, which lacks it.

    ``message_bytes`` is one message as nccl-tests count it, ``count`` how often it was asked for, in so many of the
    ``steps`` of optimizers that the program made (where it made none, of its calls). ``source`` is the line that asked.
    """

    operation: str
    source: str
    group: str | None = None
    group_size: int | None = None
    message_bytes: int | None = None
    count: int = 1
    steps: int = 1


@dataclass(frozen=True)
class RarerStep:
    """Steps that do otherwise than the recorded one, all alike, of those that were ``seen`` from it on.

    ``places`` are theirs, counted from the recorded step, 0. ``calls`` are what such a step makes more, ``lacks`` the
    ``order`` of those calls of the recorded step that it does not make.
    """

    places: tuple[int, ...]
    seen: int
    calls: tuple[StepCall, ...] = ()
    lacks: tuple[int, ...] = ()

    @property
    def every(self) -> int | None:
        """One of how many steps is such a one; ``None`` where they do not come evenly, or only one was seen.

        >>> RarerStep((4, 10), 12).every, RarerStep((4,), 12).every, RarerStep((1, 2, 3), 12).every
        (6, None, None)
        """
        apart = {later - earlier for earlier, later in pairwise(self.places)}
        period = apart.pop() if len(apart) == 1 else 1
        is_throughout = self.places[0] <= period and self.seen - self.places[-1] <= period
        return period if period > 1 and is_throughout else None

    @property
    def share(self) -> float:
        """Which share of the steps are such ones."""
        return 1 / self.every if self.every else len(self.places) / self.seen


CUDA_GRAPH = "a compiled graph is replayed as a CUDA graph"
"""The decision that is noted of a graph which mode "reduce-overhead" would record."""

STEP_GRAPH = "a CUDA graph that the program captures holds a whole step, which is priced as one replay of it"
"""The decision that is noted where an optimizer stepped inside such a capture."""


@dataclass(frozen=True)
class DryRun:
    """A ledger's program ran without ``device``: nothing was computed, and nothing in the ledger was measured.

    ``decisions`` counts what the compiler would have measured on the device and was decided by a rule. ``world`` is the
    rank that it ran as, where it is one of several, and ``groups`` are the ranks of each process group that it is in.
    ``rare`` are the collectives of other steps that the recorded one lacks; ``optimizer_steps`` counts the steps of
    optimizers that the program made until it was ended, ``calls`` those like the recorded step that it was let make
    behind it. ``rarer`` are steps that were seen to do otherwise than the recorded one.
    """

    device: str
    stand_ins: tuple[StandIn, ...] = ()
    decisions: Mapping[str, int] = field(default_factory=dict)
    world: WorldSpec | None = None
    groups: tuple[MadeGroup, ...] = ()
    rare: tuple[RareCollective, ...] = ()
    optimizer_steps: int = 0
    calls: int = 0
    rarer: tuple[RarerStep, ...] = ()

    @property
    def replays_graphs(self) -> bool:
        """Whether the device would replay compiled graphs as CUDA graphs."""
        return CUDA_GRAPH in self.decisions

    @property
    def replays_step(self) -> bool:
        """Whether the program would replay its whole step as one CUDA graph that it has captured."""
        return STEP_GRAPH in self.decisions
