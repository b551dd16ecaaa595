"""Kill with ``kill -9`` at 50 random moments; what was finished must be there.

    python benchmarks/kill_and_resume.py [--of sample] [--kills 50] [--points 1500] [--seed 0]
    python benchmarks/kill_and_resume.py --of run [--kills 50]         # or profile, or values

``sample``: a sampling worker; what is on disk at the end must equal an uninterrupted run, each shape once. ``run``,
``profile`` and ``values``: a script that compiles, under that command, its whole process group killed; the ledger must
open, each graph in it whole, a reading command must answer, and the next run must be able to replace it.

Needs no GPU. Each kill falls at a random time after the start, so that some hit start-up, some a measurement or a
compilation, some a write. Exits with 1 if anything is lost or repeated.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

import torch

from torchledger.errors import StoreError
from torchledger.nouns import Graph, Launch, Run
from torchledger.sampling.dataset import read_samples
from torchledger.sampling.journal import JOURNAL_FOLDER, read_journals
from torchledger.sampling.points import Plan, Point, save_plan, unique_points
from torchledger.sampling.worker import run_worker
from torchledger.store import open_ledger

NEEDS: tuple[str, ...] = ()
RUNS: tuple[tuple[str, ...], ...] = ((),)
QUICK: tuple[tuple[str, ...], ...] = (("--kills", "1", "--points", "60"),)


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


SCRIPT = """
import torch
from torch import nn

torch.manual_seed(0)
for width in (16, 24, 32):
    torch._dynamo.reset()
    model = torch.compile(nn.Sequential(nn.Linear(8, width), nn.GELU(), nn.LayerNorm(width)))
    for _ in range(9):
        model(torch.randn(4, 8)).sum().backward()
"""
COMMANDS = {"run": ("run",), "profile": ("run", "--profile"), "values": ("values", "--quiet")}


def start_command(of: str, folder: Path) -> subprocess.Popen[bytes]:
    """The script under a command, in a process group of its own, compiling everything anew."""
    return subprocess.Popen(
        [sys.executable, "-m", "torchledger", *COMMANDS[of], "-f", "-o", "a.ledger", "script.py"],
        cwd=folder,
        env=os.environ | {"TORCHINDUCTOR_FORCE_DISABLE_CACHES": "1", "TORCHINDUCTOR_COMPILE_THREADS": "1"},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )


def faults_of(path: Path) -> list[str]:
    """What is wrong with the ledger of a killed run."""
    if not path.exists():
        return []
    try:
        with open_ledger(path) as reader:
            launches = Counter(launch.graph for launch in reader.read(Launch) if launch.is_call)
            graphs = reader.read(Graph)
            reader.read(Run)
    except StoreError as error:
        return [f"does not open: {error}"]
    found = [f"{graph.name} is not whole" for graph in graphs if len(graph.wrapper_calls) != launches[graph.name]]
    shown = subprocess.run(
        [sys.executable, "-m", "torchledger", "show", str(path)], capture_output=True, text=True, check=False
    )
    if "Traceback" in shown.stderr:
        found.append(f"show ends in a traceback: {shown.stderr.splitlines()[-1]}")
    return found


def kill_command(of: str, kills: int, source: random.Random) -> int:
    """Kill one command again and again, and judge what each left."""
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        (folder / "script.py").write_text(SCRIPT)
        started = time.monotonic()
        is_fine = start_command(of, folder).wait() == 0
        usual_s = time.monotonic() - started
        faults: list[str] = []
        early = 0
        graphs: list[int] = []
        for _ in range(kills):
            process = start_command(of, folder)
            time.sleep(source.uniform(0, usual_s))
            early += process.poll() is not None
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            faults += faults_of(folder / "a.ledger")
            with contextlib.suppress(StoreError), open_ledger(folder / "a.ledger") as reader:
                graphs.append(reader.count(Graph))
        is_fine = start_command(of, folder).wait() == 0 and is_fine
        left = sorted(path.name for path in folder.iterdir() if path.suffix not in (".py", ".ledger", ".gz", ".values"))
        result = {
            "command": of,
            "kills": kills,
            "runs_that_ended_before_their_kill": early,
            "uninterrupted_run_s": round(usual_s, 1),
            "graphs_found_after_each_kill": sorted(graphs),
            "faults": faults,
            "the_run_after_them_all_is_fine": is_fine,
            "files_left_beside_it": left,
        }
    print(json.dumps(result, indent=1))
    return 0 if is_fine and not faults else 1


def main() -> int:
    """Run and judge."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--of", choices=("sample", *COMMANDS), default="sample")
    parser.add_argument("--kills", type=int, default=50)
    parser.add_argument("--points", type=int, default=1500)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    if options.of != "sample":
        return kill_command(options.of, options.kills, random.Random(options.seed))
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
