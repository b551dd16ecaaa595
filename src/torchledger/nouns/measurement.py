"""How long something took."""

from __future__ import annotations

import statistics
from dataclasses import dataclass
from typing import Literal

Clock = Literal["cupti", "cuda_event", "cuda_graph", "cpu_profiler", "host", "trace"]


@dataclass(frozen=True)
class Measurement:
    """Raw times of one thing on one clock; medians and spreads are computed on reading.

    ``subject`` is a launch id (``"forward_0#12"``), a kernel key or an operator's name; ``kind`` says where the times
    were taken: inside the step, alone in a bench, or in a sweep. ``samples_us`` are in microseconds.
    """

    subject: str
    kind: Literal["profile", "bench", "sample"]
    clock: Clock
    samples_us: tuple[float, ...]
    warmup: int = 0
    l2_state: Literal["cold", "warm", "step"] | None = None
    symbols: tuple[str, ...] = ()
    configuration: str | None = None
    grid: tuple[int, ...] | None = None
    block: tuple[int, ...] | None = None
    num_warps: int | None = None
    num_stages: int | None = None
    n_regs: int | None = None
    n_spills: int | None = None
    shared_bytes: int | None = None
    note: str | None = None

    @property
    def duration_us(self) -> float:
        """Median of the samples, in microseconds."""
        return statistics.median(self.samples_us)

    @property
    def repeats(self) -> int:
        """Number of samples."""
        return len(self.samples_us)

    @property
    def iqr_us(self) -> float | None:
        """Interquartile range in microseconds; ``None`` for fewer than four samples."""
        if len(self.samples_us) < 4:
            return None
        lower, _, upper = statistics.quantiles(self.samples_us, n=4)
        return upper - lower
