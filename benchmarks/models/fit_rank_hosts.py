"""What ranks cost their hosts (``planning/rank_host.py``), by jobs whose hosts were timed phase by phase.

    python -m benchmarks.models.fit_rank_hosts plan JOBS.json [JOBS.json ...] -o FILE [--sizes drawn48 drawn63]
    python -m benchmarks.models.fit_rank_hosts [FILE] [--groups 0 1]

``JOBS.json`` is what ``job_waves_cuda.py --plain`` wrote; each is a group of jobs of one machine at one time. Each job
is planned without a GPU: FILE holds, phase by phase, what a host of slowness 1 needs for all that has a price in every
step, how often what comes with ranks is there, and what the ranks' hosts took. The second call prints the costs that
explain it best, with a slowness of its own for each group, beside those in use. Needs Triton for the plans.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Collection, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

import torchledger.planning.plan as planning
from benchmarks.plans.planned_jobs import plan_job
from benchmarks.shared.places import ROOT
from torchledger.planning import rank_host
from torchledger.planning.rank_entries import EntryMaker, RankProgram, time_entries
from torchledger.planning.sharing import ALONE
from torchledger.predicting.devices import find_model
from torchledger.predicting.overheads import overheads_of

NEEDS: tuple[str, ...] = ("triton",)
RUNS: tuple[tuple[str, ...], ...] = ((),)
DATA = ROOT / "data/h200/rank_hosts_torch2.11.json"


def program_of_job(strategy: str, size: str, device: str) -> tuple[RankProgram, Any]:
    """The first rank of a job, planned for two of the device, and the fabric between them."""
    seen: list[tuple[Any, Any]] = []
    original = planning.price_ranks

    def noted(programs: Any, model: Any, fabric: Any, *others: Any, **options: Any) -> Any:
        seen.append((programs[0], fabric))
        return original(programs, model, fabric, *others, **options)

    planning.price_ranks = noted  # type: ignore[assignment]
    try:
        plan_job(strategy, size, device)
    finally:
        planning.price_ranks = original
    return seen[0]


def phases_of(program: RankProgram) -> dict[str, list[Any]]:
    """The calls of each phase of the program's own timers; a collective belongs to what came before it."""
    found: dict[str, list[Any]] = {}
    is_pipeline = any("send" in call.name or "recv" in call.name for call in program.calls)
    last = "forward"
    for call in program.calls:
        if call.phase in ("forward", "backward", "optimizer"):
            last = call.phase
        phase = "schedule" if is_pipeline and last != "optimizer" else last
        found.setdefault(phase, []).append(call)
    return found


def needs_of(program: RankProgram, fabric: Any, device: str) -> dict[str, dict[str, Any]]:
    """By phase what a usual host needs without what comes with ranks, in milliseconds, and how often that is there."""
    model = find_model(device)
    used = dict(rank_host.RANK_COSTS)

    def by_phase(costs: Mapping[str, float]) -> dict[str, float]:
        rank_host.RANK_COSTS = dict.fromkeys(used, 0.0) | costs
        totals = {}
        for phase, calls in phases_of(program).items():
            maker = EntryMaker(replace(program, calls=calls), model, fabric, {}, overheads_of(model), "eager", ALONE)
            # A phase of its own begins as the step has come to it.
            maker.needs._is_backward = phase == "backward"
            totals[phase] = sum(entry.host_us for entry in time_entries(maker, {}).entries) / 1e3
        return totals

    try:
        base = by_phase({})
        counts = {name: by_phase({name: 1e3}) for name in used}
    finally:
        rank_host.RANK_COSTS = used
    return {
        phase: {
            "base_ms": round(ms, 3),
            "counts": {name: round(each[phase] - ms, 2) for name, each in counts.items() if each[phase] - ms > 1e-6},
        }
        for phase, ms in base.items()
    }


def plan(options: argparse.Namespace) -> None:
    """Write the rows."""
    rows: list[dict[str, Any]] = json.loads(options.output.read_text()) if options.output.exists() else []
    for number, path in enumerate(options.jobs, start=len({row["group"] for row in rows})):
        for case, answer in json.loads(path.read_text()).items():
            strategy, size = case.split(":")
            ranks = answer.get("plain", {}).get("ranks", [])
            if not ranks or (options.sizes and size not in options.sizes):
                continue
            for phase, need in needs_of(*program_of_job(strategy, size, options.device), options.device).items():
                measured = [rank.get(f"{phase}_host_ms") for rank in ranks]
                if all(measured):
                    row = {"group": number, "case": case, "phase": phase, **need}
                    rows.append(row | {"measured_ms": [round(ms, 2) for ms in measured]})
            print(rows[-1], flush=True)
            options.output.write_text(json.dumps(rows, indent=0) + "\n")


def fit(path: Path, wanted: Collection[int] | None) -> None:
    """Print the costs, and how far each phase is from them."""
    from scipy.optimize import least_squares

    rows = [row for row in json.loads(path.read_text()) if wanted is None or row["group"] in wanted]
    names = list(rank_host.RANK_COSTS)
    groups = sorted({row["group"] for row in rows})
    bases = np.array([row["base_ms"] for row in rows])
    counts = np.array([[row["counts"].get(name, 0.0) for name in names] for row in rows])
    measured = np.log([float(np.exp(np.mean(np.log(row["measured_ms"])))) for row in rows])
    group = np.array([groups.index(row["group"]) for row in rows])
    used = np.array([rank_host.RANK_COSTS[name] for name in names]) / 1e3

    def said(logarithms: NDArray[np.float64]) -> NDArray[np.float64]:
        costs, slowness = np.exp(logarithms[: len(names)]), logarithms[len(names) :]
        return np.asarray(np.log(bases + counts @ costs) + slowness[group])

    def off(logarithms: NDArray[np.float64]) -> NDArray[np.float64]:
        # A weak pull to what is in use decides what no row does.
        return np.concatenate([said(logarithms) - measured, 0.05 * (logarithms[: len(names)] - np.log(used))])

    start = np.concatenate([np.log(used), np.zeros(len(groups))])
    found = least_squares(off, start, loss="soft_l1", f_scale=0.2).x
    shown = f"{len(rows)} phases of {len({row['case'] for row in rows})} jobs"
    print(f"{shown}; off by {100 * np.mean(np.abs(np.expm1(said(found) - measured))):.1f} % in the mean")
    print("slowness of each group:", [round(float(each), 2) for each in np.exp(found[len(names) :])])
    for name, cost, now in zip(names, np.exp(found[: len(names)]), used, strict=True):
        print(f"  {name:24s} {1e3 * cost:8.1f} us, in use {1e3 * now:8.1f}")
    for row, ours, theirs in zip(rows, np.exp(said(found)), np.exp(measured), strict=True):
        print(f"  {row['case']:18s} {row['phase']:10s} {ours:6.1f} ms, measured {theirs:6.1f} {row['measured_ms']}")


def main() -> None:
    """Plan, or fit."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("jobs", nargs="*", type=Path, default=[DATA])
    parser.add_argument("-o", "--output", type=Path)
    parser.add_argument("--sizes", nargs="*")
    parser.add_argument("--groups", nargs="*", type=int, help="which are fitted to; none: all")
    parser.add_argument("--device", default="H200")
    options = parser.parse_args()
    if str(options.jobs[0]) == "plan":
        options.jobs = options.jobs[1:]
        plan(options)
    else:
        fit(options.jobs[0], options.groups)


if __name__ == "__main__":
    main()
