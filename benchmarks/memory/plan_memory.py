"""The peak of memory of programs planned without a GPU, beside what the H200's allocator counted.

``python -m benchmarks.memory.plan_memory [NAME ...] [-o FILE]``: each program of ``memory_programs.py`` under
``torchledger plan --device H200``, on whatever machine this is; measured peaks and steps are those of
``data/h200/memory_torch2.11.json``, which come from ``memory_cuda.py``. A row is printed for each.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from pathlib import Path
from typing import Any

from benchmarks.shared.limited import run_limited
from benchmarks.shared.places import ROOT

NEEDS: tuple[str, ...] = ("triton",)
RUNS: tuple[tuple[str, ...], ...] = (("-o", "{out}/plan_memory.json"),)
MEASURED = ROOT / "data" / "h200" / "memory_torch2.11.json"


def plan(name: str, limit_s: float) -> dict[str, Any]:
    """What a plan says of a program; ``error`` where it says nothing."""
    command = [sys.executable, "-m", "torchledger", "plan", "--device", "H200", "--json"]
    began = time.monotonic()
    code, output = run_limited([*command, "-m", "benchmarks.memory.memory_programs", name], limit_s)
    seconds = round(time.monotonic() - began, 1)
    start = output.find("{\n")
    if code or start < 0:
        return {"error": output[-600:], "seconds": seconds}
    answer = json.JSONDecoder().raw_decode(output[start:])[0]
    return {"peak_bytes": answer["memory"]["peak_allocated_bytes"], "step": answer["step"], "seconds": seconds}


def main() -> None:
    """Plan the named programs and print how far their peaks are off."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*")
    parser.add_argument("-o", "--output", type=Path)
    parser.add_argument("--limit", type=float, default=600, help="seconds for one program")
    options = parser.parse_args()
    measured = json.loads(MEASURED.read_text())["programs"]
    rows = []
    print("| program | planned, MB | measured, MB | apart | step planned, ms | its interval | step measured, ms |")
    print("|---|---|---|---|---|---|---|", flush=True)
    for name in options.names or measured:
        row = {"program": name} | plan(name, options.limit)
        rows.append(row)
        if "error" in row:
            print(f"| {name} | {row['error'][-200:]!r} | | | | | |", flush=True)
            continue
        peak, there = row["peak_bytes"], measured[name]
        step = {key: row["step"][key] / 1e3 for key in ("duration_us", "low_us", "high_us")}
        print(
            f"| {name} | {peak / 1e6:,.1f} | {there['peak_bytes'] / 1e6:,.1f} | {peak / there['peak_bytes'] - 1:+.2%} "
            f"| {step['duration_us']:.1f} | {step['low_us']:.1f} to {step['high_us']:.1f} | {there['step_ms']:.1f} |",
            flush=True,
        )
        if options.output is not None:
            options.output.write_text(json.dumps(rows, indent=1))


if __name__ == "__main__":
    main()
