"""Values on the CPU: coverage and identical bits on every model of the capture tests, faults, distance to eager.

python -m benchmarks.launches.values_cpu -o docs/results/values_cpu.md
"""

from __future__ import annotations

import argparse
import copy
import datetime
import platform
import statistics
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

import torch

import torchledger
from benchmarks.launches import values_cuda as shared
from torchledger.nouns import ValueComparison

NEEDS: tuple[str, ...] = ("transformers",)
RUNS: tuple[tuple[str, ...], ...] = (("-o", "docs/results/values_cpu.md"),)
QUICK: tuple[tuple[str, ...], ...] = (("-o", "{out}/values_cpu.md", "--cover", "mlp", "--compare", "mlp"),)


def against_eager(name: str) -> dict[str, Any]:
    """Each launch of one training step against the same ops run eagerly, both judged by float64."""
    import model_zoo

    case = model_zoo.make(name)
    torch._dynamo.reset()
    with torchledger.values(level="off", against_eager=True) as watch:
        module = copy.deepcopy(case.module)
        case.loss(torch.compile(module), *case.inputs).backward()
    judged = [item for item in watch.comparisons if item.compiled_error is not None]
    floats: list[ValueComparison] = [item for item in judged if item.eager_error is not None]
    return {
        "outputs": len(watch.comparisons),
        "judged": len(judged),
        "not_judged": Counter(item.note for item in watch.comparisons if item.note),
        "outside": [item for item in watch.comparisons if item.is_within is False],
        "further": Counter(item.further for item in floats),
        "largest": max(judged, key=lambda item: item.compiled_error or 0.0, default=None),
    }


def cost() -> list[tuple[str, float]]:
    """Median wall time in ms of a step of a small GPT, from one compile."""
    from examples.train_gpt import GPT

    torch.manual_seed(0)
    model = GPT(256, 64, 128, 4, 2)
    tokens = torch.randint(256, (4, 65))
    rows = []
    torch._dynamo.reset()
    with torchledger.values(find="nan", level="off") as watch:
        compiled = torch.compile(model)

        def step() -> None:
            model.zero_grad()
            compiled(tokens[:, :-1], tokens[:, 1:]).backward()

        for name, options in (
            ("unwatched", {"level": "off", "find": None}),
            ("--find nan", {"level": "off", "find": "nan"}),
            ("statistics of every launch", {"level": "stats", "find": None}),
        ):
            watch.change(**options)
            samples = []
            for index in range(25):
                begin = time.perf_counter()
                step()
                if index >= 5:
                    samples.append((time.perf_counter() - begin) * 1e3)
            rows.append((name, statistics.median(samples)))
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("-o", "--output", type=Path, required=True)
    parser.add_argument("--compare", help="Models to compare with eager, with commas between. Default: all.")
    parser.add_argument("--cover", help="Models to watch launch by launch, with commas between. Default: all.")
    options = parser.parse_args()
    import model_zoo

    shared.DEVICE = "cpu"
    names = model_zoo.REQUIRED + model_zoo.BEYOND
    compared = options.compare.split(",") if options.compare else names
    covered = [shared.cover(name) for name in (options.cover.split(",") if options.cover else names)]
    costs = cost()
    faults = shared.faults()
    distances: dict[str, dict[str, Any]] = {}
    for name in ("", *compared):  # written after each, so that a killed run leaves what it has
        if name:
            distances[name] = against_eager(name)
        options.output.write_text(as_markdown(covered, faults, distances, costs))


def as_markdown(
    covered: list[dict[str, Any]],
    faults: list[dict[str, Any]],
    distances: dict[str, dict[str, Any]],
    costs: list[tuple[str, float]],
) -> str:
    real = [row for row in faults if not row["fault"].startswith("none")]
    clean = [row for row in faults if row["fault"].startswith("none")]
    lines = [
        "# Values on the CPU",
        "",
        f"torch {torch.__version__}, {platform.platform()}, {torch.get_num_threads()} threads, "
        f"{datetime.date.today()}. Command: `python -m {__spec__.name} {' '.join(sys.argv[1:])}`",
        "",
        "## Coverage, and the same bits with and without",
        "",
        "One forward and backward of each model, statistics of every launch and `--find nan` on.",
        "",
        "| model | launches | watched | ran | loss and gradients the same bits | findings |",
        "|---|---|---|---|---|---|",
    ]
    lines += [
        f"| {row['model']} | {row['launches']} | {row['watched']} | {row['seen']} | "
        f"{'yes' if row['same_bits'] else 'no'} | {row['findings']} |"
        for row in covered
    ]
    lines += [
        f"| **all** | {sum(row['launches'] for row in covered)} | {sum(row['watched'] for row in covered)} | "
        f"{sum(row['seen'] for row in covered)} | {sum(row['same_bits'] for row in covered)} of {len(covered)} | "
        f"{sum(row['findings'] for row in covered)} |",
        "",
        "## Planted faults",
        "",
        f"{sum(row['named'] for row in real)} of {len(real)} faults had their first bad launch named, with verdict and "
        f"indices; {sum(row['named'] for row in clean)} of {len(clean)} clean runs raised no alarm. Ten models with "
        "two places each where data can spoil the values ([planted.py](../../tests/planted.py)); one more with a "
        "generated source changed on purpose. Uninitialised reads and predicates are in the tests of the room.",
        "",
        "| fault | planted | named |",
        "|---|---|---|",
    ]
    for fault in dict.fromkeys(row["fault"] for row in real):
        rows = [row for row in real if row["fault"] == fault]
        lines.append(f"| {fault} | {len(rows)} | {sum(row['named'] for row in rows)} |")
    lines += [
        "",
        "## Against eager, judged by float64",
        "",
        "| model | outputs | judged | outside tolerance | compiled further | eager further | equal | largest error |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for name, row in distances.items():
        largest, further = row["largest"], row["further"]
        error = f"{largest.compiled_error:.2g}, {largest.compiled_ulps:.3g} ulp" if largest is not None else ""
        lines.append(
            f"| {name} | {row['outputs']} | {row['judged']} | {len(row['outside'])} | {further['compiled']} | "
            f"{further['eager']} | {further['neither']} | {error} |"
        )
    notes = sum((row["not_judged"] for row in distances.values()), Counter())
    lines += [f"- {count} x {note}" for note, count in notes.most_common()]
    lines += ["", "## Cost", "", "A small GPT (2 layers, width 128), forward and backward.", ""]
    lines += ["| | median ms | over unwatched |", "|---|---|---|"]
    lines += [f"| {name} | {value:.1f} | {value / costs[0][1]:.2f} |" for name, value in costs]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    main()
