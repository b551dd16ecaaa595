"""How long steps took on the host, with the profiler and without."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Steps:
    """Host wall times of steps, in microseconds."""

    plain_us: tuple[float, ...] = ()
    profiled_us: tuple[float, ...] = ()
