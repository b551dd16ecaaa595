"""Attention by backend and eager calls, learned into a model: ``python benchmarks/fit_strangers.py MODEL -o NEW``.

From ``data/h200``: the attention of random programs and of models, drawn configurations of each backend (every fourth
is held out and its errors are printed), and eager calls inside steps. All other families stay as they are in MODEL.
"""

from __future__ import annotations

import argparse
from dataclasses import replace
from pathlib import Path

import numpy as np

from torchledger.fitting.call_costs import fit_call_costs, read_calls
from torchledger.fitting.launches import LaunchTable, align_columns, build_launch_tables, fit_launch_table
from torchledger.fitting.learning import Options
from torchledger.fitting.machine import Machine
from torchledger.fitting.time_model import Entry
from torchledger.predicting.devices import find_model
from torchledger.predicting.model_file import save_model
from torchledger.store.launch_file import MeasuredLaunch, read_launches

DATA = Path(__file__).resolve().parent.parent / "data" / "h200"


def tables(launches: list[MeasuredLaunch], machine: Machine) -> dict[str, LaunchTable]:
    """The attention among measured launches, by direction."""
    found, _ = build_launch_tables(launches, machine)
    return {family: table for family, table in found.items() if family.startswith("launch:attention")}


def report(entry: Entry, table: LaunchTable) -> str:
    """Errors of an entry on a table."""
    residual, width, _ = entry.predict(align_columns(table.values, table.names, entry.feature_names))
    off = table.log_baseline + residual - np.log(table.times_us)
    size = np.abs(np.exp(off) - 1)
    return (
        f"{entry.key}: {len(off)} held out, mean error {size.mean():.1%}, median {np.median(size):.1%}, worst "
        f"{size.max():.0%}, intervals hold {np.mean(np.abs(off) <= width):.0%}"
    )


def main() -> None:
    """Fit, print the errors, write the model."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("-o", "--output", type=Path, required=True)
    arguments = parser.parse_args()
    model = find_model(arguments.model)
    drawn = list(read_launches(DATA / "attention_torch2.11.launches").launches)
    held = set(sorted({item.program for item in drawn})[::4])
    learned = [item for item in drawn if item.program not in held]
    for name in ("fused", "models"):
        learned += read_launches(DATA / f"{name}_torch2.11.launches").launches
    asked = tables([item for item in drawn if item.program in held], model.machine)
    entries = dict(model.entries)
    for family, table in tables(learned, model.machine).items():
        entries[family] = fit_launch_table(table, Options(hyper_rows=160))
        print(report(entries[family], asked[family]), flush=True)
    costs = fit_call_costs(read_calls(DATA / "calls_torch2.11.json.gz"), model.machine.bytes_per_us)
    save_model(replace(model, entries=entries, extras={**model.extras, **costs}), arguments.output, force=True)
    print(f"{len(costs) // 3} kinds of eager calls")


if __name__ == "__main__":
    main()
