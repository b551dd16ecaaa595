"""What eager calls take in steps beside what the catalogue says of their operator, which was timed call after call.

Enters: calls in steps and what the catalogue said of them. Leaves: numbers by name, for ``TimeModel.extras``.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from torchledger.fitting.learning import COVERAGE

_FEWEST = 6
"""Calls below which the catalogue's word is taken."""

_OFFSET_US = (0.0, 0.1, 0.15, 0.2, 0.3, 0.4, 0.6, 0.8, 1.2)
_FACTORS = np.exp(np.linspace(np.log(0.8), np.log(1.6), 36))
_SURELY = 0.15
"""How far, as a logarithm, calls lie from the best line at least: others than the learned ones are asked for."""


@dataclass(frozen=True)
class BesideCatalogue:
    """A call in a step takes ``factor`` times what the catalogue says and ``offset_us`` more; 90 % of calls lie within
    a factor ``exp(spread)``."""

    factor: float
    offset_us: float
    spread: float

    def duration_us(self, said_us: float) -> float:
        """Microseconds in a step of what the catalogue gives ``said_us``."""
        return self.factor * said_us + self.offset_us


def beside_catalogue(name: str, extras: Mapping[str, float]) -> BesideCatalogue | None:
    """What a model has learned of an operator's calls beside the catalogue's word; ``None`` if nothing.

    >>> learned = {"aten::mul in steps factor": 1.1, "aten::mul in steps us": 0.2, "aten::mul in steps spread": 0.3}
    >>> beside_catalogue("aten::mul", learned)
    BesideCatalogue(factor=1.1, offset_us=0.2, spread=0.3)
    """
    known = [extras.get(f"{name} in steps {what}") for what in ("factor", "us", "spread")]
    factor, offset_us, spread = known
    if factor is None or offset_us is None or spread is None:
        return None
    return BesideCatalogue(factor, offset_us, spread)


def fit_beside_catalogue(names: Sequence[str], us: Sequence[float], said_us: Sequence[float]) -> dict[str, float]:
    """By operator what its calls take (``us``) beside what the catalogue says (``said_us``), both in microseconds, by
    least mean absolute logarithm; as ``extras``."""
    places: dict[str, list[int]] = {}
    for place, name in enumerate(names):
        if us[place] > 0 and said_us[place] > 0:
            places.setdefault(name, []).append(place)
    found: dict[str, float] = {}
    for name, own in places.items():
        if len(own) < _FEWEST:
            continue
        taken = np.log([us[place] for place in own])
        said = np.array([said_us[place] for place in own])
        best = min(
            ((float(factor), offset) for factor in _FACTORS for offset in _OFFSET_US),
            key=lambda pair: float(np.abs(np.log(pair[0] * said + pair[1]) - taken).mean()),
        )
        off = np.abs(np.log(best[0] * said + best[1]) - taken)
        spread = math.hypot(float(np.quantile(off, COVERAGE)), _SURELY)
        found |= dict(
            zip((f"{name} in steps {what}" for what in ("factor", "us", "spread")), (*best, spread), strict=True)
        )
    return found
