"""What each idea of the fit buys, on H200 operators at shapes held out.

    python -m benchmarks.models.ablation data/h200/operators_torch2.11.parquet [--output docs/results/ablation.md]

Every line is a fit of each operator on the ``train`` group without one idea, asked about the ``held_out`` group.
"""

from __future__ import annotations

import argparse
import datetime
import os
from pathlib import Path

import numpy as np

from benchmarks.shared.places import ROOT
from torchledger.device.datasheets import device_of_name
from torchledger.expecting.operator_features import reduce_features
from torchledger.fitting.data import of_group, read_operator_samples
from torchledger.fitting.evaluate import errors_of, predict_rows
from torchledger.fitting.fit import fit_entry
from torchledger.fitting.learning import Options
from torchledger.fitting.tables import build_tables, machine_of_tables

NEEDS: tuple[str, ...] = ()
RUNS: tuple[tuple[str, ...], ...] = (("data/h200/operators_torch2.11.parquet",),)
QUICK: tuple[tuple[str, ...], ...] = (
    ("data/h200/operators_torch2.11.parquet", "--quick", "--output", "{out}/ablation.md"),
)

KEYS = (
    "linear/forward",
    "bmm/backward",
    "conv2d/forward",
    "gelu/forward",
    "adamw/step",
)
IDEAS = {
    "everything": Options(),
    "trees alone": Options(members=("trees",)),
    "process alone": Options(members=("process",)),
    "squared error": Options(robust=False),
    "no times of tiles: roofline as baseline": Options(physics="roofline"),
    "nor how shapes divide and align": Options(physics="work"),
    "nor FLOPs and bytes: shape alone": Options(physics="shape"),
    "nor a baseline: the time itself": Options(physics="shape", baseline=False),
}


def main() -> None:
    """Fit each operator without each idea and write the page."""
    arguments = _arguments()
    keys, ideas = (KEYS[-1:], tuple(IDEAS)[:2]) if arguments.quick else (KEYS, tuple(IDEAS))
    samples = read_operator_samples([arguments.data])
    train, _ = build_tables(of_group(samples, "train"))
    asked, _ = build_tables(of_group(samples, "held_out"))
    machine = machine_of_tables(device_of_name(samples[0].device), list(train.values()))
    today = datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%d")
    lines = [
        "# What each idea buys",
        "",
        f"{samples[0].device}, {today}; `python -m benchmarks.models.ablation {arguments.data}`.",
    ]
    lines += ["Mean error on the held-out rows, in per cent; each operator fitted on its training rows alone.", ""]
    lines += [f"| what is used | {' | '.join(keys)} | mean |", "|---" * (len(keys) + 2) + "|"]
    for name in ideas:
        errors = []
        for key in keys:
            entry = fit_entry(train[key], machine, IDEAS[name])
            table = asked[key]
            features = reduce_features(table.features(machine), IDEAS[name].physics, IDEAS[name].baseline)
            log_us, _ = predict_rows(entry, features.values, features.log_baseline, table.units)
            errors.append(errors_of(np.exp(log_us), table.times_us).mape)
        lines.append(f"| {name} | {' | '.join(f'{error:.2f}' for error in errors)} | {np.mean(errors):.2f} |")
        print(lines[-1], flush=True)
    arguments.output.write_text("\n".join(lines) + "\n")


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path)
    parser.add_argument("--quick", action="store_true", help="one operator and two ideas, to see that this runs")
    parser.add_argument("--output", type=Path, default=ROOT / "docs" / "results" / "ablation.md")
    return parser.parse_args()


if __name__ == "__main__":
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    main()
