"""Into how many tiles the products of a step are cut: it decides what a collective beside them costs."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence

import numpy as np

from torchledger.expecting.launch_products import product_of
from torchledger.expecting.machine import Machine
from torchledger.expecting.product_times import count_tiles
from torchledger.nouns import Launch, StepCall
from torchledger.predicting.questions import question_of
from torchledger.work.element_sizes import element_size

_ROW_BYTES = 16.0
"""Bytes at which rows of eager products are taken to begin."""


def tiles_of_launches(launches: Sequence[Launch], machine: Machine) -> dict[Hashable, int]:
    """Tiles of each matrix product among launches, by ``launch_id``; nothing where a device's tiles are unknown."""
    if not machine.counts_waves:
        return {}
    return _counted({each.launch_id: row for each in launches if (row := product_of(each, machine))}, machine)


def tiles_of_calls(calls: Sequence[StepCall], machine: Machine) -> dict[Hashable, int]:
    """Tiles of each eager matrix product, by the call's ``order``."""
    if not machine.counts_waves:
        return {}
    return _counted({call.order: row for call in calls if (row := _product_of_call(call, machine))}, machine)


def _counted(rows: Mapping[Hashable, tuple[float, ...]], machine: Machine) -> dict[Hashable, int]:
    if not rows:
        return {}
    batch, m, n, k, row_bytes, item_size, peak = np.array(list(rows.values())).T
    tiles = count_tiles((batch, m, n, k), row_bytes, item_size, peak, machine)
    return {key: int(count) for key, count in zip(rows, tiles, strict=True)}


def _product_of_call(call: StepCall, machine: Machine) -> tuple[float, ...] | None:
    question = question_of(call) if call.kind == "operator" else None
    item_size = None if question is None else element_size(question.dtype)
    if question is None or item_size is None or question.operator not in ("linear", "bmm"):
        return None
    sides = [question.parameters.get(name, 1) for name in ("b", "m", "n", "k")]
    return (*(float(side) for side in sides), _ROW_BYTES, float(item_size), machine.peak(question.dtype))
