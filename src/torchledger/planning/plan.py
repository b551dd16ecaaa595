"""The price of a program's step on a device that is not there: it runs without it, then its ledger is priced."""

from __future__ import annotations

import contextlib
import os
import re
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from torchledger.books import read_step
from torchledger.device.host import find_host
from torchledger.fitting.time_model import TimeModel
from torchledger.jobs.planned import keep_plan
from torchledger.nouns import DryRun, Host, Launch, PlannedRank, PlannedStep, RarerStep, StepPrediction
from torchledger.planning.device_memory import memory_of, with_fit
from torchledger.planning.dry_run import run_without_device
from torchledger.planning.fabric import find_fabric
from torchledger.planning.kept_prices import keep_prices, times_of_calls
from torchledger.planning.price import price_ranks, roofline_note
from torchledger.planning.rank_entries import RankProgram
from torchledger.planning.rare_collectives import rare_note
from torchledger.planning.rarer_steps import with_rarer_steps
from torchledger.planning.unlike_ranks import MOST_RUN
from torchledger.planning.world import RecordedRank, Script, program_of, record_ranks
from torchledger.predicting.devices import find_model
from torchledger.predicting.host_steps import expected_host
from torchledger.predicting.launches import rounding_of
from torchledger.predicting.operators import ROOFLINE
from torchledger.predicting.overheads import Mode
from torchledger.predicting.padding import PaddingRule
from torchledger.predicting.step import predict_ledger
from torchledger.predicting.step_notes import notes_on_tuned_convolutions, step_notes
from torchledger.stepping.totals import StepTotals, launched_on_device, on_host
from torchledger.store import open_ledger
from torchledger.store.job import job_folder, job_in_place
from torchledger.store.ledger import ledger_in_place
from torchledger.work.meshes import check_nodes, unlike_mesh

DEFAULT_DEVICE = "H200"

_ALONE = "the program made no process group: each rank does all of its work for itself, and they exchange nothing"


@dataclass(frozen=True)
class Plan:
    """The price of a step, what the program was told, and the ledger where it was kept."""

    step: PlannedStep
    dry_run: DryRun
    ledger: Path | None = None


def plan_program(
    program: Callable[[], Any],
    *,
    device: str = DEFAULT_DEVICE,
    output: Path | None = None,
    force: bool = False,
    argv: tuple[str, ...] = (),
    mode: Mode = "eager",
    host: str | None = None,
) -> Plan:
    """Run ``program`` without a device until one of its steps is recorded, and price that step on ``device``.

    ``device`` is one whose model is shipped, or a model file; the ledger is kept at ``output`` once the step has its
    price: a plan that fails leaves what was there. ``host`` is one that ``torchledger doctor`` measured, by name or as
    a file (``None``: usual costs). Raises ``PlanError`` as ``run_without_device``, ``PredictError`` for an unknown
    device or host, ``StoreError`` if ``output`` cannot be written.
    """
    model = find_model(device)
    known = None if host is None else find_host(host)
    with ledger_in_place(output, force=force) if output is not None else _dropped("plan.ledger") as path:
        pays = PaddingRule(lambda: model, slowness=expected_host(known)[0])
        outcome = run_without_device(program, path, model.machine.device, argv=argv, pays=pays)
        step, launches, _, _ = predict_ledger(
            model,
            path,
            mode="graphs" if outcome.dry_run.replays_graphs else mode,
            host=known or "usual",
        )
        if output is not None:
            keep_prices(path, times_of_calls(model, path, launches))
        steps = [_read_step(path)]
        planned = as_planned(step)
        notes = (*_on_host_alone(planned, steps), *planned.notes)
        planned = replace(planned, kernel_launches=_kernel_launches(steps), notes=notes)
        planned = _with_rarer(planned, outcome.dry_run, path, model, steps[0], mode=mode, host=known)
        planned = with_fit(planned, memory_of(model))
    return Plan(planned, outcome.dry_run, output)


def plan_world(
    script: Script,
    world: int,
    *,
    device: str = DEFAULT_DEVICE,
    rank: int | None = None,
    mesh: str | None = None,
    ranks_per_node: int | None = None,
    fabric: str | None = None,
    output: Path | None = None,
    force: bool = False,
    mode: Mode = "eager",
    host: str | None = None,
) -> Plan:
    """Record each rank of a ``world`` that differs from the others without its device, and price their step together.

    ``rank``: only that one is recorded, and all are taken to be like it. ``mesh`` are sizes that the program's own are
    compared with (``dp=8,tp=4``). ``fabric`` is a known name or a file of
    nccl-tests (``None``: what usually links such devices), ``ranks_per_node`` how many ranks share a node (``None``: as
    the fabric's nodes have). The ranks' ledgers are kept as a job beside ``output``, as ``plan_program`` keeps one;
    ``host`` is of ``plan_program``. Raises what ``record_ranks`` does, ``UsageError`` for nodes that the world does not
    fill, and ``PredictError`` for an unknown device, host or fabric.
    """
    if ranks_per_node is not None:
        check_nodes(ranks_per_node, world)
    model = find_model(device)
    known = None if host is None else find_host(host)
    links = find_fabric(fabric, device=model.device, ranks_per_node=ranks_per_node) if world > 1 else None
    per_node = ranks_per_node or (links.ranks_per_node if links is not None else 1)
    kept = None if output is None else job_folder(output)
    with job_in_place(kept, force=force) if kept is not None else _dropped("plan.job") as folder:
        recorded = record_ranks(
            script,
            folder,
            model.machine.device,
            world,
            rank=rank,
            ranks_per_node=per_node,
            model=device,
            slowness=expected_host(known)[0],
        )
        programs = [program_of(each, model.machine.device) for each in recorded]
        with open_ledger(recorded[0].ledger) as ledger:
            dry_run = ledger.read(DryRun)[-1]
            settings = ledger.run().environment.settings
        step, times_us = price_ranks(
            programs,
            model,
            links,
            subject=folder.name,
            mode="graphs" if dry_run.replays_graphs else mode,
            host=known,
            **rounding_of(settings),
        )
        steps = [_read_step(each.ledger) for each in recorded]
        tuned = notes_on_tuned_convolutions(
            settings,
            [call for each in programs for call in each.calls],
            [launch for each in programs for some in each.launches.values() for launch in some],
        )
        notes = (*_on_host_alone(step, steps), *_with_notes(step.notes, model, steps), *tuned)
        step = replace(step, kernel_launches=_kernel_launches(steps), notes=notes)
        if world > 1 and not dry_run.groups:
            step = replace(step, notes=(*step.notes, _ALONE))
        elif world > 1 and (rare := rare_note(dry_run, links, _exchanged_bytes(programs))) is not None:
            step = replace(step, notes=(rare, *step.notes))
        step = replace(step, notes=(*_of_guessed_ranks(recorded), *step.notes, *_of_host_tensors(programs)))
        step = _with_rarer(step, dry_run, recorded[0].ledger, model, steps[0], mode=mode, host=known)
        if mesh is not None and (unlike := unlike_mesh(mesh, _sizes_of(dry_run))) is not None:
            step = replace(step, notes=(unlike, *step.notes))
        step = with_fit(step, memory_of(model))
        if output is not None:
            keep_plan(folder, step)
            for each in recorded:
                keep_prices(each.ledger, times_us[each.rank])
    return Plan(step, dry_run, kept)


def _with_rarer(
    step: PlannedStep,
    dry_run: DryRun,
    ledger: Path,
    model: TimeModel,
    read: _ReadStep,
    *,
    mode: Mode,
    host: Host | None,
) -> PlannedStep:
    """A step beside what others do otherwise that the rank of this ``ledger`` was seen to make."""
    record, _ = read

    def duration_us(rarer: RarerStep | None) -> float:
        asked: Mode = "graphs" if dry_run.replays_graphs else mode
        return predict_ledger(model, ledger, mode=asked, host=host or "usual", rarer=rarer)[0].duration_us

    return with_rarer_steps(step, dry_run.rarer, () if record is None else record.calls, model, duration_us)


@contextlib.contextmanager
def _dropped(name: str) -> Iterator[Path]:
    """Where a plan is made that nobody keeps."""
    with tempfile.TemporaryDirectory(prefix="torchledger-plan-") as folder:
        yield Path(folder) / name


def _of_guessed_ranks(recorded: Sequence[RecordedRank]) -> Iterator[str]:
    """That some ranks may differ from the ones that stand for them, where that is so."""
    guessed = sorted(rank for each in recorded for rank in each.guessed)
    if guessed:
        yield (
            f"{len(guessed):,} of the ranks from {guessed[0]:,} to {guessed[-1]:,} may do something else than the ones "
            "that stand for them (`show` says which): they lie between ranks that differ, and were not run (at most "
            f"{MOST_RUN} are); what they wait for is not in the price"
        )


def _of_host_tensors(programs: Sequence[RankProgram]) -> Iterator[str]:
    """That collectives are of tensors on the host, of the first rank that has some: nobody has timed gloo here."""
    for program in programs:
        asked = [
            call
            for call in program.calls
            if call.kind == "collective" and call.device == "cpu" and (call.group_size or 0) > 1
        ]
        if not asked:
            continue
        lines = dict.fromkeys(os.path.basename(call.sources[-1]) for call in asked if call.sources)
        nbytes = sum(call.message_bytes or 0 for call in asked)
        where = f", {', '.join(list(lines)[:_MOST_LINES])}" if lines else ""
        yield (
            f"collectives of tensors on the host ({len(asked):,} of {nbytes:,} bytes{where}) are priced as if the "
            "devices' links carried them: gloo takes longer over TCP, and the host waits for it"
        )
        return


def _sizes_of(dry_run: DryRun) -> dict[str, set[int]]:
    """Sizes of the groups that a program has made, by what they are for."""
    sizes: dict[str, set[int]] = {}
    for group in dry_run.groups:
        sizes.setdefault(group.description, set()).add(len(group.ranks))
    return sizes


def _exchanged_bytes(programs: Sequence[RankProgram]) -> int | None:
    """What the rank exchanges that exchanges most; ``None`` where none does."""
    return max((nbytes for each in programs if (nbytes := each.exchanged_bytes) is not None), default=None)


_MOST_LINES = 2

_ReadStep = tuple[StepTotals | None, Sequence[Launch]]
"""A rank's step and the launches of its ledger."""


def _kernel_launches(steps: Sequence[_ReadStep]) -> int | None:
    """Kernels that one rank's step launches on its device: of the rank with most."""
    return max((launched_on_device(record) for record, _ in steps if record is not None), default=None)


def _on_host_alone(step: PlannedStep, steps: Sequence[_ReadStep]) -> Iterator[str]:
    """That a program never comes near its device, where it does not."""
    records = [(record, launches) for record, launches in steps if record is not None]
    many = sum(len(on_host(record)) for record, _ in records)
    if not step.launches and many:
        yield f"nothing of this step runs on the device: its {many:,} operators are all called on the CPU; {_MOVE}"
    elif many and not any(_comes_near(record, launches) for record, launches in records):
        yield (
            "nothing of this step runs on the device: its compiled graphs are for the CPU, priced as if the device ran "
            f"them, and its {many:,} operators outside of them are called on the CPU, which is none of the device's "
            f"time; {_MOVE}"
        )


_MOVE = "the program has to move its model and its data there, for which many scripts have an option"


def _comes_near(record: StepTotals, launches: Sequence[Launch]) -> bool:
    """Whether anything of a step is its device's: a graph compiled for it, or a call outside of graphs."""
    called = [launch for launch in launches if record.step.graph_calls.get(launch.graph)]
    return any(not launch.device.startswith("cpu") for launch in called) or any(
        call.kind == "collective" or call.device not in (None, "cpu") for call in record.calls
    )


def _with_notes(notes: Sequence[str], model: TimeModel, steps: Sequence[_ReadStep]) -> tuple[str, ...]:
    """What is said of a world's price, and of the first rank's step of each kind of what a step alone is told."""
    found = dict.fromkeys(notes)
    told: set[str] = set()
    for read in steps:
        said = step_notes(model, *read)
        kinds = {_NUMBERS.sub("", note): note for note in said}
        found |= dict.fromkeys(note for kind, note in kinds.items() if kind not in told)
        told |= kinds.keys()
    return tuple(found)


_NUMBERS = re.compile(r"[\d.,]+( [mu]s\b)?")
"""By which ranks that do the same differ."""


def _read_step(path: Path) -> _ReadStep:
    with open_ledger(path) as ledger:
        launches = ledger.read(Launch)
        return read_step(ledger, Counter(launch.graph for launch in launches if launch.is_call)), launches


def as_planned(step: StepPrediction) -> PlannedStep:
    """A step of one rank, as predicted, in the words of a plan."""
    rank = PlannedRank(
        rank=0,
        compute_us=step.device_us,
        communication_us=0.0,
        exposed_us=0.0,
        idle_us=max(0.0, step.duration_us - step.device_us),
        host_us=step.host_us,
        peak_allocated_bytes=step.peak_allocated_bytes,
    )
    return PlannedStep(
        subject=step.subject,
        device=step.device,
        fabric=None,
        world_size=1,
        duration_us=step.duration_us,
        low_us=step.low_us,
        high_us=step.high_us,
        coverage=step.coverage,
        device_us=step.device_us,
        host_us=step.host_us,
        decided_by=step.decided_by,
        peak_allocated_bytes=step.peak_allocated_bytes,
        launches=step.launches + step.eager_calls,
        ranks=(rank,),
        host_work_us=step.host_work_us,
        notes=(*step.notes, *_unlearned(step)),
    )


def _unlearned(step: StepPrediction) -> Iterator[str]:
    """What is priced at its roofline alone, where that is a share of the device's time that counts."""
    calls: Counter[str] = Counter()
    for each in step.eager:
        if each.prediction.model == ROOFLINE:
            calls[each.prediction.subject.partition(" ")[0]] += each.calls
    if (said := roofline_note(step.unlearned_us, step.device_us, calls)) is not None:
        yield said
