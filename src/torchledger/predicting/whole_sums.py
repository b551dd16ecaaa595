"""Batched products with few rows and columns over long sums, which cuBLAS does not split: a block walks each sum alone.

A product by itself is cut along its sum where its tiles leave multiprocessors idle; of a batch each is summed up by one
block, which takes as long as the sum is long: states of linear attention, slots, gradients of small matrices over many
points.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace

from torchledger.expecting.launch_products import factors_of, product_of
from torchledger.fitting.time_model import TimeModel
from torchledger.nouns import Buffer, Launch, Prediction
from torchledger.work.categories import operation_of

NOTE = "nobody splits its long sums"
"""``Prediction.note`` of such a product."""

_COMPUTE_CAPABILITY = (9, 0)
_PRODUCTS = ("bmm", "baddbmm")
_LEAST_DEPTH, _LARGEST_SIDE, _TILE = 1024, 128, 64

_ROUNDED_NS: Mapping[str, float] = {"nn": 5.75, "nt": 4.46, "tn": 9.2, "tt": 5.75}
"""Nanoseconds for each element of a sum in float32 that is rounded for the tensor cores, by how both factors lie: by
rows (n) or by columns (t). Medians of 1,500 products of an H200 in one wave (``drawn_library.py --kinds thin``)."""

_SINGLE_NS, _TINY_SINGLE_NS, _MOST_TINY = 36.0, 28.5, 16
"""The same in float32 that is not rounded, and where neither side is longer than ``_MOST_TINY``: medians of 50 eager
calls in one wave (``eager_calls_uneven.py``, ``eager_calls_models.py``), which take 19 to 42."""

_HALF_NS, _ODD_HALF_NS, _ALIGNED = 1.7, 6.3, 8
"""The same in half precision, where rows begin at multiples of ``_ALIGNED`` elements and where not; the least of 15."""

_SPREAD = 1.3
"""The factor that such a price may be off by: 83 to 85 % of drawn products are within."""


def at_least_its_sum(model: TimeModel, launch: Launch, said: Prediction, *, allow_tf32: bool) -> Prediction:
    """The price of a product that is no shorter than one block takes for one of its sums; of any other launch what was
    said."""
    least_us = sum_us(model, launch, allow_tf32=allow_tf32)
    if least_us is None or least_us <= said.duration_us:
        return said
    return replace(
        said,
        duration_us=least_us,
        low_us=None if said.low_us is None else max(said.low_us, least_us / _SPREAD),
        high_us=None if said.high_us is None else max(said.high_us, least_us * _SPREAD),
        note="; ".join(filter(None, (said.note, NOTE))),
    )


def sum_us(model: TimeModel, launch: Launch, *, allow_tf32: bool) -> float | None:
    """Microseconds that blocks take for the sums of a batched product, wave after wave; ``None`` for what has no long
    sums or no few tiles, and on devices of another generation."""
    device = model.machine.device
    if launch.category != "extern" or operation_of(launch) not in _PRODUCTS:
        return None
    if device.compute_capability != _COMPUTE_CAPABILITY or device.num_multiprocessors is None:
        return None
    product = product_of(launch, model.machine)
    if product is None:
        return None
    batch, rows, columns, depth, *_ = product
    if batch < 2 or min(rows, columns) < 2 or max(rows, columns) > _LARGEST_SIDE or depth < _LEAST_DEPTH:
        return None
    left, right = factors_of(launch)
    each_ns = _element_ns(left, right, max(rows, columns), allow_tf32=allow_tf32)
    if each_ns is None:
        return None
    tiles = batch * math.ceil(rows / _TILE) * math.ceil(columns / _TILE)
    return math.ceil(tiles / device.num_multiprocessors) * depth * each_ns / 1e3


def _element_ns(left: Buffer, right: Buffer, longest: float, *, allow_tf32: bool) -> float | None:
    layout = "".join("n" if each.stride[-1] == 1 else "t" for each in (left, right))
    if right.dtype == "float32":
        if allow_tf32:
            return _ROUNDED_NS[layout]
        return _TINY_SINGLE_NS if longest <= _MOST_TINY else _SINGLE_NS
    if right.dtype not in ("bfloat16", "float16"):
        return None
    is_aligned = all(max(each.stride[-2:]) % _ALIGNED == 0 for each in (left, right))
    return _HALF_NS if is_aligned else _ODD_HALF_NS
