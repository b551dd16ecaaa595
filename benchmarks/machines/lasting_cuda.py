"""How long a training step takes after 1, 10 and 60 seconds without rest, and the clocks and watts of each moment.

    python -m benchmarks.machines.lasting_cuda -o FILE.json [--gpu 0] [--seconds 61] [drawn1 ...]

Trains the transformer of ``job_programs.py`` alone, each block compiled, at one size after the other; all are compiled
first, side by side. Each begins from a device that has rested. A moment's step is the median of those that began in the
tenth of the run before it. ``python -m benchmarks.machines.lasting_cuda --plan FILE.json [--device H100]`` says beside
them what a plan says of the same step; that needs Triton and no GPU.
"""

from __future__ import annotations

import argparse
import itertools
import json
import random
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

NEEDS: tuple[str, ...] = ("cuda",)
RUNS: tuple[tuple[str, ...], ...] = (("-o", "{out}/lasting.json", "--seconds", "2", "drawn22"),)

MOMENTS_S = (1.0, 10.0, 60.0)
REST_S = 5.0
UNUSED = (1, 2, 3, 4, 9, 10, 11, 12, 13, 14, 15, 18, 19, 20, *range(23, 38), 39, 40, 41, 43, *range(45, 48), 49)
"""Numbers of drawn sizes that nothing was fitted to when these were drawn."""
DRAWN = tuple(f"drawn{number}" for number in random.Random("runs that last, 2026-11-28").sample(UNUSED, 4))


def run(step: Callable[[], None], seconds: float, gpu: int) -> dict[str, Any]:
    """Steps without rest, each waited for."""
    import torch

    from benchmarks.machines.power_cuda import Smi

    smi = Smi(gpu)
    time.sleep(REST_S)
    torch.cuda.synchronize()
    began = time.perf_counter()
    moments = [began]
    while moments[-1] - began < seconds:
        step()
        torch.cuda.synchronize()
        moments.append(time.perf_counter())
    smi.process.terminate()
    found: dict[str, Any] = {"steps": len(moments) - 1, "first_ms": 1e3 * (moments[1] - moments[0])}
    for moment_s in MOMENTS_S:
        if moment_s > seconds:
            continue
        spans = itertools.pairwise(moments)
        inside = [after - before for before, after in spans if 0.9 * moment_s <= after - began <= moment_s]
        found[f"{moment_s:g} s"] = {
            "ms": 1e3 * statistics.median(inside) if inside else None,
            "count": len(inside),
            **smi.between(began + 0.9 * moment_s, began + moment_s),
        }
    return found


def child(size: str, seconds: float, gpu: int) -> None:
    """Compile, say so, wait to be let through, run."""
    import torch

    from benchmarks.machines.clocks_cuda import trained, wait_at_gate

    torch.cuda.set_device(gpu)
    step, marks = trained(size)
    marks.is_on = False
    wait_at_gate(step)
    print(json.dumps(run(step, seconds, gpu)), flush=True)


def measure(options: argparse.Namespace) -> None:
    """Start all, let them through one by one, write after each."""
    import torch

    from benchmarks.machines.clocks_cuda import let_through

    settings = ("--gpu", str(options.gpu), "--seconds", str(options.seconds))
    found: dict[str, Any] = {"device": torch.cuda.get_device_name(), "torch": torch.__version__, "sizes": {}}
    for size, said in let_through(__spec__.name, options.sizes, *settings):
        found["sizes"][size] = said
        print(size, json.dumps(said), flush=True)
        options.out.write_text(json.dumps(found, indent=1) + "\n")


def compare(options: argparse.Namespace) -> None:
    """Each measured moment beside the planned step."""
    from benchmarks.plans.planned_jobs import plan_job

    print("| size | planned, ms | after 1 s | after 10 s | after 60 s | watts, clocks |\n|---|---|---|---|---|---|")
    for size, found in json.loads(options.plan.read_text())["sizes"].items():
        said_ms = plan_job("alone_blocks", size, options.device)["duration_us"] / 1e3
        cells, state = [], []
        for moment_s in MOMENTS_S:
            row = found.get(f"{moment_s:g} s")
            cells.append(f"{row['ms']:.1f}, {100 * (said_ms / row['ms'] - 1):+.1f} %" if row else "-")
            state += [f"{row['watts']:.0f} W at {row['sm_mhz']:.0f} MHz"] if row and row["watts"] else []
        print(f"| {size} | {said_ms:.1f} | {' | '.join(cells)} | {', '.join(state)} |", flush=True)


def main() -> None:
    """Measure, or compare."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("sizes", nargs="*", default=list(DRAWN))
    parser.add_argument("-o", "--out", type=Path, default=Path("lasting.json"))
    parser.add_argument("--seconds", type=float, default=61.0)
    parser.add_argument("--gpu", type=int, default=0)
    parser.add_argument("--plan", type=Path, metavar="FILE", help="compare what this file holds with plans")
    parser.add_argument("--device", default="H100")
    parser.add_argument("--child", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child:
        child(options.sizes[0], options.seconds, options.gpu)
    elif options.plan is not None:
        compare(options)
    else:
        measure(options)


if __name__ == "__main__":
    main()
