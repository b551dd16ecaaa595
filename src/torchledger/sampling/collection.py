"""Collecting a plan's samples in a data folder: the one call behind ``torchledger sample``."""

from __future__ import annotations

import json
import os
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from torchledger.errors import SampleError
from torchledger.nouns import Sample
from torchledger.sampling.dataset import compact, count_by_status, read_samples
from torchledger.sampling.engines import Job, run_engine
from torchledger.sampling.journal import JOURNAL_FOLDER
from torchledger.sampling.points import PLAN_FILE, Plan, load_plan, save_plan, unique_points
from torchledger.sampling.supervisor import WorkerOptions
from torchledger.sampling.worker import ADAPTIVE_PREFIX

Progress = Callable[[int, int], None]
"""Told how many points are finished and how many there are."""


@dataclass(frozen=True)
class Collection:
    """What a data folder holds after collecting: points planned (of this part) and finished by this call, statuses of
    all samples, seconds this call took, the rounds of adaptive workers, and why samples of the folder are not ok."""

    folder: Path
    planned: int
    finished_now: int
    statuses: Mapping[str, int]
    seconds: float
    adaptive: tuple[Mapping[str, Any], ...] = field(default=())
    failures: Mapping[str, int] = field(default_factory=dict)

    @property
    def points_per_s(self) -> float | None:
        """Points finished per second of this call, start-up included; ``None`` if there were none."""
        return self.finished_now / self.seconds if self.finished_now and self.seconds else None

    @property
    def is_complete(self) -> bool:
        """True if every sample is ok."""
        return set(self.statuses) <= {"ok"}


def collect_samples(
    plan: Plan,
    folder: str | os.PathLike[str],
    *,
    worker: WorkerOptions | None = None,
    engine: str = "local",
    engine_options: Mapping[str, str] | None = None,
    part: int = 1,
    parts: int = 1,
    workers: int | None = None,
    on_progress: Progress | None = None,
    keep_journals: bool = False,
) -> Collection:
    """Measure what a folder does not hold yet of a plan; call it again after any interruption to go on.

    With ``parts=1`` the journals are compacted into ``samples.parquet`` at the end (unless ``keep_journals``); of
    several parts each leaves its journals, since others may still be writing.
    """
    folder = Path(folder)
    prepare_folder(plan, folder)
    before = count_finished(folder)
    started = time.monotonic()
    planned = len(load_plan(folder).shard(part, parts))
    job = Job(folder, worker or WorkerOptions(), part, parts, workers, dict(engine_options or {}))
    with _Watch(folder, before, planned, on_progress):
        run_engine(engine, job)
    seconds = time.monotonic() - started
    finished = count_finished(folder) - before
    if parts == 1 and engine != "env" and not keep_journals and (folder / JOURNAL_FOLDER).is_dir():
        compact(folder)
    samples = read_samples(folder)
    failures = failures_of(samples)
    return Collection(folder, planned, finished, count_by_status(samples), seconds, read_adaptive(folder), failures)


def prepare_folder(plan: Plan, folder: Path) -> None:
    """Make the folder and leave the plan in it; a plan that is there already is added to, if it measures alike."""
    if (folder / PLAN_FILE).exists():
        known = load_plan(folder)
        if known.protocol != plan.protocol:
            raise SampleError(
                f"{folder} was measured with {known.warmup} warm-up and {known.active} active iterations, this sweep "
                f"asks for {plan.warmup} and {plan.active}. Choose another output with -o."
            )
        if strange := [name for name in known.operator_files if name not in plan.operator_files]:
            raise SampleError(
                f"{folder / PLAN_FILE} names {strange[0]}, Python that would be run. If it is yours, pass --operators "
                f"{strange[0]}; else choose another output with -o."
            )
        points = unique_points([*known.points, *plan.points])
        files = tuple(dict.fromkeys([*known.operator_files, *plan.operator_files]))
        targets = {**known.targets, **plan.targets}
        if (points, files, targets) == (known.points, known.operator_files, known.targets):
            return
        plan = Plan(points, plan.warmup, plan.active, files, plan.notes, targets)
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise SampleError(f"cannot make {folder}: {error.strerror}.") from error
    save_plan(plan, folder)


def count_finished(folder: Path) -> int:
    """How many points the journals of a folder report as finished: a quick count of lines."""
    total = 0
    for path in (folder / JOURNAL_FOLDER).glob("*.jsonl"):
        with path.open("rb") as file:
            total += sum(line.startswith(b'{"kind":"point"') for line in file)
    return total


def read_adaptive(folder: Path) -> tuple[Mapping[str, Any], ...]:
    """What adaptive workers report of the error they reached against time used."""
    return tuple(json.loads(path.read_text()) for path in sorted(folder.glob(f"{ADAPTIVE_PREFIX}*.json")))


def failures_of(samples: list[Sample]) -> dict[str, int]:
    """Reasons of samples that are not ok, with their number, the most frequent first."""
    counts: dict[str, int] = {}
    for sample in samples:
        if sample.status != "ok":
            reason = f"{sample.operator} {sample.status}: {sample.reason}"
            counts[reason] = counts.get(reason, 0) + 1
    return dict(sorted(counts.items(), key=lambda item: -item[1]))


class _Watch:
    """Tells progress once a second while workers write their journals."""

    def __init__(self, folder: Path, before: int, planned: int, on_progress: Progress | None) -> None:
        self._folder, self._before, self._planned, self._tell = folder, before, planned, on_progress
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="torchledger-progress", daemon=True)

    def __enter__(self) -> None:
        if self._tell is not None:
            self._thread.start()

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        if self._tell is not None:
            self._thread.join()
            self._tell(count_finished(self._folder) - self._before, self._planned)

    def _run(self) -> None:
        while not self._stop.wait(1.0):
            assert self._tell is not None
            self._tell(count_finished(self._folder) - self._before, self._planned)
