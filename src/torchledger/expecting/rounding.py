"""Sizes rounded to blocks, for whole tables at once."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]

VECTOR_BYTES_LOG2 = 4  # the widest load of a thread is 16 bytes
MOST_WASTE = 2.0

_ALIGNMENT_LIMIT = 256


def alignment(value: Array) -> Array:
    """log2 of the largest power of two (up to 256) that divides each value."""
    whole = np.asarray(value, dtype=np.int64)
    lowest = np.where(whole == 0, _ALIGNMENT_LIMIT, whole & -whole)
    return np.log2(np.minimum(lowest, _ALIGNMENT_LIMIT).astype(np.float64))


def as_column(value: Any, count: int) -> Array:
    """An array as it is, a number ``count`` times."""
    array = np.asarray(value)
    if array.ndim == 0:
        return np.full(count, array[()])
    return array


def in_blocks(value: Array, step: int) -> Array:
    """How many blocks of ``step`` hold each value."""
    return np.asarray(np.ceil(value / step))


def round_up(value: Array, step: int) -> Array:
    """Each value with the last block filled."""
    return np.asarray(in_blocks(value, step) * step)
