"""The time of a whole step: launches, what lies between them, and the optimizer.

In steady state the host launches ahead of the device, so that a step takes the longer of two sums: what the device
needs (kernels and the gaps between them) and what the host needs to launch them. Under CUDA graphs the host launches a
graph at once and gaps are shorter.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from torchledger.errors import PredictError
from torchledger.fitting.launch_families import family_of
from torchledger.fitting.learning import COVERAGE
from torchledger.fitting.time_model import TimeModel
from torchledger.nouns import Launch, Prediction, StepPrediction
from torchledger.predicting.launches import predict_launches
from torchledger.predicting.operators import predict

Mode = Literal["eager", "graphs"]
Array = NDArray[np.float64]

OVERHEADS: Mapping[str, float] = {
    "step host us": 400.0,
    "graph call host us": 60.0,
    "fused launch host us": 5.0,
    "library launch host us": 10.0,
    "gap us": 1.0,
    "graphs step host us": 400.0,
    "graphs gap us": 0.7,
    "step error": 0.10,
}
"""What stands in where a model holds no measured overheads: usual figures of an H200 with PyTorch 2.11, in
microseconds. ``"step error"`` is the half width of a step's interval, as a fraction."""


@dataclass(frozen=True)
class StepShape:
    """What of a step decides its overheads: how many launches of which kind, and graph calls."""

    fused: int
    library: int
    graphs: int

    @property
    def launches(self) -> int:
        """All launches."""
        return self.fused + self.library


def step_shape(launches: Sequence[Launch]) -> StepShape:
    """Count the launches and graphs of a step."""
    families = [family for launch in launches if (family := family_of(launch)) is not None]
    fused = sum(family.startswith("launch:fused") for family in families)
    return StepShape(fused, len(families) - fused, len({launch.graph for launch in launches}))


def host_us(shape: StepShape, mode: Mode, overheads: Mapping[str, float]) -> float:
    """What the host needs to launch a step, in microseconds."""
    if mode == "graphs":
        return overheads["graphs step host us"]
    return (
        overheads["step host us"]
        + overheads["graph call host us"] * shape.graphs
        + overheads["fused launch host us"] * shape.fused
        + overheads["library launch host us"] * shape.library
    )


def gaps_us(shape: StepShape, mode: Mode, overheads: Mapping[str, float]) -> float:
    """Idle time of the device between the kernels of a step."""
    return overheads["graphs gap us" if mode == "graphs" else "gap us"] * shape.launches


def predict_step(
    model: TimeModel,
    launches: Sequence[Launch],
    *,
    mode: Mode = "eager",
    subject: str = "step",
    optimizer: str | None = None,
    measured_us: float | None = None,
    measured: Mapping[str, float] | None = None,
) -> tuple[StepPrediction, list[Prediction]]:
    """The step that runs each graph of a ledger once, and the prediction of each launch.

    ``optimizer`` is ``"adamw:NUMEL"`` or ``"adamw:NUMEL:TENSORS"``: one fused step over so many parameters.
    ``measured`` maps launch ids to measured microseconds. Raises ``PredictError`` if there are no launches.
    """
    if not launches:
        raise PredictError(f"{subject} holds no launches: nothing was compiled while it was recorded.")
    predictions = predict_launches(model, launches)
    overheads = {**OVERHEADS, **model.extras}
    shape = step_shape(launches)
    kernels = sum(prediction.duration_us for prediction in predictions)
    optimizer_us = _optimizer_us(model, optimizer)
    device = kernels + gaps_us(shape, mode, overheads) + optimizer_us
    duration = max(device, host_us(shape, mode, overheads))
    spread = np.array([max(p.high_us - p.duration_us, p.duration_us - p.low_us) for p in predictions])
    half = overheads["step error"] * duration + float(np.sqrt(np.square(spread).sum()))
    step = StepPrediction(
        subject=subject,
        mode=mode,
        duration_us=duration,
        low_us=max(duration - half, 0.0),
        high_us=duration + half,
        coverage=COVERAGE,
        device=model.device,
        kernels_us=kernels,
        gaps_us=gaps_us(shape, mode, overheads),
        host_us=host_us(shape, mode, overheads),
        optimizer_us=optimizer_us,
        launches=len(predictions),
        extrapolated=sum(prediction.is_extrapolated for prediction in predictions),
        unlearned=sum(prediction.model == "roofline" for prediction in predictions),
        measured_us=measured_us,
        measured_kernels_us=sum(measured.values()) if measured else None,
    )
    return step, predictions


def predict_ledger(
    model: TimeModel, path: str | os.PathLike[str], *, mode: Mode = "eager", optimizer: str | None = None
) -> tuple[StepPrediction, list[Prediction], dict[str, float], list[Launch]]:
    """``predict_step`` for a ledger, with the measured times of its launches (empty without a profile)."""
    from torchledger.nouns import Measurement, Profile
    from torchledger.store import open_ledger

    path = Path(path)
    with open_ledger(path) as reader:
        launches = reader.read(Launch)
        measured = {
            item.subject: item.duration_us for item in reader.iterate(Measurement) if item.kind in ("profile", "sample")
        }
        profiles = reader.read(Profile)
    plain = [profile.plain_step_us for profile in profiles if profile.plain_step_us is not None]
    step, predictions = predict_step(
        model,
        launches,
        mode=mode,
        subject=path.name,
        optimizer=optimizer,
        measured_us=plain[-1] if plain else None,
        measured=measured,
    )
    return step, predictions, measured, launches


@dataclass(frozen=True)
class StepObservation:
    """A step that was measured: the sum of its kernels' times, its shape and mode, and how long it took."""

    name: str
    mode: Mode
    shape: StepShape
    kernels_us: float
    step_us: float


def fit_overheads(observations: Sequence[StepObservation]) -> dict[str, float]:
    """The overheads that explain measured steps best: least mean relative error, searched by simplex from usual values.

    Parameters that no observation touches keep their usual value.
    """
    from scipy.optimize import minimize

    names = [name for name in OVERHEADS if name != "step error"]
    best = dict(OVERHEADS)
    if not observations:
        return best
    for scale in (0.0, 0.7, -0.7, 0.3):
        start = np.log([best[name] for name in names]) + scale

        def loss(logarithms: Array) -> float:
            trial = dict(zip(names, np.exp(logarithms), strict=True))
            # A weak pull to the usual values decides what the observations do not.
            away = np.mean(np.square(logarithms - np.log([OVERHEADS[name] for name in names])))
            return _mean_error(observations, trial) + 1e-4 * float(away)

        found = minimize(loss, start, method="Nelder-Mead", options={"maxiter": 3000, "xatol": 1e-3, "fatol": 1e-6}).x
        trial = {**best, **dict(zip(names, map(float, np.exp(found)), strict=True))}
        if _mean_error(observations, trial) < _mean_error(observations, best):
            best = trial
    return best


def _mean_error(observations: Sequence[StepObservation], overheads: Mapping[str, float]) -> float:
    errors = []
    for item in observations:
        device = item.kernels_us + gaps_us(item.shape, item.mode, overheads)
        predicted = max(device, host_us(item.shape, item.mode, overheads))
        errors.append(abs(predicted / item.step_us - 1))
    return float(np.mean(errors)) if errors else 0.0


def _optimizer_us(model: TimeModel, optimizer: str | None) -> float:
    if optimizer is None:
        return 0.0
    kind, *numbers = optimizer.split(":")
    if kind != "adamw" or len(numbers) not in (1, 2) or not all(number.isdigit() for number in numbers):
        raise PredictError(f"optimizer {optimizer!r} is unknown; write adamw:NUMEL or adamw:NUMEL:TENSORS.")
    parameters = dict(zip(("numel", "tensors"), map(int, numbers), strict=False))
    return predict(model, "adamw", parameters, direction="step", dtype="float32").duration_us
