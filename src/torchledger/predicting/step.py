"""The time of a whole step: launches, eager operators, what lies between them, and the optimizer.

Where a ledger holds a step's record, each graph counts as often as the step calls it, and the eager operators, the
optimizer's and the collectives are priced from the record. Without one each graph counts once.

In steady state the host launches ahead of the device, so that a step takes about the longer of two sums: what the
device needs (kernels and the gaps between them) and what the host needs to launch them. Under CUDA graphs the host
launches a graph at once and gaps are shorter. Step after step the device reaches its power limit, and matrix products
take somewhat longer than in the few steps of a profile.
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
from torchledger.fitting.launch_families import family_of
from torchledger.fitting.learning import COVERAGE
from torchledger.fitting.time_model import TimeModel
from torchledger.memory.elsewhere import memory_on
from torchledger.nouns import (
    Collective,
    Host,
    Launch,
    Phase,
    PredictedCalls,
    Prediction,
    Profile,
    StepCall,
    StepPrediction,
)
from torchledger.predicting.launches import is_foreign, predict_launches
from torchledger.predicting.operators import predict
from torchledger.predicting.power import StepWork, mean_clock, sustained_share, work_of
from torchledger.predicting.step_calls import (
    ROOFLINE,
    is_copy_to_host,
    is_over_lists,
    is_priced,
    predict_graph_collectives,
    price_calls,
)
from torchledger.stepping.totals import StepTotals
from torchledger.store.launch_file import MeasuredLaunch
from torchledger.work.graph_collectives import functional_name

Mode = Literal["eager", "graphs"]
Array = NDArray[np.float64]

_PULL = 8e-2
"""How strongly fitted overheads keep to the usual ones: where few steps are bound by the host, many sets of overheads
explain them equally well, some of them with a step that costs the host 2.4 ms before the first launch."""


@dataclass(frozen=True)
class StepShape:
    """What of a step decides its overheads: how many launches of which kind, graph calls, and eager operators.

    ``operators`` counts the kernels that eager operators launch. ``backwards`` are the graph calls that are a backward;
    ``eager_calls`` all eager operators, views included, that autograd does not call, ``nodes`` those that it calls.
    ``tensors`` are those that ``optimizers`` update in lists, ``foreach_tensors`` those of them in lists of foreach
    operators; what such optimizers call is not among ``eager_calls``.
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

    @property
    def launches(self) -> int:
        """All launches, those of eager operators too."""
        return self.fused + self.library + self.convolutions + self.operators


def step_shape(
    launches: Sequence[Launch], tensors: int = 0, *, calls: Mapping[str, int] | None = None, operators: int = 0
) -> StepShape:
    """Count the launches and graph calls of a step; ``tensors`` are those that an optimizer updates.

    ``calls`` says how often each graph is called (``None``: once), ``operators`` how many kernels eager ones launch.
    """
    calls = dict.fromkeys((launch.graph for launch in launches), 1) if calls is None else calls
    families: Counter[str] = Counter()
    for launch in launches:
        if (family := family_of(launch)) is not None:
            families[family] += calls.get(launch.graph, 0)
    fused = sum(count for family, count in families.items() if family.startswith("launch:fused"))
    convolutions = sum(count for family, count in families.items() if family.startswith("launch:convolution"))
    library = families.total() - fused - convolutions
    return StepShape(fused, library, sum(calls.values()), convolutions, tensors, operators)


_IN_A_STEP, _STEP_HOST_US, _GRAPHS_STEP_HOST_US = 1.5, 100.0, 200.0
"""How much longer the host takes inside a step than in a burst of one kind, whose code and data are in its caches, and
what a step takes beside (microseconds; under CUDA graphs): set by 44 drawn programs on two machines that their hosts
decide. Each kind of cost has a factor between 1.3 and 1.6 there; one for all is as near on a machine left out."""


def overheads_on(host: Host | None, overheads: Mapping[str, float]) -> Mapping[str, float]:
    """The overheads with what a host was measured to need in place of the usual; gaps stay the device's."""
    if host is None:
        return overheads
    measured = {
        "graph call host us": host.graph_call_us,
        "fused launch host us": host.fused_launch_us,
        "library launch host us": host.library_launch_us,
        "convolution launch host us": host.convolution_launch_us,
        "optimizer tensor host us": host.fused_optimizer_tensor_us,
        "foreach tensor host us": host.foreach_optimizer_tensor_us,
        "optimizer step host us": host.optimizer_step_us,
        "training call host us": host.training_call_us,
        "replay host us": host.replay_call_us,
    }
    known = {name: _IN_A_STEP * cost for name, cost in measured.items() if cost is not None}
    if not known:
        return overheads
    # Calls of operators, views among them, are met in a burst as in a step.
    eager = {"eager call host us": host.operator_us, "node host us": host.autograd_node_us}
    known |= {name: cost for name, cost in eager.items() if cost is not None}
    return {**overheads, "step host us": _STEP_HOST_US, "graphs step host us": _GRAPHS_STEP_HOST_US, **known}


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
    optimizers = _optimizers_host_us(shape, overheads)
    if mode == "graphs":
        # Steps of a forward and a backward were measured; each further replay is one more call.
        if "replay host us" in overheads:
            replays = overheads["replay host us"] * shape.graphs
            return overheads["graphs step host us"] + replays + operators + optimizers
        further = max(0, shape.graphs - 2)
        return overheads["graphs step host us"] + overheads["graph call host us"] * further + operators
    # One backward wakes autograd's thread; further graphs of it are called there.
    trained = min(1, shape.backwards)
    training_us = overheads.get("training call host us", 2 * overheads["graph call host us"])
    return (
        operators
        + optimizers
        + overheads["step host us"]
        + overheads["graph call host us"] * (shape.graphs - 2 * trained)
        + training_us * trained
        + overheads["fused launch host us"] * shape.fused
        + overheads["library launch host us"] * shape.library
        + overheads["convolution launch host us"] * shape.convolutions
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


def overheads_of(model: TimeModel) -> dict[str, float]:
    """What a step takes beside its kernels (``Constants.steps``): learned by the model, else usual for its device."""
    return {**model.machine.constants.steps, **model.extras}


def is_product(family: str) -> bool:
    """Whether launches of a family, or an operator, are matrix products or attention, which draw the most power."""
    return family.startswith(("launch:gemm", "launch:attention", "linear/", "bmm/", "sdpa/"))


def predict_step(
    model: TimeModel,
    launches: Sequence[Launch],
    *,
    mode: Mode = "eager",
    subject: str = "step",
    optimizer: str | None = None,
    measured_us: float | None = None,
    measured: Mapping[str, float] | None = None,
    record: StepTotals | None = None,
    host: Host | None = None,
    allow_tf32: bool = False,
    convolution_tf32: bool = True,
    group_sizes: Mapping[str, int] | None = None,
) -> tuple[StepPrediction, list[Prediction]]:
    """The step of a ledger, and the prediction of each launch of the graphs that it calls.

    ``record`` is the ledger's step: graphs count as often as it calls them, and its eager entries are added. Without
    it each graph counts once. ``optimizer`` is ``"adamw:NUMEL"`` or ``"adamw:NUMEL:TENSORS"``: one fused step over so
    many parameters. ``measured`` maps launch ids to measured microseconds. ``host`` is the host whose measured costs
    count (``None``: usual ones); ``allow_tf32`` and ``convolution_tf32`` are of ``predict_launches``; ``group_sizes``
    are ranks by the name of a process group, for collectives that compiled graphs call. Raises ``PredictError`` if
    there are neither launches nor a record, and for an ``optimizer`` beside a record that has one.
    """
    if not launches and record is None:
        raise PredictError(f"{subject} holds no launches: nothing was compiled while it was recorded.")
    if optimizer is not None and record is not None and (held := _held_optimizer(record)):
        raise PredictError(
            f"the step of {subject} holds an optimizer ({held}), which is priced from the record: "
            "leave out --optimizer."
        )
    calls = dict.fromkeys((launch.graph for launch in launches), 1) if record is None else record.step.graph_calls
    called = [launch for launch in launches if calls.get(launch.graph)]
    compiled = [launch for launch in called if functional_name(launch) is None]
    predictions = [
        *predict_launches(model, compiled, allow_tf32=allow_tf32, convolution_tf32=convolution_tf32),
        *predict_graph_collectives(model, called, group_sizes or {}),
    ]
    places = {launch.launch_id: place for place, launch in enumerate(called)}
    predictions.sort(key=lambda prediction: places[prediction.subject])
    weights = [calls[prediction.subject.rpartition("#")[0]] for prediction in predictions]
    eager = _price_record(model, record)
    overheads = overheads_on(host, overheads_of(model))
    tensors, foreach_tensors, optimizers = _recorded_optimizers(record)
    eager_calls = [
        call
        for call in (record.calls if record is not None else ())
        if call.kind == "operator" and not (optimizers and call.phase == "optimizer")
    ]
    nodes = sum(call.phase == "backward" for call in eager_calls)
    shape = step_shape(
        called,
        _optimizer_tensors(optimizer) + tensors,
        calls={graph: count for graph, count in calls.items() if count},
        operators=sum(max(1, call.kernels) for call, _ in eager),
    )
    optimizers += bool(_optimizer_tensors(optimizer))
    backwards = sum(count for graph, count in calls.items() if graph.startswith("backward"))
    backwards = min(backwards, shape.graphs // 2)
    shape = replace(
        shape,
        backwards=backwards,
        eager_calls=len(eager_calls) - nodes,
        nodes=nodes,
        optimizers=optimizers,
        foreach_tensors=foreach_tensors,
    )
    priced = [
        *zip(predictions, weights, strict=True),
        *((prediction, 1) for _, prediction in eager),
    ]
    kernels = sum(prediction.duration_us * count for prediction, count in zip(predictions, weights, strict=True))
    optimizer_us = _optimizer_us(model, optimizer) + _eager_us(eager, "optimizer")
    collectives_us = _eager_us(eager, "communication")
    eager_us = sum(prediction.duration_us for _, prediction in eager) - _eager_us(eager, "optimizer") - collectives_us
    device = kernels + gaps_us(shape, mode, overheads) + optimizer_us + eager_us + collectives_us
    needed_by_host_us = host_us(shape, mode, overheads)
    by_launch = {launch.launch_id: launch for launch in called}
    worked = [
        *((p, work_of(by_launch[p.subject], p, count)) for p, count in zip(predictions, weights, strict=True)),
        *((p, work_of(call, p)) for call, p in eager),
    ]
    clock = mean_clock(
        sum((part for _, part in worked), StepWork()), step_us(device, needed_by_host_us, overheads), model.machine
    )
    usual = overheads["sustained products"]
    sustained = sum(
        part.total_us * max(usual * is_product(p.model), sustained_share(part, clock, model.machine))
        for p, part in worked
    )
    device += sustained
    duration = step_us(device, needed_by_host_us, overheads)
    # Calls of one launch err alike, so their widths add; those of different launches do not.
    spread = np.array([count * max(p.high_us - p.duration_us, p.duration_us - p.low_us) for p, count in priced])
    half = overheads["step error"] * duration + float(np.sqrt(np.square(spread).sum()))
    half *= model.extras.get("step interval host", 1.0) if needed_by_host_us > device else 1.0
    unlearned = [(prediction, count) for prediction, count in priced if prediction.model == ROOFLINE]
    foreign = [launch.launch_id for launch in called if is_foreign(model, launch)]
    by_id = dict(zip((prediction.subject for prediction in predictions), weights, strict=True))
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
        host_us=needed_by_host_us,
        optimizer_us=optimizer_us,
        sustained_us=sustained,
        launches=sum(weights),
        extrapolated=sum(count for prediction, count in priced if prediction.is_extrapolated),
        unlearned=sum(count for _, count in unlearned),
        measured_us=measured_us,
        measured_kernels_us=sum(us * by_id.get(name, 0) for name, us in measured.items()) if measured else None,
        graph_calls=dict(calls),
        holds_record=record is not None,
        eager_us=eager_us,
        collectives_us=collectives_us,
        eager_calls=len(eager),
        unlearned_us=sum(prediction.duration_us * count for prediction, count in unlearned),
        foreign_us=sum(p.duration_us * by_id[p.subject] for p in predictions if p.subject in set(foreign)),
        notes=(*_foreign_notes(model, called), *_record_notes(model, record, launches)),
        eager=_grouped(eager),
        host=None if host is None else host.name,
    )
    return step, predictions


def predict_ledger(
    model: TimeModel,
    path: str | os.PathLike[str],
    *,
    mode: Mode = "eager",
    optimizer: str | None = None,
    host: str | None = None,
    convolution_tf32: bool | None = None,
) -> tuple[StepPrediction, list[Prediction], dict[str, float], list[Launch]]:
    """``predict_step`` for a ledger, with the measured times of its launches (empty without a profile).

    ``host`` is ``"ledger"`` (the host that recorded it), ``"usual"``, or the name of a kept one; ``None`` takes the
    ledger's where it holds one. ``convolution_tf32`` is of ``predict_launches`` (``None``: as the ledger's settings
    say, or PyTorch's default). Raises ``PredictError`` for a host that is not kept, or not in the ledger.
    """
    from torchledger.balance import read_memory, read_step
    from torchledger.device.host import find_host
    from torchledger.store import open_ledger
    from torchledger.store.latest import latest, latest_measurements

    path = Path(path)
    with open_ledger(path) as reader:
        launches = reader.read(Launch)
        run = reader.run()
        measured = {
            item.subject: item.duration_us for item in latest_measurements(reader) if item.kind in ("profile", "sample")
        }
        profile = latest(reader, Profile)
        group_sizes = {
            each.group: each.group_size
            for each in reader.iterate(Collective)
            if each.group is not None and each.group_size is not None
        }
        record = read_step(reader, Counter(launch.graph for launch in launches if launch.is_call))
        memory = None if record is None else read_memory(reader, record.step.name)
    measured_us = profile.plain_step_us if profile is not None else None
    if record is not None and record.step.duration_us is not None:
        measured_us = record.step.duration_us
    if host == "ledger" and run.host is None:
        raise PredictError(
            f"{path} does not say what its host needs. Run `torchledger doctor {path}` on the machine that wrote it, "
            "or give --host usual."
        )
    step, predictions = predict_step(
        model,
        launches,
        mode=mode,
        subject=path.name,
        optimizer=optimizer,
        measured_us=measured_us,
        measured=measured,
        record=record,
        group_sizes=group_sizes,
        allow_tf32=run.environment.settings.get("float32_matmul_precision", "highest") != "highest",
        convolution_tf32=(
            run.environment.settings.get("cudnn_allow_tf32") != "False"
            if convolution_tf32 is None
            else convolution_tf32
        ),
        host=run.host if host in (None, "ledger") else None if host == "usual" else find_host(host or ""),
    )
    if record is None:
        step = replace(step, notes=(*step.notes, *_notes_without_record(profile)))
    elif memory is not None:
        there = memory_on(model.machine.device, memory, record.calls, launches)
        step = replace(
            step,
            peak_allocated_bytes=there.peak_allocated_bytes,
            memory_by_category={str(name): nbytes for name, nbytes in there.by_category.items()},
        )
    return step, predictions, measured, launches


Priced = Sequence[tuple[StepCall, Prediction]]


def _price_record(model: TimeModel, record: StepTotals | None) -> Priced:
    if record is None:
        return ()
    return price_calls(model, record.calls, ran_on_cpu=_ran_on_cpu(record))


def _ran_on_cpu(record: StepTotals) -> bool:
    return record.step.clock == "cpu_profiler"


def _eager_us(eager: Priced, phase: Literal["optimizer", "communication"]) -> float:
    """Time of the eager entries that are counted as the optimizer or as collectives, in microseconds."""
    if phase == "communication":
        return sum(prediction.duration_us for call, prediction in eager if call.kind == "collective")
    return sum(
        prediction.duration_us for call, prediction in eager if call.phase == "optimizer" and call.kind == "operator"
    )


def _grouped(eager: Priced) -> tuple[PredictedCalls, ...]:
    """Alike calls as one row with their number, the most expensive first."""
    groups: dict[tuple[str, Phase], PredictedCalls] = {}
    for call, prediction in eager:
        key = (prediction.subject, call.phase)
        groups[key] = PredictedCalls(prediction, call.phase, groups[key].calls + 1 if key in groups else 1)
    return tuple(sorted(groups.values(), key=lambda each: -each.total_us))


def _held_optimizer(record: StepTotals) -> str | None:
    """What updates the parameters in a recorded step; ``None`` where nothing does."""
    if record.step.optimizers:
        return ", ".join(dict.fromkeys(optimizer.name for optimizer in record.step.optimizers))
    names = [
        call.name
        for call in record.calls
        if call.phase == "optimizer" and (call.kind == "graph" or is_priced(call, ran_on_cpu=_ran_on_cpu(record)))
    ]
    return names[0] if names else None


def _recorded_optimizers(record: StepTotals | None) -> tuple[int, int, int]:
    """Tensors that a recorded step's optimizers update in lists, those of them by foreach operators, and how many such
    optimizers there are; one that takes its tensors singly costs its operators."""
    lists = [call for call in record.calls if call.phase == "optimizer" and is_over_lists(call)] if record else []
    if record is None or not lists:
        return 0, 0, 0
    tensors = sum(optimizer.tensors for optimizer in record.step.optimizers)
    is_fused = any("_fused_" in call.name for call in lists)
    return tensors, 0 if is_fused else tensors, max(1, len(record.step.optimizers))


def _foreign_notes(model: TimeModel, launches: Sequence[Launch]) -> tuple[str, ...]:
    foreign = [launch for launch in launches if is_foreign(model, launch)]
    if not foreign:
        return ()
    devices = ", ".join(sorted({launch.device.partition(":")[0] for launch in foreign}))
    return (
        f"{len(foreign):,} of {len(launches):,} launches are kernels for {devices}, which {model.device} does not run: "
        "generated code is priced by its loops, library calls by their sizes, all beyond what was measured; another "
        "device's compiler may fuse otherwise",
    )


def _record_notes(model: TimeModel, record: StepTotals | None, launches: Sequence[Launch]) -> tuple[str, ...]:
    if record is None:
        return ()
    notes = []
    stale = sorted({launch.graph for launch in launches} - {name for name, n in record.step.graph_calls.items() if n})
    if stale:
        notes.append(f"not called in the step, and not in its price: {', '.join(stale)}")
    if _ran_on_cpu(record) and model.machine.device.kind != "cpu":
        notes.append(
            "eager calls are those that a CPU was given: optimizers are other operators (foreach, fused) on a GPU"
        )
    copies = [call for call in record.calls if is_copy_to_host(call)]
    if copies:
        known = [call.bytes_moved for call in copies if call.bytes_moved is not None]
        size = f", {sum(known):,} bytes" if len(known) == len(copies) else ""
        notes.append(f"copies between host and device ({len(copies):,}{size}) are left out of the device's time")
    on_cpu = _ran_on_cpu(record)
    collectives = sum(call.kind == "collective" and is_priced(call, ran_on_cpu=on_cpu) for call in record.calls)
    if collectives:
        notes.append(f"{collectives:,} collectives are priced one after another: overlap with other work is not known")
    return tuple(notes)


def _notes_without_record(profile: Profile | None) -> tuple[str, ...]:
    notes = ["the ledger holds no step: each graph is counted once, and what ran outside graphs is not in it"]
    if profile is None or not profile.steps:
        return tuple(notes)
    per_step = {graph: round(calls / profile.steps) for graph, calls in profile.graph_calls.items()}
    several = {graph: calls for graph, calls in per_step.items() if calls > 1}
    if several:
        named = ", ".join(f"{graph} {calls}" for graph, calls in sorted(several.items()))
        notes.append(f"its profile saw several calls a step ({named} times): the step takes longer than this")
    return tuple(notes)


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
            kernels += _optimizer_us(optimizer, f"adamw:{row['numel']}:{row['tensors']}")
        products = sum(item.duration_us or 0.0 for item in items if is_product(family_of(item.launch) or ""))
        shape = step_shape([item.launch for item in items], int(row["tensors"]))
        found.append(StepObservation(str(row["model"]), row["mode"], shape, kernels, float(row["step_us"]), products))
    return found
