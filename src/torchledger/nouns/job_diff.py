"""Two jobs side by side: what changed in a step, and on which rank."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from torchledger.nouns.job import CollectiveOperation, RankSummary
from torchledger.nouns.run_diff import RunDiff

RankQuantity = Literal["wall_us", "plain_us", "compute_us", "exposed_us", "idle_us", "waiting_us", "peak_bytes"]


@dataclass(frozen=True)
class RankChange:
    """One rank's step in two jobs; ``None`` in the job that does not hold the rank."""

    rank: int
    first: RankSummary | None
    second: RankSummary | None

    def delta(self, quantity: RankQuantity) -> float | None:
        """A quantity of the second job's rank less that of the first's; ``None`` where one of them is not known."""
        first, second = (None if each is None else getattr(each, quantity) for each in (self.first, self.second))
        return None if first is None or second is None else second - first


@dataclass(frozen=True)
class PartChange:
    """What a part of the step (``"compute"``, ``"exposed communication"``, ``"idle: dispatch of operators"``) takes
    more than in the first job, in microseconds: on the rank where it changed most, and the range over the others.
    """

    part: str
    rank: int
    delta_us: float
    others_us: tuple[float, float] | None = None


@dataclass(frozen=True)
class CollectiveTotals:
    """Collectives alike in one step, over all groups: how many, their messages, and what a rank takes, microseconds."""

    count: float = 0.0
    bytes: float | None = 0.0
    in_collective_us: float = 0.0
    waiting_us: float = 0.0


@dataclass(frozen=True)
class CollectiveChange:
    """Collectives of two jobs that share operation, size of the group, element type and message."""

    operation: CollectiveOperation
    group_size: int | None
    dtype: str | None
    message_bytes: int | None
    first: CollectiveTotals
    second: CollectiveTotals


@dataclass(frozen=True)
class StragglerChange:
    """A place at which a rank keeps others waiting: what it costs in a step of each job, microseconds; 0 is nothing."""

    rank: int
    where: str
    first_us: float
    second_us: float


@dataclass(frozen=True)
class JobDiff:
    """What changed between two jobs.

    ``ranks`` are those of either job. ``parts`` are what a step under the profiler is made of; the largest change comes
    first, and so it does in ``collectives`` and ``stragglers``. ``launches`` compares the launches of
    ``launches_rank``, the rank whose compute changed most, where both ledgers hold any.
    """

    first: str
    second: str
    ranks: tuple[RankChange, ...]
    parts: tuple[PartChange, ...] = ()
    collectives: tuple[CollectiveChange, ...] = ()
    stragglers: tuple[StragglerChange, ...] = ()
    launches_rank: int | None = None
    launches: RunDiff | None = None
    notes: tuple[str, ...] = ()
