"""Products of eight-bit integers, and of half precision by weights of them, in compiled graphs and eager."""

from __future__ import annotations

from collections.abc import Sequence

from torchledger.expecting.int8_times import (
    COMPUTE_CAPABILITY,
    CONTIGUOUS_COLUMNS,
    CONTIGUOUS_ROWS,
    PACKED_WEIGHTS,
    int8_us,
    packed_us,
)
from torchledger.fitting.learning import COVERAGE
from torchledger.fitting.time_model import TimeModel
from torchledger.nouns import Buffer, Device, Launch, Prediction
from torchledger.work.categories import operation_of

INT8 = "int8 products"
"""``Prediction.model`` of such a product."""

_NAMES, _PACKED = frozenset({"_int_mm", "int_mm"}), "_weight_int8pack_mm"


def int8_prediction(model: TimeModel, launch: Launch) -> Prediction | None:
    """What a product of eight-bit integers takes, or one by weights of them; ``None`` for others, and on devices of
    another generation."""
    device, name = model.machine.device, operation_of(launch)
    if name not in (*_NAMES, _PACKED) or device.compute_capability != COMPUTE_CAPABILITY:
        return None
    given = [buffer for buffer in launch.buffers if buffer.role == "input" and len(buffer.shape) == 2]
    found = _packed(given, device) if name == _PACKED else _of_integers(given, device)
    if found is None:
        return None
    time_us, spread, (rows, depth, columns) = found
    return Prediction(
        subject=launch.launch_id,
        duration_us=time_us,
        low_us=time_us / spread,
        high_us=time_us * spread,
        coverage=COVERAGE,
        range="inside",
        device=model.device,
        model=INT8,
        roofline_us=max(2.0 * rows * depth * columns / model.machine.peak("int8"), _least_us(model, launch)),
    )


_Found = tuple[float, float, tuple[int, int, int]]
"""Microseconds, how far they may be off (a factor), and rows, depth and columns."""


def _of_integers(given: Sequence[Buffer], device: Device) -> _Found | None:
    if len(given) != 2 or given[0].shape[1] != given[1].shape[0]:
        return None
    (rows, depth), columns = given[0].shape, given[1].shape[1]
    costs = CONTIGUOUS_COLUMNS if given[1].stride[0] == 1 else CONTIGUOUS_ROWS
    time_us = int8_us(rows, depth, columns, costs, multiprocessors=device.num_multiprocessors)
    return time_us, costs.spread, (rows, depth, columns)


def _packed(given: Sequence[Buffer], device: Device) -> _Found | None:
    weights = [buffer for buffer in given if buffer.dtype == "int8"]
    others = [buffer for buffer in given if buffer.dtype in ("bfloat16", "float16")]
    if len(weights) != 1 or len(others) != 1 or weights[0].shape[1] != others[0].shape[1]:
        return None
    (rows, depth), columns = others[0].shape, weights[0].shape[0]
    time_us = packed_us(rows, depth, columns, PACKED_WEIGHTS, multiprocessors=device.num_multiprocessors)
    return time_us, PACKED_WEIGHTS.spread, (rows, depth, columns)


def _least_us(model: TimeModel, launch: Launch) -> float:
    return (launch.bytes_moved or 0) / model.machine.bytes_per_us
