"""The state in which a kernel is timed: after its own repeats, or after other work has swept the cache.

Labels of operators are warm: the kernel ran just before over the same tensors, and what fits is still in the L2. In a
program other work lies between, and a short kernel then waits for the device's memory. Between the two lies a training
loop's order, forward and backward in turns (``turns.py``). In a CUDA graph's replay kernels follow at once
(``replays.py``).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from torchledger.errors import PredictError
from torchledger.fitting.learning import COVERAGE
from torchledger.fitting.time_model import TimeModel
from torchledger.operators import Operator

State = Literal["warm", "swept", "turns", "graph"]
Array = NDArray[np.float64]

STATES: tuple[State, ...] = ("warm", "swept", "turns", "graph")
KNOTS_US = (3.0, 6.0, 12.0, 25.0, 50.0, 100.0, 300.0)
"""Warm durations at which the correction is learned; between them it is interpolated, beyond them it stays."""

_PULL = 1.0  # points that keep a knot to its neighbours


@dataclass(frozen=True)
class TimedTwice:
    """An operator's family and its time in microseconds in both states."""

    family: str
    warm_us: float
    swept_us: float


def family_of_operator(operator: Operator, parameters: Mapping[str, Any], direction: str, item_size: float) -> str:
    """``"attention"``, ``"products"`` (convolutions among them), or ``"memory"`` for all else."""
    resolved = operator.resolve(parameters)
    kinds = {work.kind for work in operator.work(resolved, direction, item_size)}  # type: ignore[arg-type]
    if "attention" in kinds:
        return "attention"
    return "products" if kinds & {"gemm", "convolution"} else "memory"


def swept_over_warm(model: TimeModel, family: str, warm_us: Array) -> tuple[Array, Array]:
    """The logarithm of the swept over the warm time, and what half an interval of it is. Raises ``PredictError`` where
    the model has not learned it."""
    if f"swept {family} 0" not in model.extras:
        raise PredictError(
            f"the model of {model.device} does not know how long {family} kernels take after the cache was swept: "
            "leave out --state."
        )
    shifts, widths = (
        np.interp(
            np.log(warm_us), np.log(KNOTS_US), [model.extras[f"{name} {family} {k}"] for k in range(len(KNOTS_US))]
        )
        for name in ("swept", "swept width")
    )
    return shifts, widths


def fit_states(rows: Sequence[TimedTwice]) -> dict[str, float]:
    """For each family and knot ``swept`` and ``swept width``, as ``swept_over_warm`` reads them."""
    found: dict[str, float] = {}
    for family in sorted({row.family for row in rows}):
        some = [row for row in rows if row.family == family]
        near = _shares(np.array([row.warm_us for row in some]))
        off = np.array([math.log(row.swept_us / row.warm_us) for row in some])
        shifts = np.maximum(_smooth(near, off, np.median), 0.0)
        left = np.abs(off - near @ shifts)
        widths = _smooth(near, left, lambda part: np.quantile(part, COVERAGE))
        for knot, (shift, width) in enumerate(zip(shifts, widths, strict=True)):
            found[f"swept {family} {knot}"], found[f"swept width {family} {knot}"] = float(shift), float(width)
    return found


def _shares(warm_us: Array) -> Array:
    """How much of each knot there is in each time, [times, knots]."""
    knots = np.eye(len(KNOTS_US))
    return np.stack([np.interp(np.log(warm_us), np.log(KNOTS_US), knot) for knot in knots], axis=1)


def _smooth(near: Array, values: Array, middle: Callable[[Array], Any]) -> Array:
    """The middle of the values nearest each knot; one that has few of them leans on its neighbours."""
    counts = np.array([(near.argmax(axis=1) == knot).sum() for knot in range(near.shape[1])], dtype=np.float64)
    own = np.array(
        [float(middle(values[near.argmax(axis=1) == knot])) if counts[knot] else 0.0 for knot in range(len(counts))]
    )
    lean = np.array([[math.exp(-abs(a - b)) for b in range(len(counts))] for a in range(len(counts))])
    weights = lean * _PULL * (counts > 0) + np.diag(counts)
    return np.asarray(weights @ own / weights.sum(axis=1))
