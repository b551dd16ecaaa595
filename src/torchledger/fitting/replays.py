"""What a direction takes in the replay of a CUDA graph, where its kernels follow one another at once.

Labels are of calls whose kernels the host launches one by one. In a replay a kernel begins as soon as the one before it
ends, and its beginning is then part of its own time: that costs directions of several kernels some tenths of a
microsecond, and those of one kernel nothing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from torchledger.errors import PredictError
from torchledger.fitting.learning import COVERAGE
from torchledger.fitting.rounding import as_column
from torchledger.fitting.time_model import TimeModel
from torchledger.operators import Operator

Array = NDArray[np.float64]

MOST_KERNELS = 3
"""Directions of more kernels are taken for ones of so many."""

_LATER_US = np.arange(-0.5, 1.505, 0.01)


@dataclass(frozen=True)
class Replay:
    """A direction that was timed both ways, at one shape: its key, its family (``timing_states.family_of_operator``),
    its kernels, and microseconds repeated and replayed."""

    name: str
    family: str
    kernels: int
    warm_us: float
    graph_us: float


def kernels_of(
    operator: Operator, parameters: Mapping[str, Any], direction: str, item_size: float, count: int = 1
) -> NDArray[np.int64]:
    """How many kernels a direction runs at ``count`` shapes, ``MOST_KERNELS`` at most; one that moves nothing is not
    launched."""
    works = operator.work(operator.resolve(parameters), direction, item_size)  # type: ignore[arg-type]
    launched = sum(((as_column(work.bytes_moved, count) > 0).astype(np.int64) for work in works), np.zeros(count, int))
    return np.clip(launched, 1, MOST_KERNELS)


def replayed_over_warm(
    model: TimeModel, family: str, kernels: NDArray[np.int64], warm_us: Array
) -> tuple[Array, Array]:
    """The logarithm of the time replayed over that repeated, and what half an interval of it is. Raises
    ``PredictError`` where the model has not learned it."""
    if f"graph width {family}" not in model.extras:
        raise PredictError(
            f"the model of {model.device} does not know how long {family} kernels take in a CUDA graph's replay: leave "
            "out --state."
        )
    later = np.array([model.extras[f"graph {count} us"] for count in range(1, MOST_KERNELS + 1)])
    width = np.full(len(warm_us), model.extras[f"graph width {family}"])
    # What is learned of usual kernels may be a larger share of one that takes a microsecond.
    return np.log1p(np.maximum(later[kernels - 1] / warm_us, -0.5)), width


def fit_replays(rows: Sequence[Replay]) -> dict[str, float]:
    """The numbers that ``replayed_over_warm`` reads, each operator's direction counting alike."""
    kernels = np.array([row.kernels for row in rows])
    warm_us, graph_us = (np.array([getattr(row, name) for row in rows]) for name in ("warm_us", "graph_us"))
    names, code, often = np.unique([row.name for row in rows], return_inverse=True, return_counts=True)
    share = 1 / often[code] / len(names)
    found: dict[str, float] = {}
    later = np.zeros(len(rows))
    for count in range(1, MOST_KERNELS + 1):
        some = kernels == count
        off = np.abs((warm_us[some, None] + _LATER_US) / graph_us[some, None] - 1)
        # Of costs that say as much the least.
        best = np.argmin(share[some] @ off + 1e-6 * np.abs(_LATER_US))
        found[f"graph {count} us"] = round(float(_LATER_US[best]), 3) if some.any() else 0.0
        later[some] = found[f"graph {count} us"]
    away = np.abs(np.log((warm_us + later) / graph_us))
    families = np.array([row.family for row in rows])
    for family in np.unique(families):
        found[f"graph width {family}"] = float(np.quantile(away[families == family], COVERAGE))
    return found
