"""Steps at the power limit as data to fit: what their kernels are planned to need beside the clocks that were read.

    python -m benchmarks.machines.power_steps POWER.json [CLOCKS.json ...] -o FILE.json [--jobs JOBS.json ...]
        [--sizes drawn17]

``POWER.json`` is what ``power_cuda.py`` wrote, ``CLOCKS.json`` of ``clocks_cuda.py`` on the same device, ``JOBS.json``
of ``job_waves_cuda.py --plain --watch``, of which the tensor parallel jobs that were at the power limit are taken: what
stands between their kernels is collectives. Each is planned without a GPU; the output holds all of the first file and
the steps. ``torchledger fit-constants`` and ``fit_power.py`` read it. Needs Triton.
"""

from __future__ import annotations

import argparse
import json
import statistics
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from benchmarks.plans.planned_jobs import plan_job
from torchledger.fitting.power_costs import PowerStep
from torchledger.planning.rank_entries import TimedRank
from torchledger.predicting.power import StepWork

LIMITED = 0.97
"""A share of the highest clock below which the limit is what lowers it."""


def work_of_step(strategy: str, size: str, device: str) -> tuple[StepWork, float, float]:
    """What draws power in a planned step of the transformer, alone or of the first of two ranks; the step and its
    collectives in microseconds: all at full clocks."""
    seen: list[tuple[StepWork, float, float]] = []
    original = TimedRank.slow_down

    def noted(self: TimedRank, duration_us: float, held_us: float, *others: Any) -> bool:
        work = sum((work for work, _ in self.worked.values()), StepWork())
        seen.append((work, duration_us, held_us))
        return original(self, duration_us, held_us, *others)

    TimedRank.slow_down = noted  # type: ignore[method-assign]
    try:
        plan_job(strategy, size, device)
    finally:
        TimedRank.slow_down = original  # type: ignore[method-assign]
    return seen[0]


def clocks_of_jobs(paths: Sequence[Path], most_mhz: float) -> dict[tuple[str, str], float]:
    """Of the tensor parallel jobs that the limit slowed the mean of their GPUs' clocks, by strategy and size."""
    found: dict[tuple[str, str], list[float]] = {}
    for path in paths:
        for case, answer in json.loads(path.read_text()).items():
            gpus = [gpu["sm_mhz"] for gpu in answer.get("plain", {}).get("gpus", [])]
            if case.startswith("tp:") and gpus and statistics.mean(gpus) < LIMITED * most_mhz:
                found.setdefault(("tp", case.partition(":")[2]), []).append(statistics.mean(gpus))
    return {case: statistics.mean(clocks) for case, clocks in found.items()}


def main() -> None:
    """Plan, and write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("power", type=Path)
    parser.add_argument("clocks", type=Path, nargs="*")
    parser.add_argument("--jobs", type=Path, nargs="*", default=[])
    parser.add_argument("-o", "--output", type=Path, required=True)
    parser.add_argument("--sizes", nargs="*")
    parser.add_argument("--device", default="H200")
    options = parser.parse_args()
    rows = json.loads(options.power.read_text())
    steps: dict[str, dict[str, float]] = dict(rows.get("steps", {}))
    read = [each for path in options.clocks for each in json.loads(path.read_text())["sizes"].items()]
    wanted = {("alone_blocks", size): found["sm_mhz"] for size, found in read}
    took_us = {size: 1e3 * found["plain_ms"][-1] for size, found in read}
    wanted |= clocks_of_jobs(options.jobs, float(rows["limits"].split(",")[1]))
    for (strategy, size), sm_mhz in wanted.items():
        if options.sizes and size not in options.sizes:
            continue
        work, step_us, collectives_us = work_of_step(strategy, size, options.device)
        step = PowerStep(
            work.products_us,
            work.product_flops,
            work.attention_us,
            work.others_us,
            step_us,
            sm_mhz,
            collectives_us,
            took_us.get(size) if strategy == "alone_blocks" else None,
        )
        name = size if strategy == "alone_blocks" else f"{strategy} {size}"
        steps[name] = {name: round(value, 1) for name, value in asdict(step).items() if value is not None}
        print(name, steps[name], flush=True)
    options.output.write_text(json.dumps(rows | {"steps": steps}, indent=1) + "\n")


if __name__ == "__main__":
    main()
