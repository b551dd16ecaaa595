"""A device calibrated as a user would, and judged by programs that the calibration never saw.

    python -m benchmarks.strangers.calibrate_cuda -o OUT [--minutes 9.4] [--sampling 6.2] [--device cuda]

First what ``torchledger calibrate`` measures (``collect``): ceilings, host, operators, fused programs. Then drawn
programs (``drawn_programs.py``, set ``devices``): each twice, as a plain script that times its own steps and under
``torchledger run --profile``; all compile at once, and pass a gate one by one. OUT gets ``operators.jsonl.gz`` (the
journal of samples; those of group ``evaluation`` are for judging; each says when it was measured), ``fused.tar``
(parts in the order in which they came, ``times.json`` says when), ``programs.tar`` (ledgers, each compressed by lzma),
``rows.json`` (steps), ``device.json`` (record, ceilings, host) and ``log.txt``.
"""

from __future__ import annotations

import argparse
import gzip
import io
import json
import lzma
import os
import shutil
import sys
import tarfile
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

from benchmarks.strangers.drawn_programs import draw
from benchmarks.strangers.strangers_cuda import PROGRAMS, Job, Wave, recorded_program
from torchledger.calibrating.choosing import SWEEP
from torchledger.calibrating.collecting import DEVICE_FILE, FUSED, HOST_FILE, OPERATORS, CollectPlan, collect
from torchledger.fitting.time_model import TimeModel
from torchledger.fitting.transfer import transfer_model
from torchledger.nouns import Device
from torchledger.predicting.devices import find_model

NEEDS: tuple[str, ...] = ("cuda", "transformers")
RUNS: tuple[tuple[str, ...], ...] = (("-o", "{out}"),)

STARTED = time.monotonic()
_SYNC_S = 8.0
_SET = "devices"


class Results:
    """The files of OUT, as complete as they can be at any time."""

    def __init__(self, out: Path, work: Path) -> None:
        self.out, self.work = out, work
        out.mkdir(parents=True, exist_ok=True)
        self._log = (out / "log.txt").open("a")
        self._kept: set[str] = set()
        self._sizes: dict[str, int] = {}
        self.rows: dict[str, Any] = {}
        self._lock = threading.Lock()

    def say(self, text: str) -> None:
        """Print, and keep, with the seconds since the start."""
        line = f"[{time.monotonic() - STARTED:6.1f}s] {text}"
        print(line, flush=True)
        print(line, file=self._log, flush=True)

    def sync(self) -> None:
        """Copy what is new on the work folder's side."""
        with self._lock:
            self._sync_device()
            self._sync_operators()
            self._sync_fused()

    def _sync_device(self) -> None:
        found = {}
        for name in (DEVICE_FILE, HOST_FILE):
            if (self.work / name).exists():
                found[name.removesuffix(".json")] = json.loads((self.work / name).read_text())
        failures: dict[str, int] = {}
        for path in (self.work / FUSED).glob("failures-*.json"):
            for reason, count in json.loads(path.read_text() or "{}").items():
                failures[reason] = failures.get(reason, 0) + count
        (self.out / "device.json").write_text(json.dumps(found | {"failures": failures}, indent=1))

    def _sync_operators(self) -> None:
        parts = sorted((self.work / OPERATORS).rglob("*.jsonl"))
        parts = [path for path in parts if path.name != "plan.jsonl"]
        size = sum(path.stat().st_size for path in parts)
        if size == self._sizes.get("operators"):
            return
        self._sizes["operators"] = size
        unfinished = self.work / "operators.gz"
        with gzip.open(unfinished, "wb", compresslevel=3) as file:
            for path in parts:
                file.write(path.read_bytes())
        shutil.copyfile(unfinished, self.out / "operators.jsonl.gz")

    def _sync_fused(self) -> None:
        new = [p for p in sorted((self.work / FUSED).glob("part-*.launches")) if p.name not in self._kept]
        if not new:
            return
        with tarfile.open(self.out / "fused.tar", "a") as tar:
            for path in sorted(new, key=lambda one: one.stat().st_mtime):
                tar.add(path, arcname=path.name)  # its time of modification says when it was measured
                self._kept.add(path.name)

    def keep_ledger(self, name: str, ledger: Path) -> None:
        """A ledger, into the tar of programs."""
        if ledger.exists():
            packed = lzma.compress(ledger.read_bytes(), preset=2)
            member = tarfile.TarInfo(f"{name}.ledger.xz")
            member.size = len(packed)
            with tarfile.open(self.out / "programs.tar", "a") as tar:
                tar.addfile(member, io.BytesIO(packed))

    def add(self, name: str, key: str, answer: dict[str, Any]) -> None:
        """What came of a program."""
        self.rows.setdefault(name, {})[key] = answer
        (self.out / "rows.json").write_text(json.dumps(self.rows, separators=(",", ":")))


def base_model(record: Device) -> TimeModel | None:
    """The shipped model of another device, transferred to this one."""
    return transfer_model(find_model("H200"), record)


def judge(results: Results, end: float, *, programs: int, first: int, tiny: bool) -> None:
    """Drawn programs, plain and recorded, as many as the time allows."""
    extra = ("--tiny", "--device", "cpu") if tiny else ()
    names: list[str] = []
    index = first
    while len(names) < programs:
        # Trying many kernels takes a minute a program: these are left out.
        if not draw(f"{_SET}-{index}").mode.startswith("max"):
            names.append(f"{_SET}-{index}")
        index += 1
    work = results.work
    jobs = [Job(name, (*PROGRAMS, name, "30", *extra), 12.0) for name in names]
    recorded = [recorded_program(name, extra, work) for name in names]
    cores = os.cpu_count() or 1
    plain_wave, recorded_wave = (
        Wave(jobs, work, results.out, cores=cores),
        Wave(recorded, work, results.out, cores=cores),
    )
    compile_end = end - 2.5 * len(names)
    plain_wave.wait_ready(min(100.0, max(5.0, compile_end - time.monotonic())))
    results.say("plain programs are ready")
    recorded_wave.wait_ready(max(2.0, min(15.0, compile_end + 15 - time.monotonic())))
    results.say("recorded programs are ready")
    for plain, other in zip(plain_wave.jobs, recorded_wave.jobs, strict=True):
        for wave, job, key in ((plain_wave, plain, "own"), (recorded_wave, other, "recorded")):
            if end - time.monotonic() > 6:
                job.limit_s = min(job.limit_s, end - time.monotonic() - 4)
                wave.pass_one(job)
            results.add(job.name, key, dict(job.answer))
        _keep_ended(recorded_wave, results)
    plain_wave.finish(1.0)
    for job in recorded_wave.jobs:
        _finish(job, max(0.2, end - 2 - time.monotonic()))
    _keep_ended(recorded_wave, results)
    results.say(f"{sum('step_ms' in row.get('own', {}) for row in results.rows.values())} programs timed")


def _keep_ended(wave: Wave, results: Results) -> None:
    """The ledgers of processes that have ended, each once."""
    for job in wave.jobs:
        assert job.process is not None
        if job.ledger is not None and job.process.poll() is not None:
            results.keep_ledger(job.name, job.ledger)
            job.ledger = None


def _keep_syncing(results: Results) -> None:
    while True:
        time.sleep(_SYNC_S)
        try:
            results.sync()
        except OSError as error:  # the next time may go better
            results.say(f"not kept: {error}")


def _finish(job: Job, limit_s: float) -> None:
    assert job.process is not None
    try:
        job.process.wait(limit_s)
    except Exception:  # it is ended below, by the end of this script's process group
        job.process.kill()


def main() -> None:
    """Sample, then judge, within the time."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("-o", "--out", type=Path, default=Path(os.environ.get("OUT", ".")))
    parser.add_argument("--minutes", type=float, default=9.4, help="for everything")
    parser.add_argument("--sampling", type=float, default=6.4, help="minutes of them that the calibration gets")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--processes", type=int)
    parser.add_argument("--programs", type=int, default=8)
    parser.add_argument("--first-program", type=int, default=0)
    parser.add_argument("--seed", type=int, default=11)
    parser.add_argument("--only-judge", action="store_true", help="where `torchledger calibrate` itself samples")
    parser.add_argument("--sweep", type=Path, default=SWEEP, help="shapes among which to choose")
    parser.add_argument("--tiny", action="store_true", help="small sizes on a CPU: to try the script itself")
    arguments = parser.parse_args()
    end = STARTED + 60 * arguments.minutes
    work = Path(tempfile.mkdtemp(prefix="calibrate-"))
    results = Results(arguments.out.resolve(), work)
    plan = CollectPlan(
        device="cpu" if arguments.tiny else arguments.device,
        budget_s=60 * arguments.sampling,
        processes=arguments.processes,
        seed=arguments.seed,
        scale=0.05 if arguments.tiny else 1.0,
        largest_numel=2**12 if arguments.tiny else 2**27,
        sweep=arguments.sweep,
        points=150 if arguments.tiny else None,
    )
    if arguments.only_judge:
        results.say("nothing is sampled")
        judge(results, end, programs=arguments.programs, first=arguments.first_program, tiny=arguments.tiny)
        os._exit(0)
    last = [0.0]
    said = [""]

    def progress(done: int, total: int, what: str) -> None:
        if what.partition(" ")[0] != said[0].partition(" ")[0] or time.monotonic() - last[0] > _SYNC_S:
            last[0], said[0] = time.monotonic(), what
            results.say(f"{done}/{total} s: {what}")

    threading.Thread(target=_keep_syncing, args=(results,), daemon=True).start()
    try:
        collect(work, plan, base_model, progress=progress)
    except Exception as error:  # programs are still worth timing
        results.say(f"collecting failed: {type(error).__name__}: {error}")
    results.sync()
    results.say("collected")
    judge(results, end, programs=arguments.programs, first=arguments.first_program, tiny=arguments.tiny)
    results.say("done")
    sys.stdout.flush()
    os._exit(0)  # whatever still runs of it is not waited for


if __name__ == "__main__":
    main()
