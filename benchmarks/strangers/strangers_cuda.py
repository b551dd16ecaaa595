"""Drawn programs on a GPU: their own times without torchledger, their ledgers, and what a fit of strangers needs.

    python -m benchmarks.strangers.strangers_cuda -o OUT [--minutes 9.4] [--sealed 0:32] [--develop 0:18] [--look 0:4]

Programs (``drawn_programs.py``) go in waves: those of a wave compile at once, a process each, and take turns where
Inductor measures kernels; then one after the other is let through a gate and times its own steps alone on the GPU. Then
the same programs again, under ``torchledger run --profile``. Batteries of eager calls, attention, operators in two
states, and the host's own costs (``drawn_calls.py``) pass through the same gate. OUT gets ``sealed.tar``,
``develop.tar``, ``look.tar`` and ``battery.tar`` (ledgers, each compressed by lzma), ``rows.json`` (times and
failures), ``attention.json``, ``states.json``, ``more.json`` (host, runs that last).
"""

from __future__ import annotations

import argparse
import io
import json
import lzma
import os
import signal
import subprocess
import sys
import tarfile
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.shared.places import child_environment

NEEDS: tuple[str, ...] = ("cuda", "transformers")
RUNS: tuple[tuple[str, ...], ...] = (("-o", "{out}"),)

PROGRAMS, CALLS = ("-m", "benchmarks.strangers.drawn_programs"), ("-m", "benchmarks.operators.drawn_calls")
_RECORD = ("-m", "torchledger", "run", "--profile", "--warmup", "5", "--repeats", "5", "-f", "-o")

_WRITING_S = 35.0
"""What the processes of a wave need at most to write their ledgers, all at once."""


@dataclass
class Job:
    """A process that waits at a gate: what it runs, how long it may take behind the gate, what came of it."""

    name: str
    command: tuple[str, ...]
    limit_s: float
    ledger: Path | None = None
    environment: dict[str, str] = field(default_factory=dict)
    process: subprocess.Popen[bytes] | None = None
    answer: dict[str, Any] = field(default_factory=dict)


class Wave:
    """Jobs that start together and pass the gate one by one."""

    def __init__(self, jobs: Sequence[Job], work: Path, out: Path, *, cores: int) -> None:
        self.jobs, self.out = list(jobs), out
        self.gate = Path(tempfile.mkdtemp(dir=work))
        for job in self.jobs:
            environment = child_environment() | {
                "HF_HUB_OFFLINE": "1",
                "DRAWN_GATE": str(self.gate),
                "DRAWN_TURNS": str(work / "turns"),
                "TORCHINDUCTOR_CACHE_DIR": str(work / "inductor"),
                "TRITON_CACHE_DIR": str(work / "triton"),
                "TORCHINDUCTOR_COMPILE_THREADS": "1",
                "OMP_NUM_THREADS": str(max(1, cores // max(len(self.jobs), 1))),
                "OUT": str(out),
            }
            log = (self.gate / f"{job.name}.log").open("wb")
            job.process = subprocess.Popen(
                [sys.executable, *job.command],
                env=environment | job.environment,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
            log.close()

    def wait_ready(self, limit_s: float) -> None:
        """Until each is at the gate, has ended, or the limit is over: those not there are ended."""
        begin, end = time.monotonic(), time.monotonic() + limit_s
        while time.monotonic() < end:
            waiting = [job for job in self.jobs if not self._has(job, "ready") and not job.answer]
            if not waiting:
                break
            for job in waiting:
                assert job.process is not None
                if job.process.poll() is not None:
                    job.answer = {"error": f"ended with {job.process.returncode}", "output": self.said(job)}
                    print(f"{job.name}: {job.answer}", flush=True)
            time.sleep(0.05)
        for job in self.jobs:
            if not self._has(job, "ready") and not job.answer:
                self.end(job)
                job.answer = {"error": f"not ready in {limit_s:.0f} s", "output": self.said(job)}
                print(f"{job.name}: {job.answer}", flush=True)
        print(f"-- {len(self.jobs)} jobs at the gate after {time.monotonic() - begin:.0f} s", flush=True)

    def pass_one(self, job: Job) -> None:
        """Let one job through and wait until it is done."""
        if job.answer:
            return
        begin, end = time.monotonic(), time.monotonic() + job.limit_s
        (self.gate / f"{job.name}.go").touch()
        while time.monotonic() < end and not self._has(job, "done"):
            assert job.process is not None
            if job.process.poll() is not None and not self._has(job, "done"):
                job.answer = {"error": f"ended with {job.process.returncode}", "output": self.said(job)}
                break
            time.sleep(0.005)
        if self._has(job, "done"):
            job.answer = json.loads((self.gate / f"{job.name}.done").read_text())
        elif not job.answer:
            self.end(job)
            job.answer = {"error": f"not done in {job.limit_s:.0f} s", "output": self.said(job)}
        job.answer["gate_s"] = round(time.monotonic() - begin, 2)
        shown = {key: value for key, value in job.answer.items() if key != "recipe"}
        print(f"{job.name}: {json.dumps(shown)[:400]}", flush=True)

    def open_way(self) -> None:
        """All have passed that will: those that stayed may end."""
        (self.gate / "all.done").touch()

    def finish(self, limit_s: float) -> None:
        """Wait for the processes to end, and end those that do not."""
        end = time.monotonic() + limit_s
        for job in self.jobs:
            assert job.process is not None
            try:
                job.process.wait(max(0.1, end - time.monotonic()))
            except subprocess.TimeoutExpired:
                self.end(job)
                job.answer.setdefault("error", "did not end")
            if job.ledger is not None and job.process.returncode and "error" not in job.answer:
                job.answer["error"] = f"ended with {job.process.returncode}: {self.said(job)}"

    def _has(self, job: Job, what: str) -> bool:
        return (self.gate / f"{job.name}.{what}").exists()

    def said(self, job: Job) -> str:
        return (self.gate / f"{job.name}.log").read_text(errors="replace")[-700:]

    def end(self, job: Job) -> None:
        assert job.process is not None
        try:
            os.killpg(job.process.pid, signal.SIGKILL)
        except ProcessLookupError:
            return
        job.process.wait()


class Results:
    """The files of OUT, as complete as they can be at any time."""

    def __init__(self, out: Path) -> None:
        self.out = out
        out.mkdir(parents=True, exist_ok=True)
        self.rows: dict[str, dict[str, Any]] = {}
        self.begin = time.monotonic()

    def add(self, name: str, key: str, answer: dict[str, Any]) -> None:
        """What came of a job."""
        self.rows.setdefault(name, {})[key] = answer
        (self.out / "rows.json").write_text(json.dumps(self.rows, separators=(",", ":")))

    def keep(self, name: str, ledger: Path) -> None:
        """A ledger, into the tar of its set."""
        if not ledger.exists():
            return
        packed = lzma.compress(ledger.read_bytes(), preset=3)
        member = tarfile.TarInfo(f"{name}.ledger.xz")
        member.size = len(packed)
        with tarfile.open(self.out / f"{name.rpartition('-')[0]}.tar", "a") as tar:
            tar.addfile(member, io.BytesIO(packed))


def main() -> None:
    """Measure what fits into the time."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("-o", "--out", type=Path, default=Path(os.environ.get("OUT", ".")))
    parser.add_argument("--minutes", type=float, default=9.4)
    parser.add_argument("--sealed", default="0:32")
    parser.add_argument("--develop", default="0:18")
    parser.add_argument("--look", default="0:4")
    parser.add_argument("--batteries", default="0:10")
    parser.add_argument("--parts", nargs="*", default=["host", "attention", "states", "sustained"])
    parser.add_argument("--attention-seconds", type=float, default=45.0)
    parser.add_argument("--skip", type=int, default=0, help="configurations of attention that were measured before")
    parser.add_argument("--wave", type=int, default=18)
    parser.add_argument("--compile-limit", type=float, default=75.0)
    parser.add_argument("--tiny", action="store_true", help="small sizes on a CPU: to try the script itself")
    arguments = parser.parse_args()
    end = time.monotonic() + 60 * arguments.minutes
    out: Path = arguments.out.resolve()
    results = Results(out)
    work = Path(tempfile.mkdtemp(prefix="strangers-"))
    extra = ("--tiny", "--device", "cpu") if arguments.tiny else ()
    cores = os.cpu_count() or 1
    sets = {name: _names(name, getattr(arguments, name)) for name in ("sealed", "develop", "look")}
    batteries = _names("battery", arguments.batteries)
    programs = _interleaved(sets)
    parts = list(arguments.parts)
    limits = {"host": 30.0, "attention": arguments.attention_seconds, "states": 40.0, "sustained": 30.0}
    number = 0
    recorded: Wave | None = None
    while programs or parts or batteries:
        left = end - time.monotonic()
        if left < 45:
            print(f"out of time: {len(programs)} programs, {parts}, {len(batteries)} batteries left", flush=True)
            break
        number += 1
        names, programs = programs[: arguments.wave], programs[arguments.wave :]
        print(f"== wave {number}, {left:.0f} s left: {' '.join(names)}", flush=True)
        own, parts = (parts[:1], parts[1:]) if names else (parts, [])
        jobs = [Job(name, (*PROGRAMS, name, "30", *extra), 25.0) for name in names]
        for name in own:
            options = ("--limit", str(limits[name] - 10), "--skip", str(arguments.skip))
            jobs.append(Job(name, (*CALLS, name, *options, *extra), limits[name]))
        _heavy(jobs)
        first = Wave(jobs, work, out, cores=cores)
        # What the last wave recorded is worked out while this one compiles.
        collect(recorded, results, end)
        recorded = None
        first.wait_ready(min(arguments.compile_limit, max(left - 40, 10)))
        for job in first.jobs:
            if end - time.monotonic() > 8:
                job.limit_s = min(job.limit_s, end - time.monotonic() - 4)
                first.pass_one(job)
            results.add(job.name, "own", job.answer)
        ran = [name for name in names if "error" not in results.rows[name].get("own", {"error": ""})]
        first.finish(6)
        now, batteries = batteries[:4], batteries[4:]
        if end - time.monotonic() < 30 or not (ran or now):
            batteries = now + batteries if ran else batteries
            continue
        second = Wave(
            [
                *(recorded_program(name, extra, work) for name in ran),
                *(recorded_job(name, (*CALLS, name, *extra), work) for name in now),
            ],
            work,
            out,
            cores=cores,
        )
        second.wait_ready(min(60.0, max(end - time.monotonic() - 20, 5)))
        for job in second.jobs:
            if end - time.monotonic() > _WRITING_S:
                second.pass_one(job)
        second.open_way()
        recorded = second
        print(f"-- wave {number} done at {time.monotonic() - results.begin:.0f} s", flush=True)
    collect(recorded, results, end)
    more = {}
    for name in ("host", "sustained"):
        if (out / f"{name}.json").exists():
            more[name] = json.loads((out / f"{name}.json").read_text())
            (out / f"{name}.json").unlink()
    (out / "more.json").write_text(json.dumps(more))
    print(f"done at {time.monotonic() - results.begin:.0f} s", flush=True)


def collect(wave: Wave | None, results: Results, end: float) -> None:
    """Let a recorded wave end, and keep what it wrote."""
    if wave is None:
        return
    wave.finish(min(60.0, max(end - time.monotonic() - 3, 1)))
    for job in wave.jobs:
        job.answer.pop("recipe", None)
        results.add(job.name, "recorded", job.answer)
        assert job.ledger is not None
        results.keep(job.name, job.ledger)


def recorded_program(name: str, extra: Sequence[str], work: Path) -> Job:
    """A drawn program under ``torchledger run``: a few steps, and nothing beside them."""
    return recorded_job(name, (*PROGRAMS, name, "24", "--seconds", "0.6", "--pieces", "0", *extra), work)


def recorded_job(name: str, program: tuple[str, ...], work: Path) -> Job:
    """A program under ``torchledger run``, which stays until all of its wave have passed."""
    ledger = work / f"{name}.ledger"
    return Job(name, (*_RECORD, str(ledger), *program), 20.0, ledger, {"DRAWN_STAYS": "1"})


def _names(set_name: str, span: str) -> list[str]:
    first, _, last = span.partition(":")
    return [f"{set_name}-{index}" for index in range(int(first), int(last))]


def _interleaved(sets: dict[str, list[str]]) -> list[str]:
    """The programs of all sets, each spread evenly: what time cuts off is a share of each."""
    placed = [((place + 0.5) / len(names), name) for names in sets.values() for place, name in enumerate(names)]
    return [name for _, name in sorted(placed)]


def _heavy(jobs: Sequence[Job]) -> None:
    """Programs that try many kernels compile them with several threads."""
    from benchmarks.strangers.drawn_programs import draw

    for job in jobs:
        if job.command[:2] == PROGRAMS and draw(job.name).mode.startswith("max"):
            job.environment["TORCHINDUCTOR_COMPILE_THREADS"] = "4"


if __name__ == "__main__":
    main()
