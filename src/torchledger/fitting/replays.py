"""What a direction takes in the replay of a CUDA graph, where its kernels follow one another at once.

Labels are of calls whose kernels the host launches one by one. In a replay a kernel begins as soon as the one before it
ends, and its beginning is then part of its own time: that costs directions of several kernels some tenths of a
microsecond, and those of one kernel nothing. A copy by the driver is a node of the graph, which is slower where a large
tensor does not fill whole pages.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from torchledger.errors import PredictError
from torchledger.expecting.rounding import as_column
from torchledger.fitting.learning import COVERAGE
from torchledger.fitting.time_model import TimeModel
from torchledger.operators import Operator

Array = NDArray[np.float64]

MOST_KERNELS = 3
"""Directions of more kernels are taken for ones of so many."""

_LATER_US = np.arange(-0.5, 1.505, 0.01)
_SHARES = np.arange(0.0, 0.3, 0.002)
_COPY_SHARE = "graph copy share"
_PAGE_BYTES = 4096
"""Copies of a multiple take no longer in a replay (32,768 was seen, 256 is none)."""
_CACHED_BYTES = 45e6
"""Directions that move less find what they copy in the cache."""


@dataclass(frozen=True)
class Replay:
    """A direction that was timed both ways, at one shape: its key, its family (``timing_states.family_of_operator``),
    its kernels, microseconds repeated and replayed, whether ``copies_slowly``, and the bytes that it reads and
    writes."""

    name: str
    family: str
    kernels: int
    warm_us: float
    graph_us: float
    is_slow_copy: bool = False
    read_bytes: float = 0.0
    written_bytes: float = 0.0


def kernels_of(
    operator: Operator, parameters: Mapping[str, Any], direction: str, item_size: float, count: int = 1
) -> NDArray[np.int64]:
    """How many kernels a direction runs at ``count`` shapes, ``MOST_KERNELS`` at most; one that moves nothing is not
    launched."""
    works = operator.work(operator.resolve(parameters), direction, item_size)  # type: ignore[arg-type]
    launched = sum(((as_column(work.bytes_moved, count) > 0).astype(np.int64) for work in works), np.zeros(count, int))
    return np.clip(launched, 1, MOST_KERNELS)


def bytes_of_direction(
    operator: Operator, parameters: Mapping[str, Any], direction: str, item_size: float, count: int = 1
) -> tuple[Array, Array]:
    """Bytes that a direction's kernels read and write at ``count`` shapes."""
    works = operator.work(operator.resolve(parameters), direction, item_size)  # type: ignore[arg-type]
    read, written = (
        sum((as_column(getattr(work, name), count) for work in works), np.zeros(count))
        for name in ("bytes_read", "bytes_written")
    )
    return read, written


def copies_slowly(
    operator: Operator, parameters: Mapping[str, Any], direction: str, item_size: float, count: int = 1
) -> NDArray[np.bool_]:
    """Whether a direction at ``count`` shapes begins with a copy that is slower as a node of a graph."""
    if direction not in operator.copies_first:
        return np.zeros(count, np.bool_)
    works = operator.work(operator.resolve(parameters), direction, item_size)  # type: ignore[arg-type]
    moved = sum((as_column(work.bytes_moved, count) for work in works), np.zeros(count))
    return np.asarray((as_column(works[0].bytes_read, count) % _PAGE_BYTES != 0) & (moved > _CACHED_BYTES))


def replayed_over_warm(
    model: TimeModel,
    family: str,
    kernels: NDArray[np.int64],
    warm_us: Array,
    slow_copies: NDArray[np.bool_] | None = None,
) -> tuple[Array, Array]:
    """The logarithm of the time replayed over that repeated, and what half an interval of it is; ``slow_copies`` are
    the shapes that ``copies_slowly``. Raises ``PredictError`` where the model has not learned it."""
    if f"graph width {family}" not in model.extras:
        raise PredictError(
            f"the model of {model.device} does not know how long {family} kernels take in a CUDA graph's replay: leave "
            "out --state."
        )
    by_kernels = np.array([model.extras[f"graph {count} us"] for count in range(1, MOST_KERNELS + 1)])
    later = by_kernels[kernels - 1] / warm_us
    if slow_copies is not None:
        later = later + np.where(slow_copies, model.extras.get(_COPY_SHARE, 0.0), 0.0)
    width = np.full(len(warm_us), model.extras[f"graph width {family}"])
    # What is learned of usual kernels may be a larger share of one that takes a microsecond.
    return np.log1p(np.maximum(later, -0.5)), width


def fit_replays(rows: Sequence[Replay]) -> dict[str, float]:
    """The numbers that ``replayed_over_warm`` reads, each operator's direction counting alike."""
    kernels = np.array([row.kernels for row in rows])
    warm_us, graph_us = (np.array([getattr(row, name) for row in rows]) for name in ("warm_us", "graph_us"))
    names, code, often = np.unique([row.name for row in rows], return_inverse=True, return_counts=True)
    share = 1 / often[code] / len(names)
    found: dict[str, float] = {}
    later = np.zeros(len(rows))
    is_slow = np.array([row.is_slow_copy for row in rows])
    if is_slow.any():
        off = np.abs(np.outer(warm_us[is_slow], 1 + _SHARES) / graph_us[is_slow, None] - 1)
        found[_COPY_SHARE] = round(float(_SHARES[np.argmin(share[is_slow] @ off)]), 3)
        later[is_slow] = warm_us[is_slow] * found[_COPY_SHARE]
    for count in range(1, MOST_KERNELS + 1):
        some = (kernels == count) & ~is_slow
        off = np.abs((warm_us[some, None] + _LATER_US) / graph_us[some, None] - 1)
        # Of costs that say as much the least.
        best = np.argmin(share[some] @ off + 1e-6 * np.abs(_LATER_US))
        found[f"graph {count} us"] = round(float(_LATER_US[best]), 3) if some.any() else 0.0
        later[kernels == count] += found[f"graph {count} us"]
    away = np.abs(np.log((warm_us + later) / graph_us))
    families = np.array([row.family for row in rows])
    for family in np.unique(families):
        found[f"graph width {family}"] = float(np.quantile(away[families == family], COVERAGE))
    return found
