"""Products with few rows and columns over long sums: which kernel runs them, and how long that walks.

cuBLAS cuts a product by itself along its sum where its tiles leave multiprocessors idle. Of a batch it cuts none: one
block walks each sum alone, and the time is the sum's length times what a step takes, wave after wave, or that of the
bytes where these are more. Which kernel walks follows from how the factors lie (``n`` by rows, ``t`` by columns), at
which bytes rows begin, and how few rows there are: names of 5,200 kernels of an H200 (``drawn_library.py --kinds
thin``) say so for float32 that is rounded for the tensor cores. In other precisions only times are known.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from torchledger.expecting.constants import SumCosts
from torchledger.expecting.launch_products import factors_of
from torchledger.expecting.machine import Machine
from torchledger.nouns import Buffer, Launch
from torchledger.work.categories import operation_of
from torchledger.work.launch_tensors import alignment_of

_BATCHED = ("bmm", "baddbmm")
_LARGEST_SIDE = 128
_LEAST_DEPTH, _LEAST_EXACT_DEPTH, _LEAST_SPLIT_DEPTH = 1024, 640, 8192
_TILE = 64
_FACTORS = 2
"""Of a product, and sides of each."""
_FULL_ALIGNED = {"float32": 4, "bfloat16": 8, "float16": 8}
"""Elements in the 16 bytes at which rows begin that any kernel may load."""
_POWER = 6
"""The norm by which walking and reading, which overlap, are added."""
_CROWDED_FROM = 1 / 8
"""The share of the multiprocessors from which blocks stand in each other's way (``SumCosts.crowd``)."""
_FOUR_ROWS, _SIXTEEN_ROWS, _ROWS_ACROSS = 4, 16, 8
_MOST_OF_ROWS, _MOST_ACROSS, _MOST_ODD = 25_000, 8_000, 100_000
_SMALL_DEPTH, _SMALL_PRODUCT = 6_000, 1_000
_SHORT_OF_MANY, _MANY_SHORT, _MANY_NARROW = 2048, 36, 32
"""Where the library changes kernels, as their names show: by rows, by elements of the whole batch's product (by its
columns where few rows lie across), by the sums' length, and by tiles."""
_LEAST_SIDE = 4
"""Kernels of narrower products were not named."""


@dataclass(frozen=True)
class LongSums:
    """A product over long sums, and its kernel's name among ``Constants.long_sums``.

    ``is_least``: its kernel is not known for certain, so that its sums only say what it takes at least.
    """

    kind: str
    batch: int
    rows: int
    columns: int
    depth: int
    nbytes: int
    is_least: bool

    def blocks(self, costs: SumCosts) -> int:
        """Into how many blocks a kernel cuts the product."""
        return self.batch * math.ceil(self.rows / costs.rows) * math.ceil(self.columns / costs.columns)


def long_sums_of(launch: Launch, num_multiprocessors: int, *, allow_tf32: bool) -> LongSums | None:
    """What is known of a product's kernel; ``None`` for what has no long sums, many tiles, or kernels of which nothing
    is known."""
    name = operation_of(launch)
    is_batched = name in _BATCHED
    if launch.category != "extern" or not (is_batched or name == "mm"):
        return None
    factors = factors_of(launch)
    if len(factors) < _FACTORS or any(len(each.shape) != _FACTORS + is_batched for each in factors):
        return None
    left, right = factors
    batch = left.shape[0] if is_batched else 1
    (rows, depth), columns = left.shape[-2:], right.shape[-1]
    if min(batch, rows, columns) < 1 or max(rows, columns) > _LARGEST_SIDE or depth < _LEAST_EXACT_DEPTH:
        return None
    if right.dtype not in _FULL_ALIGNED or left.dtype != right.dtype:
        return None
    is_rounded = right.dtype == "float32" and allow_tf32
    if depth < _LEAST_DEPTH and (is_rounded or right.dtype != "float32"):
        return None
    if is_batched and batch > 1:
        kind = _rounded(left, right, num_multiprocessors) if is_rounded else _exact(left, right)
    else:
        kind = _split(left, right) if is_rounded and name == "mm" and min(rows, columns) >= _LEAST_SIDE else None
    if kind is None:
        return None
    nbytes = sum(each.bytes_read or 0 for each in factors)
    is_least = not is_rounded or name == "baddbmm" or min(rows, columns) < _LEAST_SIDE
    return LongSums(kind, batch, rows, columns, depth, nbytes, is_least)


def _rounded(left: Buffer, right: Buffer, num_multiprocessors: int) -> str | None:
    """The kernel of a batch in float32 that is rounded for the tensor cores."""
    (batch, rows, depth), columns = left.shape, right.shape[-1]
    if min(rows, columns) == 1:
        return "exact/vector"
    layout, elements = _layout(left, right), batch * rows * columns
    if _alignment(left, right) < _FULL_ALIGNED["float32"]:
        is_small = depth < _SMALL_DEPTH and elements < _SMALL_PRODUCT
        if layout == "nt" and rows <= _SIXTEEN_ROWS and elements <= _MOST_OF_ROWS and not is_small:
            return "rounded/four rows" if rows <= _FOUR_ROWS else "rounded/sixteen rows"
        if layout == "nn" and rows <= _ROWS_ACROSS and batch * columns <= _MOST_ACROSS and not is_small:
            return "rounded/few rows across"
        return "rounded/odd" if elements <= _MOST_ODD else None
    tiles = batch * math.ceil(rows / _TILE) * math.ceil(columns / _TILE)
    if tiles > num_multiprocessors:
        return "rounded/tn in waves" if layout == "tn" and tiles <= 2 * num_multiprocessors else None
    if layout == "tn":
        return "rounded/tn"
    if depth < _SHORT_OF_MANY and tiles > _MANY_SHORT:
        return None
    if layout == "nt" and rows <= _SIXTEEN_ROWS and columns <= _TILE and tiles > _MANY_NARROW:
        return "rounded/nt narrow"
    return f"rounded/{layout}"


def _exact(left: Buffer, right: Buffer) -> str | None:
    """What a batch takes at least in float32 as it is, and in half precision."""
    rows, columns, dtype = left.shape[-2], right.shape[-1], right.dtype
    is_single = dtype == "float32"
    if min(rows, columns) == 1:
        return "exact/vector" if is_single else "half/vector"
    if is_single:
        longest = max(rows, columns)
        return next((f"exact/{side}" for side in (4, 16) if longest <= side), "exact/wide")
    alignment = _alignment(left, right)
    if alignment == _FULL_ALIGNED[dtype]:
        return "half/aligned"
    return f"{dtype}/{'odd' if alignment == 1 else 'even'}"


def _split(left: Buffer, right: Buffer) -> str | None:
    """The kernels of one product in rounded float32, whose sum is split; ``None`` where models know it better."""
    if left.shape[-1] < _LEAST_SPLIT_DEPTH:
        return None
    return "rounded/split" if _alignment(left, right) == _FULL_ALIGNED["float32"] else "rounded/split odd"


def _layout(left: Buffer, right: Buffer) -> str:
    return "".join("n" if each.stride[-1] == 1 else "t" for each in (left, right))


def _alignment(left: Buffer, right: Buffer) -> int:
    """The largest power of two that divides the elements between the rows of both factors, up to 16 bytes of them."""
    steps = [max(each.stride[-2:]) for each in (left, right)]
    return min(_FULL_ALIGNED[right.dtype], *(int(2 ** alignment_of(step)) for step in steps))


def costs_of_sums(machine: Machine) -> Mapping[str, SumCosts]:
    """What the kernels of a machine's generation take; none where nobody fitted them."""
    if machine.generation.constants is None:
        return {}
    return machine.constants.long_sums or {}


def sums_us(sums: LongSums, costs: SumCosts, machine: Machine, *, near_share: float = 0.0) -> float:
    """Microseconds of a product by its sums; ``near_share`` of what it reads is found in the L2."""
    step = costs.step
    if costs.near_step is not None:
        step += near_share * (costs.near_step - step)
    blocks = sums.blocks(costs)
    if costs.crowd:
        step *= 1 + costs.crowd * math.log2(max(blocks / (_CROWDED_FROM * machine.num_multiprocessors), 1))
    waves = blocks / (costs.at_once * machine.num_multiprocessors)
    walk_us = sums.depth * step / 1e3 * (math.ceil(waves) if costs.in_rounds else max(waves, 1.0))
    if costs.bytes_per_us is None:
        return costs.launch + walk_us
    rate = costs.bytes_per_us * machine.bytes_per_us / machine.constants.reference.bytes_per_us
    far = 1 - near_share + near_share / machine.constants.kernels.l2_speed
    read_us = sums.nbytes * far / rate
    longest = max(walk_us, read_us)
    both = (walk_us / longest) ** _POWER + (read_us / longest) ** _POWER
    return costs.launch + longest * float(both ** (1 / _POWER))
