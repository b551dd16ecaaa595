"""What a plan costs this machine: wall time, CPU time and peak memory of plans of large models on large worlds.

``python -m benchmarks.plans.plan_cost -o FILE [CASE ...]`` runs ``torchledger plan`` on ``examples/train_llama.py``.
Needs Triton and a C++ compiler, and no GPU. Peak memory is the largest process's, with how many there were at once.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from benchmarks.shared.places import ROOT, child_environment

NEEDS: tuple[str, ...] = ("triton",)
RUNS: tuple[tuple[str, ...], ...] = (("-o", "{out}/plan_cost.json", "tiny"),)
SCRIPT = str(ROOT / "examples" / "train_llama.py")
CASES: dict[str, tuple[int, tuple[str, ...]]] = {
    "tiny": (8, ("--size", "tiny", "--sequence", "128")),
    "8b_fsdp_128": (128, ("--size", "8b")),
    "405b_tp8_pp4_fsdp_1024": (1024, ("--size", "405b", "--tp", "8", "--pp", "4", "--microbatches", "8")),
    "405b_tp8_pp16_fsdp_1024": (1024, ("--size", "405b", "--tp", "8", "--pp", "16", "--microbatches", "16")),
}
"""Ranks, and the script's arguments."""


def measure(name: str, device: str, limit: float) -> dict[str, Any]:
    """One plan: its cost and what it says."""
    world, arguments = CASES[name]
    command = [sys.executable, "-m", "torchledger", "plan", "--json", "--device", device, "--world", str(world)]
    command += ["--fabric", f"{device.lower()}+3200gb"]
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    began = time.monotonic()
    ended = subprocess.run(
        [*command, SCRIPT, *arguments],
        capture_output=True,
        text=True,
        timeout=limit,
        env=child_environment(),
    )
    wall = time.monotonic() - began
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    found: dict[str, Any] = {
        "case": name,
        "ranks": world,
        "exit": ended.returncode,
        "wall_s": round(wall, 1),
        "cpu_s": round(after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime, 1),
        "largest_process_bytes": after.ru_maxrss * 1024,
        "load_average": os.getloadavg()[0],
    }
    if ended.returncode:
        return found | {"tail": ended.stderr[-600:]}
    plan = json.loads(ended.stdout)
    return found | {key: plan[key] for key in ("step", "communication", "memory", "launches")}


def main() -> None:
    """Run the cases; the file is written after each."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("cases", nargs="*", default=[name for name in CASES if name != "tiny"])
    parser.add_argument("-o", "--output", type=Path, required=True)
    parser.add_argument("--device", default="H200")
    parser.add_argument("--limit", type=float, default=900, help="seconds for one plan")
    options = parser.parse_args()
    options.output.parent.mkdir(parents=True, exist_ok=True)
    rows = []
    for name in options.cases:
        try:
            rows.append(measure(name, options.device, options.limit))
        except subprocess.TimeoutExpired:
            rows.append({"case": name, "error": f"not done in {options.limit:.0f} s"})
        options.output.write_text(json.dumps(rows, indent=1))
        print(json.dumps(rows[-1]), flush=True)


if __name__ == "__main__":
    main()
