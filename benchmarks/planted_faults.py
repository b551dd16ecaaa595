"""Plant a fault into each function of ours that runs inside a program, and see that it goes on and the loss is said.

    python benchmarks/planted_faults.py [--mode profile] [--jobs 8] [--seconds 7200] [--outcomes FILE [--new]] [--list]
        [--output docs/results/faults.md]

Needs no GPU, and uses none. The harness is ``tests/plant_faults.py``, of which the tests run a few cases.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT / "tests"), str(ROOT / "src")]
os.environ["CUDA_VISIBLE_DEVICES"] = ""

from plant_faults import main  # noqa: E402 - after the path is set

NEEDS: tuple[str, ...] = ()
RUNS: tuple[tuple[str, ...], ...] = (("--output", "docs/results/faults.md"),)
QUICK: tuple[tuple[str, ...], ...] = (("--seconds", "60", "--output", "{out}/faults.md"),)

if __name__ == "__main__":
    sys.exit(main())
