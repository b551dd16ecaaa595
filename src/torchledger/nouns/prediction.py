"""A time that nobody measured."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True)
class Prediction:
    """A predicted time with its interval; answers the same questions as a ``Measurement``.

    ``low_us``/``high_us`` bound the interval of the given ``coverage``; ``range`` says where the question lies relative
    to what was measured.
    """

    subject: str
    duration_us: float
    low_us: float
    high_us: float
    coverage: float
    range: Literal["inside", "edge", "extrapolated"]
    device: str
    model: str
    roofline_us: float | None = None
    note: str | None = None

    @property
    def is_extrapolated(self) -> bool:
        """True when the question lies outside what the model was trained on."""
        return self.range == "extrapolated"
