"""How long ``torchledger show`` takes on a large ledger: whole processes, start-up included.

python -m benchmarks.reporting.show_large [--launches 10000] [--repeats 11] [-o docs/results/show_large.md]
"""

from __future__ import annotations

import argparse
import datetime
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from synthetic import write_ledger
from torchledger.device.describe import describe_cpu, describe_environment

NEEDS: tuple[str, ...] = ()
RUNS: tuple[tuple[str, ...], ...] = (("-o", "docs/results/show_large.md"),)
QUICK: tuple[tuple[str, ...], ...] = (("--launches", "300", "--repeats", "1", "-o", "{out}/show_large.md"),)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--launches", type=int, default=10_000)
    parser.add_argument("--repeats", type=int, default=11)
    parser.add_argument("-o", "--output", type=Path)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        path = write_ledger(Path(folder) / "large.ledger", launches=options.launches)
        size = path.stat().st_size
        show = [sys.executable, "-m", "torchledger", "show", str(path)]
        questions = {
            "`import torchledger`, less a bare interpreter": [sys.executable, "-c", "import torchledger"],
            "`torchledger --help`": [*show[:3], "--help"],
            "`show FILE`": show,
            "`show FILE --json`": [*show, "--json"],
            "`show FILE forward_0#12`": [*show, "forward_0#12"],
            "`show FILE --wrapper forward_0`": [*show, "--wrapper", "forward_0"],
        }
        bare = time_command([sys.executable, "-c", "pass"], options.repeats)
        rows = []
        for question, command in questions.items():
            times = time_command(command, options.repeats)
            if "less a bare" in question:
                times = [each - statistics.median(bare) for each in times]
            rows.append(f"| {question} | {statistics.median(times) * 1e3:.0f} | {max(times) * 1e3:.0f} |")
    environment, cpu = describe_environment(), describe_cpu()
    report = "\n".join(
        [
            "# Reading a large ledger",
            "",
            f"{datetime.date.today():%Y-%m-%d}, {cpu.name}, {cpu.num_cores} cores, Python {environment.python}.",
            f"A made-up ledger of {options.launches:,} launches in two graphs ({size / 1e6:.1f} MB).",
            f"Whole processes, output to a pipe, {options.repeats} runs each. Redo: "
            "`python -m benchmarks.reporting.show_large`.",
            "",
            "| question | median ms | slowest ms |",
            "|---|---|---|",
            *rows,
            "",
        ]
    )
    print(report)
    if options.output:
        options.output.write_text(report)


def time_command(command: list[str], repeats: int) -> list[float]:
    """Seconds that the whole process takes, after one run that fills the file cache."""
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    times = []
    for _ in range(repeats):
        began = time.perf_counter()
        subprocess.run(command, check=True, capture_output=True)
        times.append(time.perf_counter() - began)
    return times


if __name__ == "__main__":
    main()
