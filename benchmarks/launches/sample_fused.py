"""Measure the kernels that Inductor makes of random programs, on the GPU that is here.

    python -m benchmarks.launches.sample_fused --out OUT [--minutes 4] [--processes 12] [--first-seed 0]
        [--families ...]

Writes ``fused-FIRST_SEED.launches`` and ``fused-FIRST_SEED.json`` (what failed and why) into OUT.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
from pathlib import Path

from torchledger.sampling.fused import FusedPlan, sample_fused

NEEDS: tuple[str, ...] = ("cuda",)
RUNS: tuple[tuple[str, ...], ...] = (("--out", "{out}"),)
QUICK: tuple[tuple[str, ...], ...] = (("--out", "{out}", "--minutes", "1", "--processes", "2"),)


def main() -> None:
    """Run the plan."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--minutes", type=float, default=4.0)
    parser.add_argument("--processes", type=int, default=12)
    parser.add_argument("--first-seed", type=int, default=0)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--families", nargs="*", default=[], help="which are drawn, all alike; none: all by weight")
    arguments = parser.parse_args()
    plan = FusedPlan(
        device=arguments.device,
        minutes=arguments.minutes,
        processes=arguments.processes,
        first_seed=arguments.first_seed,
        families=tuple(arguments.families),
    )
    arguments.out.mkdir(parents=True, exist_ok=True)
    stem = arguments.out / f"fused-{arguments.first_seed}"
    report = sample_fused(
        stem.with_suffix(".launches"), plan, progress=lambda done, total, _: print(f"{done}/{total} s", flush=True)
    )
    text = json.dumps({"plan": dataclasses.asdict(plan), "report": dataclasses.asdict(report)}, indent=1)
    stem.with_suffix(".json").write_text(text)
    print(text)


if __name__ == "__main__":
    main()
