"""One measured operator at one shape."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

SampleStatus = Literal["ok", "out_of_memory", "unsupported", "failed", "quarantined"]


@dataclass(frozen=True)
class Sample:
    """One operator at one shape in one direction: raw device times, or why there are none.

    ``times_us`` holds one entry per active iteration, in order, in microseconds of device time: the union of its
    kernels' intervals; ``spans_us``, where recorded, from the first kernel's start to the last one's end, with gaps.
    ``point_id`` identifies the question (operator, parameters, dtype, device, protocol), so that no point is measured
    twice; the directions of a point share it.
    """

    point_id: str
    operator: str
    parameters: Mapping[str, int | float | str | bool]
    direction: Literal["forward", "backward", "step"]
    dtype: str
    device: str
    status: SampleStatus = "ok"
    times_us: tuple[float, ...] = ()
    flops: int | None = None
    bytes_moved: int | None = None
    kernels: tuple[str, ...] = ()
    reason: str | None = None
    clock: str = "cupti"
    warmup: int = 0
    telemetry: Mapping[str, float | int | str | None] = field(default_factory=dict)
    versions: Mapping[str, str] = field(default_factory=dict)
    group: str | None = None
    spans_us: tuple[float, ...] = ()
    attempt: int = 1
    measured_utc: float | None = None
