"""Products of eight-bit integers, in compiled graphs and eager."""

from __future__ import annotations

from torchledger.expecting.int8_times import (
    COMPUTE_CAPABILITY,
    CONTIGUOUS_COLUMNS,
    CONTIGUOUS_ROWS,
    int8_us,
)
from torchledger.fitting.learning import COVERAGE
from torchledger.fitting.time_model import TimeModel
from torchledger.nouns import Launch, Prediction
from torchledger.work.categories import operation_of

INT8 = "int8 products"
"""``Prediction.model`` of such a product."""

_NAMES = frozenset({"_int_mm", "int_mm"})


def int8_prediction(model: TimeModel, launch: Launch) -> Prediction | None:
    """What a product of eight-bit integers takes; ``None`` for others, and on devices of another generation."""
    device = model.machine.device
    if operation_of(launch) not in _NAMES or device.compute_capability != COMPUTE_CAPABILITY:
        return None
    given = [buffer for buffer in launch.buffers if buffer.role == "input" and len(buffer.shape) == 2]
    if len(given) != 2 or given[0].shape[1] != given[1].shape[0]:
        return None
    (rows, depth), columns = given[0].shape, given[1].shape[1]
    costs = CONTIGUOUS_COLUMNS if given[1].stride[0] == 1 else CONTIGUOUS_ROWS
    time_us = int8_us(rows, depth, columns, costs, multiprocessors=device.num_multiprocessors)
    return Prediction(
        subject=launch.launch_id,
        duration_us=time_us,
        low_us=time_us / costs.spread,
        high_us=time_us * costs.spread,
        coverage=COVERAGE,
        range="inside",
        device=model.device,
        model=INT8,
        roofline_us=max(2.0 * rows * depth * columns / model.machine.peak("int8"), _least_us(model, launch)),
    )


def _least_us(model: TimeModel, launch: Launch) -> float:
    return (launch.bytes_moved or 0) / model.machine.bytes_per_us
