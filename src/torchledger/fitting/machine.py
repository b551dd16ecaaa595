"""What a device was seen to reach in the data: the scales of the physical baseline."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from torchledger.work.element_sizes import element_size

Array = NDArray[np.float64]

MULTIPROCESSORS: Mapping[str, int] = {"V100": 80, "A100": 108, "H100": 132, "GH200": 132, "H200": 132, "B200": 148}
"""Streaming multiprocessors by a part of the device's name (NVIDIA's data sheets), for data that do not say."""

MEMORY_BYTES: Mapping[str, int] = {
    "A100-SXM4-40GB": 40 * 10**9,
    "A100-SXM4-80GB": 80 * 10**9,
    "H10080GB": 80 * 10**9,
    "GH200120GB": 96 * 10**9,
    "H200": 141 * 10**9,
}
"""Device memory by a part of the device's name without spaces (NVIDIA's data sheets)."""

_USUAL_MULTIPROCESSORS = 108
_BIG_BYTES = 64e6  # well beyond the L2 cache of any device in the table: traffic that DRAM must carry


@dataclass(frozen=True)
class Machine:
    """The scales of one device: rates in FLOP and bytes per microsecond, the shortest time seen in microseconds.

    They only place the baseline; the regressors learn what lies between it and the measurements, so that a scale that
    is off by a factor costs little.
    """

    name: str
    num_multiprocessors: int
    flops_per_us: Mapping[str, float] = field(default_factory=dict)
    bytes_per_us: float = 1e6
    floor_us: float = 2.0

    @property
    def has_hopper_tiles(self) -> bool:
        """Whether the constants of ``product_times``, fitted on an H200, may stand as the baseline of products."""
        return "H100" in self.name or "H200" in self.name

    def peak(self, dtype: str) -> float:
        """FLOP per microsecond for a dtype; where none was seen, that of the known dtype nearest in element size."""
        if dtype in self.flops_per_us:
            return self.flops_per_us[dtype]
        alike = {"bfloat16": "float16", "float16": "bfloat16"}.get(dtype, "")
        if alike in self.flops_per_us:
            return self.flops_per_us[alike]
        size = element_size(dtype)
        gap = {known: abs((element_size(known) or size) - size) if size else 0 for known in self.flops_per_us}
        nearest = [self.flops_per_us[known] for known in gap if gap[known] == min(gap.values())]
        return max(nearest, default=1e8)


def estimate_machine(
    name: str,
    *,
    dtype: NDArray[np.str_],
    flops: Array,
    bytes_moved: Array,
    times_us: Array,
    num_multiprocessors: int | None = None,
) -> Machine:
    """The rates that the quickest of the samples reached; arrays hold one entry per sample.

    The 98th percentile stands for the best, so that a few bad labels do not set the scale.
    """
    rates = {}
    for kind in np.unique(dtype):
        some = (dtype == kind) & (flops > 0)
        if some.sum() >= 5:
            rates[str(kind)] = float(np.quantile(flops[some] / times_us[some], 0.98))
    big = bytes_moved > _BIG_BYTES
    if big.sum() < 20:
        big = bytes_moved >= np.quantile(bytes_moved, 0.5)
    return Machine(
        name=name,
        num_multiprocessors=num_multiprocessors or known_multiprocessors(name),
        flops_per_us=rates,
        bytes_per_us=float(np.quantile(bytes_moved[big] / times_us[big], 0.98)),
        floor_us=float(np.quantile(times_us, 0.002)),
    )


def known_memory_bytes(name: str) -> int | None:
    """Memory of a device by its name; ``None`` for unknown ones."""
    plain = name.upper().replace(" ", "")
    matches = [part for part in MEMORY_BYTES if part in plain]
    return MEMORY_BYTES[max(matches, key=len)] if matches else None


def known_multiprocessors(name: str) -> int:
    """Multiprocessors of a device by its name; a usual number for unknown ones."""
    plain = name.upper().replace(" ", "")
    matches = [part for part in MULTIPROCESSORS if part in plain]
    return MULTIPROCESSORS[max(matches, key=len)] if matches else _USUAL_MULTIPROCESSORS
