"""What the directions of single operators take in a state of timing, beyond what all of a family take.

``turns.py`` and ``replays.py`` say it for families, by a few numbers that hold for any operator. What is left is the
operator's own (which of its tensors the cache keeps, how its kernels begin) and goes by its sizes: where a direction
was timed both ways at enough shapes, some regression trees learn it, an entry of the model for each.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from torchledger.fitting.learning import Options, fit_blend
from torchledger.fitting.time_model import Entry, TimeModel
from torchledger.fitting.turns import BYTES, Between

Array = NDArray[np.float64]

PREFIX = "state:"
"""Keys of these entries begin so, as those of launches do with ``launch:``."""

LEAST_SHAPES = 24
"""Directions timed at fewer shapes are left to their family."""

COLUMNS: Mapping[str, tuple[str, ...]] = {
    "turns": ("log warm us", *(f"log MB of {name}" for name in BYTES)),
    "graph": ("log warm us", "log MB read", "log MB written", "kernels"),
}
"""Features by state."""

_MEGABYTE = 1e6
_OPTIONS = Options(members=("trees",), trees=60)


@dataclass(frozen=True)
class Rest:
    """One direction at one shape: its columns, and the logarithm of its time over what its family says."""

    operator_key: str
    direction: str
    columns: Array
    log_rest: float


def turn_columns(between: Between, warm_us: Array) -> Array:
    """Features of a direction in turns at many shapes, [rows, columns]; ``warm_us`` are its times repeated."""
    moved = [np.log1p(np.asarray(getattr(between, name)) / _MEGABYTE) for name in BYTES]
    return np.stack([np.log(warm_us), *moved], axis=1)


def replay_columns(read_bytes: Array, written_bytes: Array, kernels: NDArray[np.int64], warm_us: Array) -> Array:
    """The same in the replay of a CUDA graph."""
    moved = [np.log1p(each / _MEGABYTE) for each in (read_bytes, written_bytes)]
    return np.stack([np.log(warm_us), *moved, kernels.astype(np.float64)], axis=1)


def rest_of_state(
    model: TimeModel, state: str, operator_key: str, direction: str, columns: Array
) -> tuple[Array, Array] | None:
    """Logarithms to add to what the family takes in a state, and half the widths of both together; ``None`` where the
    model has not learned the direction, or learned it on another device, whose cache is another."""
    entry = model.entries.get(_key(state, operator_key, direction))
    if entry is None or entry.origins:
        return None
    rest, width, _ = entry.blend.predict(columns)
    return rest, width


def fit_rests(state: str, rows: Sequence[Rest]) -> dict[str, Entry]:
    """The entries of every direction with ``LEAST_SHAPES``, by key."""
    found = {}
    for operator_key, direction in sorted({(row.operator_key, row.direction) for row in rows}):
        some = [row for row in rows if (row.operator_key, row.direction) == (operator_key, direction)]
        columns = np.stack([row.columns for row in some])
        _, groups = np.unique(columns, axis=0, return_inverse=True)
        shapes = int(groups.max()) + 1
        if shapes < LEAST_SHAPES:
            continue
        rests = np.array([row.log_rest for row in some])
        blend = fit_blend(columns, rests, groups.ravel(), n_shape=columns.shape[1], options=_OPTIONS)
        key = _key(state, operator_key, direction)
        found[key] = Entry(
            key, blend, COLUMNS[state], n_rows=len(some), n_shapes=shapes, mape=blend.held_out_mape
        )  # fmt: skip
    return found


def _key(state: str, operator_key: str, direction: str) -> str:
    return f"{PREFIX}{state}/{operator_key}/{direction}"
