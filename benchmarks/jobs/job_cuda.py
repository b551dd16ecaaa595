"""Jobs of two GPUs: whether all device time belongs to entries, whether each rank's step adds up, whether the step that
is recorded is the step without torchledger, and whether a planted straggler is named.

``python -m benchmarks.jobs.job_cuda -o FILE [--budget S] [--jobs 5] [--again] [--keep JOBS.tar.gz] [NAME:SIZE ...]``:
each strategy of ``job_programs.py`` by ``torch.distributed.run`` on two GPUs, first without torchledger, then under
``torchledger run --profile``. The most important first: all strategies at a medium size, a rank that is late, then the
other sizes, until the budget is spent. Each process has a time limit; FILE is written after each case.
"""

from __future__ import annotations

import argparse
import functools
import gzip
import json
import os
import re
import shutil
import sys
import tarfile
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from benchmarks.shared.limited import run_limited
from benchmarks.shared.places import ROOT

NEEDS: tuple[str, ...] = ("two GPUs",)
RUNS: tuple[tuple[str, ...], ...] = (("-o", "{out}/job_cuda.json"),)
PROGRAM = ("-m", "benchmarks.jobs.job_programs")
LATE_MS = 20

CASES = (
    *("ddp:medium", "fsdp2:medium", "tp:medium", "tp_sp:medium", "pp_1f1b:medium", "ddp:medium:late"),
    *("fsdp2_eager:medium", "fsdp2:medium:late"),
    *(f"{name}:{size}" for size in ("large", "small") for name in ("ddp", "fsdp2", "tp", "tp_sp", "pp_1f1b")),
    *("fsdp2_eager:large", "fsdp2_eager:small"),
)


def own_lines(output: str) -> list[dict[str, Any]]:
    """What each rank of the program printed of itself, by rank."""
    # Two ranks may print at once, their lines then stand behind each other.
    lines = [json.loads(found) for found in re.findall(r'\{"own_ms"[^{}]*\}', output)]
    return sorted(lines, key=lambda each: int(each["rank"]))


def own_ms(output: str) -> float | None:
    """The program's own time of a step, by its first rank."""
    lines = own_lines(output)
    return float(lines[0]["own_ms"]) if lines else None


def errors_of(output: str) -> str:
    """The lines that name errors, before what the launcher says of them."""
    lines = [line for line in output.splitlines() if "Error" in line and "ChildFailed" not in line]
    return "\n".join([*lines[:6], output[-400:]])


def record(case: str, options: argparse.Namespace, folder: Path, end_s: float) -> dict[str, Any]:
    """One case: plain, then recorded, then read."""
    name, size, *late = case.split(":")
    launcher = ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={options.ranks}"]
    program = [*PROGRAM, name, "--size", size, "--device", options.device, "--steps", str(options.steps)]
    if late:
        program += ["--late", f"1:{LATE_MS}"]
    found: dict[str, Any] = {"case": case}
    run = functools.partial(run_limited, folder=folder, paths=(ROOT,), OMP_NUM_THREADS="4")
    began = time.monotonic()
    code, output = run([sys.executable, *launcher, *program], min(options.limit, end_s - began))
    found |= {"plain_exit": code, "own_ms": own_ms(output), "plain_s": round(time.monotonic() - began, 1)}
    found["peak_allocated_bytes"] = [each.get("peak_allocated_bytes") for each in own_lines(output)]
    if code and found["own_ms"] is None:
        return found | {"tail": errors_of(output)}
    began = time.monotonic()
    ledger = ["-m", "torchledger", "run", "--profile", "-o", "j.ledger", "--force"]
    code, output = run([sys.executable, *ledger, *launcher, *program], min(options.limit, end_s - began))
    found |= {"exit": code, "recorded_s": round(time.monotonic() - began, 1), "own_recorded_ms": own_ms(output)}
    if code:
        return found | {"tail": errors_of(output)}
    if options.again and not late:
        began = time.monotonic()
        _, output = run([sys.executable, *launcher, *program], min(options.limit, end_s - began))
        found["own_again_ms"] = own_ms(output)
    return found | read(folder / "j.job", found["own_ms"])


def warm_up(case: str, options: argparse.Namespace, end_s: float) -> str:
    """Run a case for some steps under a recording, so that its kernels are in the compile caches."""
    name, size, *_ = case.split(":")
    program = [*PROGRAM, name, "--size", size, "--device", options.device, "--steps", "9"]
    launcher = ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={options.ranks}"]
    began = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "torchledger", "run", "-o", "w.ledger", *launcher, *program]
        limit_s = min(2 * options.limit, end_s - began)
        code, output = run_limited(command, limit_s, folder=Path(folder), paths=(ROOT,), OMP_NUM_THREADS="4")
    return f"{case}: warmed up, exit {code} after {time.monotonic() - began:.0f} s {errors_of(output) if code else ''}"


def read(job: Path, plain_ms: float | None) -> dict[str, Any]:
    """What the job says, compactly, and its checks."""
    from torchledger.jobs.read import read_job
    from torchledger.nouns import Collective, Gap, Step
    from torchledger.reporting.job import job_as_plain
    from torchledger.store import open_ledger
    from torchledger.store.job import ledgers_of_job

    found = job_as_plain(read_job(job))
    ranks = []
    for rank in found["ranks"]:
        parts = rank["compute_us"] + rank["exposed_us"] + rank["idle_us"]
        with open_ledger(job / rank["ledger"]) as ledger:
            step = ledger.read(Step)[-1]
            collectives = ledger.read(Collective)
            gaps = [f"{gap.account} {gap.where}: {gap.reason}"[:200] for gap in ledger.read(Gap)][:5]
        ranks.append(
            {key: round(value, 1) if isinstance(value, float) else value for key, value in rank.items() if value}
            | {
                "covered_share": step.covered_share,
                "device_us": step.device_us,
                "parts_over_wall": parts / rank["wall_us"],
                "step_over_plain": None if not plain_ms or not step.duration_us else step.duration_us / plain_ms / 1e3,
                "recorded_collectives": len(collectives),
                "without_time": sum(each.ended_ns is None for each in collectives),
                "without_bytes": sum(each.message_bytes is None for each in collectives),
                "without_sequence": sum(each.sequence is None for each in collectives),
                "gaps": gaps,
            }
        )
    return {
        "ranks": ranks,
        "collectives": found["collectives"][:1],
        "stragglers": found["stragglers"][:3],
        "waits": len(found["waits"]),
        "first_waits": found["waits"][:4],
        "exposed_us": found["exposed_us"],
        "advice": found["advice"],
        "unmatched": found["unmatched"],
        "notes": found["notes"],
        "ledgers": len(ledgers_of_job(job)),
    }


def what_the_backend_writes(job: Path) -> list[dict[str, Any]]:
    """The arguments of a rank's first collectives in the trace, as they stand there: on the host and on the device."""
    from torchledger.traces.reading import read_trace

    trace = read_trace(job / "rank0.trace.json.gz")
    rows = [
        row
        for row in range(len(trace.events))
        if "record_param_comms" in trace.name(row) or trace.name(row).startswith(("ncclDev", "nccl:", "c10d::"))
    ]
    found: dict[str, dict[str, Any]] = {}
    for row in rows:
        found.setdefault(trace.name(row)[:60], {"name": trace.name(row)[:60]} | dict(trace.arguments(row)))
    head = {"name": "metadata"} | {key: trace.metadata.get(key) for key in ("distributedInfo", "baseTimeNanoseconds")}
    return [head, *list(found.values())[:8]]


def add_job(tar: tarfile.TarFile, case: str, job: Path) -> None:
    """Put a job's ledgers into an archive, without their traces."""
    for path in sorted(job.glob("*")):
        if path.is_file() and "trace" not in path.name:
            tar.add(path, f"{case.replace(':', '_')}.job/{path.name}")


def keep(job: Path, case: str, archive: Path) -> None:
    """Add a job to an archive; what it holds already stays."""
    rest = Path(tempfile.gettempdir()) / f"jobs-{os.getpid()}.tar"
    with tarfile.open(rest, "a") as tar:
        add_job(tar, case, job)
    with rest.open("rb") as plain, gzip.open(archive, "wb", compresslevel=6) as packed:
        shutil.copyfileobj(plain, packed)


def main() -> None:
    """Run the cases."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("cases", nargs="*", default=CASES)
    parser.add_argument("-o", "--output", type=Path, required=True)
    parser.add_argument("--budget", type=float, default=350, help="seconds for all cases")
    parser.add_argument("--limit", type=float, default=75, help="seconds for one process")
    parser.add_argument("--jobs", type=int, default=0, help="warm up all cases first, so many at once")
    parser.add_argument("--again", action="store_true", help="run each case without torchledger once more at the end")
    parser.add_argument("--keep", type=Path, help="keep the jobs' ledgers in this archive (.tar.gz)")
    parser.add_argument("--steps", type=int, default=30)
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--device", default="cuda", choices=["cuda", "cpu"])
    options = parser.parse_args()
    end_s = time.monotonic() + options.budget
    options.output.parent.mkdir(parents=True, exist_ok=True)
    rows: list[dict[str, Any]] = []
    if options.jobs:
        with ThreadPoolExecutor(options.jobs) as pool:
            kinds = dict.fromkeys(":".join(case.split(":")[:2]) for case in options.cases)
            for said in pool.map(lambda case: warm_up(case, options, end_s), kinds):
                print(said, flush=True)
    for case in options.cases:
        left = end_s - time.monotonic()
        if left < 25:
            rows.append({"case": case, "not_begun": "the budget is spent"})
            continue
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name)
            try:
                row = record(case, options, folder, end_s)
                if not rows and (folder / "j.job").is_dir():
                    row["trace"] = what_the_backend_writes(folder / "j.job")
                if options.keep is not None and (folder / "j.job").is_dir():
                    keep(folder / "j.job", case, options.keep)
            except Exception as error:  # the next case may do
                row = {"case": case, "error": f"{type(error).__name__}: {error}"[:800]}
        rows.append(row)
        options.output.write_text(json.dumps(rows, default=str))
        said = {
            "own_ms": row.get("own_ms"),
            "covered": [rank.get("covered_share") for rank in row.get("ranks", [])],
            "parts": [round(rank["parts_over_wall"], 4) for rank in row.get("ranks", [])],
            "peaks": row.get("peak_allocated_bytes"),
            "over_plain": [rank["step_over_plain"] for rank in row.get("ranks", [])],
            "straggler": row.get("stragglers", [])[:1],
            "problem": row.get("tail", row.get("error", ""))[-300:],
        }
        print(case, json.dumps(said, default=str), flush=True)
    options.output.write_text(json.dumps(rows, default=str))


if __name__ == "__main__":
    main()
