"""A time that nobody measured."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from torchledger.nouns.step import Phase


@dataclass(frozen=True)
class Prediction:
    """A predicted time with its interval; answers the same questions as a ``Measurement``.

    ``low_us``/``high_us`` bound the interval of the given ``coverage``; ``range`` says where the question lies relative
    to what was measured. ``state`` is the one in which the time is meant: ``"warm"``, just after the kernel's own
    repeats, ``"swept"``, after other work has swept the cache, ``"turns"``, forward and backward in turns, or
    ``"graph"``, in the replay of a CUDA graph; ``None``: inside the step.
    """

    subject: str
    duration_us: float
    low_us: float
    high_us: float
    coverage: float
    range: Literal["inside", "edge", "extrapolated"]
    device: str
    model: str
    roofline_us: float | None = None
    note: str | None = None
    state: Literal["warm", "swept", "turns", "graph"] | None = None

    @property
    def is_extrapolated(self) -> bool:
        """True when the question lies outside what the model was trained on."""
        return self.range == "extrapolated"

    @property
    def is_below_roofline(self) -> bool | None:
        """True when the time is less than the measured ceilings of memory and arithmetic allow; ``None`` without them.

        Ceilings are what long copies and products reached: measured times of data in the cache are below them, too.
        """
        return None if self.roofline_us is None else self.duration_us < self.roofline_us


@dataclass(frozen=True)
class PredictedCalls:
    """Eager calls of a step that share operator, sizes, bytes and phase: the predicted time of one, in the mean, and
    how many there are."""

    prediction: Prediction
    phase: Phase
    calls: int = 1

    @property
    def total_us(self) -> float:
        """Time of all of them, in microseconds."""
        return self.calls * self.prediction.duration_us


@dataclass(frozen=True)
class StepPrediction:
    """The predicted time of one step: what its parts add to.

    ``mode`` is how launches reach the device: one by one from the host, or replayed as CUDA graphs. ``device_us`` is
    the device's time: ``kernels_us`` of compiled graphs, ``eager_us`` of operators outside of them, ``optimizer_us``
    and ``collectives_us``, ``gaps_us`` between kernels, ``sustained_us``, what products take longer at the power limit
    of a run that lasts, and ``tails_us``, by how much the sum of what kernels take in the mean exceeds that of their
    middles, which ``kernels_us`` adds. ``host_us`` is what the host needs to launch it all, ``host_work_us`` of that
    what it computes itself, of a planned step alone; the step takes the longer of both. ``measured_us`` is the ledger's
    own step time, if it holds one.

    ``graph_calls`` says how often each graph counts: as the ledger's step calls it, or once where it holds no step
    (``holds_record``). ``launches`` are calls times launches, ``eager_calls`` those of ``eager``, optimizer and
    collectives included. ``unlearned_us`` is what rests on a bare roofline, ``foreign_us`` what the kernels of another
    kind of device were priced at; ``notes`` are sentences about both and about what is left out. ``host`` names the
    host whose measured costs ``host_us`` is made of, ``None`` where they are the usual ones; ``host_was_seen`` says
    that the plain steps of a recording told what it took there, too.
    ``decided_by`` says what the step's length is made of: ``"compute"`` and ``"host"`` with their shares, the larger
    first.
    ``peak_allocated_bytes`` is the most that is alive at once on that device, where the ledger's step was watched.
    """

    subject: str
    mode: Literal["eager", "graphs"]
    duration_us: float
    low_us: float
    high_us: float
    coverage: float
    device: str
    kernels_us: float
    gaps_us: float
    host_us: float
    optimizer_us: float = 0.0
    launches: int = 0
    extrapolated: int = 0
    unlearned: int = 0
    measured_us: float | None = None
    measured_kernels_us: float | None = None
    sustained_us: float = 0.0
    tails_us: float = 0.0
    graph_calls: Mapping[str, int] = field(default_factory=dict)
    holds_record: bool = False
    eager_us: float = 0.0
    collectives_us: float = 0.0
    eager_calls: int = 0
    unlearned_us: float = 0.0
    foreign_us: float = 0.0
    notes: tuple[str, ...] = ()
    eager: tuple[PredictedCalls, ...] = ()
    host: str | None = None
    peak_allocated_bytes: int | None = None
    memory_by_category: Mapping[str, int] = field(default_factory=dict)
    decided_by: Mapping[str, float] = field(default_factory=dict)
    host_work_us: float = 0.0
    host_was_seen: bool = False

    @property
    def device_us(self) -> float:
        """Time that the device needs."""
        work_us = self.kernels_us + self.tails_us + self.eager_us + self.optimizer_us + self.collectives_us
        return work_us + self.gaps_us + self.sustained_us

    @property
    def is_host_bound(self) -> bool:
        """True when the host cannot launch as quickly as the device works."""
        return self.host_us > self.device_us
