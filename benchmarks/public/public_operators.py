"""Error of the fit on public operator timings of an A100 and a GH200.

    python -m benchmarks.public.public_operators [--data DIR] [--output docs/results/public_operators.md]

The data are estimate-train-time's (MIT), read in place: ``--data``, else ``TORCHLEDGER_PUBLIC_DATA/ett``. Splits:
exact duplicate rows are dropped; grouped: the distinct shape vectors in order of first appearance, permuted by
``RandomState(0)``, the first 80 % train; extrapolation: training where ``dim`` (else ``l``) is at most its 80 %
quantile over the rows. Rows whose label a sanity gate quarantines leave both sides.
"""

from __future__ import annotations

import argparse
import csv
import dataclasses
import datetime
import os
import platform
import time
from collections import Counter
from collections.abc import Iterable, Sequence
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path

import numpy as np

from benchmarks.shared.places import ROOT
from torchledger.device.datasheets import device_of_name
from torchledger.errors import FitError, SampleError
from torchledger.expecting.machine import Machine
from torchledger.fitting.data import gate_public_labels
from torchledger.fitting.evaluate import Evaluation, evaluate_table, summarise
from torchledger.fitting.learning import Options
from torchledger.fitting.tables import SampleTable, build_tables, machine_of_tables
from torchledger.nouns import Sample
from torchledger.sampling.guide_csv import read_guide_csv

NEEDS: tuple[str, ...] = ("public data",)
RUNS: tuple[tuple[str, ...], ...] = ((),)
QUICK: tuple[tuple[str, ...], ...] = (("--quick", "--output", "{out}/public_operators.md"),)

FOLDERS = {"A100": "Perlmutter/operator", "GH200": "Vista/operator"}
TARGETS = {"A100": (2.5, 3.5), "GH200": (1.6, 2.9)}
PEER = {"A100": (6.80, 11.63), "GH200": (5.36, 10.37)}
SPLITS = ("grouped", "extrapolation")
ABLATION = {
    "all": Options(),
    "trees alone": Options(members=("trees",)),
    "process alone": Options(members=("process",)),
    "squared error": Options(robust=False),
    "no tile and alignment features": Options(physics="work"),
    "no FLOPs and bytes (shape alone)": Options(physics="shape"),
    "time itself, no baseline": Options(physics="shape", baseline=False),
}
ABLATED = ("linear1", "linear_final", "layernorm", "softmax", "flash_atten", "embedding")
"""Operators of the ablation: one of each kind, as every line of it is a whole fit of each."""

BASELINES = {
    "random forest on shapes": "random forest on raw shapes",
    "roofline": "roofline, scaled to the training rows",
    "inductor": "Inductor's `estimated_runtime`",
}


def main() -> None:
    """Run and write the page."""
    arguments = _arguments()
    started = time.perf_counter()
    lines = _head(arguments.quick)
    for name, folder in FOLDERS.items():
        samples, dropped = read_folder(arguments.data / folder)
        gated = gate_public_labels(samples)
        tables, left_out = build_tables(gated)
        operators = [table for table in tables.values() if table.direction != "step"]
        machine = machine_of_tables(device_of_name(name), operators)
        blind = [dataclasses.replace(table, units=np.full(len(table), "")) for table in operators]
        lines += [f"\n## {name}\n"]
        lines += _left_out_lines(dropped, left_out, len(samples))
        evaluations = evaluate_many(blind, machine, Options(), arguments.jobs, with_forest=not arguments.quick)
        lines += _summary_lines(name, evaluations)
        told = [] if arguments.quick else evaluate_many(operators, machine, Options(), arguments.jobs)
        lines += _unit_lines(told) if told else [""]
        lines += _table_lines(evaluations, told, _peer_errors(arguments.data, name))
        if arguments.ablation and not arguments.quick:
            forward = [t for t in blind if t.direction == "forward" and t.operator.removeprefix("guide.") in ABLATED]
            lines += _ablation_lines(forward, machine, arguments.jobs)
        print("\n".join(lines), flush=True)
    lines += [f"\nThe whole took {(time.perf_counter() - started) / 60:.1f} minutes."]
    arguments.output.parent.mkdir(parents=True, exist_ok=True)
    arguments.output.write_text("\n".join(lines) + "\n")


def read_folder(folder: Path) -> tuple[list[Sample], int]:
    """Samples of every operator, each row once, with the part of the sweep that measured it; and the duplicate rows.

    A sweep was divided among eight processes, one a GPU, and their rows joined: where the parameters begin anew, the
    next part begins.
    """
    samples, dropped = [], 0
    for path in sorted(folder.glob("*.csv")):
        try:
            read = read_guide_csv(path)
        except SampleError:
            continue
        directions = len({sample.direction for sample in read})
        rows = [tuple(read[i : i + directions]) for i in range(0, len(read), directions)]
        seen, part, last = set(), 0, None
        for row in rows:
            shape = tuple(row[0].parameters.values())
            content = (shape, *(sample.times_us for sample in row))
            if content in seen:
                dropped += 1
                continue
            seen.add(content)
            part += last is not None and shape <= last
            last = shape
            samples += [dataclasses.replace(s, telemetry={"unit": f"part {part}"}) for s in row]
    return samples, dropped


def evaluate_many(
    tables: Sequence[SampleTable], machine: Machine, options: Options, jobs: int, *, with_forest: bool = False
) -> list[Evaluation]:
    """All tables on both splits, in processes."""
    work = [(table, machine, split, options, with_forest) for table in tables for split in SPLITS]
    with ProcessPoolExecutor(jobs, mp_context=get_context("spawn")) as pool:
        return [found for found in pool.map(_evaluate, work) if found is not None]


def _evaluate(work: tuple[SampleTable, Machine, str, Options, bool]) -> Evaluation | None:
    table, machine, split, options, with_forest = work
    try:
        return evaluate_table(table, machine, split, options=options, with_forest=with_forest)  # type: ignore[arg-type]
    except FitError as error:
        print(f"not evaluated: {table.key} {split}: {error}")
        return None


def _summary_lines(name: str, evaluations: Sequence[Evaluation]) -> list[str]:
    lines = ["| mean over operators and directions | grouped | extrapolation |", "|---|---|---|"]
    grouped, extrapolation = (summarise(evaluations, split) for split in SPLITS)  # type: ignore[arg-type]
    wanted = TARGETS[name]
    lines.append(f"| **torchledger** | **{grouped['mape']:.2f} %** | **{extrapolation['mape']:.2f} %** |")
    lines.append(f"| wanted | <= {wanted[0]} % | <= {wanted[1]} % |")
    lines.append(f"| the peer's method, published refit | {PEER[name][0]:.2f} % | {PEER[name][1]:.2f} % |")
    for baseline, label in BASELINES.items():
        if baseline in grouped:
            lines.append(f"| {label} | {grouped[baseline]:.2f} % | {extrapolation[baseline]:.2f} % |")
    lines.append(f"| worst operator | {grouped['worst']:.2f} % | {extrapolation['worst']:.2f} % |")
    lines.append(f"| bias | {grouped['bias']:+.2f} % | {extrapolation['bias']:+.2f} % |")
    lines.append(f"| 90 % intervals hold | {grouped['coverage']:.1f} % | {extrapolation['coverage']:.1f} % |")
    return lines


def _unit_lines(told: Sequence[Evaluation]) -> list[str]:
    grouped, extrapolation = (summarise(told, split) for split in SPLITS)  # type: ignore[arg-type]
    return [
        f"| torchledger, told which part of the sweep measured a row | {grouped['mape']:.2f} % | "
        f"{extrapolation['mape']:.2f} % |\n"
    ]


def _table_lines(
    blind: Sequence[Evaluation], told: Sequence[Evaluation], peer: dict[tuple[str, str, str], float]
) -> list[str]:
    lines = [
        "| operator, direction | split | rows | MAPE | median | p90 | bias | coverage | told the part | forest | peer |"
    ]
    lines.append("|---|---|---|---|---|---|---|---|---|---|---|")
    with_part = {(evaluation.key, evaluation.split): evaluation.model.mape for evaluation in told}
    for evaluation in blind:
        errors = evaluation.model
        forest = evaluation.baselines.get("random forest on shapes")
        operator, direction = evaluation.key.removeprefix("guide.").split("/")
        published = peer.get((operator, direction, evaluation.split))
        lines.append(
            f"| {operator} {direction} | {evaluation.split} | {errors.count} | {errors.mape:.2f} | "
            f"{errors.median_ape:.2f} | {errors.p90_ape:.2f} | {errors.bias:+.2f} | {errors.coverage:.0f} | "
            f"{'' if (told := with_part.get((evaluation.key, evaluation.split))) is None else f'{told:.2f}'} | "
            f"{'' if forest is None else f'{forest.mape:.2f}'} | {'' if published is None else f'{published:.2f}'} |"
        )
    return lines


def _ablation_lines(tables: Sequence[SampleTable], machine: Machine, jobs: int) -> list[str]:
    lines = [f"\nWhat each idea buys, forward of {', '.join(ABLATED)}:", ""]
    lines += ["| what is used | grouped | extrapolation |", "|---|---|---|"]
    for name, options in ABLATION.items():
        found = evaluate_many(tables, machine, options, jobs)
        means = [summarise(found, split)["mape"] for split in SPLITS]  # type: ignore[arg-type]
        lines.append(f"| {name} | {means[0]:.2f} % | {means[1]:.2f} % |")
    return lines


def _left_out_lines(dropped: int, left_out: Iterable[object], count: int) -> list[str]:
    reasons = Counter(" ".join(item.subject.split(" ")[:2]) for item in left_out)  # type: ignore[attr-defined]
    lines = [f"{count} labels; {dropped} duplicate rows dropped; quarantined by the gates: {sum(reasons.values())}"]
    lines += [f"- {number} of {kind.removeprefix('guide.')}" for kind, number in reasons.most_common()]
    return [*lines, ""]


def _peer_errors(data: Path, name: str) -> dict[tuple[str, str, str], float]:
    directions = {"fwd": "forward", "bwd": "backward", "dur": "step"}
    errors = {}
    with (data / "peer_method_errors.csv").open(newline="") as file:
        for row in csv.DictReader(file):
            if name in row["gpu"].removeprefix("NVIDIA")[:5]:
                for split, column in (("grouped", "grp_mape"), ("extrapolation", "extrap_mape")):
                    errors[row["op"], directions[row["prop"]], split] = float(row[column])
    return errors


def _head(quick: bool) -> list[str]:
    import sklearn

    today = datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%d")
    return [
        "# Public operator timings",
        "",
        "Error of the fit on estimate-train-time's operator timings (MIT): an A100-SXM4-80GB and a GH200, fp16, splits",
        "and gates as `benchmarks/public/public_operators.py` says. The three optimizers are not in the means.",
        "",
        f"`python -m benchmarks.public.public_operators{' --quick' if quick else ''}`, {today},",
        f"Python {platform.python_version()}, numpy {np.__version__}, scikit-learn {sklearn.__version__}.",
    ]


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    public = Path(os.environ.get("TORCHLEDGER_PUBLIC_DATA") or ROOT.parent / "shared" / "data")
    parser.add_argument("--data", type=Path, default=public / "ett")
    parser.add_argument("--output", type=Path, default=ROOT / "docs" / "results" / "public_operators.md")
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--quick", action="store_true", help="no forest, no ablation, no parts told")
    parser.add_argument("--no-ablation", dest="ablation", action="store_false", help="leave the ablation out")
    return parser.parse_args()


if __name__ == "__main__":
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    main()
