"""Minimum traffic by closed form against what generated kernels were seen to touch, address by address.

    python -m benchmarks.capture.traffic_oracle [--output docs/results/traffic_oracle.md] [MODEL ...]

Each model is lowered forward and backward; its C++ kernels are built with pointers that note every address, and run
once on random data. Needs g++ and the ``transformers`` package.
"""

from __future__ import annotations

import argparse
import collections
import datetime
import platform
import tempfile
import time
from pathlib import Path

import torch
from schedules import examine_kernels
from test_traffic_of_kernels import FUNCTIONS
from tracked_kernels import SCALAR, Examined, compare, examine

import model_zoo

NEEDS: tuple[str, ...] = ("transformers",)
RUNS: tuple[tuple[str, ...], ...] = (("--output", "docs/results/traffic_oracle.md"),)
QUICK: tuple[tuple[str, ...], ...] = (("functions", "--output", "{out}/traffic_oracle.md"),)


def lower(name: str, spent: dict[str, float]) -> list[Examined]:
    def timed(kernel: object) -> Examined:
        start = time.thread_time()
        result = examine(kernel)
        spent[name] = spent.get(name, 0.0) + time.thread_time() - start
        return result

    if name == "functions":
        found: list[Examined] = []
        for function, inputs in FUNCTIONS.values():
            found += examine_kernels(function, *inputs, examine=timed, **SCALAR)
        return found
    case = model_zoo.make(name)
    return examine_kernels(lambda *inputs: case.loss(case.module, *inputs), *case.inputs, examine=timed, **SCALAR)


def report(names: list[str]) -> str:
    spent: dict[str, float] = {}
    examined = {name: lower(name, spent) for name in names}
    with tempfile.TemporaryDirectory() as folder:
        comparisons, refused = compare(examined, Path(folder))
    lines = [
        "# Minimum traffic against kernels that were run address by address",
        "",
        f"`python -m benchmarks.capture.traffic_oracle`, {datetime.date.today()}, Python {platform.python_version()}, "
        f"torch {torch.__version__}, {platform.machine()}. `functions` are the {len(FUNCTIONS)} functions of "
        "`tests/unit/capturing/test_traffic_of_kernels.py`; all forward and backward.",
        "",
        "| model | fused kernels | arguments | exact, and seen so | upper bound, and seen below | wrong | not run "
        "| CPU ms to describe a kernel |",
        "|---|---:|---:|---:|---:|---:|---:|---:|",
    ]
    total: collections.Counter[str] = collections.Counter()
    wrong = []
    for name in names:
        found = comparisons[name]
        counts = {
            "kernels": len(examined[name]),
            "arguments": len(found),
            "exact": sum(c.holds and c.quality == "exact" for c in found),
            "bound": sum(c.holds and c.quality == "upper_bound" for c in found),
            "wrong": sum(not c.holds for c in found),
            "refused": len(refused.get(name, [])),
        }
        wrong += [f"{name}: {comparison}" for comparison in found if not comparison.holds]
        total.update(counts)
        cells = " | ".join(str(value) for value in counts.values())
        lines.append(f"| {name} | {cells} | {1e3 * spent[name] / max(len(examined[name]), 1):.1f} |")
    cells = " | ".join(str(total[key]) for key in counts)
    lines += [f"| **all** | {cells} | |", ""]
    lines += [f"- {line}" for line in wrong]
    reasons = collections.Counter(reason for each in refused.values() for reason in each)
    lines += [f"Not run: {count} × {reason}." for reason, count in reasons.items()]
    lines += [
        "",
        "An upper bound stands where data decides which rows are read (embedding, gather). The time to describe is "
        "CPU time for all of a kernel's loops, operations and buffers, the first ones with empty caches.",
        "",
    ]
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("models", nargs="*", default=["functions", *model_zoo.REQUIRED, *model_zoo.BEYOND])
    parser.add_argument("--output", type=Path, help="also write the report to this file")
    arguments = parser.parse_args()
    text = report(arguments.models)
    print(text)
    if arguments.output:
        arguments.output.parent.mkdir(parents=True, exist_ok=True)
        arguments.output.write_text(text)


if __name__ == "__main__":
    main()
