"""Jobs of four gloo processes, one for each strategy: whether what the job holds is what gloo ran, whether every wait
has a cause, and whether a rank that sleeps 50 ms is named with its place and its cost.

``python -m benchmarks.jobs.job_cpu -o FILE [--ranks N] [STRATEGY ...]``; FILE is written after each.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any

from benchmarks.jobs.job_cuda import PROGRAM, errors_of
from benchmarks.shared.limited import run_limited
from benchmarks.shared.places import ROOT

NEEDS: tuple[str, ...] = ()
RUNS: tuple[tuple[str, ...], ...] = (("-o", "{out}/job_cpu.json"),)
LATE_RANK, LATE_MS = 1, 50
STRATEGIES = (
    *("ddp", "fsdp2", "tp", "tp_sp", "pp_1f1b", "pp_gpipe", "pp_interleaved", "pp_zero_bubble", "context", "experts"),
    "ddp_python",
)


def record(name: str, options: argparse.Namespace, folder: Path) -> dict[str, Any]:
    """One strategy with one rank that sleeps."""
    launcher = ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={options.ranks}"]
    program = [*PROGRAM, name, "--size", "tiny", "--steps", "18", "--late", f"{LATE_RANK}:{LATE_MS}"]
    ledger = ["-m", "torchledger", "run", "--profile", "-o", "j.ledger", "--force"]
    began = time.monotonic()
    command = [sys.executable, *ledger, *launcher, *program]
    code, output = run_limited(command, options.limit, folder=folder, paths=(ROOT,), OMP_NUM_THREADS="1")
    found: dict[str, Any] = {"strategy": name, "exit": code, "seconds": round(time.monotonic() - began, 1)}
    return found | ({"tail": errors_of(output)} if code else read(folder / "j.job"))


def read(job: Path) -> dict[str, Any]:
    """What the job says and its checks."""
    from torchledger.jobs.read import read_job
    from torchledger.nouns import Collective
    from torchledger.store import open_ledger
    from torchledger.store.job import ledgers_of_job

    found = read_job(job)
    counts = []
    for path in ledgers_of_job(job).values():
        with open_ledger(path) as ledger:
            collectives = ledger.read(Collective)
        counts.append(
            {
                "recorded": len(collectives),
                "gloo": sum(ranges_of_gloo(path.with_suffix(".trace.json.gz")).values()),
                "without_time": sum(each.ended_ns is None for each in collectives),
                "without_bytes": sum(each.message_bytes is None for each in collectives),
                "bytes": sum(each.message_bytes or 0 for each in collectives),
                "operations": dict(Counter(each.operation for each in collectives)),
            }
        )
    late = [each for each in found.collectives if max(each.waited_us) > 1000]
    return {
        "ranks": counts,
        "matched": len(found.collectives),
        "unmatched": dict(found.unmatched),
        "notes": list(found.notes),
        "waits": len(late),
        "with_cause": sum(each.cause is not None for each in late),
        "parts_over_wall": [(rank.compute_us + rank.exposed_us + rank.idle_us) / rank.wall_us for rank in found.ranks],
        "stragglers": [
            {"rank": each.rank, "where": each.where, "cost_us": round(each.cost_us)} for each in found.stragglers[:3]
        ],
        "advice": found.advice,
    }


def ranges_of_gloo(path: Path) -> Counter[str]:
    """gloo's own ranges in the recorded steps, by name."""
    from torchledger.traces.reading import read_trace
    from torchledger.traces.trace import EventKind

    trace = read_trace(path)
    rows = trace.rows(EventKind.ANNOTATION).tolist()
    steps = [row for row in rows if trace.name(row).startswith("torchledger-step#")]
    start = min(int(trace.events.start_ns[row]) for row in steps)
    return Counter(
        trace.name(row)
        for row in rows
        if trace.name(row).startswith("gloo:") and int(trace.events.start_ns[row]) >= start
    )


def main() -> None:
    """Run the strategies."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("strategies", nargs="*", default=STRATEGIES)
    parser.add_argument("-o", "--output", type=Path, required=True)
    parser.add_argument("--ranks", type=int, default=4)
    parser.add_argument("--limit", type=float, default=400, help="seconds for one job")
    options = parser.parse_args()
    options.output.parent.mkdir(parents=True, exist_ok=True)
    rows = []
    for name in options.strategies:
        with tempfile.TemporaryDirectory() as folder:
            try:
                rows.append(record(name, options, Path(folder)))
            except Exception as error:  # the next strategy may do
                rows.append({"strategy": name, "error": f"{type(error).__name__}: {error}"})
        options.output.write_text(json.dumps(rows, indent=1))
        print(json.dumps(rows[-1]), flush=True)


if __name__ == "__main__":
    main()
