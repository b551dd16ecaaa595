"""Plant a fault into each function of ours that runs inside a program, and see that it goes on and the loss is said.

    python benchmarks/planted_faults.py [--mode profile] [--seconds 7200] [--seed 0] [--output docs/results/faults.md]

Needs no GPU. The harness is ``tests/plant_faults.py``, of which the tests run a few cases.
"""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent / "tests"))

from plant_faults import main

NEEDS: tuple[str, ...] = ()
RUNS: tuple[tuple[str, ...], ...] = (("--output", "docs/results/faults.md"),)
QUICK: tuple[tuple[str, ...], ...] = (("--seconds", "60", "--output", "{out}/faults.md"),)

if __name__ == "__main__":
    sys.exit(main())
