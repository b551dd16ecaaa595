"""What a step takes beside its kernels: what the host needs to launch it, and gaps on the device; usual, or learned.

In steady state the host launches ahead of the device, so that a step takes about the longer of two sums: what the
device needs (kernels and the gaps between them) and what the host needs to launch them. Under CUDA graphs the host
launches a graph at once and gaps are shorter.
"""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from torchledger.errors import PredictError
from torchledger.expecting.launch_families import USER_TRITON, family_of
from torchledger.fitting.time_model import TimeModel
from torchledger.nouns import Launch, StepCall
from torchledger.predicting.operators import predict
from torchledger.predicting.power import is_product
from torchledger.store.launch_file import MeasuredLaunch
from torchledger.work.collectives import collective_kind
from torchledger.work.graph_names import direction_of
from torchledger.work.kernel_counts import kernels_of_launch

Mode = Literal["eager", "graphs"]
LaunchKind = Literal["fused", "library", "convolution"]
Array = NDArray[np.float64]

_PULL = 8e-2
"""How strongly fitted overheads keep to the usual ones: where few steps are bound by the host, many sets of overheads
explain them equally well, some of them with a step that costs the host 2.4 ms before the first launch."""


@dataclass(frozen=True)
class StepShape:
    """What of a step decides its overheads: how many launches of which kind, graph calls, and eager operators.

    ``operators`` counts the kernels that eager operators launch. ``further_kernels`` are those that library calls
    launch beyond their first. ``tensors`` are those that ``optimizers`` update in lists, ``foreach_tensors`` those of
    them in lists of foreach operators; ``scalers`` are the gradient scalers that work beside them. ``parameters`` are
    the tensors that autograd gives a gradient at the end of the step's backward, ``launching_calls`` the eager
    operators outside an optimizer that launch something, ``distinct_calls`` how many of them differ by name,
    ``convolving_calls`` how many are convolutions or gradients of such, ``dear_calls_us`` what those of other dear
    kinds take of a usual host beside that, and ``listed_tensors`` the tensors in all lists of the foreach operators of
    optimizers.
    """

    fused: int
    library: int
    graphs: int
    convolutions: int = 0
    tensors: int = 0
    operators: int = 0
    optimizers: int = 0
    foreach_tensors: int = 0
    further_kernels: int = 0
    scalers: int = 0
    parameters: int = 0
    launching_calls: int = 0
    distinct_calls: int = 0
    listed_tensors: int = 0
    convolving_calls: int = 0
    dear_calls_us: float = 0.0

    @property
    def launches(self) -> int:
        """All launches, those of eager operators too."""
        return self.fused + self.library + self.convolutions + self.operators + self.further_kernels


def step_shape(
    launches: Sequence[Launch],
    tensors: int = 0,
    *,
    calls: Mapping[str, int] | None = None,
    times: Mapping[str, int] | None = None,
    operators: int = 0,
) -> StepShape:
    """Count the launches and graph calls of a step; ``tensors`` are those that an optimizer updates.

    ``calls`` says how often each graph is called (``None``: once), ``times`` how often each launch is made, by
    ``launch_id`` (``None``: as often as its graph is called), ``operators`` how many kernels eager ones launch.
    """
    calls = dict.fromkeys((launch.graph for launch in launches), 1) if calls is None else calls
    kinds: Counter[LaunchKind | None] = Counter()
    further = 0
    for launch in launches:
        kind, count = launch_kind(launch), calls.get(launch.graph, 0) if times is None else times[launch.launch_id]
        kinds[kind] += count
        further += count * further_kernels(launch) if kind == "library" else 0
    return StepShape(
        kinds["fused"], kinds["library"], sum(calls.values()), kinds["convolution"], tensors, operators,
        further_kernels=further,
    )  # fmt: skip


def further_kernels(launch: Launch) -> int:
    """Kernels that a library call launches beyond its first; none for products and attention, whose costs hold them."""
    if not str(family_of(launch)).startswith("launch:library"):
        return 0
    return max(0, kernels_of_launch(launch) - 1)


def launch_kind(launch: Launch) -> LaunchKind | None:
    """What a launch is to the host, which calls generated kernels and templates itself; ``None`` launches nothing."""
    family = family_of(launch)
    if family is None:
        return None
    if launch.category == "template" or family == USER_TRITON or family.startswith("launch:fused"):
        return "fused"
    return "convolution" if family.startswith("launch:convolution") else "library"


def begins_backward(calls: Sequence[StepCall]) -> frozenset[int]:
    """The graph calls, by ``order``, that are the first of a backward pass: only those wake autograd's thread.

    A pass ends where a forward graph is called, and where a rank sends to or receives from another one: the
    microbatches of a pipeline are passes of their own. The collectives of a backward's hooks are part of it.
    """
    found = []
    is_inside = False
    for call in calls:
        if call.kind == "graph":
            is_backward = is_backward_call(call)
            if is_backward and not is_inside:
                found.append(call.order)
            is_inside = is_backward
        elif call.kind == "collective" and collective_kind(call.name) == "p2p":
            is_inside = False
    return frozenset(found)


def is_backward_call(call: StepCall) -> bool:
    """Whether a graph's call is one of a backward."""
    return call.phase == "backward" or direction_of(call.name) == "backward"


def overheads_of(model: TimeModel) -> dict[str, float]:
    """What a step takes beside its kernels (``Constants.steps``): learned by the model, else usual for its device."""
    return {**model.machine.constants.steps, **model.extras}


def step_us(device_us: float, host_us: float, overheads: Mapping[str, float]) -> float:
    """A step's time from what device and host need: the longer of both, and more where they are alike.

    The host is ahead of the device in one phase of a step and behind in another, which costs time where neither
    dominates.
    """
    power = max(1.0, overheads["overlap"])
    longer = max(device_us, host_us, 1e-9)
    return float(longer * ((device_us / longer) ** power + (host_us / longer) ** power) ** (1 / power))


def deciding_shares(device_us: float, host_us: float, overheads: Mapping[str, float]) -> dict[str, float]:
    """How much of ``step_us`` is the device's and how much the host's, the larger first.

    >>> deciding_shares(10.0, 10.0, {"overlap": 6.0})
    {'compute': 0.5, 'host': 0.5}
    """
    power = max(1.0, overheads["overlap"])
    longer = max(device_us, host_us, 1e-9)
    parts = {"compute": (device_us / longer) ** power, "host": (host_us / longer) ** power}
    total = sum(parts.values())
    return {kind: part / total for kind, part in sorted(parts.items(), key=lambda item: -item[1])} if total else {}


def host_us(shape: StepShape, mode: Mode, overheads: Mapping[str, float]) -> float:
    """What a host needs to launch compiled graphs of which no step was recorded, in microseconds."""
    call_us = overheads["graph call host us"]
    if mode == "graphs":
        # Steps of a forward and a backward were measured; each further replay is one more call.
        return overheads["graphs step host us"] + call_us * max(0, shape.graphs - 2)
    return (
        overheads["step host us"]
        + overheads["optimizer tensor host us"] * shape.tensors
        + call_us * shape.graphs
        + overheads["fused launch host us"] * shape.fused
        + overheads["convolution launch host us"] * shape.convolutions
        + overheads["library launch host us"] * (shape.library + shape.further_kernels)
    )


def gaps_us(shape: StepShape, mode: Mode, overheads: Mapping[str, float]) -> float:
    """Idle time of the device between the kernels of a step."""
    return overheads["graphs gap us" if mode == "graphs" else "gap us"] * shape.launches


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


def learn_overheads(model: TimeModel, steps: str | os.PathLike[str], launches: Sequence[MeasuredLaunch]) -> TimeModel:
    """The model with the overheads that explain measured steps, a JSON list of ``benchmarks/launches/model_steps.py``.

    Raises ``PredictError`` if the file is none, or no step's launches are among ``launches``.
    """
    try:
        rows = json.loads(Path(steps).read_text())
    except (OSError, ValueError) as error:
        raise PredictError(f"{steps} is no file of steps ({error}).") from error
    observations = observe_steps(rows, launches, model if "adamw/step" in model.entries else None)
    if not observations:
        raise PredictError(f"none of the steps of {steps} has its launches among the data.")
    overheads = fit_overheads(observations, model.machine.constants.steps)
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
            sizes = {"numel": int(row["numel"]), "tensors": int(row["tensors"])}
            kernels += predict(optimizer, "adamw", sizes, direction="step", dtype="float32").duration_us
        products = sum(item.duration_us or 0.0 for item in items if is_product(family_of(item.launch) or ""))
        shape = step_shape([item.launch for item in items], int(row["tensors"]))
        found.append(StepObservation(str(row["model"]), row["mode"], shape, kernels, float(row["step_us"]), products))
    return found


def fit_overheads(observations: Sequence[StepObservation], usual: Mapping[str, float]) -> dict[str, float]:
    """The overheads that explain measured steps best: least mean relative error, searched by simplex from usual ones
    (``Constants.steps``).

    Parameters that no observation touches keep their usual value.
    """
    from scipy.optimize import minimize

    names = [name for name in usual if name != "step error"]
    best = dict(usual)
    if not observations:
        return best
    for scale in (0.0, 0.7, -0.7, 0.3):
        start = np.log([best[name] for name in names]) + scale

        def loss(logarithms: Array) -> float:
            trial = dict(zip(names, np.exp(logarithms), strict=True))
            # A pull to the usual values decides what the observations do not: few of them are bound by the host.
            away = np.mean(np.square(logarithms - np.log([usual[name] for name in names])))
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
