"""What a buffer held."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True)
class ValueStats:
    """Statistics of one tensor before or after one launch of one call of a graph.

    Counts are of elements. ``None`` where a statistic does not exist (an empty tensor has no mean).
    """

    subject: str
    call_index: int
    buffer: str
    moment: Literal["input", "before", "after"]
    dtype: str
    shape: tuple[int, ...]
    n_nan: int | None = None
    n_inf: int | None = None
    minimum: float | None = None
    maximum: float | None = None
    mean: float | None = None
    std: float | None = None
    n_zero: int | None = None
    n_subnormal: int | None = None
    path: str | None = None
    note: str | None = None
