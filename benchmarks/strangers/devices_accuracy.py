"""How well devices are predicted from other devices.

    python -m benchmarks.strangers.devices_accuracy PART -o OUT.json

``minutes DATA``     a device calibrated for 0, 1 and 2 minutes and as long as there are data (``devices_data.py``
                     wrote DATA), starting from another device's model and from nothing: operators at shapes that were
                     not learned from, launches of random programs held out, and where DATA has drawn programs their
                     fused kernels and steps. ``--ship`` writes the model of all data, ``--families`` of it only the
                     entries whose names begin so, beside those of ``--model`` (a whole file, as ``save_model`` makes).
``back DATA``        the other way: the model of those data asked about the device that it started from, by data sheets.
``within DATA``      what a correction learns, judged inside what it may learn from: of each operator a quarter of the
                     shapes held out, the smallest and the largest sixth; with ``--families`` launches of these instead,
                     a fifth of the random programs at a time (``--model``: starting from what that model's entries were
                     before they were corrected).
``public FOLDER``    leave one device out: the operators of two public data sets (``ett``), each device from what is
                     known of the others and 0, 1, 10 and 100 % of its own rows. ``--ship`` writes both models.

Prints tables as they come; docs/results/devices.md holds them.
"""

from __future__ import annotations

import argparse
import datetime
import json
import math
import random
import shutil
import statistics
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.operators.drawn_launches import clips_as_no_model_does
from benchmarks.strangers.devices_data import TORCH
from benchmarks.strangers.strangers_errors import judge, programs
from torchledger.calibrating.calibrate import learn
from torchledger.calibrating.choosing import EVALUATION
from torchledger.device.datasheets import device_of_name, find_data_sheet
from torchledger.expecting.adaptive_pools import ADAPTIVE_POOLS
from torchledger.expecting.volume_columns import OF_VOLUMES
from torchledger.fitting.correcting import correct_model, error_pct
from torchledger.fitting.data import gate_public_labels, read_operator_samples
from torchledger.fitting.fit import fit, now_utc
from torchledger.fitting.fit_data import fit_launches
from torchledger.fitting.launches import align_columns, build_launch_tables, merge_alike
from torchledger.fitting.sample_launches import launches_of_samples
from torchledger.fitting.time_model import TimeModel
from torchledger.fitting.transfer import transfer_model
from torchledger.nouns import Device, Sample
from torchledger.operators import find_operator
from torchledger.predicting.model_file import SHIPPED, SUFFIX, load_model, save_model
from torchledger.sampling.dataset import read_samples
from torchledger.store.codec import decode
from torchledger.store.launch_file import MeasuredLaunch, launches_of_ledger, read_launches

NEEDS: tuple[str, ...] = ("public data",)
RUNS: tuple[tuple[str, ...], ...] = (("public", "../shared/data/ett", "-o", "{out}/public.json"),)

BASE = "NVIDIA_H200"
_HELD_OUT = 5  # one shape in so many
_JUDGED = 6000


@dataclass(frozen=True)
class Measured:
    """One device's calibration data: samples and launches, and when each was taken."""

    record: Device
    samples: Sequence[Sample]
    launches: Sequence[MeasuredLaunch]
    told: Mapping[str, Any]
    folder: Path
    programs: Sequence[MeasuredLaunch] = ()
    rounded: Sequence[MeasuredLaunch] = ()
    """Launches of drawn programs that were opened since, with what ran before each: the model that is shipped learns of
    them. Products of float32 were rounded in the second ones."""

    @property
    def judged(self) -> list[Sample]:
        """Samples that are never learned from."""
        return [sample for sample in self.samples if sample.group == EVALUATION and sample.status == "ok"]

    @property
    def judged_launches(self) -> list[MeasuredLaunch]:
        """Those of the programs that are held out: one in five."""
        return [item for item in self.launches if item.program in self._held_out]

    @property
    def _held_out(self) -> set[str]:
        names = sorted({item.program for item in self.launches})
        random.Random(0).shuffle(names)
        return set(names[: len(names) // _HELD_OUT])

    def until(self, seconds: float) -> tuple[list[Sample], list[MeasuredLaunch]]:
        """What had been taken by then, without what is for judging."""
        began = datetime.datetime.fromisoformat(self.told["device"]["ceilings"]["measured_utc"]).timestamp()
        samples = [s for s in self.samples if s.group != EVALUATION and (s.measured_utc or 0) - began <= seconds]
        held_out, taken_s = self._held_out, self.told["taken_s"]
        return samples, [
            item
            for item in self.launches
            # What was measured on another day came after all else.
            if taken_s.get(item.program, math.inf) <= seconds and item.program not in held_out
        ]


def read_measured(folder: Path) -> Measured:
    """The files that ``devices_data.py`` wrote."""
    operators = folder / f"operators_{TORCH}.parquet"
    samples = read_samples(operators) if operators.exists() else []
    told = json.loads((folder / "calibration.json").read_text())
    record = decode(Device, json.dumps(told["device"]).encode())
    launches = [item for item in _launches(folder, "fused", "rare_fused") if not clips_as_no_model_does(item)]
    drawn, rounded = (_launches(folder, name) for name in ("programs", "programs_tf32"))
    return Measured(record, samples, launches, told, folder, drawn, rounded)


def _launches(folder: Path, *names: str) -> list[MeasuredLaunch]:
    files = [folder / f"{name}_{TORCH}.launches" for name in names]
    return [item for path in files if path.exists() for item in read_launches(path).launches]


def judge_launches(model: TimeModel, launches: Sequence[MeasuredLaunch]) -> dict[str, Any]:
    """Errors of launches by family, of fused ones together, in per cent."""
    errors = launch_errors(model, launches)
    fused = [one for family, rows in errors.items() if family.startswith("launch:fused") for one in rows]
    return {
        "fused_kernels": len(fused),
        "fused_mean_pct": _mean(abs(error) for error, _ in fused),
        "fused_median_pct": statistics.median(abs(error) for error, _ in fused) if fused else None,
        "fused_within_intervals": _mean(float(inside) for _, inside in fused),
        "families": {
            family: {"launches": len(rows), "mean_pct": _mean(abs(error) for error, _ in rows)}
            for family, rows in errors.items()
        },
    }


def launch_errors(model: TimeModel, launches: Sequence[MeasuredLaunch]) -> dict[str, list[tuple[float, bool]]]:
    """Per cent by which each launch is off, and whether its interval holds, by family."""
    tables, _ = build_launch_tables(launches, model.machine)
    found = {}
    for family, table in tables.items():
        each = merge_alike(table)
        log_us, width = each.log_baseline, np.full(len(each.times_us), np.log(2.0))
        if family in model.entries:
            entry = model.entries[family]
            residual, width, _ = entry.predict(align_columns(each.values, each.names, entry.feature_names))
            width = width * model.extras.get(f"{family} interval", 1.0)
            log_us = each.log_baseline_of(entry.feature_names) + residual
        off = log_us - np.log(each.times_us)
        found[family] = list(zip((100 * np.expm1(off)).tolist(), (np.abs(off) <= width).tolist(), strict=True))
    return found


def judge_programs(model: TimeModel, measured: Measured) -> dict[str, Any]:
    """Fused kernels and steps of the drawn programs; nothing where there are none."""
    file = measured.folder / f"programs_{TORCH}.tar"
    if not file.exists():
        return {}
    launches: list[MeasuredLaunch] = []
    steps: dict[str, tuple[float, float, str, bool]] = {}
    with tempfile.TemporaryDirectory() as scratch:
        host = Path(scratch) / "host.json"
        host.write_text(json.dumps(measured.told["host"]))
        shutil.copyfile(file, Path(scratch) / "devices.tar")
        for name, path in programs(Path(scratch), "devices"):
            launches += launches_of_ledger(path).launches
            found = judge(name, path, measured.told["rows"][name], model, str(host))
            decides = "device" if found.device_us > 0.75 * found.step_us else "host"
            off = 100 * (found.predicted_step_us / found.step_us - 1)
            steps[name] = (off, 100 * (found.predicted_device_us / found.device_us - 1), decides, found.holds)
    by_device = [abs(off) for off, _, decides, _ in steps.values() if decides == "device"]
    return {
        "drawn": judge_launches(model, launches),
        "steps_by_device": len(by_device),
        "steps_mean_pct": _mean(by_device),
        "steps_worst_pct": max(by_device, default=None),
        "device_time_mean_pct": _mean(abs(device) for _, device, _, _ in steps.values()),
        "steps": steps,
    }


def _mean(values: Iterable[float]) -> float | None:
    found = list(values)
    return statistics.fmean(found) if found else None


def minutes(
    measured: Measured,
    *,
    jobs: int,
    ship: Path | None,
    former: TimeModel | None,
    families: tuple[str, ...],
    limits: Sequence[float],
    scratch: Sequence[float],
) -> dict[str, Any]:
    """The curve of error over minutes."""
    base = load_model(SHIPPED / f"{BASE}{SUFFIX}")
    found: dict[str, Any] = {}

    def report(name: str, model: TimeModel, labels: int, launches: int, seconds: float) -> None:
        error, by_operator, within = error_pct(model, measured.judged)
        found[name] = {
            "labels": labels, "launches": launches, "fit_s": round(seconds, 1), "operators_pct": error,
            "operators": by_operator, "within_intervals": within, **judge_launches(model, measured.judged_launches),
            **judge_programs(model, measured),
        }  # fmt: skip
        shown = {key: value for key, value in found[name].items() if key not in ("operators", "steps", "families")}
        print(name, json.dumps(shown, default=str), flush=True)

    sheet_only = device_of_name(measured.record.name)
    report("the other device's model as it is", base, 0, 0, 0.0)
    report("0 minutes, data sheets alone", transfer_model(base, sheet_only), 0, 0, 0.0)
    start = transfer_model(base, measured.record)
    report("0 minutes, measured ceilings", start, 0, 0, 0.0)
    for limit in limits:
        samples, launches = measured.until(limit)
        label = f"{limit / 60:.0f} minutes" if limit < 1e8 else "all"
        began = time.monotonic()
        model, _ = correct_model(start, samples, launches, jobs=jobs)
        report(f"{label}, transferred", model, len(samples), len(launches), time.monotonic() - began)
        if limit in scratch or (limit > 1e8 and -1.0 in scratch):
            began = time.monotonic()
            model = replace(start, entries={}, source="nothing")
            if samples:
                model, _ = fit(samples, record=measured.record, jobs=jobs)
            entries, _ = fit_launches([*launches, *launches_of_samples(samples)], model, jobs=jobs)
            model = replace(model, entries={**model.entries, **entries}, extras=base.extras)
            report(f"{label}, from nothing", model, len(samples), len(launches), time.monotonic() - began)
    if ship is not None:
        launches = [*measured.launches, *measured.programs]
        model, _, _ = learn(start, measured.samples, launches, rounded=measured.rounded, jobs=jobs)
        if former is not None:
            anew = {key: entry for key, entry in model.entries.items() if key.startswith(families)}
            # These were measured on this device alone, and taught the base as they are.
            lent = {key: entry for key, entry in base.entries.items() if key.endswith((OF_VOLUMES, ADAPTIVE_POOLS))}
            anew |= {key: replace(entry, spread=0.0) for key, entry in lent.items()}
            machine = replace(former.machine, networks=model.machine.networks)
            extras = {key: value for key, value in former.extras.items() if key.removesuffix(" interval") not in anew}
            model = replace(former, machine=machine, entries={**former.entries, **anew}, extras=extras)
        print(save_model(model, ship, force=True, beside=BASE), "bytes shipped")
    return found


def back(measured: Measured, model_path: Path, folder: Path) -> dict[str, Any]:
    """The model of ``measured`` asked about the device that it started from, by the two data sheets."""
    model = load_model(model_path)
    base = load_model(SHIPPED / f"{BASE}{SUFFIX}")
    moved = transfer_model(model, device_of_name(base.device))
    found: dict[str, Any] = {}
    if model.operators_error_pct is not None:
        error, by_operator, within = error_pct(moved, read_samples(folder / f"anew_{TORCH}.parquet"))
        found = {"operators_pct": error, "operators": by_operator, "within_intervals": within}
    for name in ("models", "fused"):
        launches = read_launches(folder / f"{name}_{TORCH}.launches").launches[:_JUDGED]
        found[name] = {"back": judge_launches(moved, launches), "own": judge_launches(base, launches)}
    print(json.dumps(found, indent=1, default=str))
    return found


def within(measured: Measured, *, jobs: int) -> dict[str, Any]:
    """Errors of operators at shapes held out inside those that may be learned from: inside their range and beyond."""
    start = transfer_model(load_model(SHIPPED / f"{BASE}{SUFFIX}"), measured.record)
    samples, _ = measured.until(1e9)
    sizes: dict[Key, float] = {}
    for sample in samples:
        declared = find_operator(sample.operator)
        works = declared.work(declared.resolve(sample.parameters), sample.direction, 2)
        sizes.setdefault(_key(sample), sum(float(work.bytes_moved) for work in works))
    by_operator: dict[str, list[Key]] = defaultdict(list)
    for key in sorted(sizes, key=lambda key: (sizes[key], key)):
        by_operator[key[0]].append(key)
    held: dict[str, set[Key]] = {"a quarter": set(), "smallest": set(), "largest": set()}
    for keys in by_operator.values():
        held["a quarter"] |= set(random.Random(0).sample(keys, len(keys) // 4))
        held["smallest"] |= set(keys[: len(keys) // 6])
        held["largest"] |= set(keys[len(keys) - len(keys) // 6 :])
    found = {}
    for name, out in held.items():
        model, _ = correct_model(start, [sample for sample in samples if _key(sample) not in out], jobs=jobs)
        error, operators, inside = error_pct(model, [sample for sample in samples if _key(sample) in out])
        found[name] = {"operators_pct": error, "within_intervals": inside, "operators": operators}
        print(name, error, inside, flush=True)
    return found


def within_programs(measured: Measured, families: tuple[str, ...], path: Path | None, *, jobs: int) -> dict[str, Any]:
    """Errors of launches of some families, a fifth of the random programs held out at a time, whole."""
    start = transfer_model(load_model(SHIPPED / f"{BASE}{SUFFIX}"), measured.record)
    entries = {key: start.entries[key] for key in start.entries if key.startswith(families)}
    if path is not None:
        theirs = load_model(path).entries
        entries = {key: replace(theirs[key], corrections=(), spread=one.spread) for key, one in entries.items()}
    start = replace(start, entries=entries)
    names = sorted({item.program for item in measured.launches})
    random.Random(0).shuffle(names)
    before, after = defaultdict(list), defaultdict(list)
    for part in range(_HELD_OUT):
        out = set(names[part::_HELD_OUT])
        model, _ = correct_model(start, [], [item for item in measured.launches if item.program not in out], jobs=jobs)
        for errors, asked in ((before, start), (after, model)):
            for family, rows in launch_errors(asked, [i for i in measured.launches if i.program in out]).items():
                errors[family] += rows
    found = {}
    for family in entries:
        found[family] = {"launches": len(after[family])} | {
            f"{name}_pct": _mean(abs(off) for off, _ in rows[family])
            for name, rows in (("transferred", before), ("corrected", after))
        }
        print(family, found[family], flush=True)
    return found


# --- public data ------------------------------------------------------------------------------------------------------

Key = tuple[str, tuple[Any, ...]]


def _key(sample: Sample) -> Key:
    return sample.operator, tuple(sorted(sample.parameters.items()))


def _shares(samples: Sequence[Sample]) -> tuple[dict[str, list[Key]], set[Key]]:
    """Shapes to learn from, in a fixed order by operator, and those held out."""
    rng = random.Random(0)
    by_operator: dict[str, list[Key]] = defaultdict(list)
    for key in sorted({_key(sample) for sample in samples}):
        by_operator[key[0]].append(key)
    train, held = {}, set()
    for operator, keys in by_operator.items():
        rng.shuffle(keys)
        cut = len(keys) // _HELD_OUT
        held |= set(keys[:cut])
        train[operator] = keys[cut:]
    return train, held


def _part(samples: Sequence[Sample], train: Mapping[str, Sequence[Key]], share: float) -> list[Sample]:
    kept = {key for keys in train.values() for key in keys[: max(1, round(share * len(keys)))]}
    return [sample for sample in samples if _key(sample) in kept]


def public(
    folder: Path, *, only: str, jobs: int, shares: Sequence[float], scratch: Sequence[float], ship: bool, alone: bool
) -> dict[str, Any]:
    """Each of the two devices from the other, the shipped model and a share of its own rows; ``alone``: not from the
    other."""
    base = load_model(SHIPPED / f"{BASE}{SUFFIX}")
    data = {}
    for name in ("Perlmutter", "Vista"):
        samples = gate_public_labels(read_operator_samples([folder / name / "operator"]))
        data[samples[0].device] = [sample for sample in samples if sample.status == "ok"]
    found: dict[str, Any] = {}
    for name, samples in data.items():
        if only not in name:
            continue
        (other,) = [each for each in data if each != name]
        record = device_of_name(name)
        train, held = _shares(samples)
        judged = random.Random(1).sample([s for s in samples if _key(s) in held], _JUDGED)
        other_train, _ = _shares(data[other])
        start, by_way = transfer_model(base, record), None
        if not alone:
            over = transfer_model(base, device_of_name(other))
            over, _ = correct_model(over, _part(data[other], other_train, 0.1), jobs=jobs)
            by_way = transfer_model(over, record)

        def report(label: str, model: TimeModel, rows: int, judged: Sequence[Sample] = judged, of: str = name) -> None:
            error, by_operator, within = error_pct(model, judged)
            found.setdefault(of, {})[label] = {
                "rows": rows, "operators_pct": error, "operators": by_operator, "within_intervals": within
            }  # fmt: skip
            print(
                of, label, rows, error, within, {key[6:]: round(one, 1) for key, one in by_operator.items()}, flush=True
            )

        report("0%, from the H200", start, 0)
        if by_way is not None:
            report(f"0%, from the H200 by way of 10% of {other}", by_way, 0)
        best = start
        for share in shares:
            rows = _part(samples, train, share)
            best, _ = correct_model(start, rows, jobs=jobs)
            report(f"{share:.0%}, from the H200", best, len(rows))
            if by_way is not None:
                best, _ = correct_model(start, rows, others=[by_way], jobs=jobs)
                report(f"{share:.0%}, from both", best, len(rows))
            if share in scratch:
                model, _ = fit(rows, record=record, jobs=jobs)
                report(f"{share:.0%}, from nothing", model, len(rows))
        if ship:
            error, _, _ = error_pct(best, judged)
            entries = {key: entry for key, entry in best.entries.items() if entry.corrections and entry.n_rows}
            source = f"public data (estimate-train-time, {max(shares):.0%}), starting from {base.device}"
            model = replace(
                best, entries=entries, extras={}, source=source, operators_error_pct=error, created_utc=now_utc()
            )
            sheet = find_data_sheet(name)
            assert sheet is not None
            called = f"NVIDIA {sheet.device.name}"
            model = replace(model, device=called, machine=replace(model.machine, device=replace(record, name=called)))
            path = SHIPPED / f"{called.replace(' ', '_')}{SUFFIX}"
            print(path.name, save_model(model, path, force=True, beside=BASE), "bytes", flush=True)
    return found


def main() -> None:
    """Run one part."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("part", choices=("minutes", "back", "within", "public"))
    parser.add_argument("data", type=Path)
    parser.add_argument("-o", "--out", type=Path)
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--ship", action="store_true", help="write the models that come with torchledger")
    parser.add_argument("--model", type=Path, help="back: the model of DATA; within: see above")
    parser.add_argument("--families", nargs="*", default=[], help="within, minutes --ship: how families begin")
    parser.add_argument("--others", type=Path, default=Path("data/h200"), help="back: data of the device started from")
    parser.add_argument("--only", default="", help="public: the device whose name holds this")
    parser.add_argument("--alone", action="store_true", help="public: not from the other device too, which takes long")
    parser.add_argument("--shares", type=float, nargs="*", default=[0.01, 0.1, 1.0])
    parser.add_argument(
        "--limits", type=float, nargs="*", default=[60, 180, 1e9], help="minutes: seconds of measuring to learn from"
    )
    parser.add_argument(
        "--scratch", type=float, nargs="*", default=[], help="seconds or shares (-1: all) to fit from nothing too"
    )
    arguments = parser.parse_args()
    if arguments.part == "public":
        found = public(
            arguments.data,
            only=arguments.only,
            jobs=arguments.jobs,
            shares=arguments.shares,
            scratch=arguments.scratch,
            ship=arguments.ship,
            alone=arguments.alone,
        )
    else:
        measured = read_measured(arguments.data)
        own = SHIPPED / f"{measured.record.name.replace(' ', '_')}{SUFFIX}"
        if arguments.part == "within" and arguments.families:
            found = within_programs(measured, tuple(arguments.families), arguments.model, jobs=arguments.jobs)
        elif arguments.part == "within":
            found = within(measured, jobs=arguments.jobs)
        elif arguments.part == "minutes":
            ship = own if arguments.ship else None
            found = minutes(
                measured,
                jobs=arguments.jobs,
                ship=ship,
                former=load_model(arguments.model) if arguments.model else None,
                families=tuple(arguments.families) or ("",),
                limits=arguments.limits,
                scratch=arguments.scratch,
            )
        else:
            found = back(measured, arguments.model or own, arguments.others)
    if arguments.out is not None:
        arguments.out.write_text(json.dumps(found, indent=1, default=str))


if __name__ == "__main__":
    sys.exit(main())
