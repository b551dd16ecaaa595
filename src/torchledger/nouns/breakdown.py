"""Where the time went: the summary of a profile or of an imported trace.

All times of one breakdown are on one clock. Totals are sums of the device's own integer nanoseconds, so the rows of
each table add up to the total exactly.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from torchledger.nouns.device import Device
from torchledger.nouns.launch import Quality

TimeCategory = Literal[
    "pointwise",
    "reduction",
    "persistent_reduction",
    "split_scan",
    "template",
    "foreach",
    "combo",
    "user_triton",
    "cpp",
    "gemm",
    "convolution",
    "attention",
    "normalization",
    "collective",
    "memory",
    "other",
]
"""Inductor's categories for kernels that it generated, and what a library kernel computes for the rest. ``memory`` is
copies, fills, gathers and layout changes."""


@dataclass(frozen=True)
class Cost:
    """Work of one device event: tensor FLOPs and minimum bytes, each with its quality.

    A number is ``None`` exactly when its quality is ``"unavailable"``, and then ``reason`` says why. ``basis`` says
    what the numbers were computed from.
    """

    flops: int | None = None
    bytes_moved: int | None = None
    flops_quality: Quality = "unavailable"
    bytes_quality: Quality = "unavailable"
    reason: str | None = None
    basis: str | None = None

    @property
    def is_known(self) -> bool:
        """True when FLOPs or bytes are known (0 FLOPs alone say nothing)."""
        return bool(self.flops) or self.bytes_moved is not None


@dataclass(frozen=True)
class DeviceEvent:
    """One kernel, copy or fill on the device (or one CPU kernel) with what is known of it.

    ``launch_id`` is the ledger's entry (``"forward_0#12"``) where there is a ledger; ``op`` the innermost operator
    (``op_is_inferred``: that of launches that look the same in all respects). ``start_ns`` is on the breakdown's clock.
    """

    name: str
    kind: Literal["kernel", "memcpy", "memset"]
    category: TimeCategory
    start_ns: int
    duration_ns: int
    device: int | str | None = None
    stream: int | str | None = None
    op: str | None = None
    op_is_inferred: bool = False
    ops: tuple[str, ...] = ()
    launch_id: str | None = None
    graph: str | None = None
    modules: tuple[str, ...] = ()
    sources: tuple[str, ...] = ()
    cost: Cost = Cost()
    shapes: str | None = None
    grid: tuple[int, ...] | None = None
    block: tuple[int, ...] | None = None
    n_regs: int | None = None
    n_spills: int | None = None
    shared_bytes: int | None = None
    launch_start_ns: int | None = None
    launch_duration_ns: int | None = None
    is_graph_replay: bool = False
    row: int | None = None

    @property
    def duration_us(self) -> float:
        """Time on the device in microseconds."""
        return self.duration_ns / 1e3


@dataclass(frozen=True)
class TimeRow:
    """One line of a table of the breakdown: all device events that share ``name``.

    ``share`` is of the breakdown's device time. ``flops`` and ``bytes_moved`` are sums over the events that have them;
    ``flops_us`` and ``bytes_us`` is the time of exactly those events, so that rates divide like by like; ``known_us``
    is the time of events with FLOPs or bytes, and ``reasons`` maps why the rest has none to its time in microseconds.
    """

    name: str
    calls: int
    total_us: float
    share: float
    median_us: float
    iqr_us: float | None = None
    minimum_us: float | None = None
    maximum_us: float | None = None
    category: TimeCategory | None = None
    flops: int | None = None
    flops_us: float = 0.0
    flops_quality: Quality = "unavailable"
    bytes_moved: int | None = None
    bytes_us: float = 0.0
    bytes_quality: Quality = "unavailable"
    known_us: float = 0.0
    reasons: Mapping[str, float] = field(default_factory=dict)
    roofline_us: float | None = None
    roofline_of_us: float = 0.0
    bound: Literal["compute", "memory", "overhead"] | None = None
    ops: tuple[str, ...] = ()
    detail: Mapping[str, str] = field(default_factory=dict)

    @property
    def achieved_tflops_per_s(self) -> float | None:
        """Tensor FLOPs over the time of the events that have them, in 1e12 per second."""
        return self.flops / self.flops_us / 1e6 if self.flops and self.flops_us > 0 else None

    @property
    def achieved_gb_per_s(self) -> float | None:
        """Minimum bytes over the time of the events that have them, in 1e9 per second."""
        return self.bytes_moved / self.bytes_us / 1e3 if self.bytes_moved is not None and self.bytes_us > 0 else None

    @property
    def roofline_fraction(self) -> float | None:
        """Lower-bound time over measured time, of the events that have a lower bound."""
        return self.roofline_us / self.roofline_of_us if self.roofline_us is not None and self.roofline_of_us else None


@dataclass(frozen=True)
class IdleGap:
    """A time in which the device ran nothing. ``cause`` is one of a few words, ``host`` what the host did meanwhile."""

    start_us: float
    duration_us: float
    cause: str
    host: str | None = None
    before: str | None = None
    after: str | None = None
    device: int | str | None = None


@dataclass(frozen=True)
class LaunchOverhead:
    """What it cost the host to launch, and how long launches waited for the device.

    ``host_us`` sums the runtime calls; ``queue_us`` is start on the device minus start of the call, median; a call that
    the trace does not hold counts in ``launches_missing``.
    """

    launches: int
    host_us: float
    median_us: float | None = None
    queue_us: float | None = None
    queue_minimum_us: float | None = None
    launches_missing: int = 0
    graph_launches: int = 0
    launches_before_call: int = 0


@dataclass(frozen=True)
class Breakdown:
    """Where the time went.

    ``kernel_us + copy_us + fill_us == device_us``. ``busy_us`` is the union of all device events' intervals per device
    (never more than ``wall_us``); ``wall_us`` reaches from the first to the last device event; with several devices
    both are summed over them. ``known_us`` is the time of events that have
    FLOPs or bytes, ``known_kernel_us`` that of kernels among them; ``unknown_us`` maps why the rest has none to its
    time. ``events`` counts device events; ``is_partial`` says that the source was cut off or that
    events were left out, ``problems`` which. ``is_of_operators``: nothing ran on a device, and the events are operators
    with their own time on the CPU.
    """

    source: str
    clock: str
    kernel_us: float
    copy_us: float
    fill_us: float
    wall_us: float
    busy_us: float
    events: int
    devices: tuple[Device, ...] = ()
    rank: int | None = None
    steps: int | None = None
    step_us: tuple[float, ...] = ()
    categories: tuple[TimeRow, ...] = ()
    ops: tuple[TimeRow, ...] = ()
    kernels: tuple[TimeRow, ...] = ()
    graphs: tuple[TimeRow, ...] = ()
    modules: tuple[TimeRow, ...] = ()
    lines: tuple[TimeRow, ...] = ()
    streams: tuple[TimeRow, ...] = ()
    gaps: tuple[IdleGap, ...] = ()
    idle_causes: Mapping[str, float] = field(default_factory=dict)
    host_during_idle: Mapping[str, float] = field(default_factory=dict)
    launch_overhead: LaunchOverhead | None = None
    known_us: float = 0.0
    known_kernel_us: float = 0.0
    known_by_quality_us: Mapping[str, float] = field(default_factory=dict)
    unknown_us: Mapping[str, float] = field(default_factory=dict)
    is_partial: bool = False
    problems: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    verdict: tuple[str, ...] = ()
    is_of_operators: bool = False

    @property
    def is_on_cpu(self) -> bool:
        """True where the CPU is what ran the events."""
        return self.is_of_operators or self.clock == "cpu_profiler"

    @property
    def device_us(self) -> float:
        """Time of all device events, in microseconds (overlapping streams count each)."""
        return self.kernel_us + self.copy_us + self.fill_us

    @property
    def idle_us(self) -> float:
        """Wall time in which the device ran nothing."""
        return self.wall_us - self.busy_us

    @property
    def busy_share(self) -> float | None:
        """Share of the wall time in which the device ran something: a union on one clock, at most 1."""
        return self.busy_us / self.wall_us if self.wall_us > 0 else None


@dataclass(frozen=True)
class Timeline:
    """One step as the device ran it: one entry per event in each column, in the order of their starts.

    ``start_ns`` counts from the first event on ``clock``; ``name`` and ``category`` are places in ``names`` and
    ``categories``, ``launch`` one in ``launch_ids`` (``None``: no entry of the ledger), ``lane`` one in ``lanes``
    (device and stream, or the CPU), ``phase`` one in ``phases`` (both empty where phases are not known). ``step`` is
    the index of the recorded step; ``None`` where no steps were marked. ``left_out`` counts events beyond the longest
    timeline that is kept. ``origin_ns`` is when the first event began after the step did on the host, on the trace's
    one clock; ``None`` where no step was marked, and in ledgers of before.
    """

    clock: str
    start_ns: tuple[int, ...]
    duration_ns: tuple[int, ...]
    name: tuple[int, ...]
    category: tuple[int, ...]
    launch: tuple[int | None, ...]
    lane: tuple[int, ...]
    names: tuple[str, ...]
    categories: tuple[str, ...]
    launch_ids: tuple[str, ...]
    lanes: tuple[str, ...]
    step: int | None = None
    left_out: int = 0
    phase: tuple[int, ...] = ()
    phases: tuple[str, ...] = ()
    origin_ns: int | None = None


@dataclass(frozen=True)
class Profile:
    """How a profile was taken, and how much of it belongs to entries.

    ``inside_us`` is kernel time launched inside calls of compiled graphs, ``matched_us`` the part given to entries,
    ``copied_us`` what CUDA graphs spend on copying inputs to where they read them (no entry asks for it),
    ``decided_us`` what it takes to read which way a call goes on (``torch.cond``, ``while_loop``), and
    ``unmatched_us`` why the rest was not given. Step times are host wall times, plain and under the profiler. ``trace``
    names the Kineto trace that stands beside the ledger, its kernel events carrying the ledger's facts.
    """

    clock: str
    steps: int
    plain_step_us: float | None = None
    profiled_step_us: float | None = None
    inside_us: float = 0.0
    matched_us: float = 0.0
    copied_us: float = 0.0
    decided_us: float = 0.0
    unmatched_us: Mapping[str, float] = field(default_factory=dict)
    entries: int = 0
    entries_seen: int = 0
    graph_calls: Mapping[str, int] = field(default_factory=dict)
    trace: str | None = None

    @property
    def matched_share(self) -> float | None:
        """Share of the kernel time inside compiled graphs, input copies of CUDA graphs aside, that entries have."""
        asked_for_us = self.inside_us - self.copied_us - self.decided_us
        return self.matched_us / asked_for_us if asked_for_us else None
