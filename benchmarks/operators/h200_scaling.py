"""Sampling on several CUDA devices: scaling of the local engine, and collectives.

    python -m benchmarks.operators.h200_scaling --plan PLAN_FOLDER -o OUT [--limit 280] [--seconds 25]

PLAN_FOLDER comes from ``h200_sample.py --make-plan``. Prints as it goes; each part keeps to its own time limit. Writes
OUT/scaling_summary.json, OUT/collectives.parquet and OUT/scaling_samples.parquet.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
import traceback
from pathlib import Path
from typing import Any

from benchmarks.operators.h200_sample import STARTED, least_us, say
from torchledger.sampling.collectives import CollectivePoint, collect_collectives, link_topology
from torchledger.sampling.dataset import count_by_status, read_samples, write_samples
from torchledger.sampling.engines import Job, run_engine
from torchledger.sampling.journal import JOURNAL_FOLDER
from torchledger.sampling.points import Plan, load_plan, save_plan
from torchledger.sampling.supervisor import WorkerOptions

NEEDS: tuple[str, ...] = ("two GPUs",)
RUNS: tuple[tuple[str, ...], ...] = (("--plan", "{out}/../h200_sample", "-o", "{out}"),)


def steady_rate(folder: Path) -> tuple[float, int]:
    """Shapes per second over all workers, each from its first finished point to its last; and points in all."""
    rate, total = 0.0, 0
    for path in sorted((folder / JOURNAL_FOLDER).glob("*.jsonl")):
        lines = [json.loads(line) for line in path.read_text().splitlines()]
        times = [line["utc"] for line in lines if line["kind"] == "point"]
        # The first group's points appear together; its time is not part of the stretch that is counted.
        later = [utc for utc in times if utc > times[0] + 0.05]
        if later:
            rate += len(later) / (times[-1] - times[0])
        total += len(times)
    return rate, total


def scaling(plan: Plan, counts: list[int], seconds: float, out: Path) -> dict[str, Any]:
    """The same plan with one worker, then with several, each for as many seconds."""
    small = tuple(p for p in plan.points if least_us(p) < 400 and p.operator != "conv2d")
    plan = dataclasses.replace(plan, points=small)
    found: dict[str, Any] = {"cpu_cores": os.cpu_count(), "runs": {}}
    medians: dict[int, dict[tuple[str, str], float]] = {}
    for count in counts:
        with tempfile.TemporaryDirectory() as scratch:
            folder = Path(scratch)
            save_plan(plan, folder)
            started = time.monotonic()
            run_engine("local", Job(folder, WorkerOptions("cuda", 64, seconds), workers=count))
            wall = time.monotonic() - started
            rate, points = steady_rate(folder)
            samples = read_samples(folder)
            if count == max(counts):
                write_samples(out / "scaling_samples.parquet", samples)
        medians[count] = {(s.point_id, s.direction): statistics.median(s.times_us) for s in samples if s.times_us}
        found["runs"][str(count)] = {
            "shapes_per_s": round(rate, 1),
            "points": points,
            "wall_s_with_start_up": round(wall, 1),
            "statuses": count_by_status(samples),
        }
        say(f"scaling: {count} workers: {found['runs'][str(count)]}")
    one = found["runs"][str(counts[0])]["shapes_per_s"]
    for count in counts[1:]:
        shared = medians[counts[0]].keys() & medians[count].keys()
        differences = sorted(abs(medians[count][key] / medians[counts[0]][key] - 1) * 100 for key in shared)
        found["runs"][str(count)] |= {
            "times_one": round(found["runs"][str(count)]["shapes_per_s"] / one, 3),
            "labels_compared": len(shared),
            "median_difference_pct": round(statistics.median(differences), 3) if differences else None,
        }
    say(f"scaling: {found}")
    return found


def collective_points(world: int) -> list[CollectivePoint]:
    """1 KB to 1 GB in factors of two, for groups of two up to all."""
    points = []
    for size in sorted({2, world}):
        for dtype, item_size in (("bfloat16", 2), ("float32", 4)):
            for name in ("all_reduce", "all_gather", "reduce_scatter", "all_to_all", "broadcast", "p2p"):
                if name == "p2p" and size > 2:
                    continue
                points += [CollectivePoint(name, 2**power // item_size, dtype, size) for power in range(10, 31)]
    return points


def collectives(world: int, out: Path, limit_s: float) -> dict[str, Any]:
    """Run this file's rank part under torchrun and read what it left."""
    with tempfile.TemporaryDirectory() as scratch:
        command = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={world}"]
        command += ["-m", __spec__.name, "--ranks", scratch]
        problem = None
        started = time.monotonic()
        try:
            subprocess.run(command, check=True, timeout=limit_s)
        except (subprocess.CalledProcessError, subprocess.TimeoutExpired) as error:
            problem = str(error)
        samples = read_samples(scratch)
    write_samples(out / "collectives.parquet", samples)
    found: dict[str, Any] = {"samples": len(samples), "seconds": round(time.monotonic() - started, 1)}
    found |= {"statuses": count_by_status(samples), "problem": problem, "links": link_topology()}
    for sample in samples:
        if sample.times_us and sample.dtype == "bfloat16" and sample.parameters["numel"] in (2**9, 2**19, 2**29):
            us = statistics.median(sample.times_us)
            rate = (sample.bytes_moved or 0) / us / 1e3
            say(f"{sample.operator} of {sample.parameters}: {us:.1f} us, {rate:.1f} GB/s on the bus, {sample.clock}")
    reasons = {f"{s.operator} {s.status}: {s.reason}" for s in samples if s.status != "ok"}
    found["reasons"] = sorted(reasons)[:10]
    say(f"collectives: {found}")
    return found


def main() -> None:
    """Run both parts."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--plan", type=Path)
    parser.add_argument("-o", "--out", type=Path)
    parser.add_argument("--limit", type=float, default=280.0)
    parser.add_argument("--seconds", type=float, default=25.0, help="how long each scaling run measures")
    parser.add_argument("--ranks", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.ranks:
        world = int(os.environ["WORLD_SIZE"])
        collect_collectives(collective_points(world), options.ranks)
        return
    import torch

    world = torch.cuda.device_count()
    out: Path = options.out
    out.mkdir(parents=True, exist_ok=True)
    summary: dict[str, Any] = {"gpus": world}
    # Collectives first: they take seconds and no other part can stand in for them.
    for name in ("collectives", "scaling"):
        left = options.limit - (time.monotonic() - STARTED)
        try:
            if name == "collectives":
                summary[name] = collectives(world, out, min(90.0, left))
            else:
                counts = [count for count in (1, 2, 4) if count <= world]
                summary[name] = scaling(load_plan(options.plan), counts, options.seconds, out)
        except Exception as error:
            summary[name] = {"problem": f"{type(error).__name__}: {error}"}
            traceback.print_exc()
        (out / "scaling_summary.json").write_text(json.dumps(summary, indent=1))
    say("finished")


if __name__ == "__main__":
    main()
