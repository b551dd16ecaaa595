"""The time of a whole step: launches, eager operators, what lies between them, and the optimizer.

Where a ledger holds a step's record, each graph counts as often as the step calls it, and the eager operators, the
optimizer's and the collectives are priced from the record. Without one each graph counts once.

Step after step the device reaches its power limit, and matrix products take somewhat longer than in the few steps of a
profile. What lies between kernels is of ``overheads.py``.
"""

from __future__ import annotations

import math
import os
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from statistics import fmean
from typing import Literal

import numpy as np

from torchledger.device.host import find_host
from torchledger.errors import PredictError
from torchledger.expecting.machine import Machine
from torchledger.fitting.call_costs import is_scaler
from torchledger.fitting.learning import COVERAGE
from torchledger.fitting.time_model import TimeModel
from torchledger.memory.elsewhere import memory_on
from torchledger.nouns import (
    Collective,
    DryRun,
    Graph,
    Host,
    Launch,
    Phase,
    PredictedCalls,
    Prediction,
    Profile,
    RarerStep,
    Run,
    StepCall,
    StepPrediction,
)
from torchledger.predicting.call_sizes import at_usual_sizes, measured_of_calls, predict_at_sizes, sizes_of_calls
from torchledger.predicting.host_steps import (
    OVERLAP,
    expected_host,
    measured_host_us,
    replays_us,
    shape_with_calls,
    slowness_of,
)
from torchledger.predicting.host_work import WORK_ERROR, host_work_notes, host_work_us, own_work_notes, own_work_us
from torchledger.predicting.launches import is_foreign, predict_launches, rounding_of
from torchledger.predicting.operators import ROOFLINE, half_width_us, predict, tail_us
from torchledger.predicting.overheads import (
    Mode,
    StepShape,
    deciding_shares,
    gaps_us,
    host_us,
    overheads_of,
    step_shape,
    step_us,
)
from torchledger.predicting.power import StepWork, is_product, mean_clock, sustained_share, work_of
from torchledger.predicting.questions import is_over_lists
from torchledger.predicting.recorded_host import RecordedOn, SeenHost, drawn_to_seen, seen_host
from torchledger.predicting.replays import has_own_backward, replayed, replays_in, without_replays
from torchledger.predicting.step_calls import (
    is_priced,
    predict_graph_collectives,
    price_calls,
)
from torchledger.predicting.step_notes import (
    CALLS_OF_CPU,
    note_on_pools,
    notes_on_tuned_convolutions,
    ran_on_cpu,
    step_notes,
)
from torchledger.predicting.waits import pieces_of_step, waiting_way, waits_for_device, waits_notes
from torchledger.stepping.totals import StepTotals, times_made, with_other_calls
from torchledger.work.graph_collectives import graph_collectives
from torchledger.work.step_traffic import StepTraffic, step_traffic

Priced = Sequence[tuple[StepCall, Prediction]]

NO_STEP = "the ledger holds no step: each graph is counted once, and what ran outside graphs is not in it"
"""What is noted of a price that is not of a whole step."""


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
    recorded_on: RecordedOn | None = None,
    replays_step: bool = False,
) -> tuple[StepPrediction, list[Prediction]]:
    """The step of a ledger, and the prediction of each launch of the graphs that it calls.

    ``record`` is the ledger's step: graphs count as often as it calls them, and its eager entries are added. Without
    it each graph counts once. ``optimizer`` is ``"adamw:NUMEL"`` or ``"adamw:NUMEL:TENSORS"``: one fused step over so
    many parameters. ``measured`` maps launch ids to measured microseconds. ``host`` is the host whose measured costs
    count (``None``: usual ones); ``allow_tf32`` and ``convolution_tf32`` are of ``predict_launches``; ``group_sizes``
    are ranks by the name of a process group, for collectives that compiled graphs call. ``recorded_on`` says where and
    how the record's own steps ran: they are then heard on what their host needs. With ``replays_step``
    the whole step is one CUDA graph of the program's own: its host launches that, and waits for nothing in it. A
    recorded step's usual host is one of slowness 1 (``host_steps.py``), that of graphs alone what the model's overheads
    say. Raises ``PredictError`` if there are neither launches nor a record, and for an ``optimizer`` beside a record
    that has one.
    """
    if not launches and record is None:
        raise PredictError(
            f"{subject} holds no launches and no step: nothing was compiled while it was recorded, or it is of a trace "
            "that somebody else recorded."
        )
    if optimizer is not None and record is not None and (held := _held_optimizer(record)):
        raise PredictError(
            f"the step of {subject} holds an optimizer ({held}), which is priced from the record: "
            "leave out --optimizer (in Python optimizer=)."
        )
    calls = dict.fromkeys((launch.graph for launch in launches), 1) if record is None else record.step.graph_calls
    weights = {launch.launch_id: calls.get(launch.graph, 0) for launch in launches}
    if record is not None:
        weights = times_made(record, launches)
    sizes = {} if record is None else sizes_of_calls(record.calls)
    compiled = [launch for launch in launches if weights[launch.launch_id]]
    called = at_usual_sizes(compiled, sizes)
    traffic = step_traffic(called, calls, () if record is None else record.calls, times=weights)
    predictions = predict_at_sizes(
        compiled,
        sizes,
        partial(
            _predict_called,
            model,
            group_sizes=group_sizes or {},
            allow_tf32=allow_tf32,
            convolution_tf32=convolution_tf32,
            traffic=traffic,
        ),
    )
    eager: Priced = ()
    if record is not None:
        eager = price_calls(
            model,
            record.calls,
            ran_on_cpu=ran_on_cpu(record),
            allow_tf32=allow_tf32,
            convolution_tf32=convolution_tf32,
        )
    priced = [*((found, weights[found.subject]) for found in predictions), *((found, 1) for _, found in eager)]
    overheads = overheads_of(model)
    shape, gaps = _shape_and_gaps(
        called, calls, weights, record, eager, _optimizer_tensors(optimizer), mode=mode, overheads=overheads
    )
    replays = 0 if record is None else replays_in(record.calls)
    kernels = sum(prediction.duration_us * weights[prediction.subject] for prediction in predictions)
    optimizer_us = _optimizer_us(model, optimizer) + _eager_us(eager, "optimizer")
    collectives_us = _eager_us(eager, "communication")
    eager_us = sum(prediction.duration_us for _, prediction in eager) - _eager_us(eager, "optimizer") - collectives_us
    tails = sum(tail_us(prediction) * weights[prediction.subject] for prediction in predictions)
    device = kernels + tails + gaps + optimizer_us + eager_us + collectives_us
    seen: SeenHost | None = None
    if record is None and (host is None or slowness_of(host) is None):
        needed_by_host_us, host_error = host_us(shape, mode, overheads), 0.0
    else:
        if record is not None and recorded_on is not None and recorded_on.mode == mode:
            seen = seen_host(record, called, weights, measured or {}, mode=mode, gaps_us=gaps)
        usual_us = replays_us(max(replays, replays_step))
        if not replays_step:
            trains = traffic.trains and (record is None or not replays or has_own_backward(record.calls))
            usual_us += measured_host_us(shape, mode, 1.0, trains=trains)
        needed_by_host_us, host_error = drawn_to_seen(host, usual_us, seen, recorded_on or RecordedOn())
        overheads = {**overheads, "overlap": OVERLAP}
    usual_work_us = {} if record is None or replays_step else host_work_us(record.calls)
    calls_work_us = {order: expected_host(host)[0] * us for order, us in usual_work_us.items()}
    own_us = 0.0 if record is None or replays_step else own_work_us(record.calls)
    launching_us, work_us = needed_by_host_us, sum(calls_work_us.values(), own_us)
    needed_by_host_us += work_us
    by_launch = {launch.launch_id: launch for launch in called}
    worked = [
        *((found, work_of(by_launch[found.subject], found, weights[found.subject])) for found in predictions),
        *((found, work_of(call, found)) for call, found in eager),
    ]
    short_run_us = step_us(device, needed_by_host_us, overheads)
    sustained = _sustained_us(worked, short_run_us, overheads["sustained products"], model.machine)
    device += sustained
    duration = step_us(device, needed_by_host_us, overheads)
    waits_us = 0.0
    decided_by: Mapping[str, float] = deciding_shares(device, needed_by_host_us, overheads)
    if record is not None and not replays_step and any(map(waits_for_device, record.calls)):
        device_us: dict[str | int, float] = {found.subject: found.duration_us for found in predictions}
        device_us |= {call.order: found.duration_us for call, found in eager}
        pieces = pieces_of_step(
            record.calls,
            called,
            weights,
            device_us,
            mode=mode,
            host_us=launching_us,
            whole_device_us=device,
            work_us=calls_work_us,
        )
        way = waiting_way(pieces)
        waits_us = max(0.0, way.total_us - duration)
        if waits_us:
            decided_by = way.shares
        duration += waits_us
    width_us = _width_us(priced)
    half = overheads["step error"] * duration + width_us
    # However fast the host is, no step ends before its device has done what it does.
    least_us = (1 - overheads["step error"]) * device - width_us
    if host_error:
        slower_us = step_us(device, launching_us * (1 + host_error) + work_us * (1 + WORK_ERROR), overheads)
        # Where host and device wait for each other, the device has nothing to do while the host computes.
        half = math.hypot(half, max(slower_us - (duration - waits_us), WORK_ERROR * work_us if waits_us else 0.0))
    elif needed_by_host_us > device:
        half *= model.extras.get("step interval host", 1.0)
    unlearned = [(prediction, count) for prediction, count in priced if prediction.model == ROOFLINE]
    foreign = {launch.launch_id for launch in called if is_foreign(model, launch)}
    step = StepPrediction(
        subject=subject,
        mode=mode,
        duration_us=duration,
        low_us=max(duration - half, least_us, 0.0),
        high_us=duration + half,
        coverage=COVERAGE,
        device=model.device,
        kernels_us=kernels,
        tails_us=tails,
        gaps_us=gaps,
        host_us=needed_by_host_us,
        optimizer_us=optimizer_us,
        sustained_us=sustained,
        launches=sum(weights[found.subject] for found in predictions),
        extrapolated=sum(count for prediction, count in priced if prediction.is_extrapolated),
        unlearned=sum(count for _, count in unlearned),
        measured_us=measured_us,
        measured_kernels_us=sum(us * weights.get(name, 0) for name, us in measured.items()) if measured else None,
        graph_calls=dict(calls),
        holds_record=record is not None,
        eager_us=eager_us,
        collectives_us=collectives_us,
        eager_calls=len(eager),
        unlearned_us=sum(prediction.duration_us * count for prediction, count in unlearned),
        foreign_us=sum(found.duration_us * weights[found.subject] for found in predictions if found.subject in foreign),
        notes=(
            *step_notes(model, record, launches),
            *_notes_on_collectives(record),
            *waits_notes(record.calls if record is not None else (), waits_us),
            *host_work_notes(record.calls if record is not None else (), usual_work_us),
            *own_work_notes(record.calls if record is not None and own_us else ()),
        ),
        eager=_grouped(eager),
        host=None if host is None else host.name,
        host_was_seen=seen is not None,
        decided_by=decided_by,
        host_work_us=work_us,
    )
    return step, predictions


def ran_elsewhere(step: StepPrediction) -> bool:
    """True where the ledger's step ran on another kind of device: its measured times say nothing of this price."""
    return bool(step.foreign_us) or CALLS_OF_CPU in step.notes


def _predict_called(
    model: TimeModel,
    launches: Sequence[Launch],
    *,
    group_sizes: Mapping[str, int],
    allow_tf32: bool,
    convolution_tf32: bool,
    traffic: StepTraffic,
) -> list[Prediction]:
    """The launches of the graphs that a step calls, those that are collectives too, in their order."""
    collectives = graph_collectives(launches)
    compiled = [launch for launch in launches if launch.launch_id not in collectives]
    predictions = [
        *predict_launches(model, compiled, allow_tf32=allow_tf32, convolution_tf32=convolution_tf32, traffic=traffic),
        *predict_graph_collectives(model, collectives.values(), group_sizes),
    ]
    places = {launch.launch_id: place for place, launch in enumerate(launches)}
    return sorted(predictions, key=lambda prediction: places[prediction.subject])


def _shape_of(
    called: Sequence[Launch],
    calls: Mapping[str, int],
    times: Mapping[str, int],
    record: StepTotals | None,
    eager: Priced,
    given_tensors: int,
) -> StepShape:
    """What the host launches in a step; ``given_tensors`` are those of an optimizer that is not in the record, and
    ``times`` says how often it makes each launch."""
    tensors, foreach_tensors, optimizers = _recorded_optimizers(record)
    shape = step_shape(
        called,
        given_tensors + tensors,
        calls={graph: count for graph, count in calls.items() if count},
        times=times,
        operators=sum(max(1, call.kernels) for call, _ in eager if call.kind != "copy"),
    )
    shape = replace(
        shape,
        optimizers=optimizers + bool(given_tensors),
        foreach_tensors=foreach_tensors,
        scalers=sum(is_scaler(call.name) for call in record.calls) if record is not None else 0,
    )
    if record is None:
        return shape_with_calls(shape, called, None, ran_on_cpu=False)
    return shape_with_calls(shape, called, record.calls, ran_on_cpu=ran_on_cpu(record))


def _shape_and_gaps(
    called: Sequence[Launch],
    calls: Mapping[str, int],
    weights: Mapping[str, int],
    record: StepTotals | None,
    eager: Priced,
    given_tensors: int,
    *,
    mode: Mode,
    overheads: Mapping[str, float],
) -> tuple[StepShape, float]:
    """``_shape_of`` what the host launches itself, and the device's gaps in all, also in replays of CUDA graphs."""
    if record is None or not replays_in(record.calls):
        shape = _shape_of(called, calls, weights, record, eager, given_tensors)
        return shape, gaps_us(shape, mode, overheads)
    shapes = []
    for part in (without_replays(record), replayed(record)):
        kept = {call.order for call in part.calls}
        own = [(call, found) for call, found in eager if call.order in kept]
        shapes.append(_shape_of(called, part.step.graph_calls, times_made(part, called), part, own, given_tensors))
    return shapes[0], gaps_us(shapes[0], mode, overheads) + gaps_us(shapes[1], "graphs", overheads)


def _sustained_us(
    worked: Sequence[tuple[Prediction, StepWork]], step_us: float, usual: float, machine: Machine
) -> float:
    """How much longer launches take in a long run of steps of ``step_us``: by the clock that their power leaves, and
    products by the ``usual`` share at least."""
    clock = mean_clock(sum((work for _, work in worked), StepWork()), step_us, machine)
    return sum(
        work.total_us * max(usual * is_product(found.model), sustained_share(work, clock, machine))
        for found, work in worked
    )


def _width_us(priced: Sequence[tuple[Prediction, int]]) -> float:
    """Half the width of a sum: calls of one launch err alike, so their widths add; those of different ones do not."""
    widths = [count * half_width_us(found) for found, count in priced]
    return float(np.sqrt(np.square(widths).sum()))


def predict_ledger(
    model: TimeModel,
    path: str | os.PathLike[str],
    *,
    mode: Mode | None = None,
    optimizer: str | None = None,
    host: str | Host | None = None,
    convolution_tf32: bool | None = None,
    rarer: RarerStep | None = None,
) -> tuple[StepPrediction, list[Prediction], dict[str, float], list[Launch]]:
    """``predict_step`` for a ledger, with the measured times of its launches (empty without a profile).

    ``mode`` is how launches reach the device (``None``: as they did where recorded). ``host`` is ``"ledger"`` (the
    host that recorded it), ``"usual"``, a host or the name of a kept one; ``None`` takes the ledger's where it holds
    one. ``convolution_tf32`` is of ``predict_launches`` (``None``: as the ledger's settings say, or PyTorch's default).
    With ``rarer`` the price is that of a step that does otherwise than the recorded one.
    Raises ``PredictError`` for a host that is not kept, or not in the ledger.
    """
    from torchledger.books import read_memory, read_step
    from torchledger.store import open_ledger
    from torchledger.store.latest import latest, latest_measurements

    path = Path(path)
    with open_ledger(path) as reader:
        launches = reader.read(Launch)
        run = reader.run()
        measurements = [item for item in latest_measurements(reader) if item.kind in ("profile", "sample")]
        profile = latest(reader, Profile)
        dry_run = latest(reader, DryRun)
        group_sizes = {
            each.group: each.group_size
            for each in reader.iterate(Collective)
            if each.group is not None and each.group_size is not None
        }
        recorded_mode = _mode_of(reader.read(Graph), launches)
        launches_of = Counter(launch.graph for launch in launches if launch.is_call)
        record = read_step(reader, launches_of)
        memory = None if record is None else read_memory(reader, record.step.name)
    if record is not None and rarer is not None:
        record = with_other_calls(record, rarer.calls, rarer.lacks, launches_of)
    rounding = rounding_of(run.environment.settings)
    if convolution_tf32 is not None:
        rounding["convolution_tf32"] = convolution_tf32
    replays_step = dry_run is not None and dry_run.replays_step
    measured = measured_of_calls(measurements, () if record is None else record.calls)
    measured_us = profile.plain_step_us if profile is not None else None
    if record is not None and record.step.duration_us is not None:
        measured_us = record.step.duration_us
    if host == "ledger" and run.host is None:
        raise PredictError(
            f"{path} does not say what its host needs. Run `torchledger doctor {path}` on the machine that wrote it, "
            "or give --host usual."
        )
    # Where nobody measured the host that recorded, what it took says nothing of a usual one.
    is_unlike = host == "usual" and run.host is None
    step, predictions = predict_step(
        model,
        launches,
        mode="graphs" if replays_step else mode or recorded_mode,
        replays_step=replays_step,
        recorded_on=None if is_unlike else RecordedOn(run.host, recorded_mode),
        subject=path.name,
        optimizer=optimizer,
        measured_us=measured_us,
        measured=measured,
        record=record,
        group_sizes=group_sizes,
        **rounding,
        host=_host_of(run, host),
    )
    of_calls = () if record is None else record.calls
    tuned = notes_on_tuned_convolutions(run.environment.settings, of_calls, launches)
    step = replace(step, notes=(*step.notes, *tuned))
    if record is None:
        step = replace(step, notes=(*step.notes, *_notes_without_record(profile)))
    elif memory is not None:
        there = memory_on(
            model.machine.device,
            memory,
            record.calls,
            launches,
            convolution_tf32=rounding["convolution_tf32"],
        )
        step = replace(
            step,
            peak_allocated_bytes=there.peak_allocated_bytes,
            memory_by_category={str(name): nbytes for name, nbytes in there.by_category.items()},
        )
        if dry_run is None and recorded_mode == "graphs":
            step = replace(step, notes=(*step.notes, note_on_pools(memory.memory.reserved_peak_bytes)))
    return step, predictions, measured, launches


def asked_mode(graphs: bool | None) -> Mode | None:
    """The mode by the word of a user, who may leave it to the ledger."""
    return None if graphs is None else "graphs" if graphs else "eager"


def _mode_of(graphs: Sequence[Graph], launches: Sequence[Launch]) -> Mode:
    """How most of the launches reached their device: replayed as CUDA graphs, where Inductor was asked to and could."""
    replayed = {
        graph.name
        for graph in graphs
        if graph.config.get("triton.cudagraphs") == "True" and graph.cudagraph_skip_reason is None
    }
    return "graphs" if sum(launch.graph in replayed for launch in launches) > len(launches) / 2 else "eager"


def _host_of(run: Run, asked: str | Host | None) -> Host | None:
    if asked is None or asked == "ledger":
        return run.host
    if isinstance(asked, Host):
        return asked
    return None if asked == "usual" else find_host(asked)


def _eager_us(eager: Priced, phase: Literal["optimizer", "communication"]) -> float:
    """Time of the eager entries that are counted as the optimizer or as collectives, in microseconds."""
    if phase == "communication":
        return sum(prediction.duration_us for call, prediction in eager if call.kind == "collective")
    return sum(
        prediction.duration_us for call, prediction in eager if call.phase == "optimizer" and call.kind == "operator"
    )


def _grouped(eager: Priced) -> tuple[PredictedCalls, ...]:
    """Alike calls as one row with their number, the most expensive first; the rows add to all that the calls take.

    Calls of one name and size may move other bytes (what they cast to), and take other times in other places.
    """
    groups: dict[tuple[Phase, tuple[str | int | None, ...]], list[Prediction]] = {}
    for call, prediction in eager:
        alike = (prediction.subject, call.bytes_moved, prediction.model, prediction.range)
        groups.setdefault((call.phase, alike), []).append(prediction)
    rows = [PredictedCalls(_mean_of(each), phase, len(each)) for (phase, _), each in groups.items()]
    return tuple(sorted(rows, key=lambda each: -each.total_us))


def _mean_of(predictions: Sequence[Prediction]) -> Prediction:
    return replace(
        predictions[0],
        duration_us=fmean(each.duration_us for each in predictions),
        low_us=fmean(each.low_us for each in predictions),
        high_us=fmean(each.high_us for each in predictions),
    )


def _held_optimizer(record: StepTotals) -> str | None:
    """What updates the parameters in a recorded step; ``None`` where nothing does."""
    if record.step.optimizers:
        return ", ".join(dict.fromkeys(optimizer.name for optimizer in record.step.optimizers))
    names = [
        call.name
        for call in record.calls
        if call.phase == "optimizer" and (call.kind == "graph" or is_priced(call, ran_on_cpu=ran_on_cpu(record)))
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


def _notes_on_collectives(record: StepTotals | None) -> tuple[str, ...]:
    """That nothing is known of what runs beside collectives."""
    if record is None:
        return ()
    on_cpu = ran_on_cpu(record)
    collectives = sum(call.kind == "collective" and is_priced(call, ran_on_cpu=on_cpu) for call in record.calls)
    if not collectives:
        return ()
    return (f"{collectives:,} collectives are priced one after another: overlap with other work is not known",)


def _notes_without_record(profile: Profile | None) -> tuple[str, ...]:
    notes = [NO_STEP]
    if profile is None or not profile.steps:
        return tuple(notes)
    per_step = {graph: round(calls / profile.steps) for graph, calls in profile.graph_calls.items()}
    several = {graph: calls for graph, calls in per_step.items() if calls > 1}
    if several:
        named = ", ".join(f"{graph} {calls}" for graph, calls in sorted(several.items()))
        notes.append(f"its profile saw several calls a step ({named} times): the step takes longer than this")
    return tuple(notes)


def _optimizer_tensors(optimizer: str | None) -> int:
    numbers = (optimizer or "").split(":")[1:]
    return int(numbers[1]) if len(numbers) == 2 and numbers[1].isdigit() else 0


def _optimizer_us(model: TimeModel, optimizer: str | None) -> float:
    if optimizer is None:
        return 0.0
    kind, *numbers = optimizer.split(":")
    if kind == "adamw" and not any(numbers):
        raise PredictError(
            "optimizer 'adamw' says nothing of its size: write adamw:NUMEL or adamw:NUMEL:TENSORS, with the elements "
            "of all parameters (`sum(each.numel() for each in model.parameters())`) and, where known, their number."
        )
    if kind != "adamw" or len(numbers) not in (1, 2) or not all(number.isdigit() for number in numbers):
        raise PredictError(f"optimizer {optimizer!r} is unknown; write adamw:NUMEL or adamw:NUMEL:TENSORS.")
    parameters = dict(zip(("numel", "tensors"), map(int, numbers), strict=False))
    return predict(model, "adamw", parameters, direction="step", dtype="float32").duration_us
