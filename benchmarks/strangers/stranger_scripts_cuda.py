"""Scripts as people of many fields write them, on a GPU and predicted: ``benchmarks/strangers/stranger_scripts``.

    python -m benchmarks.strangers.stranger_scripts_cuda measure -o OUT [--minutes 9.6] [--wave 11]
        [NAMES ...]  # on the GPU
    python -m benchmarks.strangers.stranger_scripts_cuda judge OUT [--model H100]
    python -m benchmarks.strangers.stranger_scripts_cuda judge OUT --plans FOLDER     # NAME.json of `plan --json` each

Each script times its own steps, alone on the GPU, in a process without torchledger, and runs again under ``torchledger
run --profile``; those of a wave compile at once (the gate of ``strangers_cuda.py``). OUT gets ``rows.json`` (with
what a small step took between theirs: how quick the host was) and ``scripts.tar`` with the ledgers. ``judge`` prints
the device time of a step, measured and predicted, and the step; of plans the step and the peak of memory alone.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import tempfile
import time
from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from benchmarks.strangers.strangers_cuda import Job, Results, Wave, collect, recorded_job
from benchmarks.strangers.strangers_errors import programs, work_us_of

NEEDS: tuple[str, ...] = ("cuda", "transformers")
RUNS: tuple[tuple[str, ...], ...] = ()

_SET = "scripts"
SCRIPTS = Path(__file__).resolve().parent / "stranger_scripts"
_LONGEST_S = 30.0


def measure(options: argparse.Namespace) -> None:
    """Run the scripts, plainly and recorded."""
    names = options.names or sorted(path.stem for path in SCRIPTS.glob("*.py") if path.stem != "tick")
    end, out = time.monotonic() + 60 * options.minutes, options.output.resolve()
    results, work = Results(out), Path(tempfile.mkdtemp(prefix="strangers-"))
    cores, recorded = os.cpu_count() or 1, None
    while names and end - time.monotonic() > 2 * _LONGEST_S:
        now, names = names[: options.wave], names[options.wave :]
        first = Wave([_own(name) for name in now], work, out, cores=cores)
        collect(recorded, results, end)
        first.wait_ready(min(options.compile_limit, max(end - time.monotonic() - 40, 10)))
        for job in first.jobs:
            if end - time.monotonic() > 8:
                first.pass_one(job)
            results.add(job.name, "own", job.answer)
        first.finish(6)
        if options.plain:
            continue
        ran = [name for name in now if "error" not in results.rows[f"{_SET}-{name}"]["own"]]
        second = Wave([_recorded(name, work) for name in ran], work, out, cores=cores)
        second.wait_ready(min(90.0, max(end - time.monotonic() - 20, 5)))
        for job in second.jobs:
            if end - time.monotonic() > _LONGEST_S:
                second.pass_one(job)
        second.open_way()
        recorded = second
    collect(recorded, results, end)


def _own(name: str) -> Job:
    """A script by itself; its name in OUT is that of the set and its own."""
    called = f"{_SET}-{name}"
    environment = {"TICK_NAME": called, "TICK_HOST": "1"}
    return Job(called, (str(SCRIPTS / f"{name}.py"),), _LONGEST_S, environment=environment)


def _recorded(name: str, work: Path) -> Job:
    own = _own(name)
    job = recorded_job(own.name, own.command, work)
    environment = job.environment | {"TICK_NAME": own.name, "TICK_SHORT": "1"}
    return replace(job, limit_s=_LONGEST_S, environment=environment)


def judge(options: argparse.Namespace) -> None:
    """Print what each step takes and is said to take."""
    rows = json.loads((options.out / "rows.json").read_text())
    if options.plans is not None:
        print_plans(rows, options.plans)
        return
    own_ms = {name: row["own"]["step_ms"] for name, row in rows.items() if "step_ms" in row.get("own", {})}
    print_steps(options.model, programs(options.out, _SET), own_ms)


def print_plans(rows: Mapping[str, Mapping[str, Any]], folder: Path) -> None:
    """Steps of plans beside what the scripts timed themselves, a usual host taken, and the peaks of both."""
    errors: dict[str, list[float]] = {"compute": [], "host": []}
    held = 0
    print(
        "| script | step, ms, by itself (pieces) | said (interval) | error | decided by | peak, GB, by itself | said |"
        "\n|---|---|---|---|---|---|---|"
    )
    for name, row in rows.items():
        script, own = name.removeprefix(f"{_SET}-"), row.get("own", {})
        path = folder / f"{script}.json"
        if "step_ms" not in own or not path.exists() or not (text := path.read_text()):
            print(f"| {script} | {own.get('error', 'no plan')} |")
            continue
        plan = json.loads(text)
        said, pieces = plan["step"], own["pieces_ms"]
        low, middle, high = (said[key] / 1e3 for key in ("low_us", "duration_us", "high_us"))
        error = middle / own["step_ms"] - 1
        errors["host" if said["decided_by"] == "host" else "compute"].append(error)
        held += low <= own["step_ms"] <= high
        print(
            f"| {script} | {own['step_ms']:.1f} ({min(pieces):.0f} to {max(pieces):.0f}) | {middle:.1f} ({low:.0f} to "
            f"{high:.0f}) | {error:+.1%} | {said['decided_by']} | {own['peak_gb']:.2f} | "
            f"{plan['memory']['peak_allocated_bytes'] / 1e9:.2f} |"
        )
    for decides, found in (("all", errors["compute"] + errors["host"]), *errors.items()):
        if found:
            off = [abs(error) for error in found]
            print(
                f"\n{decides}: {len(found)} scripts, mean error {statistics.mean(off):.1%}, median "
                f"{statistics.median(off):.1%}, worst {max(off):.1%}, signed {statistics.mean(found):+.1%}"
            )
    print(f"\nIntervals hold {held} of {sum(map(len, errors.values()))}.")


def print_steps(model_name: str, ledgers: Iterable[tuple[str, Path]], own_ms: Mapping[str, float]) -> None:
    """The steps of ledgers by a model; ``own_ms`` are what scripts took by themselves (else: plain steps recorded)."""
    from torchledger.errors import PredictError
    from torchledger.nouns import Step
    from torchledger.predicting.devices import find_model
    from torchledger.predicting.step import predict_ledger
    from torchledger.store import open_ledger

    model, errors = find_model(model_name), []
    print("| script | device, ms | said | error | step, ms, by itself | said |\n|---|---|---|---|---|---|")
    for name, path in ledgers:
        with open_ledger(path) as reader:
            recorded = next(iter(reader.read(Step)[-1:]), None)
        try:
            step, *_ = predict_ledger(model, path)
        except PredictError as error:
            print(f"| {name} | {error} |")
            continue
        if recorded is None or not recorded.device_us:
            print(f"| {name} | no step was recorded |")
            continue
        said_us = work_us_of(step)
        own = own_ms.get(name, (recorded.duration_us or float("nan")) / 1e3)
        error = said_us / recorded.device_us - 1
        errors.append(abs(error))
        numbers = f"{recorded.device_us / 1e3:.2f} | {said_us / 1e3:.2f} | {error:+.1%} | {own:.2f}"
        print(f"| {name} | {numbers} | {step.duration_us / 1e3:.2f} |")
    if errors:
        print(f"\ndevice time: {len(errors)} scripts, mean error {statistics.mean(errors):.1%}, ", end="")
        print(f"median {statistics.median(errors):.1%}, worst {max(errors):.1%}")


def main() -> None:
    """Measure or judge."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(required=True)
    measuring = commands.add_parser("measure")
    measuring.add_argument("-o", "--output", type=Path, required=True)
    measuring.add_argument("--minutes", type=float, default=9.6)
    measuring.add_argument("--wave", type=int, default=11)
    measuring.add_argument("--compile-limit", type=float, default=150.0)
    measuring.add_argument("--plain", action="store_true", help="time the scripts, and record none")
    measuring.add_argument("names", nargs="*")
    measuring.set_defaults(run=measure)
    judging = commands.add_parser("judge")
    judging.add_argument("out", type=Path)
    judging.add_argument("--model", default="H100")
    judging.add_argument("--plans", type=Path, help="plans of the scripts to judge, NAME.json of `plan --json`")
    judging.set_defaults(run=judge)
    options = parser.parse_args()
    options.run(options)


if __name__ == "__main__":
    main()
