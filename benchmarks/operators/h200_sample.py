"""Sampling on one CUDA device: speed, agreement, repeatability, and the data set.

    python -m benchmarks.operators.h200_sample --make-plan PLAN_FOLDER
        [--sweep denser --measured DATA]  # needs pydantic
    python -m benchmarks.operators.h200_sample --plan PLAN_FOLDER -o OUT [--limit 560]
        [--only speed,repeats,data,agreement]

``--sweep`` plans another sweep of ``h200_sweep.py``, without the shapes that DATA holds already, in whatever group.
Prints as it goes; each part keeps to its own time limit. Writes OUT/sample_summary.json, OUT/agreement.csv,
OUT/profile.txt and OUT/samples.parquet.
"""

from __future__ import annotations

import argparse
import cProfile
import csv
import io
import json
import pstats
import random
import statistics
import subprocess
import sys
import tempfile
import time
import traceback
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from torchledger.nouns import Sample
from torchledger.operators import find_operator
from torchledger.sampling.dataset import count_by_status, read_samples, write_samples
from torchledger.sampling.points import Plan, Point, load_plan, save_plan
from torchledger.sampling.timing import PointTimes, Timer, make_timer
from torchledger.sampling.worker import describe_device, run_worker
from torchledger.work.element_sizes import ELEMENT_SIZES

NEEDS: tuple[str, ...] = ("cuda",)
RUNS: tuple[tuple[str, ...], ...] = (("--make-plan", "{out}"), ("--plan", "{out}", "-o", "{out}"))

STARTED = time.monotonic()

PAUSE_S = 0.05
"""Before each side of a comparison: long enough for the host's queue to drain and the clocks to come back."""


def say(text: str) -> None:
    """Print with the seconds since the start."""
    print(f"[{time.monotonic() - STARTED:6.1f}s] {text}", flush=True)


def make_plan(folder: Path, *, sweep: str | None = None, measured: Path | None = None) -> None:
    """Expand the sweep of the data set into a plan that needs no pydantic, without the shapes of ``measured``."""
    from torchledger.sampling.sweep import load_sweep

    file = folder / "h200.yml"
    folder.mkdir(parents=True, exist_ok=True)
    command = [sys.executable, "-m", "benchmarks.operators.h200_sweep", *([f"--{sweep}"] if sweep else [])]
    file.write_text(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
    plan = load_sweep(file)
    if measured:
        known = {shape_of(sample) for sample in read_samples(measured)}
        plan = replace(plan, points=tuple(point for point in plan.points if shape_of(point) not in known))
    save_plan(plan, folder)
    print(f"{len(plan.points):,} points in {folder}")


def shape_of(item: Point | Sample) -> tuple[str, str, str]:
    """What two measurements of the same thing share."""
    return item.operator, json.dumps(dict(item.parameters), sort_keys=True), item.dtype


def least_us(point: Point) -> float:
    """A rough lower bound of one forward and backward on an H200."""
    operator = find_operator(point.operator)
    rate = 4e7 if point.dtype == "float32" else 6e8
    p = operator.resolve(point.parameters)
    parts = [w for d in operator.directions for w in operator.work(p, d, ELEMENT_SIZES[point.dtype])]
    return sum(max(w.flops / rate, w.bytes_moved / 4e6, 1.5) for w in parts)


def run_group(timer: Timer, points: Sequence[Point], warmup: int = 2, active: int = 10) -> list[PointTimes]:
    """Measure points in the timer's groups."""
    size = timer.group_size
    return [
        result
        for start in range(0, len(points), size)
        for result in timer.measure(points[start : start + size], warmup=warmup, active=active)
    ]


def speed(points: Sequence[Point], limit_s: float) -> dict[str, Any]:
    """Shapes per second, forward and backward at ten active iterations, over fresh small and middle shapes; three
    passes over the group sizes, after a warm-up in which libraries are loaded."""
    deadline = time.monotonic() + limit_s
    small = [p for p in points if least_us(p) < 400 and p.dtype == "bfloat16" and p.operator != "conv2d"]
    started = time.monotonic()
    run_group(make_timer("cuda:0"), small[:512])
    say(f"speed: warm-up of 512 shapes took {time.monotonic() - started:.1f} s")
    place = 512
    timers = {size: make_timer("cuda:0", group_size=size) for size in (8, 32, 64, 128)}
    passes: dict[int, list[dict[str, Any]]] = {size: [] for size in timers}
    for _ in range(3):
        for size, timer in timers.items():
            if time.monotonic() > deadline:
                break
            chosen = small[place : place + 256]
            place += 256
            started = time.monotonic()
            results = run_group(timer, chosen)
            seconds = time.monotonic() - started
            # A shape whose twelve iterations keep the device busier than 1/60 s cannot go faster than that.
            busy = [sum(statistics.median(d.times_us) for d in r.directions.values()) * 12 / 1e6 for r in results]
            passes[size].append(
                {
                    "shapes_per_s": round(len(chosen) / seconds, 1),
                    "device_busy_s": round(sum(busy), 3),
                    "device_bound_shapes": sum(b > 1 / 60 for b in busy),
                    "statuses": dict(Counter(r.status for r in results)),
                }
            )
    found: dict[str, Any] = {}
    for size, measured in passes.items():
        if measured:
            rates = [row["shapes_per_s"] for row in measured]
            found[str(size)] = {"median_shapes_per_s": statistics.median(rates), "passes": measured}
            say(f"speed: groups of {size}: {rates}")
    return found


def profile_host(points: Sequence[Point], out: Path) -> None:
    """Where the host's time goes, for one group."""
    small = [p for p in points if least_us(p) < 400 and p.dtype == "bfloat16" and p.operator != "conv2d"][-128:]
    timer = make_timer("cuda:0", group_size=32)
    profiler = cProfile.Profile()
    profiler.enable()
    run_group(timer, small)
    profiler.disable()
    text = io.StringIO()
    pstats.Stats(profiler, stream=text).sort_stats("tottime").print_stats(30)
    (out / "profile.txt").write_text(text.getvalue())
    print("\n".join(text.getvalue().splitlines()[:40]), flush=True)


def agreement(points: Sequence[Point], limit_s: float, out: Path) -> dict[str, Any]:
    """CUPTI's medians against CUDA-graph replay timed by events: the same point by turns, both after the same pause, so
    that clocks and temperature are alike."""
    from torchledger.sampling.independent import PointReplay, gap_between_kernels_us, without_gaps

    deadline = time.monotonic() + limit_s
    by_operator: dict[str, list[Point]] = defaultdict(list)
    for point in points:
        if point.dtype != "float32" and 30 < least_us(point) < 2000:
            by_operator[point.operator].append(point)
    timer = make_timer("cuda:0", group_size=8)
    # The gap between two nodes is a property of the device; it is taken from the smallest kernel there is.
    (tiny,) = run_group(timer, [Point("add", {"numel": 1}, "float32")])
    kernel_us = statistics.median(tiny.directions["forward"].times_us)
    gap_us = gap_between_kernels_us(kernel_us=kernel_us)
    say(f"agreement: smallest kernel {kernel_us:.2f} us, gap between graph nodes {gap_us:.2f} us")
    rows: list[dict[str, Any]] = []
    failures: Counter[str] = Counter()
    for round_number in range(6):
        for operator, candidates in sorted(by_operator.items()):
            if round_number >= len(candidates) or time.monotonic() > deadline:
                continue
            point = candidates[round_number]
            (result,) = run_group(timer, [point])
            if result.status != "ok":
                failures[f"{operator}: {result.status}"] += 1
                continue
            kernels = {d: len(t.kernels) for d, t in result.directions.items()}
            try:
                replay = PointReplay(point, timer.pool)
            except RuntimeError as error:
                failures[f"{operator}: not capturable: {str(error).splitlines()[0][:80]}"] += 1
                continue
            cupti: dict[str, list[float]] = defaultdict(list)
            replayed: dict[str, list[float]] = defaultdict(list)
            for _ in range(3):
                time.sleep(PAUSE_S)
                (again,) = run_group(timer, [point])
                time.sleep(PAUSE_S)
                for direction, us in replay.times_us().items():
                    replayed[direction].append(us)
                    cupti[direction].append(statistics.median(again.directions[direction].times_us))
            raw = {direction: statistics.median(times) for direction, times in replayed.items()}
            corrected = without_gaps(raw, kernels, gap_us)
            for direction, times in cupti.items():
                rows.append(
                    {
                        "operator": operator,
                        "direction": direction,
                        "parameters": json.dumps(dict(point.parameters)),
                        "dtype": point.dtype,
                        "kernels": kernels[direction],
                        "first_us": round(statistics.median(result.directions[direction].times_us), 3),
                        "cupti_us": round(statistics.median(times), 3),
                        "replay_us": round(raw[direction], 3),
                        "replay_less_gaps_us": round(corrected[direction], 3),
                        "cupti_spread_pct": round((max(times) / min(times) - 1) * 100, 2),
                        "replay_spread_pct": round((max(replayed[direction]) / min(replayed[direction]) - 1) * 100, 2),
                    }
                )
    with (out / "agreement.csv").open("w", newline="") as file:
        if rows:
            writer = csv.DictWriter(file, list(rows[0]))
            writer.writeheader()
            writer.writerows(rows)
    long = [r for r in rows if r["cupti_us"] / r["kernels"] > 20]
    found: dict[str, Any] = {"gap_us": gap_us, "compared": len(rows), "kernels_over_20_us": len(long)}
    found["not_compared"] = dict(failures)
    for name in ("replay_us", "replay_less_gaps_us"):
        errors = sorted(abs(r["cupti_us"] / r[name] - 1) * 100 for r in long)
        if errors:
            found[name] = {
                "median_pct": round(statistics.median(errors), 3),
                "p90_pct": round(errors[int(0.9 * (len(errors) - 1))], 3),
                "max_pct": round(errors[-1], 3),
                "within_2_pct": round(100 * sum(e < 2 for e in errors) / len(errors), 1),
            }
    worst = sorted(long, key=lambda r: -abs(r["cupti_us"] / r["replay_less_gaps_us"] - 1))[:12]
    for row in worst:
        say(f"agreement, far off: {row}")
    say(f"agreement: {found}")
    return found


def repeats(points: Sequence[Point], limit_s: float) -> dict[str, Any]:
    """Two runs of one sweep, in separate processes' stead: fresh timers and inputs, shapes in another order."""
    deadline = time.monotonic() + limit_s
    chosen = [p for p in points if least_us(p) < 3000 and p.operator != "conv2d"][1000:1512]
    first = {id(r.point): r for r in run_group(make_timer("cuda:0"), chosen)}
    if time.monotonic() > deadline:
        return {"skipped": "no time left for the second run"}
    shuffled = list(chosen)
    random.Random(1).shuffle(shuffled)
    differences: dict[str, list[float]] = {"all": [], "over_20_us": []}
    for again in run_group(make_timer("cuda:0"), shuffled):
        before = first[id(again.point)]
        for direction, times in again.directions.items():
            if direction in before.directions:
                a, b = statistics.median(before.directions[direction].times_us), statistics.median(times.times_us)
                differences["all"].append(abs(b / a - 1) * 100)
                if a > 20:
                    differences["over_20_us"].append(abs(b / a - 1) * 100)
    found: dict[str, Any] = {"shapes": len(chosen)}
    for name, values in differences.items():
        ordered = sorted(values)
        found[name] = {
            "labels": len(ordered),
            "median_pct": round(statistics.median(ordered), 3),
            "p90_pct": round(ordered[int(0.9 * (len(ordered) - 1))], 3),
        }
    say(f"repeats: {found}")
    return found


def data(plan: Plan, limit_s: float, out: Path, group_size: int) -> dict[str, Any]:
    """Collect as much of the data set as the time allows, in the plan's shuffled order."""
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        save_plan(plan, folder)
        last = [time.monotonic()]

        def progress(done: int, total: int) -> None:
            if time.monotonic() - last[0] > 15:
                last[0] = time.monotonic()
                say(f"data: {done:,} of {total:,} points")

        problem = None
        try:
            summary = run_worker(folder, device="cuda:0", group_size=group_size, budget_s=limit_s, on_progress=progress)
            say(f"data: {summary}")
        except Exception as error:
            problem = f"{type(error).__name__}: {error}"
            traceback.print_exc()
        samples = read_samples(folder)
        write_samples(out / "samples.parquet", samples)
    size = (out / "samples.parquet").stat().st_size
    found = {"samples": len(samples), "statuses": count_by_status(samples), "bytes": size, "problem": problem}
    counts = Counter((s.operator, s.group) for s in samples if s.status == "ok")
    found["ok_by_operator"] = {f"{operator} {group}": n for (operator, group), n in sorted(counts.items())}
    reasons = Counter(f"{s.operator} {s.status}: {s.reason}"[:160] for s in samples if s.status != "ok")
    found["reasons"] = dict(reasons.most_common(40))
    say(f"data: {found}")
    return found


def main() -> None:
    """Run the parts that were asked for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--make-plan", type=Path)
    parser.add_argument("--sweep", choices=("denser", "rows", "anew"), help="plan this one")
    parser.add_argument("--measured", type=Path, help="samples whose shapes are left out of the plan")
    parser.add_argument("--group-size", type=int, default=32, help="points of the data set a profiler session")
    parser.add_argument("--plan", type=Path)
    parser.add_argument("-o", "--out", type=Path)
    parser.add_argument("--limit", type=float, default=560.0, help="seconds for everything")
    parser.add_argument("--only", default="speed,repeats,data,agreement")
    options = parser.parse_args()
    if options.make_plan:
        make_plan(options.make_plan, sweep=options.sweep, measured=options.measured)
        return
    out: Path = options.out
    out.mkdir(parents=True, exist_ok=True)
    plan = load_plan(options.plan)
    summary: dict[str, Any] = {"device": describe_device("cuda:0"), "plan": len(plan.points)}
    say(json.dumps(summary))
    parts = options.only.split(",")
    for name in parts:
        left = options.limit - (time.monotonic() - STARTED)
        try:
            if name == "speed":
                summary[name] = speed(plan.points, min(60.0, left))
                profile_host(plan.points, out)
            elif name == "agreement":
                summary[name] = agreement(plan.points, min(100.0, left), out)
            elif name == "repeats":
                summary[name] = repeats(plan.points, min(40.0, left))
            elif name == "data":
                # Comparing by capture comes last: a capture that fails may leave the process unfit for anything else.
                later = 115.0 if "agreement" in parts[parts.index(name) :] else 10.0
                summary[name] = data(plan, left - later - 15.0, out, options.group_size)
        except Exception as error:
            summary[name] = {"problem": f"{type(error).__name__}: {error}"}
            traceback.print_exc()
        (out / "sample_summary.json").write_text(json.dumps(summary, indent=1))
    say("finished")


if __name__ == "__main__":
    main()
