"""Copies of tensors that lie across: element after element of what is written, each a stride apart in what is read.

A sector is read for each element unless neighbours share it, and once for all of its elements if it is still in a cache
when the next is asked for: that is so many elements later as lie inside the dimension along which it was read.
"""

from __future__ import annotations

import math

from torchledger.nouns import TensorArgument
from torchledger.work.algorithm_calls import Call, Parts
from torchledger.work.element_sizes import element_size
from torchledger.work.tensor_layouts import row_major
from torchledger.work.walks import SECTOR_BYTES

SOON, LATER = 64, 330_000
"""Elements after which a sector is still near the multiprocessor, and in the L2 (771 copies, 2026-11: walks of 214,272
elements take 7 ps for each, of 494,635 and more 15 to 23)."""

_LINE_BYTES = 64
"""What DRAM reads at least."""

_SIZES = (2, 4)


def turned(call: Call) -> Parts | None:
    """A copy into another order of the dimensions, or ``None`` where elements follow one another in both."""
    read = call.tensors[-1]
    if call.name == "clone":
        if call.number("memory_format") != 0:
            return None
        strides: tuple[int, ...] | None = row_major(read.shape)
    else:
        strides = call.tensors[0].stride if call.tensors[0].shape == read.shape else None
    size = element_size(read.dtype)
    walk = None if strides is None else walk_across(read, strides)
    if walk is None or size not in _SIZES:
        return None
    gap, behind = walk
    gap_bytes, millions = gap * size, math.prod(read.shape) / 1e6
    if gap_bytes < SECTOR_BYTES:
        return Parts(f"near, {size} bytes", _amounts(millions, millions * gap_bytes / SECTOR_BYTES))
    if behind <= SOON:
        return Parts(f"soon again, {size} bytes", _amounts(millions, millions * behind / SOON))
    lines = millions * min(1.0, gap_bytes / _LINE_BYTES)
    if behind <= LATER:
        return Parts(f"again from the cache, {size} bytes", _amounts(millions, lines))
    return Parts("again from memory", _amounts(0.0, lines))


def _amounts(elements: float, reads: float) -> tuple[float, ...]:
    """As many as a sparse tensor's copy has (``solver_algorithms.of_sparse``)."""
    return (1, elements, reads, 0.0, 0.0)


def walk_across(read: TensorArgument, written: tuple[int, ...]) -> tuple[int, int] | None:
    """How far apart in what is read two elements lie that are written one after the other, and after how many elements
    the next of the same sector is; ``None`` where they are neighbours, or a tensor is not dense."""
    if read.stride is None:
        return None
    dims = sorted((dim for dim, side in enumerate(read.shape) if side > 1), key=lambda dim: -written[dim])
    steps = [read.stride[dim] for dim in dims]
    # A single dimension has none before its last, in which elements could follow one another.
    if 1 not in steps[:-1] or written[dims[-1]] != 1 or min(steps) < 1:
        return None
    return steps[-1], math.prod(read.shape[dim] for dim in dims[steps.index(1) + 1 :])
