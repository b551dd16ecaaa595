"""Steps at the power limit as data to fit: what their kernels are planned to need beside the clocks that were read.

    python benchmarks/power_steps.py POWER.json CLOCKS.json -o FILE.json [--sizes drawn17 drawn16]

``POWER.json`` is what ``power_cuda.py`` wrote, ``CLOCKS.json`` of ``clocks_cuda.py`` on the same device. Each size is
planned without a GPU; the output holds the rows of the first file, and the steps. ``torchledger fit-constants`` and
``fit_power.py`` read it. Needs Triton.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

from torchledger.cli import main as torchledger
from torchledger.fitting.power_costs import PowerStep
from torchledger.planning.rank_entries import TimedRank
from torchledger.predicting.power import StepWork

PROGRAM = Path(__file__).resolve().parent / "job_programs.py"


def work_of_step(size: str, device: str) -> tuple[StepWork, float]:
    """What draws power in a planned step of the transformer alone, each block compiled, and the step in microseconds,
    both at full clocks."""
    seen: list[tuple[StepWork, float]] = []
    original = TimedRank.slow_down

    def noted(self: TimedRank, duration_us: float, *others: Any) -> bool:
        seen.append((sum((work for work, _ in self.worked.values()), StepWork()), duration_us))
        return original(self, duration_us, *others)

    TimedRank.slow_down = noted  # type: ignore[method-assign]
    script = [str(PROGRAM), "alone_blocks", "--size", size, "--device", "cuda", "--steps", "12"]
    try:
        with contextlib.redirect_stdout(io.StringIO()), contextlib.suppress(SystemExit):
            torchledger(["plan", "--json", "--device", device, "--world", "1", *script])
    finally:
        TimedRank.slow_down = original  # type: ignore[method-assign]
    return seen[0]


def main() -> None:
    """Plan, and write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("power", type=Path)
    parser.add_argument("clocks", type=Path, nargs="+")
    parser.add_argument("-o", "--output", type=Path, required=True)
    parser.add_argument("--sizes", nargs="*")
    parser.add_argument("--device", default="H200")
    options = parser.parse_args()
    rows = json.loads(options.power.read_text())
    steps: dict[str, dict[str, float]] = {}
    for path in options.clocks:
        for size, found in json.loads(path.read_text())["sizes"].items():
            if options.sizes and size not in options.sizes:
                continue
            work, step_us = work_of_step(size, options.device)
            step = PowerStep(
                work.products_us,
                work.product_flops,
                work.attention_us,
                work.others_us,
                step_us,
                found["sm_mhz"],
            )
            steps[size] = {name: round(value, 1) for name, value in asdict(step).items()}
            print(size, steps[size], flush=True)
    options.output.write_text(json.dumps(rows | {"steps": steps}, indent=1) + "\n")


if __name__ == "__main__":
    main()
