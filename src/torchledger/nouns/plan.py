"""The price of a step on devices that are not there: one rank or many, alone or beside other layouts."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True)
class PlannedRank:
    """What one rank's devices and host would do in a step, in microseconds.

    ``compute_us`` is time in which a kernel runs, ``communication_us`` that in which a collective does, of which
    ``exposed_us`` has no kernel beside it; ``bubble_us`` is the part of the rank's time in which it waits for other
    ranks, as for another stage of a pipeline, ``idle_us`` the rest. ``stands_for`` says how many ranks are like it.
    """

    rank: int
    compute_us: float
    communication_us: float
    exposed_us: float
    idle_us: float
    host_us: float
    bubble_us: float = 0.0
    stands_for: int = 1
    peak_allocated_bytes: int | None = None


@dataclass(frozen=True)
class PlannedCollective:
    """Collectives of one rank's step that share operation and group: how many, and all of their messages together.

    ``message_bytes`` is as nccl-tests count it, ``duration_us`` what they take one after another with nothing beside
    them, without waiting for other ranks; both are sums, and ``None`` where they are not known.
    """

    rank: int
    operation: str
    group: str | None
    group_size: int | None
    count: int
    message_bytes: int | None = None
    duration_us: float | None = None


@dataclass(frozen=True)
class PlannedRarerStep:
    """Steps that do otherwise than the planned one: ``times`` of the ``seen`` ones, evenly ``every`` so many steps
    (``None``: not evenly, or seen once), each ``more_us`` longer than it (shorter where that is negative).

    ``share`` is which part of all steps they are taken to be, ``source`` the line that asks for most of what they do
    more, or less, and ``operator`` what takes longest of it.
    """

    every: int | None
    times: int
    seen: int
    share: float
    more_us: float
    source: str | None = None
    operator: str | None = None


@dataclass(frozen=True)
class PlannedStep:
    """The predicted time of one step over all ranks, and what it is made of.

    ``duration_us`` is that of the slowest rank, within ``low_us`` and ``high_us`` at the given ``coverage``;
    ``device_us`` is what the busiest rank's device needs of it (kernels and exposed collectives), ``host_us`` what its
    host needs to launch it all, ``host_work_us`` of that to compute what the program computes there itself.
    ``decided_by`` says what the way through the step that decides its length is made of: ``"compute"``,
    ``"communication"`` and ``"host"`` with their shares, the largest first.
    ``collectives`` are those of each rank that was recorded. ``launches`` counts what is priced in one rank's step:
    calls outside compiled graphs, and launches inside them; ``kernel_launches`` the kernels that these launch, of which
    an operator over lists of tensors has several.
    ``communication_us`` and ``exposed_us`` are the slowest rank's, ``bubble_us`` is the mean over the ranks and
    ``peak_allocated_bytes`` the fullest rank's; ``fits`` says whether its device has that much, and is ``None`` where
    that is unknown. All of this is of the step that was recorded; ``rarer`` are those of which others are known to
    differ from it.
    """

    subject: str
    device: str
    fabric: str | None
    world_size: int
    duration_us: float
    low_us: float
    high_us: float
    coverage: float
    device_us: float
    host_us: float
    decided_by: Mapping[str, float] = field(default_factory=dict)
    communication_us: float = 0.0
    exposed_us: float = 0.0
    bubble_us: float = 0.0
    peak_allocated_bytes: int | None = None
    launches: int = 0
    ranks: tuple[PlannedRank, ...] = ()
    notes: tuple[str, ...] = ()
    collectives: tuple[PlannedCollective, ...] = ()
    kernel_launches: int | None = None
    host_work_us: float = 0.0
    fits: bool | None = None
    rarer: tuple[PlannedRarerStep, ...] = ()

    @property
    def mean_us(self) -> float:
        """What a step takes in the mean, those that are ``rarer`` among them."""
        return self.duration_us + sum(each.share * each.more_us for each in self.rarer)

    @property
    def decides(self) -> str | None:
        """What most of the deciding way is made of."""
        return next(iter(self.decided_by), None)


@dataclass(frozen=True)
class Layout:
    """A way to spread a model and its batch over a world of ranks.

    ``tp``, ``cp``, ``pp`` and ``dp`` multiply to the world; of ``dp`` ranks ``fsdp`` share parameters, gradients and
    optimizer (1: each holds all). ``zero`` is what those share: 1 the optimizer's state, 2 gradients too, 3 parameters
    too; 0 with ``fsdp`` 1. ``schedule`` is a pipeline's (``"1F1B"``), ``micro_batch`` the sequences of one microbatch,
    ``recomputation`` what the backward computes again: nothing, attention, or whole blocks. ``stages_per_rank`` is how
    many stages each rank of an interleaved pipeline has.
    """

    dp: int = 1
    tp: int = 1
    pp: int = 1
    cp: int = 1
    fsdp: int = 1
    zero: int = 0
    schedule: str = "1F1B"
    micro_batch: int = 1
    recomputation: str = "none"
    stages_per_rank: int = 1
    sequence_parallel: bool = True

    @property
    def world_size(self) -> int:
        """How many ranks there are."""
        return self.dp * self.tp * self.pp * self.cp


@dataclass(frozen=True)
class PricedLayout:
    """A layout with its step, or the reason why it was left out (``reason``; then ``step`` is ``None``)."""

    layout: Layout
    peak_allocated_bytes: int
    step: PlannedStep | None = None
    reason: str | None = None
