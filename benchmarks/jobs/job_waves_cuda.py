"""Jobs of two GPUs at several sizes: a strategy's own step without torchledger and in a recording, in turns.

``python -m benchmarks.jobs.job_waves_cuda -o OUT [--budget S] [NAME:SIZE | script:NAME ...]``: all jobs start at once,
each twice (plain, and under ``torchledger run --profile``), and compile beside each other; then one after the other
passes a gate and has both GPUs for itself, plain and recorded in turns. OUT gets ``jobs.json`` (own times, peaks of
memory) and ``jobs.tar.gz`` (the ledgers), both written anew after each pair. ``job_waves_cuda.py --read OUT`` adds what
the ledgers say; that needs no GPU. With ``--rounds N`` each case is there N times, as ``NAME:SIZE#2`` and so on: what
two plain runs of one program differ by is then beside what a recorded one does. With ``--watch`` each run has the
median clocks and watts of each GPU beside its times: ``--watch alone:drawn17 ddp:drawn17 fsdp2:drawn17`` says whether
what ranks take longer than a plan is the power limit's. ``--recorded`` leaves the plain runs out, and ``--caches
FOLDER`` keeps what was compiled for the next call: more jobs than a GPU holds at once go through in several.
``script:NAME`` is a script of ``stranger_jobs``, which people write in their own way.
"""

from __future__ import annotations

import argparse
import gzip
import json
import os
import shutil
import tarfile
import tempfile
import time
from pathlib import Path
from typing import Any

from benchmarks.jobs.job_cuda import add_job, own_lines, read
from benchmarks.machines.power_cuda import Smi
from benchmarks.strangers.strangers_cuda import CALLS, Job, Wave

NEEDS: tuple[str, ...] = ("two GPUs",)
RUNS: tuple[tuple[str, ...], ...] = (("-o", "{out}"),)
PROGRAM = ("-m", "benchmarks.jobs.job_programs")
SCRIPT, SCRIPTS = "script", Path(__file__).resolve().parent / "stranger_jobs"
STRATEGIES = ("ddp", "fsdp2", "tp", "tp_sp", "pp_1f1b")
CASES = (
    *(f"{name}:medium" for name in STRATEGIES),
    *(f"{name}:small" for name in STRATEGIES),
    *(f"{name}:large" for name in ("tp", "tp_sp", "pp_1f1b")),
)

RECORD = ("-m", "torchledger", "run", "--profile", "--force", "--warmup", "12", "-o")


def jobs_of(case: str, options: argparse.Namespace, work: Path) -> tuple[Job, ...]:
    """A case without torchledger, and under a recording unless that is not asked for."""
    strategy, size = case.partition("#")[0].split(":")
    number = case.partition("#")[2]
    launch = ("-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={options.ranks}")
    if strategy == SCRIPT:
        program = (*launch, str(SCRIPTS / f"{size}.py"))
    else:
        asked = ("--size", size, "--device", options.device, "--steps", str(options.steps))
        program = (*launch, *PROGRAM, strategy, *asked)
        program += ("--clocks",) if options.clocks else ()
    made = []
    for kind in options.kinds:
        name = f"{strategy}-{size}{number}-{kind}"
        ledger = work / f"{strategy}-{size}{number}.ledger"
        command = program if kind == "plain" else (*RECORD, str(ledger), *program)
        environment = {"JOB_NAME": name}
        if options.caches is not None:
            folder = str(options.caches.resolve())
            environment |= {"TORCHINDUCTOR_CACHE_DIR": f"{folder}/inductor", "TRITON_CACHE_DIR": f"{folder}/triton"}
        made.append(Job(name, command, options.limit, ledger if kind == "recorded" else None, environment))
    return tuple(made)


def keep(folders: dict[str, Path], archive: Path) -> None:
    """All jobs that ended, in a new archive."""
    unfinished = archive.with_suffix(".part")
    with gzip.open(unfinished, "wb", compresslevel=6) as packed, tarfile.open(fileobj=packed, mode="w") as tar:
        for case, folder in folders.items():
            add_job(tar, case, folder)
    unfinished.rename(archive)


def measure(options: argparse.Namespace) -> None:
    """Start all, let them through in turns, and keep what they leave."""
    began = time.monotonic()
    end = began + options.budget
    out: Path = options.output.resolve()
    out.mkdir(parents=True, exist_ok=True)
    work = Path(tempfile.mkdtemp(prefix="jobs-"))
    pairs = {case: jobs_of(case, options, work) for case in options.cases}
    both = [job for pair in pairs.values() for job in pair]
    host = Job("host", (*CALLS, "host", "--out", str(out)), options.limit)
    wave = Wave([*both, *([host] if options.host else [])], work, out, cores=os.cpu_count() or 1)
    wave.wait_ready(options.compile_limit)
    watches = [Smi(gpu) for gpu in range(options.ranks)] if options.watch else []
    if options.host:
        wave.pass_one(host)
    rows: dict[str, dict[str, Any]] = {}
    for case, pair in pairs.items():
        row = rows[case] = {}
        for job, key in zip(pair, options.kinds, strict=True):
            if end - time.monotonic() > options.limit / 2:
                passed_s = time.perf_counter()
                wave.pass_one(job)
                if watches:
                    job.answer["gpus"] = [_last_of(watch, passed_s, job.answer) for watch in watches]
            else:
                job.answer.setdefault("error", "the budget is spent")
            row[key] = job.answer
        (out / "jobs.json").write_text(json.dumps(rows))
    for watch in watches:
        watch.process.terminate()
    for job in both:  # what a plain one measured is said: some take a minute to end
        if job.ledger is None:
            wave.end(job)
    print(f"-- all passed after {time.monotonic() - began:.0f} s", flush=True)
    waiting = {case: job for case, jobs in pairs.items() for job in jobs if job.process is not None and job.ledger}
    folders: dict[str, Path] = {}
    while waiting and time.monotonic() < end:
        for case, job in list(waiting.items()):
            if job.process is not None and job.process.poll() is not None:
                del waiting[case]
                rows[case]["recorded_exit"] = job.process.returncode
                rows[case]["recorded_output"] = wave.said(job) if job.process.returncode else ""
                folder = work / f"{case.replace(':', '-').replace('#', '')}.job"
                if folder.is_dir():
                    folders[case] = folder
                print(f"{case}: ended with {job.process.returncode} at {time.monotonic() - began:.0f} s", flush=True)
        time.sleep(0.2)
    for case, job in waiting.items():
        rows[case]["recorded_output"] = wave.said(job)
        print(f"{case}: did not end: {rows[case]['recorded_output'][-300:]}", flush=True)
        wave.end(job)
    for case, pair in pairs.items():
        for job, key in zip(pair, options.kinds, strict=True):
            lines = own_lines((wave.gate / f"{job.name}.log").read_text(errors="replace"))
            rows[case][key] |= {"ranks": lines}
    (out / "jobs.json").write_text(json.dumps(rows))
    keep(folders, out / "jobs.tar.gz")
    print(f"-- {len(folders)} jobs kept at {time.monotonic() - began:.0f} s", flush=True)
    shutil.rmtree(work, ignore_errors=True)


def _last_of(watch: Smi, passed_s: float, answer: dict[str, Any]) -> dict[str, float | None]:
    """Clocks and watts of the second half of the steps that a job timed, up to now."""
    now_s = time.perf_counter()
    steps_s = answer.get("own_ms", 0.0) * answer.get("steps", 0) / 1e3
    return watch.between(max(passed_s, now_s - steps_s / 2), now_s)


def add_ledgers(folder: Path) -> None:
    """What the ledgers of ``folder`` say, beside what the programs said of themselves."""
    rows = json.loads((folder / "jobs.json").read_text())
    with tempfile.TemporaryDirectory() as scratch:
        with tarfile.open(folder / "jobs.tar.gz") as archive:
            archive.extractall(scratch, filter="data")
        for case, row in rows.items():
            job = Path(scratch) / f"{case.replace(':', '_')}.job"
            if job.is_dir():
                row["job"] = read(job, row.get("plain", {}).get("own_ms"))
    (folder / "jobs_read.json").write_text(json.dumps(rows, indent=1, default=str))
    for case, row in rows.items():
        own = row.get("plain") or row.get("recorded", {})
        plain, recorded = row.get("plain", {}).get("own_ms"), row.get("recorded", {}).get("own_ms")
        ranks = row.get("job", {}).get("ranks", [])
        said = {
            "own_ms": plain,
            "recorded_over_plain": round(recorded / plain, 4) if plain and recorded else None,
            "covered": [rank["covered_share"] for rank in ranks],
            "parts": [round(rank["parts_over_wall"], 4) for rank in ranks],
            "profiled_over_plain": [rank["step_over_plain"] for rank in ranks],
            "peaks": [each.get("peak_allocated_bytes") for each in own.get("ranks", [])],
        }
        print(case, json.dumps(said), flush=True)


def main() -> None:
    """Measure, or read what was measured."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("cases", nargs="*", default=CASES)
    parser.add_argument("-o", "--output", type=Path, default=Path(os.environ.get("OUT", ".")))
    parser.add_argument("--read", type=Path, help="a folder that was measured")
    parser.add_argument("--budget", type=float, default=400, help="seconds for everything")
    parser.add_argument("--compile-limit", type=float, default=220, help="seconds until all are at the gate")
    parser.add_argument("--limit", type=float, default=20, help="seconds for one job behind the gate")
    parser.add_argument("--steps", type=int, default=30)
    parser.add_argument("--ranks", type=int, default=2)
    kinds = parser.add_mutually_exclusive_group()
    kinds.add_argument("--plain", action="store_true", help="no recordings: own times alone")
    kinds.add_argument("--recorded", action="store_true", help="recordings alone")
    parser.add_argument("--caches", type=Path, help="a folder for what is compiled")
    parser.add_argument("--host", action="store_true", help="also what the host needs for each kind of work: host.json")
    parser.add_argument("--watch", action="store_true", help="clocks and watts of each GPU beside each run")
    parser.add_argument("--clocks", action="store_true", help="clocks and time of the device in each phase of a step")
    parser.add_argument("--device", default="cuda", choices=["cuda", "cpu"])
    parser.add_argument("--rounds", type=int, default=1, help="how often each case is there")
    options = parser.parse_args()
    options.kinds = (*(() if options.recorded else ("plain",)), *(() if options.plain else ("recorded",)))
    numbers = ("", *(f"#{number}" for number in range(2, options.rounds + 1)))
    options.cases = [f"{case}{number}" for number in numbers for case in options.cases]
    if options.read is not None:
        add_ledgers(options.read)
    else:
        measure(options)


if __name__ == "__main__":
    main()
