"""What operators have in common in how another device differs, learned from all of them together.

A cache that holds as much but whose memory is slower, or a clock that is lower, show in every operator alike: by how
many bytes it moves, what it computes, what it was expected to take and what the transferred model says. Tens of rows of
one operator tell little of that, the rows of all of them much; and an operator that nobody measured has its share.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from torchledger.fitting.learning import MIN_SHAPES, Options, fit_blend
from torchledger.fitting.regressors import Blend
from torchledger.fitting.time_model import Entry

Array = NDArray[np.float64]

COLUMNS = ("log flops", "log bytes", "log roofline", "log expected")
"""Of every operator's features; the transferred answer stands beside them as the last column."""

_MOST_ROWS = 400
"""Rows of one entry at most, so that no operator speaks for all."""


def learn_common(
    entries: Sequence[Entry], values: Sequence[Array], targets: Sequence[Array], *, options: Options
) -> Blend | None:
    """A correction of ``targets`` (log residuals) by what all entries' rows have in common; ``values`` are each entry's
    features with its answer as the last column.

    It is judged on operators that it did not learn from: ``None`` where it does no better there than no correction, or
    where there are too few of them to judge.
    """
    pick = np.random.default_rng(0)
    rows, target, groups = [], [], []
    operators = sorted({entry.key.split("/")[0] for entry in entries})
    for entry, own, wanted in zip(entries, values, targets, strict=True):
        columns = _columns(entry)
        if columns is not None:
            chosen = pick.permutation(len(wanted))[:_MOST_ROWS]
            rows.append(own[chosen][:, columns])
            target.append(wanted[chosen])
            # Forward and backward tell of each other.
            groups.append(np.full(len(chosen), operators.index(entry.key.split("/")[0])))
    if len({int(group[0]) for group in groups}) < MIN_SHAPES:
        return None
    off = np.concatenate(target)
    found = fit_blend(np.concatenate(rows), off, np.concatenate(groups), n_shape=len(COLUMNS), options=options)
    return found if found.held_out_mape < 100 * float(np.mean(np.abs(np.expm1(-off)))) else None


def with_common(entry: Entry, common: Blend) -> Entry:
    """An entry with the common correction as its next one; itself, where it lacks the columns."""
    columns = _columns(entry)
    if columns is None:
        return entry
    # Its range is that of all operators: it says nothing of where one of them was measured.
    anywhere = np.full(len(COLUMNS), np.inf)
    own = replace(common, columns=columns[common.columns], shape_low=-anywhere, shape_high=anywhere)
    return replace(entry, corrections=(*entry.corrections, own))


def _columns(entry: Entry) -> NDArray[np.int64] | None:
    """Where an entry's features have the common columns, and its answer."""
    n_own = len(entry.feature_names) - len(entry.units)
    if entry.key.startswith(("launch:", "collective.")) or not set(COLUMNS) <= set(entry.feature_names[:n_own]):
        return None
    return np.array([*(entry.feature_names.index(name) for name in COLUMNS), n_own], dtype=np.int64)
