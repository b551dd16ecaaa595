"""How far one program's kernels differ from process to process on one GPU.

    python -m benchmarks.strangers.again_cuda -o OUT

Drawn programs (``drawn_programs.py``) are recorded several times each, every time in a process of its own, all waiting
at one gate; then some of them once more with nothing else on the GPU. OUT gets ``again.json``: for each recording what
each launch took (median of its steps). ``python -m benchmarks.strangers.again_cuda --read OUT`` prints, by program, how
far the sums of its fused kernels and of all launches lie from the mean of its recordings: as near to one recording as
another recording is can no prediction be.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import tempfile
from collections import defaultdict
from dataclasses import replace
from pathlib import Path
from typing import Any

from benchmarks.strangers.strangers_cuda import Wave, recorded_program

NEEDS: tuple[str, ...] = ("cuda", "transformers")
RUNS: tuple[tuple[str, ...], ...] = (("-o", "{out}"),)

NAMES = ("sealed-1406", "sealed-1408", "sealed-1413", "sealed-1415", "sealed-1428", "sealed-1429")


def main() -> None:
    """Record, or read."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", default=NAMES, metavar="PROGRAM")
    parser.add_argument("-o", "--out", type=Path, default=Path(os.environ.get("OUT", ".")))
    parser.add_argument("--read", type=Path, metavar="OUT")
    parser.add_argument("--times", type=int, default=3)
    parser.add_argument("--alone", type=int, default=3, help="so many of them once more with the GPU to themselves")
    parser.add_argument("--tiny", action="store_true", help="small sizes on a CPU: to try the script itself")
    arguments = parser.parse_args()
    if arguments.read is not None:
        report(json.loads((arguments.read / "again.json").read_text()))
        return
    extra = ("--tiny", "--device", "cpu") if arguments.tiny else ()
    found: list[dict[str, Any]] = []
    arguments.out.mkdir(parents=True, exist_ok=True)
    work = Path(tempfile.mkdtemp(prefix="again-"))
    waves = [[(name, time) for time in range(arguments.times) for name in arguments.names]]
    waves += [[(name, arguments.times)] for name in arguments.names[: arguments.alone]]
    for pairs in waves:
        jobs = []
        for name, time in pairs:
            folder = work / str(time)
            folder.mkdir(exist_ok=True)
            jobs.append(replace(recorded_program(name, extra, folder), name=f"{name}.{time}"))
        wave = Wave(jobs, work, arguments.out, cores=os.cpu_count() or 1)
        wave.wait_ready(150)
        for job in wave.jobs:
            wave.pass_one(job)
        wave.open_way()
        wave.finish(60)
        for (name, time), job in zip(pairs, jobs, strict=True):
            if job.ledger is not None and "error" not in job.answer and job.ledger.exists():
                found.append({"program": name, "time": time, "alone": len(pairs) == 1, "us": _times_us(job.ledger)})
        (arguments.out / "again.json").write_text(json.dumps(found, separators=(",", ":")))


def _times_us(ledger: Path) -> dict[str, list[Any]]:
    """By launch: what kind it is, and what it took."""
    from torchledger.expecting.launch_families import family_of
    from torchledger.nouns import Launch
    from torchledger.store import open_ledger
    from torchledger.store.latest import latest_measurements

    with open_ledger(ledger) as reader:
        took = {each.subject: each.duration_us for each in latest_measurements(reader)}
        launches = reader.read(Launch)
    return {
        launch.launch_id: [str(family_of(launch)).partition(":")[2], round(took[launch.launch_id], 2)]
        for launch in launches
        if launch.launch_id in took
    }


def report(found: list[dict[str, Any]]) -> None:
    """Print how far recordings of one program lie from their mean."""
    by_program: defaultdict[str, list[dict[str, Any]]] = defaultdict(list)
    for row in found:
        by_program[row["program"]].append(row)
    print("| program | recordings | fused, us | all launches, us | alone | single launches differ by |")
    print("|---|---|---|---|---|---|")
    for name, rows in by_program.items():
        together = [row for row in rows if not row["alone"]]
        if len(together) < 2:
            continue
        sums = [[_sum(row, part) for row in rows] for part in ("fused", "")]
        shared = [row["us"] for row in together]
        apart = [
            max(each[launch][1] for each in shared) / min(each[launch][1] for each in shared) - 1
            for launch in shared[0]
            if all(launch in each for each in shared)
        ]
        told = [
            " ".join(f"{us:,.0f}{'*' if row['alone'] else ''}" for us, row in zip(each, rows, strict=True))
            for each in sums
        ]
        print(
            f"| {name} | {len(rows)} | {told[0]} | {told[1]} | {'*' if len(rows) > len(together) else ''} | "
            f"{statistics.median(apart):.1%} in the median, {max(apart):.0%} at most |"
        )


def _sum(row: dict[str, Any], part: str) -> float:
    return sum(us for family, us in row["us"].values() if family.startswith(part))


if __name__ == "__main__":
    main()
