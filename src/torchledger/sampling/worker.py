"""The worker: measures one part of a plan on one device and journals what it finds.

Every engine places this same worker, through its supervisor. It needs no pydantic: the plan is expanded already.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import logging
import os
import platform
import sys
import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torchledger
from torchledger.errors import SampleError
from torchledger.nouns import Sample
from torchledger.operators import find_operator, load_operators
from torchledger.operators.functions import aim_function
from torchledger.sampling.adaptive import AdaptiveOrder
from torchledger.sampling.dataset import (
    PARQUET_FILE,
    measured_points,
    read_header,
    read_samples,
    single_precision,
)
from torchledger.sampling.function_times import FunctionTimer
from torchledger.sampling.gates import Doubt, GateLimits, doubt_samples, label_key, settle
from torchledger.sampling.journal import Journal, JournalState, read_journals, write_durably
from torchledger.sampling.points import Plan, Point, load_plan, point_id
from torchledger.sampling.telemetry import Telemetry
from torchledger.sampling.timing import DeviceFault, PointTimes, Timer, make_timer
from torchledger.sampling.turns import Turns
from torchledger.signals import end_with_parent
from torchledger.store.codec import encode
from torchledger.work.element_sizes import ELEMENT_SIZES

log = logging.getLogger(__name__)

FAULT_EXIT_CODE = 75
"""The worker ended because its device refuses further work; a new process may go on."""

ADAPTIVE_PREFIX = "adaptive-"
"""Beginning of the name of the file in which an adaptive worker leaves the error it reached against time used."""

GIVE_UP_AFTER_DEATHS = 2
"""A point that took this many workers down alone is recorded as failed."""


@dataclass
class WorkerSummary:
    """What one run of a worker did: points measured now, found done, by status."""

    measured: int = 0
    already_done: int = 0
    failed: int = 0
    quarantined: int = 0


def run_worker(
    folder: str | os.PathLike[str],
    *,
    device: str = "cuda:0",
    part: int = 1,
    parts: int = 1,
    group_size: int | None = None,
    budget_s: float | None = None,
    allow_mixed: bool = False,
    on_progress: Callable[[int, int], None] | None = None,
    timer: Timer | None = None,
    order: AdaptiveOrder | None = None,
    turns: Turns | None = None,
    reserved_share: float | None = None,
) -> WorkerSummary:
    """Measure what is not measured yet of one part of the plan in ``folder``.

    ``budget_s`` ends the work after so many seconds, with whole points. ``order`` chooses the next points by what was
    measured so far; without it they come in the plan's order. ``on_progress`` is told points done and points
    in all. Raises ``SampleError`` if the folder holds measurements of another device or other versions (unless
    ``allow_mixed``), and ``DeviceFault`` if the device is lost.
    """
    started = time.monotonic()
    folder = Path(folder)
    plan = load_plan(folder)
    for path in plan.operator_files:
        load_operators(path)
    for name, targets in plan.targets.items():
        aim_function(find_operator(name), targets)
    shard = plan.shard(part, parts)
    state = read_journals(folder, samples=False)
    identity = describe_device(device)
    if not allow_mixed:
        refuse_other_device(folder, identity, state)
    done = set(state.samples) | measured_points(folder)
    ids = {id(point): plan_point_id(point, identity["device"], plan) for point in shard}
    waiting = [point for point in shard if ids[id(point)] not in done]
    summary = WorkerSummary(already_done=len(shard) - len(waiting))
    if not waiting:
        return summary
    turn = turns.take if turns is not None else contextlib.nullcontext
    with turn():
        timer = timer or FunctionTimer(make_timer(device, group_size=group_size, reserved_share=reserved_share), device)
        limits = _limits(device, timer)
    header = {**identity, "clock": timer.clock, "warmup": plan.warmup, "active": plan.active, "ceilings": limits}
    telemetry = Telemetry(identity.get("uuid"))
    with Journal(folder, header) as journal:
        waiting = _give_up(waiting, ids, state, journal, plan, identity, summary)
        session = _Session(plan, identity, timer, telemetry, journal, ids, summary)
        if order is not None:
            session.kept.update(_samples_so_far(folder))
            groups = order.groups(waiting, ids, session.kept, timer.group_size)
        else:
            groups = iter(_groups(waiting, ids, state.suspects, timer.group_size))
        for group in groups:
            if budget_s is not None and time.monotonic() - started > budget_s:
                break
            with turn():
                session.measure(group, limits)
            if on_progress is not None:
                on_progress(summary.already_done + summary.measured, len(shard))
        if order is not None:
            report = {"budget_s": budget_s, "until_error_pct": order.until_error_pct, "rounds": order.report()}
            write_durably(folder / f"{ADAPTIVE_PREFIX}{part}-of-{parts}.json", json.dumps(report, indent=1).encode())
        if budget_s is None or time.monotonic() - started < budget_s:
            with turn():
                session.look_again(limits)
    return summary


def _samples_so_far(folder: Path) -> dict[str, list[Sample]]:
    """What the folder holds already, by point, for an order that learns from it."""
    known: dict[str, list[Sample]] = {}
    for sample in read_samples(folder):
        if sample.status == "ok":
            known.setdefault(sample.point_id, []).append(sample)
    return known


def plan_point_id(point: Point, device: str, plan: Plan) -> str:
    """The id of a plan's point on a device."""
    return point_id(point.operator, point.parameters, point.dtype, device, plan.protocol)


def describe_device(device: str) -> dict[str, Any]:
    """Name, uuid and versions of what measures: what every sample of a worker has in common."""
    import torch

    from torchledger.device.describe import describe_cpu, describe_devices, describe_environment

    place = torch.device(device)
    if place.type == "cuda":
        if not torch.cuda.is_available():
            raise SampleError("no CUDA device is visible. Pass --device cpu to sample the processor, marked as such.")
        index = place.index or 0
        if index >= torch.cuda.device_count():
            raise SampleError(f"there is no {device}: {torch.cuda.device_count()} CUDA device(s) are visible.")
        properties = torch.cuda.get_device_properties(place)
        name, uuid = properties.name, str(getattr(properties, "uuid", "")) or None
        torch.cuda.init()  # type: ignore[no-untyped-call]
        record = next((found for found in describe_devices() if (found.kind, found.index) == ("cuda", index)), None)
    else:
        record = describe_cpu()
        name, uuid = record.name, None
    environment = describe_environment()
    versions = {
        "torch": environment.torch,
        "cuda": environment.cuda,
        "driver": environment.driver,
        "python": platform.python_version(),
        "torchledger": torchledger.__version__,
    }
    return {
        "device": name,
        "device_kind": place.type,
        "uuid": uuid,
        "record": None if record is None else json.loads(encode(record)),
        "host": platform.node(),
        "versions": {key: str(value) for key, value in versions.items() if value is not None},
    }


COMPARED_VERSIONS = ("torch", "cuda", "driver")
"""Versions that change how long a kernel takes."""


def refuse_other_device(folder: Path, identity: dict[str, Any], state: JournalState) -> None:
    """Raise ``SampleError`` if the folder's measurements come from another device or other versions."""
    known = list(state.headers)
    if (folder / PARQUET_FILE).exists():
        known += read_header(folder / PARQUET_FILE)
    for header in known:
        if header["device"] != identity["device"]:
            raise SampleError(
                f"{folder} holds measurements of {header['device']}, this device is {identity['device']}. "
                "Choose another output, or pass --allow-mixed."
            )
        for name in COMPARED_VERSIONS:
            before, now = header["versions"].get(name), identity["versions"].get(name)
            if before != now:
                raise SampleError(
                    f"{folder} was measured with {name} {before}, this is {name} {now}. "
                    "Choose another output, or pass --allow-mixed."
                )


class _Session:
    """One worker's measuring: groups in, journal lines out, doubts kept for a second look."""

    def __init__(
        self,
        plan: Plan,
        identity: dict[str, Any],
        timer: Timer,
        telemetry: Telemetry,
        journal: Journal,
        ids: dict[int, str],
        summary: WorkerSummary,
    ) -> None:
        self.plan, self.identity, self.timer, self.telemetry = plan, identity, timer, telemetry
        self.journal, self.ids, self.summary = journal, ids, summary
        self.kept: dict[str, list[Sample]] = {}
        self.points: dict[str, Point] = {}

    def measure(self, group: Sequence[Point], limits: dict[str, Any] | None) -> None:
        """Measure a group, take a second look at once at what its own numbers put in doubt, and journal it."""
        names = [self.ids[id(point)] for point in group]
        self.journal.attempt(names)
        unfinished = dict(zip(names, group, strict=True))
        finished: list[tuple[str, list[Sample]]] = []
        try:
            for name, samples in self._time(group):
                finished.append((name, samples))
                del unfinished[name]
        except DeviceFault as fault:
            if len(unfinished) == 1:
                ((name, point),) = unfinished.items()
                failed = PointTimes(point, status="failed", reason=f"device fault: {fault}")
                finished.append((name, self._samples(name, failed, {})))
            else:
                self.journal.fault(list(unfinished), str(fault))
            raise
        finally:
            self._finish(finished)

    def look_again(self, limits: dict[str, Any] | None) -> None:
        """Measure doubtful labels a second time, and journal what became of them; not on the host's clock, whose
        times other work of the host disturbs."""
        if self.timer.clock == "host":
            return
        everything = [sample for samples in self.kept.values() for sample in samples]
        bounds = gate_limits(limits)
        doubts = doubt_samples(everything, bounds)
        names = list(dict.fromkeys(key[0] for key in doubts))
        if not names:
            return
        log.info("measuring %d doubtful points a second time", len(names))
        second: dict[str, list[Sample]] = {}
        for start in range(0, len(names), self.timer.group_size):
            group = names[start : start + self.timer.group_size]
            self.journal.attempt(group)
            second.update(self._time([self.points[name] for name in group]))
        again = {name: second.get(name, samples) for name, samples in self.kept.items()}
        second_doubts = doubt_samples([s for samples in again.values() for s in samples], bounds)
        for name in names:
            settled = [self._settle(first, second.get(name, []), doubts, second_doubts) for first in self.kept[name]]
            self.journal.finish((name, settled))
            self.summary.quarantined += any(sample.status == "quarantined" for sample in settled)

    def _settle(
        self, first: Sample, seconds: Iterable[Sample], doubts: dict[Any, Doubt], second_doubts: dict[Any, Doubt]
    ) -> Sample:
        key = label_key(first)
        second = next((sample for sample in seconds if sample.direction == first.direction), None)
        if key not in doubts or second is None:
            return first
        return settle(first, second, doubts[key], second_doubts.get(key))

    def _time(self, group: Sequence[Point]) -> Iterable[tuple[str, list[Sample]]]:
        before = self.telemetry.read()
        names = {id(point): self.ids[id(point)] for point in group}
        for result in self.timer.measure(group, warmup=self.plan.warmup, active=self.plan.active):
            name = names[id(result.point)]
            yield name, self._samples(name, result, before)

    def _finish(self, finished: list[tuple[str, list[Sample]]]) -> None:
        if finished:
            self.journal.finish(*finished)
        for name, samples in finished:
            self.summary.measured += 1
            if all(sample.status == "ok" for sample in samples):
                self.kept[name] = samples
            else:
                self.summary.failed += 1

    def _samples(self, name: str, result: PointTimes, telemetry: dict[str, Any]) -> list[Sample]:
        point = result.point
        self.points[name] = point
        operator = find_operator(point.operator)
        p = operator.resolve(point.parameters)
        utc = round(time.time(), 3)
        samples = []
        for direction in operator.directions:
            times = result.directions.get(direction)
            is_counted = operator.counts_work and result.status != "unsupported"
            work = operator.work(p, direction, ELEMENT_SIZES[point.dtype]) if is_counted else None
            samples.append(
                Sample(
                    point_id=name,
                    operator=operator.key,
                    parameters=dict(p),
                    direction=direction,
                    dtype=point.dtype,
                    device=self.identity["device"],
                    status=result.status if times or result.status != "ok" else "failed",
                    times_us=single_precision(times.times_us) if times else (),
                    spans_us=single_precision(times.spans_us) if times else (),
                    flops=sum(int(part.flops) for part in work) if work else None,
                    bytes_moved=sum(int(part.bytes_moved) for part in work) if work else None,
                    kernels=times.kernels if times else (),
                    reason=result.reason,
                    clock=self.timer.clock,
                    warmup=self.plan.warmup,
                    telemetry=telemetry,
                    versions=self.identity["versions"],
                    group=point.group,
                    measured_utc=utc,
                )
            )
        return samples


def gate_limits(limits: dict[str, Any] | None) -> GateLimits | None:
    """Gate limits out of their plain form in a journal's header."""
    if limits is None:
        return None
    from torchledger.nouns import Ceilings

    ceilings = Ceilings(copy_gb_per_s=limits["copy_gb_per_s"], tflops_per_s=limits["tflops_per_s"])
    return GateLimits(ceilings, limits["l2_bytes"])


def _limits(device: str, timer: Timer) -> dict[str, Any] | None:
    """The device's ceilings and cache, in plain form; none on a CPU, whose caches hold whole small tensors."""
    if timer.clock == "host":
        return None
    import torch

    from torchledger.device.ceilings import measure_ceilings

    ceilings = measure_ceilings(device, dtypes=("bfloat16", "float16", "float32"), with_launches=False)
    return {
        "copy_gb_per_s": ceilings.copy_gb_per_s,
        "tflops_per_s": dict(ceilings.tflops_per_s),
        "l2_bytes": int(getattr(torch.cuda.get_device_properties(device), "L2_cache_size", 0)),
        "method": ceilings.method,
    }


def _groups(waiting: Sequence[Point], ids: dict[int, str], suspects: set[str], size: int) -> Iterable[list[Point]]:
    """Groups in the plan's order; points that were in flight when a worker died come last, each alone."""
    calm = deque(point for point in waiting if ids[id(point)] not in suspects)
    while calm:
        yield [calm.popleft() for _ in range(min(size, len(calm)))]
    for point in waiting:
        if ids[id(point)] in suspects:
            yield [point]


def _give_up(
    waiting: list[Point],
    ids: dict[int, str],
    state: JournalState,
    journal: Journal,
    plan: Plan,
    identity: dict[str, Any],
    summary: WorkerSummary,
) -> list[Point]:
    """Record points that took workers down as failed; returns the others, those with a death behind them last."""
    hopeful = []
    for point in waiting:
        deaths = state.deaths.get(ids[id(point)], 0)
        if deaths < GIVE_UP_AFTER_DEATHS:
            hopeful.append(point)
            continue
        name = ids[id(point)]
        reason = f"{deaths} workers died while they measured this point"
        operator = find_operator(point.operator)
        failed = [
            Sample(
                point_id=name,
                operator=operator.key,
                parameters=dict(point.parameters),
                direction=direction,
                dtype=point.dtype,
                device=identity["device"],
                status="failed",
                reason=reason,
                group=point.group,
                versions=identity["versions"],
            )
            for direction in operator.directions
        ]
        journal.finish((name, failed))
        summary.measured += 1
        summary.failed += 1
    return sorted(hopeful, key=lambda point: state.deaths.get(ids[id(point)], 0))


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a worker as a process: 0 done, 1 an error of ours (one line on stderr), 75 the device was lost."""
    parser = argparse.ArgumentParser(prog="torchledger.sampling.worker")
    parser.add_argument("folder")
    parser.add_argument("--device", default="cuda:0")
    parser.add_argument("--part", type=int, default=1)
    parser.add_argument("--parts", type=int, default=1)
    parser.add_argument("--group-size", type=int)
    parser.add_argument("--budget-s", type=float)
    parser.add_argument("--adaptive", action="store_true")
    parser.add_argument("--until-error", type=float, help="percent")
    parser.add_argument("--allow-mixed", action="store_true")
    parser.add_argument("--parent", type=int, help="end when this process does")
    parser.add_argument("--turns", help="a lock file: each group waits there for its turn on the device")
    parser.add_argument("--reserve", type=float, help="share of the free memory to keep for tensors")
    options = parser.parse_args(arguments)
    if options.parent is not None:
        end_with_parent(options.parent)
    logging.basicConfig(level=logging.WARNING, format="torchledger: %(message)s")
    try:
        run_worker(
            options.folder,
            device=options.device,
            part=options.part,
            parts=options.parts,
            group_size=options.group_size,
            budget_s=options.budget_s,
            allow_mixed=options.allow_mixed,
            order=AdaptiveOrder(until_error_pct=options.until_error) if options.adaptive else None,
            turns=Turns(options.turns) if options.turns else None,
            reserved_share=options.reserve,
        )
    except DeviceFault as fault:
        log.warning("device fault: %s", fault)
        return FAULT_EXIT_CODE
    except SampleError as error:
        log.error("%s", error)
        return 1
    return 0


if __name__ == "__main__":
    # A lost CUDA context can hang the interpreter's own teardown; everything worth keeping is on disk by now.
    code = main()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)
