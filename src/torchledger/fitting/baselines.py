"""What others would say of the same rows: the bare roofline, Inductor's own estimate, a forest on raw shapes."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from torchledger.device.datasheets import find_data_sheet
from torchledger.expecting.machine import Machine
from torchledger.fitting.tables import SampleTable
from torchledger.nouns import Device, Launch
from torchledger.operators import find_operator
from torchledger.work.element_sizes import ELEMENT_SIZES, element_size

Array = NDArray[np.float64]

_SUB_CORES = 4
_HALF_FLOPS, _SINGLE_FLOPS = 512, 64


def inductor_rates(device: Device) -> tuple[float, float, float] | None:
    """Half-precision TFLOP/s, single-precision TFLOP/s and memory GB/s that torch 2.11 goes by; ``None`` for a device
    whose clocks are not known.

    ``torch/_inductor/utils.py: get_device_tflops`` looks a name up in its table of data sheets. For what is not in it,
    Triton's formula stands in: multiprocessors x 4 x largest clock x FLOP of a sub-core. The bandwidth is Triton's:
    memory clock x bus width x 2.
    """
    sheet = find_data_sheet(device.name)
    if sheet is not None and sheet.inductor_rates is not None:
        return sheet.inductor_rates
    facts = (device.num_multiprocessors, device.clock_rate_mhz, device.memory_clock_rate_mhz)
    if None in facts or device.memory_bus_width_bits is None:
        return None
    count, clock_mhz, memory_mhz = (float(fact or 0.0) for fact in facts)
    sub_core_tflops = count * _SUB_CORES * clock_mhz / 1e6
    gb_per_s = memory_mhz * device.memory_bus_width_bits * 2 / 8 / 1e3
    return sub_core_tflops * _HALF_FLOPS, sub_core_tflops * _SINGLE_FLOPS, gb_per_s


def inductor_of_samples(table: SampleTable, machine: Machine) -> Array | None:
    """``estimated_runtime`` of each row in microseconds, its kernels' sum; ``None`` for an unknown device."""
    rates = inductor_rates(machine.device)
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


def inductor_of_launch(launch: Launch, device: Device) -> float | None:
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
