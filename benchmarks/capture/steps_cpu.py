"""Steps of the ordinary scripts of ``tests/programs`` on a CPU: the ledger's step time beside the script's own timer.

``python -m benchmarks.capture.steps_cpu [NAME ...] -o FILE``. A script's own time is the median of the second half of
its steps, most of them after the recording, in the same process.
"""

from __future__ import annotations

import argparse
import datetime
import importlib.metadata
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

from benchmarks.shared.places import ROOT, child_environment

NEEDS: tuple[str, ...] = ()
RUNS: tuple[tuple[str, ...], ...] = (("-o", "docs/results/steps_cpu.md"),)
QUICK: tuple[tuple[str, ...], ...] = (("-o", "{out}/steps_cpu.md", "trainer"),)
PROGRAMS = ROOT / "tests" / "programs"
STEPS = {"generation": 54, "two_threads": 3000}


def own_times_ms(output: str) -> list[float]:
    """What the script printed of its own steps."""
    line = next(line for line in output.splitlines() if line.startswith("STEPS "))
    return [float(each) for each in line.split(" MS ")[1].split()]


WALL_TIMES = {True: "balanced", False: "does not balance", None: "not steady"}
"""What the account of wall time says."""


def row_of(name: str, folder: Path) -> str:
    """One script as a line of the table."""
    ledger = folder / f"{name}.ledger"
    environment = child_environment(OMP_NUM_THREADS="1")
    command = [sys.executable, "-m", "torchledger", "run", "--profile", "-o", str(ledger)]
    script = [str(PROGRAMS / f"{name}.py"), str(STEPS.get(name, 60))]
    done = subprocess.run([*command, *script], env=environment, capture_output=True, text=True, check=True)
    shown = subprocess.run(
        [sys.executable, "-m", "torchledger", "show", str(ledger), "--json"],
        env=environment,
        capture_output=True,
        text=True,
        check=True,
    )
    step, balance = (json.loads(shown.stdout)[key] for key in ("step", "balance"))
    times = own_times_ms(done.stdout)
    own = statistics.median(times[len(times) // 2 :])
    operators, wall = balance["step_operators"], balance["wall_time"]
    return (
        f"| {name} | {step['found_by']} | {step['flops']:,} | {step['duration_us'] / 1e3:.3f} | {own:.3f} | "
        f"{step['duration_us'] / 1e3 / own - 1:+.1%} | {operators['ledger']}, {operators['reference']} | "
        f"{WALL_TIMES[wall['is_balanced']]} |"
    )


def main() -> None:
    """Record every script and write the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", default=sorted(path.stem for path in PROGRAMS.glob("*.py")))
    parser.add_argument("-o", "--output", type=Path)
    arguments = parser.parse_args()
    lines = [
        "# Steps of ordinary scripts on a CPU",
        "",
        f"{datetime.date.today()}, torch {importlib.metadata.version('torch')}, {platform.machine()}, "
        f"{os.cpu_count()} cores. `python -m benchmarks.capture.steps_cpu`.",
        "FLOPs of each step equal a whole eager step's to the digit: tests/unit/stepping/test_programs.py asserts it.",
        "Scripts drawn from a longer list: [steps_drawn.md](steps_drawn.md).",
        "",
        "| script | found by | FLOPs of a step | step, ms | the script's, ms | apart | operators, heard | wall time |",
        "|---|---|---|---|---|---|---|---|",
    ]
    with tempfile.TemporaryDirectory() as folder:
        for name in arguments.names:
            lines.append(row_of(name, Path(folder)))
            print(lines[-1], flush=True)
    if arguments.output:
        arguments.output.write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
