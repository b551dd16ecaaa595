"""What the hardware and the software are."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Ceilings:
    """What a device was measured to reach; every roofline fraction refers to these.

    ``tflops_per_s`` maps a dtype name (``"bfloat16"``) to dense TFLOP/s (1e12 FLOP/s, one multiply-add = 2 FLOPs).
    ``copy_gb_per_s`` counts bytes read plus bytes written of a large device copy, in 1e9 bytes per second.
    """

    copy_gb_per_s: float | None = None
    tflops_per_s: Mapping[str, float] = field(default_factory=dict)
    launch_overhead_us: float | None = None
    graph_launch_overhead_us: float | None = None
    timer_resolution_us: float | None = None
    measured_utc: str | None = None
    method: str = "measured"


@dataclass(frozen=True)
class Device:
    """One processor that kernels run on. ``None`` where the driver does not tell."""

    name: str
    kind: str
    index: int = 0
    uuid: str | None = None
    compute_capability: tuple[int, int] | None = None
    total_memory_bytes: int | None = None
    clock_rate_mhz: float | None = None
    memory_clock_rate_mhz: float | None = None
    num_multiprocessors: int | None = None
    max_threads_per_block: int | None = None
    max_threads_per_multiprocessor: int | None = None
    warp_size: int | None = None
    l2_cache_bytes: int | None = None
    max_shared_memory_per_multiprocessor_bytes: int | None = None
    memory_bus_width_bits: int | None = None
    power_limit_w: float | None = None
    num_cores: int | None = None
    ceilings: Ceilings | None = None


@dataclass(frozen=True)
class Host:
    """What a host needs to keep a device busy, measured there: microseconds of one thread, ``None`` where not measured.

    ``device`` is the device that was launched on. ``graph_call_us`` is a call of a compiled function without its
    launches, ``training_call_us`` one with its backward, ``further_training_us`` one more with its backward in the same
    pass of autograd, ``replay_call_us`` one that replays a CUDA graph. The others
    are for one more of each kind: a launch of a fused kernel, of a matrix product and of a convolution inside a
    compiled function, an eager operator, a node of autograd's backward (its operator included), a tensor that a fused
    or foreach optimizer updates. ``in_step`` is how many times as long as these say a small training step takes, whose
    code and data are not all in the host's caches. ``plain_us`` is a piece of plain Python (``device.rounds``), which
    says how fast the host was while it was measured: where others share its cores it is slower at times. ``spreads``
    holds, by the name of a field, half of what nine of ten rounds of measuring span; hosts that were measured at one
    moment have none. Raises ``ValueError`` for a time or a
    spread below zero, or above a quarter of an hour, and for an ``in_step`` of 0 or of more than a thousand.
    """

    name: str
    device: str
    num_cores: int | None = None
    graph_call_us: float | None = None
    training_call_us: float | None = None
    further_training_us: float | None = None
    replay_call_us: float | None = None
    fused_launch_us: float | None = None
    library_launch_us: float | None = None
    convolution_launch_us: float | None = None
    operator_us: float | None = None
    autograd_node_us: float | None = None
    fused_optimizer_tensor_us: float | None = None
    foreach_optimizer_tensor_us: float | None = None
    optimizer_step_us: float | None = None
    in_step: float | None = None
    plain_us: float | None = None
    spreads: Mapping[str, float] = field(default_factory=dict)
    measured_utc: str | None = None
    method: str = "measured"

    def __post_init__(self) -> None:
        for name, cost in vars(self).items():
            if name.endswith("_us") and cost is not None and not 0 <= cost <= _LONGEST_US:
                raise ValueError(f"{name} must be 0 to {_LONGEST_US:,.0f} us, got {cost}")
        if self.in_step is not None and not 0 < self.in_step <= _SLOWEST:
            raise ValueError(f"in_step must be above 0 and at most {_SLOWEST:,.0f}, got {self.in_step}")
        for name, spread in self.spreads.items():
            if not 0 <= spread <= _LONGEST_US:
                raise ValueError(f"the spread of {name} must be 0 to {_LONGEST_US:,.0f}, got {spread}")


_LONGEST_US = 1e9
"""No host needs a quarter of an hour to launch one thing."""

_SLOWEST = 1000.0
"""No step takes a thousand times as long as its parts."""


@dataclass(frozen=True)
class Environment:
    """The software around a run, and the settings that change what it compiles to."""

    python: str
    platform: str
    torchledger: str
    torch: str | None = None
    triton: str | None = None
    cuda: str | None = None
    driver: str | None = None
    compiler: str | None = None
    num_threads: int | None = None
    settings: Mapping[str, str] = field(default_factory=dict)
