"""Error of predicted kernel and step times on models that the fit never saw.

    python -m benchmarks.launches.launch_accuracy --train FUSED.launches ... --models MODELS.launches --steps STEPS.json
        [--samples DATA] [--output docs/results/launches.md]

TRAIN are kernels of random programs (``sample_fused.py``), MODELS and STEPS what ``model_steps.py`` wrote. A model is
held out whole: it is asked of a fit on the random programs and the other models, from which every kernel that the
held-out model has too (by the hash of its source) was taken out. With ``--samples`` (operator samples) the
optimizer's time is predicted too; else it is left out of the step and measured steps are compared with it missing.
"""

from __future__ import annotations

import argparse
import contextlib
import datetime
import json
import os
import shlex
import sys
from collections.abc import Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.shared.places import ROOT
from torchledger.device.datasheets import device_of_name
from torchledger.errors import FitError
from torchledger.fitting.data import read_operator_samples
from torchledger.fitting.fit import fit
from torchledger.fitting.launches import (
    LaunchTable,
    ProgramError,
    build_launch_tables,
    evaluate_on_programs,
    fit_launch_table,
    machine_of_launches,
)
from torchledger.fitting.sample_launches import launches_of_samples
from torchledger.fitting.time_model import TimeModel
from torchledger.nouns import Device
from torchledger.predicting.overheads import fit_overheads, host_us, observe_steps, step_shape, step_us
from torchledger.predicting.step import predict_step
from torchledger.store.launch_file import LaunchSet, MeasuredLaunch, join_launches, read_launches

NEEDS: tuple[str, ...] = ()
RUNS: tuple[tuple[str, ...], ...] = (
    (
        "--train",
        "data/h200/fused_torch2.11.launches",
        "--models",
        "data/h200/models_torch2.11.launches",
        "--steps",
        "data/h200/steps_torch2.11.json",
        "--samples",
        "data/h200/operators_torch2.11.parquet",
    ),
)
QUICK: tuple[tuple[str, ...], ...] = (
    (
        "--train",
        "data/h200/fused_torch2.11.launches",
        "--models",
        "data/h200/models_torch2.11.launches",
        "--quick",
        "--output",
        "{out}/launches.md",
    ),
)

_BASELINES = {"roofline": "roofline", "inductor": "Inductor", "forest": "forest"}

Learned = tuple[TimeModel, dict[str, LaunchTable]]


def main() -> None:
    """Hold out each model in turn and write the page."""
    arguments = _arguments()
    train = join_launches([read_launches(path) for path in arguments.train])
    tests = join_launches([read_launches(path) for path in arguments.models])
    steps = json.loads(arguments.steps.read_text()) if arguments.steps else []
    names = list(dict.fromkeys(model_of(item.program) for item in tests.launches))
    if arguments.quick:
        train, names = replace(train, launches=train.launches[:1500]), names[:1]
        tests = replace(tests, launches=tuple(item for item in tests.launches if model_of(item.program) in names))
    optimizer = None
    if arguments.samples:
        samples = read_operator_samples(arguments.samples)
        optimizer = fit([s for s in samples if s.operator == "adamw"], jobs=1)[0]
        train = replace(train, launches=(*train.launches, *launches_of_samples(samples)))
    errors: dict[str, list[ProgramError]] = {"random programs alone": [], "and the other models": []}
    rows: list[dict[str, Any]] = []
    covered: list[tuple[float, int]] = []
    alone = fit_without(train.launches, tests.launches, train.record or device_of_name(train.device))
    work = [(name, train, tests, steps, alone, optimizer) for name in names]
    with ProcessPoolExecutor(arguments.jobs, mp_context=get_context("spawn")) as pool:
        for by_label, of_steps, of_intervals in pool.map(hold_out, work):
            for label, found in by_label.items():
                errors[label] += found
                print(label, [(e.program, e.kind, round(e.errors.mape, 1), round(e.sum_error_pct, 1)) for e in found])
            print(
                [(r["batch"], r["mode"], round(100 * (r["predicted_us"] / r["measured_us"] - 1), 1)) for r in of_steps]
            )
            rows += of_steps
            covered += of_intervals
    lines = page(train, tests, errors, rows, covered)
    arguments.output.parent.mkdir(parents=True, exist_ok=True)
    arguments.output.write_text("\n".join(lines) + "\n")
    print("\n".join(lines))


def hold_out(
    work: tuple[str, LaunchSet, LaunchSet, Sequence[Mapping[str, Any]], Learned, TimeModel | None],
) -> tuple[dict[str, list[ProgramError]], list[dict[str, Any]], list[tuple[float, int]]]:
    """Everything that is asked about one held-out model."""
    name, train, tests, steps, alone, optimizer = work
    own = [item for item in tests.launches if model_of(item.program) == name]
    others = [item for item in tests.launches if model_of(item.program) != name]
    with_others = fit_without([*train.launches, *others], own, train.record or device_of_name(train.device))
    by_label = {}
    for label, (model, learned) in (("random programs alone", alone), ("and the other models", with_others)):
        tables, _ = build_launch_tables(own, model.machine)
        train_of_forest = learned if model is with_others[0] else None
        evaluations, by_label[label] = evaluate_on_programs(dict(model.entries), tables, train=train_of_forest)
    covered = [(e.model.coverage or 0.0, e.model.count) for e in evaluations]
    rows = held_out_steps(name, with_others[0], own, steps, tests.launches, optimizer)
    for row in rows:
        parts = [item for item in by_label["and the other models"] if item.program == f"{name}-{row['batch']}"]
        for baseline in _BASELINES:
            kernels = sum(item.measured_us * (1 + getattr(item, f"{baseline}_sum_error_pct") / 100) for item in parts)
            row[baseline] = kernels + row["optimizer_us"]
    return by_label, rows, covered


def model_of(program: str) -> str:
    """``"gpt2"`` of ``"gpt2-8"``."""
    return program.rsplit("-", 1)[0]


def fit_without(learned: Sequence[MeasuredLaunch], held: Sequence[MeasuredLaunch], device: Device) -> Learned:
    """A model of launches from which the held-out generated kernels are taken out, and what it learned from."""
    keys = {item.launch.kernel for item in held if item.launch.category != "extern"}
    kept = [replace(item, times_us=()) if item.launch.kernel in keys else item for item in learned]
    machine = machine_of_launches(device, kept)
    tables, _ = build_launch_tables(kept, machine)
    entries = {}
    for family, table in tables.items():
        with contextlib.suppress(FitError):
            entries[family] = fit_launch_table(table)
    return TimeModel(device.name, machine, entries), tables


def held_out_steps(
    name: str,
    model: TimeModel,
    own: Sequence[MeasuredLaunch],
    steps: Sequence[Mapping[str, Any]],
    launches: Sequence[MeasuredLaunch],
    optimizer: TimeModel | None,
) -> list[dict[str, Any]]:
    """Predicted and measured steps of one model; overheads learned from the other models' steps."""
    by_program: dict[str, list[MeasuredLaunch]] = {}
    for item in launches:
        by_program.setdefault(item.program, []).append(item)
    observations = observe_steps([step for step in steps if step["model"] != name], launches, optimizer)
    model = replace(model, extras=fit_overheads(observations, model.machine.constants.steps))
    rows = []
    for step in steps:
        items = by_program.get(f"{step['model']}-{step['batch']}")
        if step["model"] != name or not items:
            continue
        launched = [item.launch for item in items]
        predicted, _ = predict_step(model, launched, mode=step["mode"])
        optimizer_us = _optimizer(optimizer, step)
        device = predicted.device_us + optimizer_us
        host = host_us(step_shape(launched, int(step["tensors"])), step["mode"], model.extras)
        rows.append(
            {
                "model": name,
                "batch": step["batch"],
                "mode": step["mode"],
                "measured_us": step["step_us"],
                "predicted_us": step_us(device, host, model.extras),
                "kernels_us": predicted.kernels_us,
                "host_bound": host > device,
                "optimizer_us": optimizer_us,
            }
        )
    return rows


def _optimizer(model: TimeModel | None, step: Mapping[str, Any]) -> float:
    if model is None:
        return 0.0
    from torchledger.predicting.operators import predict

    question = {"numel": int(step["numel"]), "tensors": int(step["tensors"])}
    return predict(model, "adamw", question, direction="step", dtype="float32").duration_us


def page(
    train: Any,
    tests: Any,
    errors: Mapping[str, Sequence[ProgramError]],
    rows: Sequence[Mapping[str, Any]],
    covered: Sequence[tuple[float, int]],
) -> list[str]:
    """The results as Markdown."""
    today = datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%d")
    command = shlex.join(["python", "-m", __spec__.name, *sys.argv[1:]])
    programs = len({item.program for item in train.launches if not item.program.startswith("sample-")})
    swept = sum(item.program.startswith("sample-") for item in train.launches)
    measured = sum(bool(item.times_us) for item in train.launches) - swept
    lines = [
        "# Kernel and step times of models that the fit never saw",
        "",
        f"{train.device}, torch {train.versions.get('torch')}, {today}; `{command}`.",
        f"Training: {measured:,} measured launches of {programs:,} random programs and "
        f"{swept:,} convolutions and products of a sweep; test: "
        f"{sum(bool(item.times_us) for item in tests.launches):,} launches of models held out whole.",
        "",
    ]
    for label, found in errors.items():
        lines += [f"## Launches: {label}", ""]
        heads: tuple[str, ...] = ("model", "kind", "launches", "median", "mean", "p90", "sum")
        heads += ("roofline mean", "roofline sum", "Inductor mean", "Inductor sum")
        has_forest = any(item.forest is not None for item in found)
        heads += ("forest mean", "forest sum") if has_forest else ()
        lines += [f"| {' | '.join(heads)} |", "|---" * len(heads) + "|"]
        for item in sorted(found, key=lambda item: (item.kind, item.program)):
            lines.append(
                f"| {item.program} | {item.kind} | {item.errors.count} | {item.errors.median_ape:.1f} % | "
                f"{item.errors.mape:.1f} % | {item.errors.p90_ape:.1f} % | {item.sum_error_pct:+.1f} % | "
                f"{item.roofline.mape:.1f} % | {item.roofline_sum_error_pct:+.1f} % | "
                f"{item.inductor.mape:.1f} % | {item.inductor_sum_error_pct:+.1f} % |"
                + (f" {item.forest.mape:.1f} % | {item.forest_sum_error_pct:+.1f} % |" if item.forest else "")
            )
        for kind in ("fused", "library"):
            some = [item for item in found if item.kind == kind]
            if some:
                count = sum(item.errors.count for item in some)
                mean = sum(item.errors.mape * item.errors.count for item in some) / count
                sums = max(abs(item.sum_error_pct) for item in some)
                middle = np.mean([item.errors.median_ape for item in some])
                lines += ["", f"{kind}: mean error {mean:.2f} %, mean of the models' medians {middle:.2f} %, "
                          f"worst sum {sums:.1f} %."]  # fmt: skip
        lines.append("")
    if covered:
        total = sum(share * count for share, count in covered) / sum(count for _, count in covered)
        lines += [f"90 % intervals hold {total:.1f} % of the held-out launches.", ""]
    if rows:
        lines += [
            "## Steps",
            "",
            "Overheads are learned from the other models' steps. The baselines add up kernels and the",
        ]
        lines += ["optimizer (as predicted here), and know no gaps; the roofline is scaled to the asked launches.", ""]
        lines += ["| model | batch | mode | measured | predicted | error | limited by | roofline | Inductor | forest |"]
        lines += ["|---|---|---|---|---|---|---|---|---|---|"]
        off = []
        for row in rows:
            error = 100 * (row["predicted_us"] / row["measured_us"] - 1)
            off.append(abs(error))
            limit = "host" if row["host_bound"] else "device"
            lines.append(
                f"| {row['model']} | {row['batch']} | {row['mode']} | {row['measured_us'] / 1e3:.2f} ms | "
                f"{row['predicted_us'] / 1e3:.2f} ms | {error:+.1f} % | {limit} |"
                + "".join(f" {100 * (row[name] / row['measured_us'] - 1):+.1f} % |" for name in _BASELINES)
            )
        others = ", ".join(
            f"{label} {np.mean([100 * abs(row[name] / row['measured_us'] - 1) for row in rows]):.1f} %"
            for name, label in _BASELINES.items()
        )
        lines += ["", f"Mean error {np.mean(off):.2f} %, worst {max(off):.1f} %, over {len(off)} steps; {others}."]
    return lines


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--train", type=Path, nargs="+", required=True)
    parser.add_argument("--models", type=Path, nargs="+", required=True)
    parser.add_argument("--steps", type=Path)
    parser.add_argument("--samples", type=Path, nargs="*", default=[])
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--quick", action="store_true", help="one model and few programs, to see that this runs")
    parser.add_argument("--output", type=Path, default=ROOT / "docs" / "results" / "launches.md")
    return parser.parse_args()


if __name__ == "__main__":
    os.environ["OMP_NUM_THREADS"] = "1"
    main()
