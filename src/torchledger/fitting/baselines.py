"""What others would say of the same rows: the bare roofline, Inductor's own estimate, a forest on raw shapes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from torchledger.fitting.machine import Machine
from torchledger.fitting.tables import SampleTable
from torchledger.nouns import Launch
from torchledger.operators import find_operator
from torchledger.work.element_sizes import ELEMENT_SIZES, element_size

Array = NDArray[np.float64]

INDUCTOR_RATES: Mapping[str, tuple[float, float, float]] = {
    "A100": (312.5, 19.5, 2039.0),
    "GH200": (535.2, 66.9, 4022.8),
    "H200": (535.2, 66.9, 4916.7),
}
"""Half-precision TFLOP/s, single-precision TFLOP/s and memory GB/s that torch 2.11 goes by, by a part of the name.

``torch/_inductor/utils.py: get_device_tflops`` takes the A100 from its table of data sheets; GH200 and H200 are not in
it, and Triton's formula stands in: multiprocessors x 4 x largest clock x 512 FLOP. The bandwidth is Triton's: memory
clock x bus width x 2. Clocks: 1980 MHz; 2619 and 3201 MHz memory.
"""


def inductor_rates(device: str) -> tuple[float, float, float] | None:
    """The rates for a device by its name; ``None`` for one whose clocks are not known here."""
    matches = [name for name in INDUCTOR_RATES if name in device.upper()]
    return INDUCTOR_RATES[max(matches, key=len)] if matches else None


def inductor_of_samples(table: SampleTable, machine: Machine) -> Array | None:
    """``estimated_runtime`` of each row in microseconds, its kernels' sum; ``None`` for an unknown device."""
    rates = inductor_rates(machine.name)
    if rates is None:
        return None
    item_size = np.array([ELEMENT_SIZES[str(dtype)] for dtype in table.dtypes])
    operator = find_operator(table.operator)
    works = operator.work(operator.resolve(table.parameters), table.direction, item_size)  # type: ignore[arg-type]
    peak = np.where(item_size >= 4, rates[1], rates[0])
    total = np.zeros(len(table))
    for work in works:
        total = total + _estimate_us(np.asarray(work.flops), np.asarray(work.bytes_moved), peak, rates[2])
    return total


def inductor_of_launch(launch: Launch, device: str) -> float | None:
    """``estimated_runtime`` of a launch in microseconds; ``None`` where device or bytes are unknown.

    As the scheduler does, FLOPs count for library calls and templates only: a fused kernel is all traffic.
    """
    rates = inductor_rates(device)
    if rates is None or launch.bytes_moved is None:
        return None
    is_single = any((element_size(buffer.dtype) or 0) >= 4 for buffer in launch.buffers if buffer.role == "output")
    flops = float(launch.flops or 0) if launch.category in ("extern", "template") else 0.0
    peak = np.array(rates[1] if is_single else rates[0])
    return float(_estimate_us(np.array(flops), np.array(launch.bytes_moved), peak, rates[2]))


def _estimate_us(flops: NDArray[Any], moved: NDArray[Any], tflops: Array, gb_per_s: float) -> Array:
    """``scheduler.py: _get_estimated_runtime``: the longer of FLOPs over rate and bytes over bandwidth."""
    return np.asarray(np.maximum(flops / (tflops * 1e6), moved / (gb_per_s * 1e3)), dtype=np.float64)


def scaled_roofline(roofline_us: Array, times_us: Array, train: NDArray[np.bool_]) -> Array:
    """The bare roofline on the test rows, times the one factor that fits the training rows best (their median)."""
    factor = np.median(times_us[train] / np.maximum(roofline_us[train], 1e-9))
    return np.asarray(np.maximum(roofline_us[~train], 1e-9) * factor)


def forest_on_shapes(shapes: Array, times_us: Array, asked: Array) -> Array:
    """The usual method: a random forest that predicts microseconds from the bare shape."""
    from sklearn.ensemble import RandomForestRegressor

    forest = RandomForestRegressor(n_estimators=100, max_features=None, random_state=42, n_jobs=1)
    return np.asarray(forest.fit(shapes, times_us).predict(asked))
