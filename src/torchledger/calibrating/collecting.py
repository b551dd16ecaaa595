"""Measuring a device within a budget: its ceilings and host, operators and fused programs, side by side.

Fused programs compile on all cores while operators are measured on the device; whoever times something there takes a
turn (``sampling/turns.py``). All that is measured is on disk at once, so that any end leaves what was there.
"""

from __future__ import annotations

import logging
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass, replace
from multiprocessing import get_context
from pathlib import Path
from typing import Any

from torchledger.calibrating.choosing import SWEEP, choose_points
from torchledger.device.ceilings import measure_ceilings
from torchledger.device.doctor import describe_device
from torchledger.device.host import measure_host
from torchledger.errors import TorchledgerError
from torchledger.fitting.time_model import TimeModel
from torchledger.nouns import Device
from torchledger.sampling.fused import FusedPlan, sample_in_turns
from torchledger.sampling.journal import write_durably
from torchledger.sampling.points import save_plan
from torchledger.sampling.turns import Turns
from torchledger.store.codec import encode

log = logging.getLogger(__name__)

DEVICE_FILE, HOST_FILE = "device.json", "host.json"
OPERATORS, FUSED = "operators", "fused"
TURNS_FILE = "turns.lock"

_TICK_S = 0.5
_LAST_ROUND_S = 8.0
"""Before the end: what is compiled by then is measured."""
_HOST_LIMIT_S = 120.0
_REFUSED = 1
"""Exit code of a worker that another of its kind would only repeat."""
_MOST_RESTARTS = 3
_SHAPES_A_SECOND = 60
_GROUP_SIZE = 32


@dataclass(frozen=True)
class CollectPlan:
    """How to measure: on which device, for how long, in how many compiling processes (``None``: one a core)."""

    device: str = "cuda"
    budget_s: float = 600.0
    processes: int | None = None
    seed: int = 0
    with_host: bool = True
    scale: float = 1.0
    largest_numel: int = 2**27
    points: int | None = None
    sweep: Path = SWEEP


def collect(
    folder: str | os.PathLike[str],
    plan: CollectPlan,
    base: Callable[[Device], TimeModel | None] = lambda record: None,
    *,
    progress: Callable[[int, int, str], None] = lambda done, total, what: None,
) -> Device:
    """Measure a device into ``folder``; returns its record with the ceilings.

    Leaves ``device.json`` and ``host.json``, a data folder ``operators`` of samples and ``fused/part-*.launches``.
    ``base`` gives the model, transferred to a device, whose doubts choose what to measure; ``progress`` is told
    seconds used, seconds in all, and what is going on. Raises ``MeasureError`` if there is no such device.
    """
    folder = Path(folder)
    began = time.monotonic()
    end_wall = time.time() + plan.budget_s
    (folder / FUSED).mkdir(parents=True, exist_ok=True)
    (folder / OPERATORS).mkdir(exist_ok=True)
    turns = Turns(folder / TURNS_FILE)

    def tell(what: str) -> None:
        progress(int(time.monotonic() - began), int(plan.budget_s), what)

    caches = tempfile.mkdtemp(prefix="torchledger-caches-")
    compilers = _start_compilers(plan, folder, caches, turns, end_wall)
    operators: subprocess.Popen[bytes] | None = None
    hosts: list[Any] = []
    restarts = 0
    try:
        tell("ceilings")
        with turns.take():
            ceilings = measure_ceilings(plan.device, scale=plan.scale)
            _free_memory()
        record = replace(describe_device(plan.device), ceilings=ceilings)
        write_durably(folder / DEVICE_FILE, encode(record))
        tell("choosing shapes")
        count = plan.points or int(_SHAPES_A_SECOND * plan.budget_s)
        save_plan(choose_points(base(record), count=count, seed=plan.seed, sweep=plan.sweep), folder / OPERATORS)
        operators = _start_operators(plan, folder, turns, end_wall)
        if plan.with_host:
            others = [*(process.pid for process in compilers), operators.pid]
            hosts.append(get_context("spawn").Process(target=_host, args=(plan.device, str(folder), others)))
            hosts[0].start()
            host_end = time.monotonic() + _HOST_LIMIT_S
        while time.time() < end_wall:
            tell(_standing(folder))
            if operators.returncode is None and operators.poll():
                log.warning("the worker that samples operators ended with code %d", operators.returncode)
                if operators.returncode != _REFUSED and restarts < _MOST_RESTARTS:
                    operators, restarts = _start_operators(plan, folder, turns, end_wall), restarts + 1
            for host in hosts:
                if time.monotonic() > host_end and host.is_alive():
                    log.warning("the host was not measured in %.0f s", _HOST_LIMIT_S)
                    host.kill()
                    _signal(others, signal.SIGCONT)
            if operators.returncode is not None and not any(each.is_alive() for each in [*compilers, *hosts]):
                break
            time.sleep(_TICK_S)
    finally:
        for host in hosts:
            if host.is_alive():
                host.kill()
                _signal(others, signal.SIGCONT)
        if operators is not None:
            _end(operators, max(0.0, end_wall + 3 - time.time()))
        for process in compilers:
            process.join(max(0.0, end_wall + _LAST_ROUND_S - time.time()))
            if process.is_alive():
                process.kill()
                process.join()
        shutil.rmtree(caches, ignore_errors=True)
    return record


def _start_compilers(plan: CollectPlan, folder: Path, caches: str, turns: Turns, end_wall: float) -> list[Any]:
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    count = cores if plan.processes is None else plan.processes
    fused = FusedPlan(
        device=plan.device,
        processes=count,
        first_seed=plan.seed * 1_000_000,
        largest_numel=plan.largest_numel,
        memory_share=0.08,
        turns=str(turns.path),
    )
    context = get_context("spawn")
    started = []
    for index in range(count):
        # They stop compiling one after the other, so that the last recordings do not queue.
        until = end_wall - _LAST_ROUND_S - 0.6 * index
        options = {"caches": caches}
        given = (fused, index, str(folder / FUSED), until)
        process = context.Process(target=sample_in_turns, args=given, kwargs=options, daemon=True)
        process.start()
        started.append(process)
    return started


def _start_operators(plan: CollectPlan, folder: Path, turns: Turns, end_wall: float) -> subprocess.Popen[bytes]:
    command = [
        sys.executable,
        "-W",
        "ignore",
        "-m",
        "torchledger.sampling.worker",
        str(folder / OPERATORS),
        "--device",
        plan.device,
    ]
    command += ["--group-size", str(_GROUP_SIZE), "--budget-s", str(max(1.0, end_wall - time.time()))]
    command += ["--turns", str(turns.path), "--reserve", "0.25", "--parent", str(os.getpid())]
    return subprocess.Popen(command)


def _free_memory() -> None:
    """Give back what the ceilings' tensors took: the processes that share the device need it."""
    import torch

    if torch.cuda.is_available():
        torch.cuda.empty_cache()


def _host(device: str, folder: str, others: Sequence[int]) -> None:
    """Measure what the host needs, while the other processes hold still; a failure is said and costs no more."""
    quiet = _Quiet(Turns(Path(folder) / TURNS_FILE), others)
    try:
        host = measure_host(device, before_timing=quiet.begin)
    except (TorchledgerError, RuntimeError) as error:
        log.warning("the host could not be measured: %s", error)
        return
    finally:
        quiet.end()
    write_durably(Path(folder) / HOST_FILE, encode(host))


class _Quiet:
    """Has other processes hold still, none of them in a turn on the device, from ``begin`` to ``end``."""

    def __init__(self, turns: Turns, others: Sequence[int]) -> None:
        self._turns, self._others = turns, others
        self._held: Generator[None] | None = None

    def begin(self) -> None:
        self._held = self._hold()
        next(self._held)

    def end(self) -> None:
        if self._held is not None:
            next(self._held, None)
            self._held = None

    def _hold(self) -> Generator[None]:
        with self._turns.take():
            _signal(self._others, signal.SIGSTOP)
            try:
                yield
            finally:
                _signal(self._others, signal.SIGCONT)


def _signal(processes: Sequence[int], what: int) -> None:
    for process in processes:
        try:
            os.kill(process, what)
        except ProcessLookupError:
            continue


def _standing(folder: Path) -> str:
    parts = len(list((folder / FUSED).glob("part-*.launches")))
    journals = [path.stat().st_size for path in (folder / OPERATORS).rglob("*.jsonl")]
    return f"{sum(journals) / 1e6:.1f} MB of samples, {parts} rounds of fused programs"


def _end(process: subprocess.Popen[bytes], patience_s: float) -> None:
    try:
        process.wait(patience_s)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
