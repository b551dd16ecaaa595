"""What a step takes beside its kernels: what the host needs to launch it, and gaps on the device; usual, or learned.

In steady state the host launches ahead of the device, so that a step takes about the longer of two sums: what the
device needs (kernels and the gaps between them) and what the host needs to launch them. Under CUDA graphs the host
launches a graph at once and gaps are shorter.
"""

from __future__ import annotations

import json
import math
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
from torchledger.fitting.call_costs import is_scaler
from torchledger.fitting.time_model import TimeModel
from torchledger.nouns import Host, Launch, StepCall
from torchledger.predicting.operators import predict
from torchledger.predicting.power import is_product
from torchledger.predicting.questions import is_over_lists
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

    ``operators`` counts the kernels that eager operators launch. ``backwards`` are the passes of autograd that call
    graphs; ``eager_calls`` all eager operators, views included, that autograd does not call, ``nodes`` those that it
    calls. ``further_kernels`` are those that library calls launch beyond their first. ``tensors`` are those that
    ``optimizers`` update in lists, ``foreach_tensors`` those of them in lists of foreach operators; what such
    optimizers call is not among ``eager_calls``; ``scalers`` are the gradient scalers that work beside them,
    ``backward_graphs`` the graphs that those passes call. ``parameters`` are the tensors that autograd gives a gradient
    at the end of the step's backward, ``launching_calls`` the eager operators outside an optimizer that launch
    something, ``distinct_calls`` how many of them differ by name, and ``listed_tensors`` the tensors in all lists of
    the foreach operators of optimizers.
    """

    fused: int
    library: int
    graphs: int
    convolutions: int = 0
    tensors: int = 0
    operators: int = 0
    backwards: int = 0
    eager_calls: int = 0
    nodes: int = 0
    optimizers: int = 0
    foreach_tensors: int = 0
    further_kernels: int = 0
    scalers: int = 0
    backward_graphs: int = 0
    parameters: int = 0
    launching_calls: int = 0
    distinct_calls: int = 0
    listed_tensors: int = 0

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


def eager_call_us(overheads: Mapping[str, float]) -> float:
    """What the host needs for an eager operator; usually as much as for a library call. Each kernel of a library call
    beyond its first costs as much (8.3 us where an operator takes 8.6: ``benchmarks/drawn_library.py``)."""
    return overheads.get("eager call host us", overheads["library launch host us"])


def launch_kind(launch: Launch) -> LaunchKind | None:
    """What a launch is to the host, which calls generated kernels and templates itself; ``None`` launches nothing."""
    family = family_of(launch)
    if family is None:
        return None
    if launch.category == "template" or family == USER_TRITON or family.startswith("launch:fused"):
        return "fused"
    return "convolution" if family.startswith("launch:convolution") else "library"


_FSDP_OPERATORS, _GRAPH_COLLECTIVE_OPERATORS, _FUNCTIONAL_OPERATORS, _IDLE_OPERATORS = 120.0, 15.0, 11.0, 0.5
_DISTRIBUTED_LIST_OPERATORS, _UNPACKING_OPERATORS = 17.0, 0.3
"""What the host needs over what it needs for a plain operator: for each collective of FSDP, with the hooks around it;
for each one inside a compiled graph, and once more on the way into that graph, as much of which is for distributed
tensors; for one that an eager operator asks for; for operators that launch nothing; for an operator over lists of
distributed tensors, and for each distributed tensor that an operator is given. By steps of two H200s that are so narrow
that only the host decides, phase by phase (``docs/results/plan_ranks.md``); an operator of distributed tensors as it
was timed alone, on a CPU."""

_LIST_CALLS = 8
"""Operators over lists in a step of AdamW by lists: what the host needs for a tensor of it is shared by them."""


_SCALER_OPERATORS = 70.0
"""Plain operators that a gradient scaler costs the host as much as in a step: it goes through the parameters in Python
to sort their gradients, before and after the optimizer. By 10 drawn programs that their hosts decide."""


def call_host_us(call: StepCall, overheads: Mapping[str, float], *, by_fsdp: bool = False) -> float:
    """What the host needs for one call of a step that is no graph's: an operator, or a collective, of FSDP or not."""
    eager_us = eager_call_us(overheads)
    if call.kind == "collective":
        if by_fsdp:
            return _FSDP_OPERATORS * eager_us
        is_functional = call.name.startswith("_c10d_functional::")
        return _FUNCTIONAL_OPERATORS * eager_us if is_functional else overheads["library launch host us"]
    if is_scaler(call.name):
        return _SCALER_OPERATORS * eager_us
    more_us = _UNPACKING_OPERATORS * call.distributed * eager_us
    if is_over_lists(call):
        more_us += _DISTRIBUTED_LIST_OPERATORS * eager_us if call.distributed else 0.0
        more_us += _lists_host_us(call, overheads) if call.phase == "optimizer" else 0.0
    if "eager call host us" in overheads:
        return (overheads.get("node host us", eager_us) if call.phase == "backward" else eager_us) + more_us
    return eager_us * max(1, call.kernels) + more_us


def _lists_host_us(call: StepCall, overheads: Mapping[str, float]) -> float:
    """An optimizer's operator over lists: its share of what an update needs for each tensor, and of the step around."""
    tensor_us, step_us = overheads["optimizer tensor host us"], overheads.get("optimizer step host us", 0.0)
    if "_fused_" in call.name:
        return step_us + tensor_us * (call.tensors or 0)
    return (step_us + overheads.get("foreach tensor host us", tensor_us) * (call.tensors or 0)) / _LIST_CALLS


def idle_call_us(overheads: Mapping[str, float]) -> float:
    """What the host needs for an operator that launches nothing; 0 where plain ones were not measured."""
    return _IDLE_OPERATORS * overheads.get("eager call host us", 0.0)


def graph_collective_us(overheads: Mapping[str, float]) -> float:
    """What the host needs for a collective inside a graph, and again on the way into the graph that holds it."""
    return _GRAPH_COLLECTIVE_OPERATORS * eager_call_us(overheads)


_IN_A_STEP, _STEP_HOST_US, _GRAPHS_STEP_HOST_US = 1.5, 100.0, 200.0
"""How much longer the host takes inside a step than in a burst of one kind, whose code and data are in its caches,
where that was not measured (``Host.in_step``), and what a step takes beside (microseconds; under CUDA graphs): set by
44 drawn programs on two machines that their hosts decide. Each kind of cost has a factor between 1.3 and 1.6 there; one
for all is as near on a machine left out."""

_DOCTORS_STEP = 2.0
"""``Host.in_step`` where a host is as usual: the step that ``doctor`` trains is of layers so narrow that it says more
than programs need. It was 1.90, 1.96 and 2.01 on three machines, where programs took 1.5 times what bursts say."""


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


_WITHOUT_A_BACKWARD = 0.82
"""How much of that is left in a step without a backward, which runs less Python between its kernels: by the 12 of the
drawn programs 100 to 421 that their hosts decide, beside those that train on the same machines."""


def overheads_on(host: Host | None, overheads: Mapping[str, float], *, trains: bool = True) -> Mapping[str, float]:
    """The overheads with what a host was measured to need in place of the usual, for a step that ``trains`` or has no
    backward; gaps stay the device's."""
    if host is None:
        return overheads
    # What one step took on a shared host at one moment weighs as much as what is usual.
    in_step = _IN_A_STEP * (1.0 if host.in_step is None else math.sqrt(host.in_step / _DOCTORS_STEP))
    in_step *= 1.0 if trains else _WITHOUT_A_BACKWARD
    # Calls of operators, views among them, are met in a burst as in a step.
    factors = dict.fromkeys(_IN_STEPS, in_step) | dict.fromkeys(_AS_IN_BURSTS, 1.0)
    known: dict[str, float] = {}
    for name, measured in (_IN_STEPS | _AS_IN_BURSTS).items():
        if (cost := getattr(host, measured)) is not None:
            known[name] = factors[name] * cost
            known[name + _SPREAD] = factors[name] * host.spreads.get(measured, 0.0)
    if not known.keys() & _IN_STEPS:
        return overheads
    return {**overheads, "step host us": _STEP_HOST_US, "graphs step host us": _GRAPHS_STEP_HOST_US, **known}


_IN_STEPS = {
    "graph call host us": "graph_call_us",
    "fused launch host us": "fused_launch_us",
    "library launch host us": "library_launch_us",
    "convolution launch host us": "convolution_launch_us",
    "optimizer tensor host us": "fused_optimizer_tensor_us",
    "foreach tensor host us": "foreach_optimizer_tensor_us",
    "optimizer step host us": "optimizer_step_us",
    "training call host us": "training_call_us",
    "further training host us": "further_training_us",
    "replay host us": "replay_call_us",
}
_AS_IN_BURSTS = {"eager call host us": "operator_us", "node host us": "autograd_node_us"}
"""Overheads by the fields of a measured host: those that are larger inside a step, and those that are not."""

_SPREAD = " spread"
"""Behind an overhead's name: half of what nine of ten rounds of measuring it span."""


def host_spread(shape: StepShape, mode: Mode, overheads: Mapping[str, float]) -> float:
    """By what share a step's host may need more or less, as its costs differed while they were measured; 0 where they
    were measured at one moment, or are the usual ones.

    What is slow at one moment is slow for all kinds of work, so that their spreads add.
    """
    wider = {name: cost + overheads.get(name + _SPREAD, 0.0) for name, cost in overheads.items()}
    needed = host_us(shape, mode, overheads)
    return host_us(shape, mode, wider) / needed - 1 if needed else 0.0


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


def host_us(shape: StepShape, mode: Mode, overheads: Mapping[str, float]) -> float:
    """What the host needs to launch a step, in microseconds; an eager operator costs it what a library call does."""
    operators = overheads["library launch host us"] * shape.operators
    if "eager call host us" in overheads:
        node_us = overheads.get("node host us", overheads["eager call host us"])
        operators = overheads["eager call host us"] * shape.eager_calls + node_us * shape.nodes
    operators += _SCALER_OPERATORS * eager_call_us(overheads) * shape.scalers
    optimizers = _optimizers_host_us(shape, overheads)
    if mode == "graphs":
        # Steps of a forward and a backward were measured; each further replay is one more call.
        if "replay host us" in overheads:
            replays = overheads["replay host us"] * shape.graphs
            return overheads["graphs step host us"] + replays + operators + optimizers
        further = max(0, shape.graphs - 2)
        return overheads["graphs step host us"] + overheads["graph call host us"] * further + operators
    # A backward wakes autograd's thread; further graphs of it are called there.
    trained = min(shape.backwards, shape.graphs // 2)
    training_us = overheads.get("training call host us", 2 * overheads["graph call host us"])
    pairs = max(0, min(shape.backward_graphs, shape.graphs // 2) - trained)
    further_us = overheads.get("further training host us", 2 * overheads["graph call host us"])
    return (
        operators
        + optimizers
        + overheads["step host us"]
        + overheads["graph call host us"] * (shape.graphs - 2 * (trained + pairs))
        + further_us * pairs
        + training_us * trained
        + overheads["fused launch host us"] * shape.fused
        + overheads["library launch host us"] * shape.library
        + overheads["convolution launch host us"] * shape.convolutions
        + eager_call_us(overheads) * shape.further_kernels
    )


def _optimizers_host_us(shape: StepShape, overheads: Mapping[str, float]) -> float:
    tensor_us = overheads["optimizer tensor host us"]
    foreach_us = overheads.get("foreach tensor host us", tensor_us)
    return (
        overheads.get("optimizer step host us", 0.0) * shape.optimizers
        + tensor_us * (shape.tensors - shape.foreach_tensors)
        + foreach_us * shape.foreach_tensors
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
