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


@dataclass(frozen=True)
class StepPrediction:
    """The predicted time of one step: what its parts add to.

    ``mode`` is how launches reach the device: one by one from the host, or replayed as CUDA graphs. ``device_us`` is
    the device's time (``kernels_us`` plus ``gaps_us`` between kernels plus ``optimizer_us`` plus ``sustained_us``, what
    products take longer at the power limit of a run that lasts), ``host_us`` what the host
    needs to launch it all; the step takes the longer of both. ``measured_us`` is the ledger's own step time, if it
    holds one.
    """

    subject: str
    mode: Literal["eager", "graphs"]
    duration_us: float
    low_us: float
    high_us: float
    coverage: float
    device: str
    kernels_us: float
    gaps_us: float
    host_us: float
    optimizer_us: float = 0.0
    launches: int = 0
    extrapolated: int = 0
    unlearned: int = 0
    measured_us: float | None = None
    measured_kernels_us: float | None = None
    sustained_us: float = 0.0

    @property
    def device_us(self) -> float:
        """Time that the device needs."""
        return self.kernels_us + self.gaps_us + self.optimizer_us + self.sustained_us

    @property
    def is_host_bound(self) -> bool:
        """True when the host cannot launch as quickly as the device works."""
        return self.host_us > self.device_us
