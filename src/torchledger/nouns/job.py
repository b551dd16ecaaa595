"""A program on many devices: what each rank did and when, the collectives between ranks, and what waited for what."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Literal

from torchledger.nouns.plan import PlannedCollective, PlannedStep

CollectiveOperation = Literal[
    "all_reduce",
    "all_gather",
    "reduce_scatter",
    "all_to_all",
    "broadcast",
    "reduce",
    "gather",
    "scatter",
    "send",
    "recv",
    "barrier",
    "other",
]
"""What a collective does, whatever its caller calls it."""


@dataclass(frozen=True)
class Collective:
    """One collective as one rank took part in it. Moments are nanoseconds on the rank's own clock.

    ``step`` is the name of the ``Step``, ``index`` the recorded step, ``order`` counts the collectives of that step.
    ``name`` is what was called (``"c10d::allreduce_"``). ``group`` is the process group's name, ``ranks`` who is in it;
    ``sequence`` is the group's own number where the trace holds one, ``peer`` the other rank of a send or a receive.
    ``message_bytes`` is what nccl-tests count: the larger of what the rank sends and gets. ``issued_ns`` is when the
    host asked for it, ``started_ns`` and ``ended_ns`` when it ran (on a GPU its kernels; on a CPU its range on the
    backend's thread); ``None`` where that was not recorded. ``algorithm`` is the backend's (``"ring, LL"``).
    ``launched_by`` names the module, the bucket of parameters or the compiled graph that asked.
    In a planned step no moment is known, and the rest is: ``call`` is the ``order`` of the step's call that asked,
    ``launch`` the ``order`` of the launch in a compiled graph, ``waited_by`` the ``order`` of the first call that waits
    for it (that same graph's, where the graph waits itself), ``batch`` a number that sends and receives share that were
    asked for together.
    """

    step: str
    index: int
    order: int
    operation: CollectiveOperation
    name: str
    issued_ns: int | None = None
    started_ns: int | None = None
    ended_ns: int | None = None
    group: str | None = None
    group_size: int | None = None
    ranks: tuple[int, ...] = ()
    sequence: int | None = None
    peer: int | None = None
    dtype: str | None = None
    message_bytes: int | None = None
    stream: str | None = None
    algorithm: str | None = None
    launched_by: str | None = None
    source: str | None = None
    call: int | None = None
    launch: int | None = None
    waited_by: int | None = None
    batch: int | None = None

    @property
    def duration_us(self) -> float | None:
        """From its start to its end on this rank, waiting for others included, in microseconds."""
        if self.started_ns is None or self.ended_ns is None:
            return None
        return (self.ended_ns - self.started_ns) / 1e3


@dataclass(frozen=True)
class RankActivity:
    """What one rank's device (on a CPU: its main thread) did in the recorded steps: pieces that fill them exactly.

    ``start_ns`` is the first step's beginning on the rank's own clock; ``piece_start_ns`` count from it and
    ``piece_ns`` are lengths. ``kind`` holds 0 for compute, 1 for communication that no compute hides, 2 for idle;
    ``label`` is a place in ``labels``: an entry, or the cause of idle time; ``source`` one in ``sources`` (user's line
    or module, empty where unknown). ``step_start_ns`` are the beginnings of the steps, ``communication_ns`` is all
    time in which a collective ran, hidden or not. ``host`` is the machine's name.

    Raises ``ValueError`` if the pieces' columns are of several lengths, if a piece names a place that there is not, if
    there is no step, or if a length of time is negative.
    """

    step: str
    clock: str
    start_ns: int
    end_ns: int
    step_start_ns: tuple[int, ...]
    piece_start_ns: tuple[int, ...]
    piece_ns: tuple[int, ...]
    kind: tuple[int, ...]
    label: tuple[int, ...]
    source: tuple[int, ...]
    labels: tuple[str, ...]
    sources: tuple[str, ...]
    communication_ns: int = 0
    host: str | None = None

    def __post_init__(self) -> None:
        columns = (self.piece_start_ns, self.piece_ns, self.kind, self.label, self.source)
        if len({len(column) for column in columns}) > 1:
            raise ValueError(f"columns of the pieces have {', '.join(str(len(column)) for column in columns)} entries")
        if not set(self.label) <= set(range(len(self.labels))):
            raise ValueError(f"a piece's label is none of the {len(self.labels)} labels")
        if not set(self.source) <= set(range(len(self.sources))):
            raise ValueError(f"a piece's source is none of the {len(self.sources)} sources")
        if not self.step_start_ns or self.end_ns < self.start_ns or min(self.piece_ns, default=0) < 0:
            raise ValueError("there is no step, or a length of time is negative")

    @property
    def wall_ns(self) -> int:
        """Length of the recorded steps, in nanoseconds."""
        return self.end_ns - self.start_ns


@dataclass(frozen=True)
class CollectiveMatch:
    """One collective over all its ranks, on one clock. Moments are nanoseconds from the job's first step's beginning.

    ``ranks`` took part, in order of their numbers; ``arrived_ns`` and ``ended_ns`` are theirs. ``moving_us`` is from
    the last arrival to the last end. ``last`` is the rank that arrived last, ``waited_us`` how long each rank was in it
    before that. ``cause`` says what the last rank was doing while the others waited, ``cause_rank`` whose doing that
    was in the end (another rank's, where the last one had itself waited), ``cause_us`` for how long.
    """

    index: int
    operation: CollectiveOperation
    group: str | None
    group_size: int | None
    ranks: tuple[int, ...]
    arrived_ns: tuple[int, ...]
    ended_ns: tuple[int, ...]
    message_bytes: int | None
    dtype: str | None = None
    algorithm: str | None = None
    launched_by: str | None = None
    source: str | None = None
    cause: str | None = None
    cause_rank: int | None = None
    cause_us: float | None = None

    @property
    def last(self) -> int:
        """The rank that arrived last."""
        return self.ranks[self.arrived_ns.index(max(self.arrived_ns))]

    @property
    def waited_us(self) -> tuple[float, ...]:
        """How long each rank was in it before the last one came, in microseconds."""
        last = max(self.arrived_ns)
        return tuple(
            max(0, min(last, end) - arrived) / 1e3 for arrived, end in zip(self.arrived_ns, self.ended_ns, strict=True)
        )

    @property
    def in_collective_us(self) -> float:
        """How long a rank is in it, on average, in microseconds."""
        return (
            sum(end - start for start, end in zip(self.arrived_ns, self.ended_ns, strict=True)) / 1e3 / len(self.ranks)
        )

    @property
    def moving_us(self) -> float:
        """From the last arrival to the last end, in microseconds."""
        return max(0, max(self.ended_ns) - max(self.arrived_ns)) / 1e3


@dataclass(frozen=True)
class RankSummary:
    """One rank's step, in microseconds: ``compute_us`` + ``exposed_us`` + ``idle_us`` = ``wall_us``.

    ``waiting_us`` is the part of its time in collectives before the last rank had come, ``transfer_us`` the rest;
    ``hidden_us`` is communication beside compute. ``bubble_us`` is exposed time in a pipeline's sends and receives.
    ``idle_by_cause_us`` adds up to ``idle_us``. ``plain_us`` is the step without the profiler. ``peak_bytes`` is the
    most that is allocated at once in a step, in the blocks of a GPU's allocator; ``None`` where that was not watched.
    """

    rank: int
    ledger: str
    wall_us: float
    compute_us: float
    exposed_us: float
    idle_us: float
    communication_us: float
    hidden_us: float
    waiting_us: float
    bubble_us: float = 0.0
    plain_us: float | None = None
    peak_bytes: int | None = None
    clock_offset_us: float = 0.0
    clock_error_us: float | None = None
    idle_by_cause_us: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class Straggler:
    """A place at which one rank keeps the others waiting: what it costs them in a step, in microseconds."""

    rank: int
    where: str
    cost_us: float
    waiters: tuple[int, ...] = ()
    steps: int = 0


@dataclass(frozen=True)
class Contention:
    """An entry beside a collective and without one: medians over its launches, microseconds.

    ``cost_us`` is what all its launches beside collectives take longer for it, in a step of one rank.
    """

    entry: str
    alone_us: float
    beside_us: float
    launches_alone: int
    launches_beside: int
    cost_us: float


@dataclass(frozen=True)
class Job:
    """The ranks of one program and the collectives between them; sums are of one step, means over those recorded.

    ``world_size`` is how many ranks there are by their own word, ``ranks`` those whose ledgers were read.
    ``collectives`` are all that were matched, in order of their ends; ``unmatched`` says which were not, and why.
    Of ranks that were planned nothing has a time: ``planned`` are their collectives, ``stands_for`` says how many ranks
    each of them stands for, and ``plan`` is the price of their step where it was kept.
    """

    path: str
    world_size: int | None
    steps: int
    ranks: tuple[RankSummary, ...]
    collectives: tuple[CollectiveMatch, ...]
    stragglers: tuple[Straggler, ...]
    unmatched: Mapping[str, int] = field(default_factory=dict)
    contention: tuple[Contention, ...] = ()
    advice: str | None = None
    notes: tuple[str, ...] = ()
    planned: tuple[PlannedCollective, ...] = ()
    stands_for: Mapping[int, int] = field(default_factory=dict)
    plan: PlannedStep | None = None

    def named(self, path: str) -> Job:
        """The same job under another path."""
        return replace(self, path=path)

    @property
    def exposed_us(self) -> float | None:
        """Communication that no compute hides, in one step: the mean over the ranks, in microseconds."""
        return sum(rank.exposed_us for rank in self.ranks) / len(self.ranks) if self.ranks else None

    @property
    def wall_us(self) -> float | None:
        """One step of the slowest rank under the profiler, in microseconds."""
        return max((rank.wall_us for rank in self.ranks), default=None)
