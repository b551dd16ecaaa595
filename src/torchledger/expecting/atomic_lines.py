"""How many atomics meet in one line of memory, where a table is indexed by how far two places are apart.

Attention adds to its scores a number for each head and distance: of all distances, of those within a window of a
picture, clipped, or in buckets that grow with the distance. The table's gradient is summed by atomics, of which most
meet at a few rows; those that meet in one line wait for one another, whatever the rest does. Which distances share a
row cannot be read off a kernel; how many rows the table has beside how many places says it nearly always.
"""

from __future__ import annotations

import math
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

LINE_BYTES = 128
"""Of memory, as the L2 keeps it."""

_FARTHEST = 4
"""Buckets end at so many times as many places as there are of them: T5 has 32, and 128 places."""


def is_by_distance(places: int, rows: int) -> bool:
    """Whether a table of so many rows is one that two of so many places are looked up in by their distance."""
    return 1 < rows <= places or rows in (_of_all(places), _of_window(places))


@lru_cache(maxsize=4096)
def most_in_line(places: int, rows: int, width: int, element_bytes: int) -> float:
    """The atomics that meet in the line that most do, of ``width`` for each of two of ``places``.

    >>> most_in_line(4, 7, 32, 4), most_in_line(4, 9, 32, 4)
    (128.0, 128.0)
    """
    elements = max(1, LINE_BYTES // element_bytes)
    met = _pairs_of_rows(places, rows)
    if width >= elements:
        return float(met.max()) * elements
    return float(np.bincount(np.arange(rows) * width // elements, weights=met * width).max())


def _of_all(places: int) -> int:
    return 2 * places - 1


def _of_window(places: int) -> int | None:
    side = math.isqrt(places)
    return (2 * side - 1) ** 2 if side * side == places else None


def _pairs_of_rows(places: int, rows: int) -> NDArray[np.float64]:
    """How many pairs of places each row of the table belongs to."""
    if rows == _of_window(places):
        along = _pairs_apart(math.isqrt(places))
        return np.asarray(np.outer(along, along).ravel(), np.float64)
    pairs = _pairs_apart(places)
    if rows == len(pairs):
        return pairs
    apart = np.arange(1 - places, places)
    row = _clipped(apart, rows) if rows % 2 else _bucket(apart, rows)
    return np.asarray(np.bincount(row, weights=pairs, minlength=rows), np.float64)


def _pairs_apart(places: int) -> NDArray[np.float64]:
    return np.asarray(places - np.abs(np.arange(1 - places, places)), np.float64)


def _clipped(apart: NDArray[np.int64], rows: int) -> NDArray[np.int64]:
    most = rows // 2
    return np.clip(apart, -most, most) + most


def _bucket(apart: NDArray[np.int64], rows: int) -> NDArray[np.int64]:
    """A half of the rows for each direction: a half of that for near distances, the others grow evenly in logarithms.

    As T5 has them (Raffel et al., 2020), and MPNet.
    """
    half, near = rows // 2, max(1, rows // 4)
    size = np.abs(apart)
    far = near + (
        np.log(np.maximum(size, near) / near) / math.log(_FARTHEST * rows / near) * max(half - near, 0)
    ).astype(np.int64)
    return np.asarray(np.where(size < near, size, np.minimum(far, half - 1)) + half * (apart > 0), np.int64)
