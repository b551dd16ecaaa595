"""The collectives of a plan beside those that ranks recorded: operation, message and group, in order.

``python -m benchmarks.plans.plan_ranks -o FILE [--ranks N] [STRATEGY ...]`` plans each strategy of ``job_programs.py``
for so many ranks, records it with as many gloo processes, and compares rank by rank. ``--jobs FOLDER`` takes jobs that
were recorded before (``FOLDER/STRATEGY.job`` or ``FOLDER/STRATEGY_SIZE.job``) in place of new ones, and where
``job_waves_cuda.py`` left ``jobs.json`` beside them, the price of the step is held against the programs' own. Messages
are compared in elements: the CPU computes in float32, the plan in bfloat16. Needs Triton and a C++ compiler, no GPU.
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

from benchmarks.shared.limited import run_limited
from benchmarks.shared.places import ROOT

NEEDS: tuple[str, ...] = ("triton",)
RUNS: tuple[tuple[str, ...], ...] = (("-o", "{out}/plan_ranks.json"),)
PROGRAM = ("-m", "benchmarks.jobs.job_programs")
STRATEGIES = (
    *("ddp", "fsdp2", "fsdp2_eager", "tp", "tp_sp", "context", "experts"),
    *("pp_gpipe", "pp_1f1b", "pp_interleaved", "pp_zero_bubble"),
)
_BYTES = {"float32": 4, "bfloat16": 2, "int64": 8, "float16": 2}


def collectives_of(ledger: Path) -> list[tuple[Any, ...]]:
    """Operation, elements of the message, group's size and peer of each collective of one step, in order."""
    from torchledger.nouns import Collective
    from torchledger.store import open_ledger

    with open_ledger(ledger) as opened:
        found = opened.read(Collective)
    first = min((each.index for each in found), default=0)
    return [
        (
            each.operation,
            None if each.message_bytes is None else each.message_bytes // _BYTES.get((each.dtype or "").lower(), 1),
            each.group_size,
        )
        for each in sorted(found, key=lambda each: each.order)
        if each.index == first
    ]


def compare(name: str, planned: Path, recorded: Path) -> dict[str, Any]:
    """Each planned rank beside the one that was recorded."""
    from torchledger.store.job import ledgers_of_job

    theirs = ledgers_of_job(recorded)
    ranks = []
    for rank, path in ledgers_of_job(planned).items():
        ours, measured = collectives_of(path), collectives_of(theirs[rank])
        ranks.append(
            {
                "rank": rank,
                "planned": len(ours),
                "recorded": len(measured),
                "elements_planned": sum(each[1] or 0 for each in ours),
                "elements_recorded": sum(each[1] or 0 for each in measured),
                "same_in_order": ours == measured,
                "same_as_sets": Counter(ours) == Counter(measured),
                "operations": dict(Counter(each[0] for each in ours)),
            }
        )
    return {"strategy": name, "ranks": ranks}


def plan(
    name: str, size: str, world: int, folder: Path, device: str, limit: float, host: Path | None
) -> tuple[Path, dict[str, Any], float]:
    """The job of a plan, its price, and how long it took."""
    began = time.monotonic()
    options = ["--world", str(world), "--device", device, "-o", str(folder / "plan.ledger"), "--force", "--json"]
    options += [] if host is None else ["--host", str(host.resolve())]
    program = [*PROGRAM, name, "--device", "cuda", "--size", size, "--steps", "6"]
    command = [sys.executable, "-m", "torchledger", "plan", *options, *program]
    code, output = run_limited(command, limit, folder=folder, paths=(ROOT,))
    if not (folder / "plan.job").is_dir() or code not in (0, 1):
        raise RuntimeError(output[-600:])
    price: dict[str, Any] = json.JSONDecoder().raw_decode(output[output.index("{\n") :])[0]
    return folder / "plan.job", price, time.monotonic() - began


def beside_measured(price: dict[str, Any], own: dict[str, Any]) -> dict[str, Any]:
    """The planned step and peak of the first rank, and what the program without torchledger measured."""
    peaks = [each.get("peak_allocated_bytes") for each in own.get("ranks", [])]
    step, measured_ms = price["step"], own.get("own_ms")
    planned_ms = step["duration_us"] / 1e3
    return {
        "planned_ms": round(planned_ms, 2),
        "interval_ms": [round(step["low_us"] / 1e3, 2), round(step["high_us"] / 1e3, 2)],
        "host_ms": round(step["host_us"] / 1e3, 2),
        "decided_by": step["decided_by"],
        "own_ms": measured_ms,
        "error_pct": None if not measured_ms else round(100 * (planned_ms / measured_ms - 1), 1),
        "exposed_ms": round(price["communication"]["exposed_us"] / 1e3, 2),
        "planned_peak_bytes": price["memory"]["peak_allocated_bytes"],
        "measured_peak_bytes": peaks[0] if peaks else None,
    }


def record(name: str, world: int, folder: Path, limit: float) -> Path:
    """The job of gloo processes."""
    launcher = ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={world}"]
    ledger = ["-m", "torchledger", "run", "--profile", "-o", "j.ledger", "--force"]
    command = [sys.executable, *ledger, *launcher, *PROGRAM, name, "--size", "tiny", "--steps", "18"]
    code, output = run_limited(command, limit, folder=folder, paths=(ROOT,), OMP_NUM_THREADS="1")
    if code:
        raise RuntimeError(output[-600:])
    return folder / "j.job"


def main() -> None:
    """Plan, record, compare; the file is written after each strategy."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("strategies", nargs="*", default=STRATEGIES)
    parser.add_argument("-o", "--output", type=Path, required=True)
    parser.add_argument("--ranks", type=int, default=4)
    parser.add_argument("--size", default="tiny")
    parser.add_argument("--device", default="H200")
    parser.add_argument("--jobs", type=Path, help="folder of jobs that were recorded before")
    parser.add_argument("--plans", type=Path, help="folder of plans that were made before")
    parser.add_argument("--host", type=Path, help="a host's file, as doctor measured it where the jobs ran")
    parser.add_argument("--limit", type=float, default=600, help="seconds for one job")
    options = parser.parse_args()
    options.output.parent.mkdir(parents=True, exist_ok=True)
    rows: list[dict[str, Any]] = []
    for name in options.strategies:
        with tempfile.TemporaryDirectory() as folder:
            try:
                price, seconds = None, None
                if options.plans is not None:
                    planned = options.plans / f"{name}.job"
                else:
                    planned, price, seconds = plan(
                        name, options.size, options.ranks, Path(folder), options.device, options.limit, options.host
                    )
                named = [] if options.jobs is None else [f"{name}_{options.size}.job", f"{name}.job", f"{name}/j.job"]
                known = [options.jobs / each for each in named if (options.jobs / each).is_dir()]
                recorded = known[0] if known else record(name, options.ranks, Path(folder), options.limit)
                rows.append(compare(name, planned, recorded) | {"size": options.size, "seconds": seconds})
                measured = options.jobs / "jobs.json" if options.jobs is not None else None
                if price is not None and measured is not None and measured.exists():
                    own = json.loads(measured.read_text()).get(f"{name}:{options.size}", {}).get("plain", {})
                    rows[-1] |= beside_measured(price, own)
            except Exception as error:  # the next strategy may do
                rows.append({"strategy": name, "error": f"{type(error).__name__}: {error}"})
        options.output.write_text(json.dumps(rows, indent=1))
        print(json.dumps(rows[-1]), flush=True)


if __name__ == "__main__":
    main()
