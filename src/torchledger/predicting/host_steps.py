"""What a measured host needs for a whole step: what each kind of work costs inside steps, and how slow the host is.

A burst of one kind (``device/host.py``) says badly what that kind costs between others: a library call costs more
inside a step, a fused kernel does not, a parameter costs the host at every border of a graph, and an operator that
comes once in a step finds none of its code in the caches. So what each kind costs inside a step was learned of drawn
programs of eight sets (``benchmarks/models/fit_host_steps.py``), and the bursts of a host say one thing: how slow it
is.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace

from torchledger.fitting.call_costs import is_scaler
from torchledger.nouns import Host, Launch, StepCall
from torchledger.predicting.dear_operators import dear_us
from torchledger.predicting.overheads import Mode, StepShape
from torchledger.predicting.questions import is_over_lists
from torchledger.predicting.step_calls import is_priced
from torchledger.work.categories import category_of_operator
from torchledger.work.graph_names import direction_of

STEP_COSTS: Mapping[str, float] = {
    "step": 163.9,
    "trains": 585.8,
    "fused": 13.5,
    "library": 25.7,
    "convolutions": 36.5,
    "further_kernels": 4.6,
    "further_graphs": 182.5,
    "parameters": 20.7,
    "launching_calls": 13.1,
    "distinct_calls": 51.4,
    "dear_calls_us": 1.0,
    "fused_tensors": 7.2,
    "foreach_tensors": 11.2,
    "listed_tensors": 1.3,
    "optimizers": 68.9,
    "scalers": 334.6,
    "graphs step": 228.7,
    "graphs replays": 216.0,
    "graphs parameters": 8.9,
}
"""Microseconds of a host of slowness 1 for one of each kind of work; those with "graphs" are under CUDA graphs."""

_USUAL: Mapping[str, float] = {
    "graph_call_us": 49.7,
    "training_call_us": 322.7,
    "replay_call_us": 91.6,
    "fused_launch_us": 13.8,
    "library_launch_us": 14.4,
    "convolution_launch_us": 22.9,
    "operator_us": 9.1,
    "autograd_node_us": 17.4,
    "fused_optimizer_tensor_us": 3.3,
    "foreach_optimizer_tensor_us": 11.6,
    "optimizer_step_us": 76.4,
}
"""What ``doctor`` measured, the geometric mean of five hosts: a host of slowness 1."""

_DOCTORS_STEP = {"training_call_us": 1, "fused_launch_us": 79, "library_launch_us": 72}
_DOCTORS_OPTIMIZER = {"fused_optimizer_tensor_us": 48, "optimizer_step_us": 1}
"""What the step that ``doctor`` trains launches and updates: its parts, of which ``Host.in_step`` is a multiple."""

_OF_MEDIANS = 1.17
"""How many times as slow in steps as they say hosts are of which medians over rounds are kept: those know nothing of a
host's slow moments, which steps pay for. Four sets of drawn programs took 1.20 to 1.27 times what their hosts said, a
fifth as much as was said. Means over rounds, which ``doctor`` gives since, have the slow moments in them: the twelve
training steps of set 1200 that their host decides took 1.06 times what it said."""

HOST_ERROR = 0.38
"""Nine of ten steps that their host decides are off by less, of 73 on seven hosts that taught no cost: what is not
known of a host, and its moments."""

USUAL_HOST_ERROR = 0.5
"""The same where nobody measured the host, and it is taken for one of slowness 1."""

OVERLAP = 12.0
"""The norm by which device and host time are added where a step's work for its host is known: nearly the longer of
both."""


def slowness_of(host: Host) -> float | None:
    """How many times as long as a usual host this one needs, by all that was measured there; ``None`` for nothing.

    What bursts of each kind say differs by a fifth between hosts of one processor, and by as much between two times of
    one host, so that only their geometric mean is believed; a training step, where one was timed, counts as much as all
    of them.
    """
    said = _said_slowness(host)
    return said * _OF_MEDIANS if said is not None and host.spreads and host.method.startswith("median") else said


def expected_host(host: Host | None) -> tuple[float, float]:
    """How slow a host is taken to be, and by what share nine of ten steps that it decides are off by less; a usual one
    where none is given, or nothing was measured of it."""
    slowness = None if host is None else slowness_of(host)
    if host is None or slowness is None:
        return 1.0, USUAL_HOST_ERROR
    return slowness, max(HOST_ERROR, slowness_spread(host))


def _said_slowness(host: Host) -> float | None:
    logarithms = [math.log(cost / usual) for name, usual in _USUAL.items() if (cost := getattr(host, name))]
    if not logarithms:
        return None
    bursts = math.exp(sum(logarithms) / len(logarithms))
    step_us = _doctors_step_us(host)
    if step_us is None:
        return bursts
    work = {"step": 1.0, "trains": 1.0, "fused": 79.0, "library": 72.0, "parameters": 48.0, "fused_tensors": 48.0}
    work |= {"optimizers": 1.0, "launching_calls": 1.0, "distinct_calls": 1.0}
    return math.sqrt(bursts * step_us / _total_us(work))


def slowness_spread(host: Host) -> float:
    """By what share the host was slower or quicker while it was measured; 0 where that was one moment.

    What is slow at one moment is slow for all kinds of work, so that this is the mean over kinds.
    """
    shares = [
        spread / cost for name, spread in host.spreads.items() if name in _USUAL and (cost := getattr(host, name))
    ]
    return sum(shares) / len(shares) if shares else 0.0


def measured_host_us(shape: StepShape, mode: Mode, slowness: float, *, trains: bool) -> float:
    """What a host of that slowness needs for a step, in microseconds."""
    return slowness * _total_us(work_of_host(shape, mode, trains=trains))


def replays_us(count: int) -> float:
    """What a host of slowness 1 needs to replay CUDA graphs that a program captured so often, in microseconds: a call
    each, whatever they hold."""
    return count * _USUAL["replay_call_us"]


def work_of_host(shape: StepShape, mode: Mode, *, trains: bool) -> dict[str, float]:
    """How much of each kind of work a step has for the host, by the names of ``STEP_COSTS``."""
    work: dict[str, float] = {
        "launching_calls": shape.launching_calls,
        "distinct_calls": shape.distinct_calls,
        "dear_calls_us": shape.dear_calls_us,
        "fused_tensors": shape.tensors - shape.foreach_tensors,
        "foreach_tensors": shape.foreach_tensors,
        "listed_tensors": shape.listed_tensors,
        "optimizers": shape.optimizers,
        "scalers": shape.scalers,
    }
    if mode == "graphs":
        work |= {"convolutions": shape.convolving_calls}
        return work | {"graphs step": 1, "graphs replays": shape.graphs, "graphs parameters": shape.parameters}
    return work | {
        "step": 1,
        "trains": trains,
        "fused": shape.fused,
        "library": shape.library,
        "convolutions": shape.convolutions + shape.convolving_calls,
        "further_kernels": shape.further_kernels,
        "further_graphs": max(0, shape.graphs - (2 if trains else 1)),
        "parameters": shape.parameters,
    }


def is_convolving(call: StepCall) -> bool:
    """True for an eager convolution, or its gradient: the library looks for a kernel in each."""
    return category_of_operator(call.name) == "convolution"


def launching_us(call: StepCall, *, is_new: bool) -> float:
    """What an eager call that launches something costs a host of slowness 1; ``is_new``: the first of its name."""
    us = STEP_COSTS["launching_calls"] + is_new * STEP_COSTS["distinct_calls"]
    return us + STEP_COSTS["convolutions"] * is_convolving(call) + dear_us(call)


def shape_with_calls(
    shape: StepShape, launches: Sequence[Launch], calls: Sequence[StepCall] | None, *, ran_on_cpu: bool
) -> StepShape:
    """The shape with what its eager ``calls`` are to the host; without a record (``None``) a parameter is what the
    forward of a graph that is trained is given."""
    if calls is None:
        return replace(shape, parameters=shape.tensors or _trained_inputs(launches))
    lists = [call for call in calls if call.phase == "optimizer" and is_over_lists(call)]
    eager = [
        call
        for call in calls
        if call.kind == "operator"
        and not (shape.optimizers and call.phase == "optimizer")
        and not is_over_lists(call)
        and not is_scaler(call.name)
    ]
    loud = [call for call in eager if is_priced(call, ran_on_cpu=ran_on_cpu)]
    quiet = sum(call.phase == "backward" for call in eager) - sum(call.phase == "backward" for call in loud)
    return replace(
        shape,
        parameters=quiet,
        launching_calls=len(loud),
        distinct_calls=len({call.name for call in loud}),
        convolving_calls=sum(map(is_convolving, loud)),
        dear_calls_us=sum(map(dear_us, loud)),
        listed_tensors=sum(call.tensors or 0 for call in lists if "_fused_" not in call.name and call.kernels),
    )


def _trained_inputs(launches: Sequence[Launch]) -> int:
    if not any(direction_of(launch.graph) == "backward" for launch in launches):
        return 0
    return inputs_of_trained(launches)


def inputs_of_trained(launches: Sequence[Launch]) -> int:
    """The inputs of the graphs that have launches among these and are the forward of something that is trained."""
    forward = (launch for launch in launches if direction_of(launch.graph) == "forward")
    return len(
        {(launch.graph, each.name) for launch in forward for each in launch.buffers if each.name.startswith("primals_")}
    )


def _doctors_step_us(host: Host) -> float | None:
    if host.in_step is None:
        return None
    parts = [(count, getattr(host, name)) for name, count in (_DOCTORS_STEP | _DOCTORS_OPTIMIZER).items()]
    if any(cost is None for _, cost in parts):
        return None
    return float(host.in_step * sum(count * cost for count, cost in parts))


def _total_us(work: Mapping[str, float]) -> float:
    return sum(STEP_COSTS[name] * amount for name, amount in work.items())
