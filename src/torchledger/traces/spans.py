"""Stretches of time, each a start and an end on one clock."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TypeVar

Moment = TypeVar("Moment", int, float)


def merge_spans(spans: Iterable[tuple[Moment, Moment]]) -> list[tuple[Moment, Moment]]:
    """The moments that lie in any of the spans: in order, without overlap; spans that touch become one.

    A span that does not end after its start holds no moment.

    >>> merge_spans([(5, 7), (0, 2), (1, 3), (3, 4), (9, 9)])
    [(0, 4), (5, 7)]
    """
    merged: list[tuple[Moment, Moment]] = []
    for start, end in sorted(spans):
        if end <= start:
            continue
        if merged and start <= merged[-1][1]:
            merged[-1] = (merged[-1][0], max(end, merged[-1][1]))
        else:
            merged.append((start, end))
    return merged
