"""A model of times: one fitted entry per operator and direction, and per family of kernel launches."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from torchledger.errors import PredictError
from torchledger.expecting.machine import Machine
from torchledger.fitting.regressors import Blend

Array = NDArray[np.float64]


@dataclass(frozen=True)
class Origin:
    """A device that an entry answered for before it was carried to the next, and the corrections that it had there."""

    machine: Machine
    corrections: int = 0


@dataclass(frozen=True)
class Entry:
    """What was learned of one operator's direction (``"linear/forward"``) or one family of launches.

    ``feature_names`` are the columns that ``blend`` was fitted on, ``units`` the units of the device that were told
    apart. Errors are of rows held out by shape while fitting, in per cent.
    """

    key: str
    blend: Blend
    feature_names: tuple[str, ...]
    units: tuple[str, ...] = ()
    dtypes: tuple[str, ...] = ()
    n_rows: int = 0
    n_shapes: int = 0
    mape: float | None = None
    corrections: tuple[Blend, ...] = ()
    """Of an entry that was learned on another device: what lies between its answer and this device's times, device
    after device. Each was fitted on the entry's own features and, as the last column, the answer before it."""
    spread: float = 0.0
    """How far (in logarithms) an answer for a device that was not measured is off, besides the interval learned."""
    origins: tuple[Origin, ...] = ()
    """Devices of one generation from which an operator's times were carried, the first one first."""

    def predict(self, features: Array, unit: str | None = None) -> tuple[Array, Array, Array]:
        """Log residual, half width and distance from the measured range, for rows of the feature table.

        For an unknown unit, the mean over the units that were measured. Of an entry with ``origins`` see
        ``carrying.answer``. Raises ``PredictError`` for rows of other features than those that it was fitted on.
        """
        middle, width, outside = self.learned(features, unit)
        middle, width = self.corrected(features, middle, width)
        return middle, np.hypot(width, self.spread), outside

    def corrected(
        self, features: Array, middle: Array, width: Array, first: int = 0, last: int | None = None
    ) -> tuple[Array, Array]:
        """Log residual and half width after the corrections from ``first`` to before ``last``.

        Of few rows a slope beyond them is a guess: there a correction stays what it is at their edge.
        """
        for correction in self.corrections[first:last]:
            rows = np.concatenate([features, middle[:, None]], axis=1)
            rows[:, correction.columns] = np.clip(rows[:, correction.columns], correction.low, correction.high)
            shift, width, _ = correction.predict(rows)
            middle = middle + shift
        return middle, width

    def learned(self, features: Array, unit: str | None = None) -> tuple[Array, Array, Array]:
        """Log residual, half width and distance, as on the device where the entry was learned."""
        n_own = len(self.feature_names) - len(self.units)
        if features.shape[1] != n_own:
            raise PredictError(
                f"the model's entry {self.key} was fitted on {n_own} features, this version has {features.shape[1]}. "
                "Fit it again."
            )
        if not self.units:
            return self.blend.predict(features)
        chosen = [self.units.index(unit)] if unit in self.units else range(len(self.units))
        answers = [self.blend.predict(with_units(features, np.full(len(features), u), len(self.units))) for u in chosen]
        middle, width, outside = (np.stack(part) for part in zip(*answers, strict=True))
        return middle.mean(axis=0), width.max(axis=0) + np.ptp(middle, axis=0) / 2, outside.max(axis=0)


@dataclass(frozen=True)
class TimeModel:
    """All that was learned of one device."""

    device: str
    machine: Machine
    entries: Mapping[str, Entry]
    created_utc: str = ""
    versions: Mapping[str, str] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    total_memory_bytes: int | None = None
    extras: Mapping[str, float] = field(default_factory=dict)
    """Scalars that the step model needs: overhead per launch, gaps, graph replay."""
    source: str = ""
    """What it was made of, in a few words: ``"measured"``, ``"transferred from NVIDIA H200"`` and the like."""
    operators_error_pct: float | None = None
    """Mean error of operators at shapes drawn at random that were not learned from; ``None`` if nobody measured it."""

    @property
    def n_rows(self) -> int:
        """Measurements of this device that the entries learned from."""
        return sum(entry.n_rows for entry in self.entries.values())


def with_units(features: Array, codes: NDArray[Any], count: int) -> Array:
    """The features with one more column per unit: 1 for the unit that measured a row."""
    return np.concatenate([features, (codes[:, None] == np.arange(count)[None]).astype(np.float64)], axis=1)
