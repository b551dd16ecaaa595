"""What calls cost whose algorithms say more than their bytes: a time for each part of their work, learned from calls
inside recorded steps.

Enters: calls and the parts of each (``work/algorithms.py``). Leaves: numbers by name, for ``TimeModel.extras``.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import nnls

from torchledger.fitting.call_costs import tensors_of
from torchledger.fitting.learning import COVERAGE
from torchledger.work.algorithm_calls import Parts
from torchledger.work.algorithms import costs_of, parts_of
from torchledger.work.settings import settings_from

Array = NDArray[np.float64]

_FEWEST = 6
"""Calls of a way below which it is not learned."""

_ANY_WAY = "any way"
"""How calls are known of ways that have too few."""

_TURNS = 40
_CLOSE = 0.02
"""How near a call is, as a logarithm, below which coming nearer is no gain."""

_WIDER, _SURELY = 1.2, 0.2
"""How much wider intervals are than over the learned calls, and how wide at least, as drawn ones that were held out
ask for (``benchmarks/models/fit_eager.py --held-out-rare``)."""


@dataclass(frozen=True)
class AlgorithmCost:
    """A call takes ``us[i]`` for each unit of its part ``i``; 90 % of calls lie within a factor ``exp(spread)``."""

    us: tuple[float, ...]
    spread: float

    def duration_us(self, parts: Parts) -> float:
        """Microseconds of a call of as many parts."""
        return sum(each * amount for each, amount in zip(self.us, parts.amounts, strict=True))


def algorithm_cost(name: str, parts: Parts, extras: Mapping[str, float]) -> AlgorithmCost | None:
    """What a model has learned of an operator that goes this way, or else any; ``None`` if nothing.

    >>> extras = {"aten::im2col, frames part 0 us": 2.0, "aten::im2col, frames parts spread": 0.3}
    >>> algorithm_cost("aten::im2col", Parts("frames", (1.0, 5.0)), extras)
    AlgorithmCost(us=(2.0, 0.0), spread=0.3)
    """
    for way in (parts.way, _ANY_WAY):
        key = f"{costs_of(name)}, {way}"
        spread = extras.get(f"{key} parts spread")
        if spread is not None:
            us = (extras.get(f"{key} part {place} us", 0.0) for place in range(len(parts.amounts)))
            return AlgorithmCost(tuple(us), spread)
    return None


def parts_of_row(row: Mapping[str, Any]) -> Parts | None:
    """The parts of a row as ``fit_call_costs`` has them."""
    settings = settings_from(row.get("settings"))
    return parts_of(
        str(row["name"]), tensors_of(row), settings, flops=row.get("flops"), bytes_moved=row.get("bytes_moved")
    )


def fit_algorithms(rows: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    """The costs of each operator and way with enough calls, none of them negative, by least mean absolute logarithm;
    as ``extras``. Rows as for ``fit_call_costs``."""
    by_key: dict[str, list[tuple[tuple[float, ...], float]]] = {}
    for row in rows:
        parts = parts_of_row(row) if row["us"] > 0 else None
        if parts is not None:
            for way in {parts.way, _ANY_WAY}:
                by_key.setdefault(f"{costs_of(row['name'])}, {way}", []).append((parts.amounts, row["us"]))
    found: dict[str, float] = {}
    for key, own in sorted(by_key.items()):
        amounts, us = np.array([each for each, _ in own]), np.array([each for _, each in own])
        if len(own) < _FEWEST:
            continue
        times = _fit(amounts, us)
        off = np.abs(np.log(amounts @ times) - np.log(us))
        used = int((times > 0).sum())
        # Few calls are met better than others of their kind will be.
        fewer = math.sqrt((len(own) + used) / (len(own) - used))
        found[f"{key} parts spread"] = fewer * math.hypot(_WIDER * float(np.quantile(off, COVERAGE)), _SURELY)
        found |= {f"{key} part {place} us": float(each) for place, each in enumerate(times) if each > 0}
    return found


def _fit(amounts: Array, us: Array) -> Array:
    """Times of the parts, by least squares of relative differences, weighted anew until the mean of their absolute
    values is least."""
    weights = 1 / us
    best: tuple[float, Array] | None = None
    for _ in range(_TURNS):
        times, _ = nnls(amounts * weights[:, None], us * weights)
        said = np.maximum(amounts @ times, 1e-6)
        off = np.abs(np.log(said / us))
        if best is None or off.mean() < best[0]:
            best = float(off.mean()), times
        # A difference counts relative to what is between said and measured, as a logarithm does.
        weights = 1 / (np.sqrt(said * us) * np.sqrt(np.maximum(off, _CLOSE)))
    assert best is not None
    return best[1]
