"""How many atomics meet in one line of memory, where a table is indexed by how far two places are apart.

Attention adds to its scores a number for each head and distance: of all distances, of those within a window of a
picture, clipped, or in buckets that grow with the distance. The table's gradient is summed by atomics, of which most
meet at a few rows; those that meet in one line wait for one another, whatever the rest does. Which distances share a
row cannot be read off a kernel; how many rows the table has beside how many places says it nearly always.

Only what is in flight at a time can meet. Heads come one after the other, and so do rows of places: of two rows of the
table that most pairs meet at, one is for places before and one for those behind, and where a head has more pairs than
are in flight, first the one waits and then the other (``waiting_in_lines``).
"""

from __future__ import annotations

import itertools
import math
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

LINE_BYTES = 128
"""Of memory, as the L2 keeps it."""

_FARTHEST = 4
"""Buckets end at so many times as many places as there are of them: T5 has 32, and 128 places."""

WAITING_WIDTH = 0.25
"""Half the width, in logarithms, of nine tenths of what kernels took that do little else than wait (411 tables): two
lines that most meet in may lie so that one waits for the other."""

_BESIDE = 0.007
"""Share that an atomic waits less for each further element of its line that others in flight meet at: 1.76 ns of one
element, 1.4 of 32 (1,573 tables on an H100, ``benchmarks/launches/atomics_cuda.py``)."""


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


@lru_cache(maxsize=4096)
def waiting_in_lines(
    places: int, rows: int, width: int, element_bytes: int, in_flight: int, *, is_past: bool = False
) -> float:
    """The atomics that wait one for another, where ``in_flight`` of them run at a time, a row of places at least.

    They come in the order of heads, rows and columns; of each so many those count in the line that most meet in.
    ``is_past``: what lies ahead has one bucket, as in decoders.

    >>> waiting_in_lines(512, 32, 16, 4, 2**20) < most_in_line(512, 32, 16, 4)
    True
    """
    if rows > places:
        return most_in_line(places, rows, width, element_bytes)
    met = _met_by_row(places, _row_of_distance(places, rows, is_past=is_past), rows)
    elements = max(1, LINE_BYTES // element_bytes)
    line = (np.arange(rows)[:, None] * width + np.arange(width)).ravel() // elements
    every = width * places
    count = max(1, min(every, round(every * places / in_flight)))
    edges = np.linspace(0, every, count + 1).round().astype(int)
    waiting = 0.0
    for first, last in itertools.pairwise(edges):
        begins = np.clip(first - places * np.arange(width), 0, places)
        ends = np.clip(last - places * np.arange(width), 0, places)
        each = (met[ends] - met[begins]).T.ravel()
        lines = np.bincount(line, weights=each)
        fullest = each[line == lines.argmax()]
        beside = float(fullest.sum()) ** 2 / max(float((fullest**2).sum()), 1.0) - 1
        waiting += float(lines.max()) * (1 - _BESIDE * beside)
    return waiting


def _met_by_row(places: int, row: NDArray[np.int64], rows: int) -> NDArray[np.float64]:
    """How many pairs of the first places meet at each row of the table: ``[places + 1, rows]``."""
    reached = np.zeros((2 * places, rows))
    reached[np.arange(1, 2 * places), row] = 1
    reached = reached.cumsum(0)
    place = np.arange(places)
    found = np.zeros((places + 1, rows))
    found[1:] = (reached[2 * places - 1 - place] - reached[places - 1 - place]).cumsum(0)
    return found


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
    return np.asarray(np.bincount(_row_of_distance(places, rows), weights=pairs, minlength=rows), np.float64)


def _row_of_distance(places: int, rows: int, *, is_past: bool = False) -> NDArray[np.int64]:
    """The row of the table for each distance, from ``1 - places`` on, where there are fewer rows than distances."""
    apart = np.arange(1 - places, places)
    return _clipped(apart, rows) if rows % 2 else _bucket(apart, rows, is_past=is_past)


def _pairs_apart(places: int) -> NDArray[np.float64]:
    return np.asarray(places - np.abs(np.arange(1 - places, places)), np.float64)


def _clipped(apart: NDArray[np.int64], rows: int) -> NDArray[np.int64]:
    most = rows // 2
    return np.clip(apart, -most, most) + most


def _bucket(apart: NDArray[np.int64], rows: int, *, is_past: bool = False) -> NDArray[np.int64]:
    """A half of the rows for each direction, or all for the past: a half of that for near distances, the others grow
    evenly in logarithms.

    As T5 has them (Raffel et al., 2020), and MPNet.
    """
    half = rows if is_past else rows // 2
    near, size = max(1, half // 2), np.maximum(-apart, 0) if is_past else np.abs(apart)
    far = near + (
        np.log(np.maximum(size, near) / near) / math.log(_FARTHEST * rows / near) * max(half - near, 0)
    ).astype(np.int64)
    bucket = np.where(size < near, size, np.minimum(far, half - 1))
    return np.asarray(bucket if is_past else bucket + half * (apart > 0), np.int64)
