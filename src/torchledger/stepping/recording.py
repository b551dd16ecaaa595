"""What was recorded of a program's steps, before it is read."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from torchledger.nouns import OptimizerFacts, StepFoundBy, StepKind

if TYPE_CHECKING:
    from torchledger._torch.eager_calls import EagerCall
    from torchledger._torch.storages import HeardMemory


@dataclass(frozen=True)
class StepRecording:
    """What was recorded of a program's steps; times in microseconds.

    ``plain_us`` and ``plain_after_us`` are steps of the recorded kind without a profiler, before and after it;
    ``issued_us`` and ``issued_after_us`` are the host's own times of these where the others are a GPU's;
    ``profiled_us`` holds those under it, with a GPU their mean. ``times`` is a Kineto trace with ``n_steps`` marked
    steps that are alike, ``first_calls`` are traces of graphs' first calls (before CUDA graphs replay them): files that
    the reader removes. ``heard`` are the eager operators of another step, ``memory`` its storages, ``eager_flops`` the
    FLOPs by operator of one that ran eagerly as a whole, where that was asked for; ``allocations`` what the CPU's
    allocator gave and took back in each recorded step (nanoseconds since its beginning, bytes). ``why_not``
    says why there is no trace; ``spans`` are then the graphs' calls by CUDA events where a GPU was in use.
    ``why_not_heard`` says why eager operators or storages are not known, or not all. ``begun``
    counts steps with one that was under way, ``called`` what was called in no step, since something compiled for the
    last time; these repeat where it ``waited_for_optimizer``, which holds what they use and has not stepped.
    """

    found_by: StepFoundBy | None = None
    plain_us: tuple[float, ...] = ()
    plain_after_us: tuple[float, ...] = ()
    issued_us: tuple[float, ...] = ()
    issued_after_us: tuple[float, ...] = ()
    profiled_us: tuple[float, ...] = ()
    seen: int = 0
    kinds: tuple[StepKind, ...] = ()
    n_steps: int = 0
    times: Path | None = None
    heard: tuple[EagerCall, ...] | None = None
    eager_flops: Mapping[str, int] | None = None
    memory: HeardMemory | None = None
    allocations: tuple[tuple[tuple[int, int], ...], ...] | None = None
    optimizers: tuple[OptimizerFacts, ...] = ()
    first_calls: tuple[tuple[str, Path], ...] = ()
    spans: tuple[tuple[str, int, int], ...] = ()
    begun: int = 0
    called: Counter[str] = field(default_factory=Counter)
    waited_for_optimizer: bool = False
    why_not: str | None = None
    why_not_heard: str | None = None
    notes: tuple[str, ...] = ()
