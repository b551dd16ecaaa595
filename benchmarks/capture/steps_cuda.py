"""Steps of ordinary programs on a GPU: how much of their device time belongs to entries, whether the books balance,
what a step costs before and after the recording, and what ``predict-step`` says of it.

``python -m benchmarks.capture.steps_cuda [NAME ...] -o FILE``: each program of ``gpu_programs.py`` runs first so that
its kernels are in the compile caches (several at once), then, one at a time on the GPU, without torchledger and under
``torchledger run --profile``; ddp and fsdp2 on two GPUs by torchrun. Each process has a time limit, all together
``--budget``; a line is printed for each program as it is done.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.shared.limited import TIME_IS_UP, run_limited

NEEDS: tuple[str, ...] = ("cuda",)
RUNS: tuple[tuple[str, ...], ...] = (("-o", "{out}/steps_cuda.json"),)
PROGRAM = ("-m", "benchmarks.capture.gpu_programs")
DISTRIBUTED = ("ddp", "fsdp2")
ALONE = (
    *("loss_outside", "layer_loop", "cuda_graphs", "accumulation", "scaler", "compiled_optimizer", "recommender"),
    *("gan", "llama_loop", "inference"),
)
PLAIN = ("layer_loop", "cuda_graphs", "recommender", "gan", "inference", "ddp", "fsdp2")
"""Programs whose steps are short: where what a recording leaves behind would show."""

TIMED_BEFORE = 3
"""How many of a ledger's plain steps lie before the recording."""

HEAD = (
    "| program | found by | step, ms | the script's own, ms | device, ms | belongs to entries | has FLOPs or bytes "
    "| outside graphs | operators, heard | FLOPs, eager | wall time unexplained | before, after over plain "
    "| predicted over measured |\n|---|---|---|---|---|---|---|---|---|---|---|---|---|"
)


@dataclass
class Session:
    """One call of this script: where it writes, until when, and how long one process may take."""

    folder: Path
    end_s: float
    limit_s: float
    steps: int
    model: str
    rows: list[dict[str, Any]] = field(default_factory=list)

    def run(self, command: list[str], **variables: str) -> tuple[int, str]:
        """Exit code (124 for a program that did not end in time) and what was printed."""
        limit_s = min(self.limit_s, self.end_s - time.monotonic())
        if limit_s < 5:
            return 124, "not begun: the budget is spent"
        code, output = run_limited(command, limit_s, **{"HF_HUB_OFFLINE": "1"} | variables)
        return code, f"{output}\nstopped after {limit_s:.0f} s" if code == TIME_IS_UP else output


def own_steps_ms(output: str) -> list[float]:
    """The last third of the times that a program printed: those before hold compilation or a recording."""
    lines = [line for line in output.splitlines() if line.startswith("STEPS ")]
    times = [float(each) for each in lines[-1].split(" MS ")[1].split()] if lines else []
    return times[-max(len(times) // 3, 1) :]


def median(times: list[float]) -> float | None:
    """``None`` of nothing."""
    return statistics.median(times) if times else None


def command_of(name: str) -> list[str]:
    """The program's own command, without the interpreter; ``--standalone`` takes a free port."""
    torchrun = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"] if name in DISTRIBUTED else []
    return [*torchrun, *PROGRAM, name]


LEDGER = [sys.executable, "-m", "torchledger"]


def warm_up(session: Session, name: str, *, is_plain_wanted: bool) -> str:
    """Run a program for three steps, under torchledger and without: their compile caches have keys of their own."""
    begin = time.monotonic()
    ledger = str(session.folder / f"{name}.warm.ledger")
    code, output = session.run([*LEDGER, "run", "-o", ledger, *command_of(name), "3"])
    if not code and is_plain_wanted:
        code, output = session.run([sys.executable, *command_of(name), "3"])
    return f"{name}: exit {code} after {time.monotonic() - begin:.0f} s {output[-600:] if code else ''}"


def measure(session: Session, name: str, *, is_plain_wanted: bool) -> dict[str, Any]:
    """One program: the time of its own steps without torchledger and after the recording, and what the ledger says."""
    gate = {"GPU_GATE": str(session.folder / "gate")}
    ledger = session.folder / f"{name}.ledger"
    begin = time.monotonic()
    row: dict[str, Any] = {"program": name, "plain_ms": None}
    if is_plain_wanted:
        code, output = session.run([sys.executable, *command_of(name), str(session.steps)], **gate)
        row["plain_ms"] = median(own_steps_ms(output)) if not code else None
    command = [*LEDGER, "run", "--profile", "--count-eager", "-o", str(ledger), *command_of(name), str(session.steps)]
    code, output = session.run(command, **gate)
    row |= {"exit": code, "own_ms": median(own_steps_ms(output)), "seconds": round(time.monotonic() - begin, 1)}
    if code:
        row["output"] = output[-1500:]
    for path in sorted(session.folder.glob(f"{name}*/rank*.ledger")) or [ledger]:
        facts = facts_of(session, path)
        facts["predicted"] = prediction_of(session, path, is_graphed=name == "cuda_graphs")
        row[name if path == ledger else f"{name}.{path.stem}"] = facts
    return row


def facts_of(session: Session, path: Path) -> dict[str, Any]:
    """The ledger's own account of the step."""
    code, output = session.run([*LEDGER, "show", str(path), "--json"])
    if code:
        return {"error": output[-500:]}
    shown = json_in(output)
    step = shown["step"]
    if step is None:
        return {"error": "no step", "remarks": shown["remarks"][:6], "balance": shown["balance"].get("device_time")}
    accounts = {
        name: {key: account[key] for key in ("ledger", "reference", "is_balanced", "missing", "differences")}
        for name, account in shown["balance"].items()
        if name.startswith("step_") or name in ("wall_time", "device_time")
    }
    plain_us = plain_times_us(path)
    return {
        key: step[key]
        for key in (
            *("found_by", "count", "recorded", "duration_us", "device_us", "busy_us", "launches", "flops"),
            *("covered_share", "known_share", "graph_calls", "operators", "idle_us", "notes"),
        )
    } | {
        "phases": {phase: round(work["device_us"], 1) for phase, work in step["phases"].items()},
        "before_us": median(plain_us[:TIMED_BEFORE]),
        "after_us": median(plain_us[TIMED_BEFORE:]),
        "accounts": accounts,
        "verdict": shown["verdict"],
        "uncovered": shown["balance"].get("step_device_time", {}).get("missing"),
    }


def json_in(output: str) -> dict[str, Any]:
    """The object that a command printed, whatever was said before and after it."""
    found: dict[str, Any] = json.JSONDecoder().raw_decode(output[output.index("{\n") :])[0]
    return found


def plain_times_us(path: Path) -> list[float]:
    """Times of the steps without the profiler, those before the recording first."""
    from torchledger.nouns import Step
    from torchledger.store import open_ledger

    with open_ledger(path) as reader:
        return list(reader.read(Step)[-1].plain_us)


def prediction_of(session: Session, path: Path, *, is_graphed: bool) -> dict[str, Any]:
    """What ``predict-step`` says of the recorded step, in microseconds, beside what was measured."""
    options = ["--device", session.model, *(["--graphs"] if is_graphed else [])]
    code, output = session.run([*LEDGER, "predict-step", str(path), *options, "--json"])
    if code:
        return {"error": output[-500:]}
    step = json_in(output)["step"]
    keys = (
        *("duration_us", "low_us", "high_us", "measured_us", "kernels_us", "measured_kernels_us", "gaps_us", "host_us"),
        *("eager_us", "optimizer_us", "collectives_us", "unlearned_us", "sustained_us", "extrapolated", "launches"),
    )
    return {"model": session.model} | {key: step.get(key) for key in keys}


def lines_of(row: dict[str, Any]) -> list[str]:
    """A program's row of the table; one for each rank."""
    lines = []
    for name, facts in row.items():
        if not isinstance(facts, dict):
            continue
        if "error" in facts:
            lines.append(f"| {name} | {' '.join(str(facts['error']).split())[-200:]} |" + " |" * 11)
            continue
        accounts = facts["accounts"]
        wall, operators, flops = accounts["wall_time"], accounts["step_operators"], accounts["step_flops"]
        named = wall["reference"] + sum(each["amount"] for each in wall["differences"])
        inside = accounts["device_time"]["reference"] / facts["recorded"]
        plain_ms, predicted = row.get("plain_ms"), facts.get("predicted") or {}
        beside = [f"{facts[key] / 1e3 / plain_ms:.3f}" if facts.get(key) and plain_ms else "-" for key in TIMES]
        says = str(predicted.get("error", "no time")).strip().splitlines()[-1]
        if predicted.get("duration_us") and predicted.get("measured_us"):
            says = f"{predicted['duration_us'] / predicted['measured_us']:.3f}"
        lines.append(
            f"| {name} | {facts['found_by']} | {facts['duration_us'] / 1e3:.2f} | {row['own_ms'] or 0:.2f} | "
            f"{facts['device_us'] / 1e3:.2f} | {facts['covered_share']:.2%} | {facts['known_share']:.2%} | "
            f"{1 - inside / facts['device_us']:.0%} | {operators['ledger']}, {operators['reference']} | "
            f"{_beside(flops)} | {abs(wall['ledger'] - named) / wall['reference']:.2%} | {', '.join(beside)} | {says} |"
        )
    return lines


TIMES = ("before_us", "after_us")


def _beside(account: dict[str, Any]) -> str:
    if account["reference"] is None:
        return "not counted"
    return "equal" if account["ledger"] == account["reference"] else f"{account['ledger'] / account['reference']:.6f}"


def main() -> None:
    """Measure the named programs and write what was found."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", default=list(ALONE))
    parser.add_argument("-o", "--output", type=Path, default=Path(os.environ.get("OUT", ".")) / "steps_cuda.json")
    parser.add_argument("--steps", type=int, default=30)
    parser.add_argument(
        "--limit", type=float, default=150.0, help="seconds for one process, waiting for the GPU included"
    )
    parser.add_argument("--budget", type=float, default=400.0, help="seconds for everything")
    parser.add_argument("--plain", nargs="*", default=list(PLAIN), help="programs to time without torchledger too")
    parser.add_argument("--device", default="H200", help="the model that predict-step asks")
    parser.add_argument("--table", type=Path, nargs="*", help="only print what these files of an earlier run hold")
    parser.add_argument("--jobs", type=int, default=5, help="programs that compile at once, before any is measured")
    arguments = parser.parse_args()
    if arguments.table:
        rows = [row for path in arguments.table for row in json.loads(path.read_text())]
        print("\n".join([HEAD, *(line for row in rows for line in lines_of(row))]))
        return
    plain = set(arguments.plain)
    with tempfile.TemporaryDirectory(prefix="torchledger-steps-") as folder:
        end_s = time.monotonic() + arguments.budget
        session = Session(Path(folder), end_s, arguments.limit, arguments.steps, arguments.device)
        with ThreadPoolExecutor(arguments.jobs) as pool:
            warmed = [pool.submit(warm_up, session, name, is_plain_wanted=name in plain) for name in arguments.names]
            for done in as_completed(warmed):
                print(done.result(), flush=True)
        print(HEAD, flush=True)
        # Two at once: one holds the GPU while the other starts or writes its ledger.
        with ThreadPoolExecutor(2) as pool:
            measured = [pool.submit(measure, session, name, is_plain_wanted=name in plain) for name in arguments.names]
            for done in as_completed(measured):
                try:
                    session.rows.append(done.result())
                except Exception as error:  # the other programs go on
                    print(f"{type(error).__name__}: {error}", flush=True)
                    continue
                arguments.output.write_text(json.dumps(session.rows, indent=1))
                print("\n".join(lines_of(session.rows[-1])), flush=True)


if __name__ == "__main__":
    main()
