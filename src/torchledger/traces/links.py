"""Which host event a device event belongs to: by id, and by what covers it in time."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

NONE = -1

IntColumn = npt.NDArray[np.int64]


def match_ids(
    wanted_id: IntColumn,
    wanted_start: IntColumn,
    known_id: IntColumn,
    known_start: IntColumn,
    known_row: IntColumn,
) -> IntColumn:
    """For each wanted id the row of the known event with that id; ``NONE`` without one.

    Where an id stands more than once (several ranks in one file), the last event that started before the wanted one.
    """
    result = np.full(len(wanted_id), NONE, dtype=np.int64)
    is_valid = known_id != NONE
    known_id, known_start, known_row = known_id[is_valid], known_start[is_valid], known_row[is_valid]
    if not len(known_id) or not len(wanted_id):
        return result
    order = np.lexsort((known_start, known_id))
    known_id, known_start, known_row = known_id[order], known_start[order], known_row[order]
    first = np.searchsorted(known_id, wanted_id, side="left")
    last = np.searchsorted(known_id, wanted_id, side="right")
    is_found = (last > first) & (wanted_id != NONE)
    result[is_found] = known_row[first[is_found]]
    for index in np.flatnonzero(is_found & (last - first > 1)):
        group = slice(first[index], last[index])
        before = np.searchsorted(known_start[group], wanted_start[index], side="right")
        result[index] = known_row[first[index] + max(int(before) - 1, 0)]
    return result


def innermost_covering(
    inner_lane: npt.NDArray[Any],
    inner_start: IntColumn,
    inner_row: IntColumn,
    outer_lane: npt.NDArray[Any],
    outer_start: IntColumn,
    outer_end: IntColumn,
    outer_row: IntColumn,
) -> IntColumn:
    """For each inner event the row of the latest-starting outer event on its lane that spans its start.

    An event that is on both sides (same row) finds the one around it: never itself, and none that ends before it does
    (neighbours that touch at a rounded microsecond are not nested).
    """
    result = np.full(len(inner_start), NONE, dtype=np.int64)
    if not len(outer_start) or not len(inner_start):
        return result
    end_of_row = dict(zip(outer_row.tolist(), outer_end.tolist(), strict=True))
    ends_at = [end_of_row.get(row, start) for row, start in zip(inner_row.tolist(), inner_start.tolist(), strict=True)]
    inner_end = np.array(ends_at, dtype=np.int64)
    # One sweep in time order with a stack. At equal starts the longer operator comes first and other events last, so
    # that an event asks when all that is around it, and nothing else, has been pushed.
    outer_order = np.lexsort((-outer_end, outer_start, outer_lane))
    lanes = outer_lane[outer_order].tolist()
    starts = outer_start[outer_order].tolist()
    ends = outer_end[outer_order].tolist()
    rows = outer_row[outer_order].tolist()
    inner_order = np.lexsort((-inner_end, inner_start, inner_lane))
    found = [NONE] * len(inner_start)
    stack: list[tuple[int, int]] = []
    current_lane = None
    following, number_of_outer = 0, len(lanes)
    for index, lane, start, end, row in zip(
        inner_order.tolist(),
        inner_lane[inner_order].tolist(),
        inner_start[inner_order].tolist(),
        inner_end[inner_order].tolist(),
        inner_row[inner_order].tolist(),
        strict=True,
    ):
        if lane != current_lane:
            stack.clear()
            current_lane = lane
            while following < number_of_outer and lanes[following] < lane:
                following += 1
        while (
            following < number_of_outer
            and lanes[following] == lane
            and starts[following] <= start
            and rows[following] != row
        ):
            stack.append((ends[following], rows[following]))
            following += 1
        while stack and stack[-1][0] < start:
            stack.pop()
        for outer_ends, outer in reversed(stack):
            if outer_ends >= start and outer_ends >= end:
                found[index] = outer
                break
    result[:] = found
    return result
