"""Matrix products among launches: what they multiply, how that is stored, and what their library needs for it."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from torchledger.expecting.launch_families import family_of
from torchledger.expecting.machine import Machine
from torchledger.expecting.product_network import learned_times
from torchledger.expecting.product_times import product_times
from torchledger.expecting.tile_columns import EXPECTED, tiles_of_product
from torchledger.nouns import Buffer, Launch
from torchledger.work.categories import operation_of
from torchledger.work.element_sizes import element_size
from torchledger.work.launch_tensors import alignment_of, tensors_of

LEARNED, TILED = "log learned", "log tiled"
"""The columns of products by the networks of their library and by their tiles, each with what adding to them takes
(``_added_us``)."""

_ADDING = ("addmm", "baddbmm", "_addmm_activation")
_HALF, _SINGLE = 2.0, 4.0  # bytes of an element
_MOST_ALIGNED = 8
"""Elements of two bytes in the 16 at which rows begin that any kernel may load."""


def product_of(launch: Launch, machine: Machine) -> tuple[float, ...] | None:
    """Of a matrix product (batch, m, n, k), bytes at which rows begin, bytes of an element, and the device's peak in
    FLOP per microsecond; ``None`` where these are unknown, the factors are not plain, or it is none."""
    if not str(family_of(launch)).startswith("launch:gemm"):
        return None
    factors, outputs = factors_of(launch), tensors_of(launch)[1]
    if len(factors) < 2 or not outputs or len(outputs[0].shape) < 2:
        return None
    (left, right), product = factors, outputs[0]
    item_size = element_size(right.dtype)
    if item_size is None:
        return None
    strides = [max(factor.stride[-2:]) for factor in factors] + [_row_stride(product)]
    row_bytes = min(2.0 ** alignment_of(stride) for stride in strides) * item_size
    sizes = (float(max(side, 1)) for side in _sides(launch, left, right, product))
    return (*sizes, min(row_bytes, 16.0), float(item_size), machine.peak(right.dtype))


def product_columns(launch: Launch, machine: Machine) -> dict[str, float]:
    """Features of a matrix product beside ``expected_products``: its sides, how its factors are stored and aligned."""
    factors, outputs = factors_of(launch), tensors_of(launch)[1]
    with_bias = operation_of(launch) in _ADDING
    if len(factors) < 2 or not outputs:
        return {"described": 0.0}
    left, right = factors
    product = outputs[0]
    batch, m, n, k = _sides(launch, left, right, product)
    return {
        **tiles_of_product("gemm", batch, m, n, k, machine.num_multiprocessors),
        "described": 1.0,
        "log batch": math.log(max(batch, 1)),
        "log m": math.log(max(m, 1)),
        "log n": math.log(max(n, 1)),
        "log k": math.log(max(k, 1)),
        "bias": float(with_bias),
        "left by columns": float(left.stride[-1] != 1),
        "right by columns": float(right.stride[-1] != 1),
        "wide output": float(product.dtype == "float32"),
        "left row stride alignment": alignment_of(max(left.stride[-2:])),
        "right row stride alignment": alignment_of(max(right.stride[-2:])),
        "product row alignment": alignment_of(_row_stride(product)),
        "batch broadcast": float(any(size == 0 for buffer in factors for size in buffer.stride[:-2])),
    }


def expected_products(
    products: Sequence[tuple[Launch, tuple[float, ...]]], machine: Machine
) -> Iterator[dict[str, float]]:
    """What the times of its tiles and its library's networks say of each matrix product."""
    if not products:
        return
    batch, m, n, k, row_bytes, item_size, peak = np.array([row for _, row in products]).T
    whole, split = product_times((batch, m, n, k), row_bytes, item_size, peak, machine)
    gains = np.clip(np.log(whole / split), -1.5, 1.5)
    expected = np.minimum(whole, split)
    learned_us = expected.copy()
    stored = [_stored_product(launch, row) for launch, row in products]
    is_known = np.isin(item_size, (_HALF, _SINGLE)) & (machine.network_files.products is not None)
    for layout, is_float16 in sorted({(each.layout, each.is_float16) for each in stored}):
        mine = np.array([(each.layout, each.is_float16) == (layout, is_float16) for each in stored])
        rows = np.flatnonzero(is_known & mine)
        if len(rows):
            down, along, deep = np.array([stored[row].sides for row in rows]).T
            sides, half = (batch[rows], down, along, deep), np.full(len(rows), is_float16)
            learned_us[rows] = learned_times(layout, sides, item_size[rows], peak[rows], machine, half)
    added_us = [_added_us(launch, machine) for launch, _ in products]
    for place, more_us in enumerate(added_us):
        yield {
            EXPECTED: float(np.log(expected[place])),
            "split gain": float(gains[place]),
            LEARNED: float(np.log(learned_us[place] + more_us)),
            TILED: float(np.log(expected[place] + more_us)),
            "log added": math.log(more_us + machine.floor_us),
            "rows end oddly": float(stored[place].ends_oddly and item_size[place] == _HALF),
        }


@dataclass(frozen=True)
class _StoredProduct:
    """A product as its library's networks are asked: how its factors are stored (``product_network.LAYOUTS``), rows,
    columns and inner length, and whether rows end where none could begin (``ends_oddly``)."""

    layout: str
    sides: tuple[float, float, float]
    is_float16: bool
    ends_oddly: bool


def _stored_product(launch: Launch, row: tuple[float, ...]) -> _StoredProduct:
    """Rows begin where their strides say. Where Inductor padded these, the product is asked for with rows as long as
    that, and of what is stored by columns on both sides the transposed one."""
    left, right = factors_of(launch)
    product = tensors_of(launch)[1][0]
    _, m, n, k, *_ = row
    # Along a side of one element a matrix is stored either way.
    left_across = (left.stride[-1] != 1 and m > 1) or k == 1
    right_across = right.stride[-1] != 1 and k > 1 and n > 1
    strides: dict[str, list[int]] = {"m": [], "n": [_row_stride(product)], "k": []}
    strides["m" if left_across else "k"].append(max(left.stride[-2:]))
    strides["k" if right_across else "n"].append(max(right.stride[-2:]))
    sides = {"m": m, "n": n, "k": k}
    begun = {name: _begun(side, strides[name]) for name, side in sides.items()}
    is_float16, ends_oddly = right.dtype == "float16", begun != sides
    if n == 1 or (left_across and right_across):
        layout = "nn" if left_across else "tn"
        rows = begun["m"]
        if left_across and right_across:
            rows = _as_oddly(rows, _row_stride(product))
        return _StoredProduct(layout, (begun["n"], rows, begun["k"]), is_float16, ends_oddly)
    layout = "nt" if left_across else "tn" if right_across else "nn"
    return _StoredProduct(layout, (begun["m"], begun["n"], begun["k"]), is_float16, ends_oddly)


def _begun(side: float, strides: Sequence[int]) -> float:
    """A side as long as its rows would be if they filled what lies between the beginnings of two, in steps of at most
    16 bytes of the narrowest elements."""
    step = min((stride & -stride for stride in strides if stride), default=1)
    step = min(step, _MOST_ALIGNED)
    return math.ceil(side / step) * step if side > 1 else side


def _as_oddly(side: float, stride: int) -> float:
    """A side no more aligned than rows that begin at ``stride``: a product of two factors that are stored by columns is
    written by rows, which the transposed one's would not be."""
    step = min(stride & -stride, _MOST_ALIGNED)
    return side + step if int(side) % (2 * step) == 0 and step < _MOST_ALIGNED else side


def _added_us(launch: Launch, machine: Machine) -> float:
    """What adding to a product takes beside it. A vector is added as the product is written, where its rows follow one
    another (ATen's ``addmm`` by cuBLASLt); all else is copied to where the product will stand, and read again."""
    inputs, outputs = tensors_of(launch)
    name, product = operation_of(launch), outputs[0]
    if name not in _ADDING:
        return 0.0
    written = product.bytes_written or 0
    # By bytes: what stands for a rounded product has elements half as large (``rounded_products.py``).
    follow = product.shape[-2] * product.stride[-2] * (element_size(product.dtype) or 0) <= written
    if name != "baddbmm" and follow and len(inputs[0].shape) < 2:
        return 0.0
    return machine.floor_us + 2 * written / machine.bytes_per_us


def factors_of(launch: Launch) -> list[Buffer]:
    """What is multiplied: the last two matrices, behind what is added to the product; the first two where scales or the
    ends of groups stand behind them."""
    matrices = [buffer for buffer in tensors_of(launch)[0] if len(buffer.shape) >= 2]
    name = operation_of(launch)
    return matrices[:2] if "scaled" in name or "grouped" in name else matrices[-2:]


def _sides(launch: Launch, left: Buffer, right: Buffer, product: Buffer) -> tuple[int, int, int, int]:
    """Batch, rows, columns and inner length of a product. Groups whose sizes the data decide are taken for equal ones:
    as many products, of that share of the rows, the columns, or (gradients of weights) the inner length."""
    batch, (m, n), k = math.prod(product.shape[:-2]), product.shape[-2:], left.shape[-1]
    stacked = [buffer for buffer in (left, right, product) if len(buffer.shape) == 3]
    if "grouped" not in operation_of(launch) or len(stacked) != 1:
        return batch, m, n, k
    groups = stacked[0].shape[0]
    if stacked[0] is right:
        return groups, math.ceil(m / groups), n, k
    return (groups, m, math.ceil(n / groups), k) if stacked[0] is left else (groups, m, n, math.ceil(k / groups))


def _row_stride(product: Buffer) -> int:
    """Elements from one row of a product to the next: more than a row has where Inductor padded it."""
    return max(product.shape[-1], product.stride[-2] if product.shape[-2] > 1 else 0)
