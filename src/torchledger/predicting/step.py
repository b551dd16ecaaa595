"""The time of a whole step: launches, what lies between them, and the optimizer.

In steady state the host launches ahead of the device, so that a step takes about the longer of two sums: what the
device needs (kernels and the gaps between them) and what the host needs to launch them. Under CUDA graphs the host
launches a graph at once and gaps are shorter. Step after step the device reaches its power limit, and matrix products
take somewhat longer than in the few steps of a profile.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from torchledger.errors import PredictError
from torchledger.fitting.launch_families import family_of
from torchledger.fitting.learning import COVERAGE
from torchledger.fitting.time_model import TimeModel
from torchledger.nouns import Launch, Prediction, StepPrediction
from torchledger.predicting.launches import predict_launches
from torchledger.predicting.operators import predict
from torchledger.store.launch_file import MeasuredLaunch

Mode = Literal["eager", "graphs"]
Array = NDArray[np.float64]

OVERHEADS: Mapping[str, float] = {
    "step host us": 400.0,
    "graph call host us": 60.0,
    "fused launch host us": 5.0,
    "library launch host us": 10.0,
    "convolution launch host us": 30.0,
    "optimizer tensor host us": 5.0,
    "gap us": 1.0,
    "graphs step host us": 400.0,
    "graphs gap us": 0.7,
    "sustained products": 0.03,
    "overlap": 6.0,
    "step error": 0.10,
}
"""What stands in where a model holds no measured overheads: usual figures of an H200 with PyTorch 2.11, in
microseconds. ``"sustained products"`` is by what fraction matrix products and attention take longer in a run that lasts
than in the profile that measured them; ``"step error"`` is the half width of a step's interval, as a fraction;
``"overlap"`` is the power with which device and host time are added: the larger, the nearer to the longer of both."""


_PULL = 8e-2
"""How strongly fitted overheads keep to the usual ones: where few steps are bound by the host, many sets of overheads
explain them equally well, some of them with a step that costs the host 2.4 ms before the first launch."""


@dataclass(frozen=True)
class StepShape:
    """What of a step decides its overheads: how many launches of which kind, and graph calls."""

    fused: int
    library: int
    graphs: int
    convolutions: int = 0
    tensors: int = 0

    @property
    def launches(self) -> int:
        """All launches."""
        return self.fused + self.library + self.convolutions


def step_shape(launches: Sequence[Launch], tensors: int = 0) -> StepShape:
    """Count the launches and graphs of a step; ``tensors`` are those that an optimizer updates."""
    families = [family for launch in launches if (family := family_of(launch)) is not None]
    fused = sum(family.startswith("launch:fused") for family in families)
    convolutions = sum(family.startswith("launch:convolution") for family in families)
    graphs = len({launch.graph for launch in launches})
    return StepShape(fused, len(families) - fused - convolutions, graphs, convolutions, tensors)


def step_us(device_us: float, host_us: float, overheads: Mapping[str, float]) -> float:
    """A step's time from what device and host need: the longer of both, and more where they are alike.

    The host is ahead of the device in one phase of a step and behind in another, which costs time where neither
    dominates.
    """
    power = max(1.0, overheads["overlap"])
    longer = max(device_us, host_us, 1e-9)
    return float(longer * ((device_us / longer) ** power + (host_us / longer) ** power) ** (1 / power))


def host_us(shape: StepShape, mode: Mode, overheads: Mapping[str, float]) -> float:
    """What the host needs to launch a step, in microseconds."""
    if mode == "graphs":
        return overheads["graphs step host us"]
    return (
        overheads["step host us"]
        + overheads["graph call host us"] * shape.graphs
        + overheads["fused launch host us"] * shape.fused
        + overheads["library launch host us"] * shape.library
        + overheads["convolution launch host us"] * shape.convolutions
        + overheads["optimizer tensor host us"] * shape.tensors
    )


def gaps_us(shape: StepShape, mode: Mode, overheads: Mapping[str, float]) -> float:
    """Idle time of the device between the kernels of a step."""
    return overheads["graphs gap us" if mode == "graphs" else "gap us"] * shape.launches


def is_product(family: str) -> bool:
    """Whether launches of a family are matrix products or attention, which draw the most power."""
    return family.startswith(("launch:gemm", "launch:attention"))


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
    shape = step_shape(launches, _optimizer_tensors(optimizer))
    kernels = sum(prediction.duration_us for prediction in predictions)
    optimizer_us = _optimizer_us(model, optimizer)
    products = sum(prediction.duration_us for prediction in predictions if is_product(prediction.model))
    sustained = overheads["sustained products"] * products
    device = kernels + sustained + gaps_us(shape, mode, overheads) + optimizer_us
    duration = step_us(device, host_us(shape, mode, overheads), overheads)
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
        sustained_us=sustained,
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
    from torchledger.nouns import Profile
    from torchledger.store import open_ledger
    from torchledger.store.latest import latest, latest_measurements

    path = Path(path)
    with open_ledger(path) as reader:
        launches = reader.read(Launch)
        measured = {
            item.subject: item.duration_us for item in latest_measurements(reader) if item.kind in ("profile", "sample")
        }
        profile = latest(reader, Profile)
    step, predictions = predict_step(
        model,
        launches,
        mode=mode,
        subject=path.name,
        optimizer=optimizer,
        measured_us=profile.plain_step_us if profile is not None else None,
        measured=measured,
    )
    return step, predictions, measured, launches


@dataclass(frozen=True)
class StepObservation:
    """A step that was measured: the sum of its kernels' times, its shape and mode, and how long it took.

    ``products_us`` is the part of the kernels' time that matrix products and attention took.
    """

    name: str
    mode: Mode
    shape: StepShape
    kernels_us: float
    step_us: float
    products_us: float = 0.0

    def device_us(self, overheads: Mapping[str, float]) -> float:
        """What the device needs with these overheads."""
        gaps = gaps_us(self.shape, self.mode, overheads)
        return self.kernels_us + overheads["sustained products"] * self.products_us + gaps


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
            # A pull to the usual values decides what the observations do not: few of them are bound by the host.
            away = np.mean(np.square(logarithms - np.log([OVERHEADS[name] for name in names])))
            return _mean_error(observations, trial) + _PULL * float(away)

        found = minimize(loss, start, method="Nelder-Mead", options={"maxiter": 3000, "xatol": 1e-3, "fatol": 1e-6}).x
        trial = {**best, **dict(zip(names, map(float, np.exp(found)), strict=True))}
        if _mean_error(observations, trial) < _mean_error(observations, best):
            best = trial
    return best


def _mean_error(observations: Sequence[StepObservation], overheads: Mapping[str, float]) -> float:
    errors = []
    for item in observations:
        predicted = step_us(item.device_us(overheads), host_us(item.shape, item.mode, overheads), overheads)
        errors.append(abs(predicted / item.step_us - 1))
    return float(np.mean(errors)) if errors else 0.0


def _optimizer_tensors(optimizer: str | None) -> int:
    numbers = (optimizer or "").split(":")[1:]
    return int(numbers[1]) if len(numbers) == 2 and numbers[1].isdigit() else 0


def _optimizer_us(model: TimeModel, optimizer: str | None) -> float:
    if optimizer is None:
        return 0.0
    kind, *numbers = optimizer.split(":")
    if kind != "adamw" or len(numbers) not in (1, 2) or not all(number.isdigit() for number in numbers):
        raise PredictError(f"optimizer {optimizer!r} is unknown; write adamw:NUMEL or adamw:NUMEL:TENSORS.")
    parameters = dict(zip(("numel", "tensors"), map(int, numbers), strict=False))
    return predict(model, "adamw", parameters, direction="step", dtype="float32").duration_us


def learn_overheads(model: TimeModel, steps: str | os.PathLike[str], launches: Sequence[MeasuredLaunch]) -> TimeModel:
    """The model with the overheads that explain measured steps, a JSON list of ``benchmarks/model_steps.py``.

    Raises ``PredictError`` if the file is none, or no step's launches are among ``launches``.
    """
    try:
        rows = json.loads(Path(steps).read_text())
    except (OSError, ValueError) as error:
        raise PredictError(f"{steps} is no file of steps ({error}).") from error
    observations = observe_steps(rows, launches, model if "adamw/step" in model.entries else None)
    if not observations:
        raise PredictError(f"none of the steps of {steps} has its launches among the data.")
    overheads = fit_overheads(observations)
    return replace(model, extras={**model.extras, **overheads})


def observe_steps(
    rows: Sequence[Mapping[str, Any]], launches: Sequence[MeasuredLaunch], optimizer: TimeModel | None
) -> list[StepObservation]:
    """Measured steps with the measured times of their kernels; the optimizer's time is predicted."""
    by_program: dict[str, list[MeasuredLaunch]] = {}
    for item in launches:
        by_program.setdefault(item.program, []).append(item)
    found = []
    for row in rows:
        items = by_program.get(f"{row['model']}-{row['batch']}")
        if not items:
            continue
        kernels = sum(item.duration_us or 0.0 for item in items)
        if optimizer is not None:
            kernels += _optimizer_us(optimizer, f"adamw:{row['numel']}:{row['tensors']}")
        products = sum(item.duration_us or 0.0 for item in items if is_product(family_of(item.launch) or ""))
        shape = step_shape([item.launch for item in items], int(row["tensors"]))
        found.append(StepObservation(str(row["model"]), row["mode"], shape, kernels, float(row["step_us"]), products))
    return found
