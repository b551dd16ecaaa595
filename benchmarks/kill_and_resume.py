"""Kill a sampling worker with ``kill -9`` at 50 random moments; what is on disk at the end must equal an uninterrupted
run, each shape once.

    python benchmarks/kill_and_resume.py [--kills 50] [--points 1500] [--seed 0]

Needs no GPU. Each kill falls at a random time after the worker's start, so that some hit its start-up, some a
measurement, some a write. Exits with 1 if anything is lost or repeated.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import signal
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

import torch

from torchledger.sampling.dataset import read_samples
from torchledger.sampling.journal import JOURNAL_FOLDER, read_journals
from torchledger.sampling.points import Plan, Point, save_plan, unique_points
from torchledger.sampling.worker import run_worker

NEEDS: tuple[str, ...] = ()
RUNS: tuple[tuple[str, ...], ...] = ((),)


def start_worker(folder: Path) -> int:
    """A worker in a forked child, which spares it the second that importing torch takes."""
    child = os.fork()
    if child:
        return child
    code = 1
    try:
        torch.set_num_threads(1)
        run_worker(folder, device="cpu")
        code = 0
    finally:
        os._exit(code)


def journaled_points(folder: Path) -> list[str]:
    """Every finished point in every journal, repeats and all."""
    points = []
    for path in sorted((folder / JOURNAL_FOLDER).glob("*.jsonl")):
        for line in path.read_bytes().splitlines(keepends=True):
            if line.endswith(b"\n") and (entry := json.loads(line))["kind"] == "point":
                points.append(entry["point"])
    return points


def main() -> int:
    """Run and judge."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=50)
    parser.add_argument("--points", type=int, default=1500)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    source = random.Random(options.seed)
    points = unique_points(
        [Point("linear", {"m": 8 + i % 40, "k": 8 + i // 40, "n": 16}, "float32") for i in range(options.points)]
    )
    plan = Plan(points, warmup=1, active=10)
    with tempfile.TemporaryDirectory() as scratch:
        whole, killed = Path(scratch, "whole"), Path(scratch, "killed")
        for folder in (whole, killed):
            save_plan(plan, folder)
        started, started_utc = time.monotonic(), time.time()
        os.waitpid(start_worker(whole), 0)
        usual_s = time.monotonic() - started
        start_up_s = min(read_journals(whole, samples=False).finished_utc.values()) - started_utc
        share_s = (usual_s - start_up_s) / options.kills
        kills = early = 0
        while kills < options.kills:
            worker = start_worker(killed)
            # On average the kills leave each run its share of the points, and some fall into its start-up.
            time.sleep(source.uniform(0.5 * start_up_s, 1.5 * start_up_s + share_s))
            ended, _ = os.waitpid(worker, os.WNOHANG)
            if ended:
                early += 1
                break
            os.kill(worker, signal.SIGKILL)
            os.waitpid(worker, 0)
            kills += 1
        before = len(journaled_points(killed))
        os.waitpid(start_worker(killed), 0)
        finished = journaled_points(killed)
        repeats = {point: count for point, count in Counter(finished).items() if count > 1}
        expected = {(s.point_id, s.direction, s.status) for s in read_samples(whole)}
        found = {(s.point_id, s.direction, s.status) for s in read_samples(killed)}
        result = {
            "points": len(points),
            "kills": kills,
            "runs_that_ended_before_their_kill": early,
            "uninterrupted_run_s": round(usual_s, 2),
            "start_up_s": round(start_up_s, 2),
            "finished_before_the_last_run": before,
            "torn_lines": read_journals(killed, samples=False).torn_lines,
            "lost": len(expected - found),
            "extra": len(found - expected),
            "measured_twice": len(repeats),
        }
    print(json.dumps(result, indent=1))
    return 0 if not (result["lost"] or result["extra"] or repeats) else 1


if __name__ == "__main__":
    sys.exit(main())
