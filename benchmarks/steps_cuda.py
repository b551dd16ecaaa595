"""Steps of ordinary programs on a GPU: how much of their device time belongs to entries, whether the books balance.

``python benchmarks/steps_cuda.py [NAME ...] -o FILE``: each program of ``gpu_programs.py`` runs under
``torchledger run --profile`` in a process of its own with a time limit, once its kernels are in the compile caches; ddp
and fsdp2 on two GPUs by torchrun.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

NEEDS: tuple[str, ...] = ("cuda",)
RUNS: tuple[tuple[str, ...], ...] = (("-o", "{out}/steps_cuda.json"),)
HERE = Path(__file__).parent
PROGRAM = str(HERE / "gpu_programs.py")
DISTRIBUTED = ("ddp", "fsdp2")
ALONE = (
    *("loss_outside", "layer_loop", "cuda_graphs", "accumulation", "scaler", "compiled_optimizer", "recommender"),
    *("gan", "llama_loop", "inference"),
)


def run(command: list[str], limit_s: float) -> tuple[int, str]:
    """Exit code (124 for a program that did not end in time) and what was printed."""
    environment = os.environ | {"PYTHONPATH": str(HERE.parent / "src"), "HF_HUB_OFFLINE": "1"}
    try:
        done = subprocess.run(
            command, env=environment, capture_output=True, text=True, timeout=limit_s, start_new_session=True
        )
    except subprocess.TimeoutExpired as error:
        return 124, f"{error.stdout or ''}{error.stderr or ''}"
    return done.returncode, done.stdout + done.stderr


def last_steps_ms(output: str) -> float | None:
    """Median of the last third of the times that a program printed: those before hold compilation or a recording."""
    lines = [line for line in output.splitlines() if line.startswith("STEPS ")]
    if not lines:
        return None
    times = [float(each) for each in lines[-1].split(" MS ")[1].split()]
    return statistics.median(times[-max(len(times) // 3, 1) :])


def command_of(name: str) -> list[str]:
    """The program's own command, without the interpreter."""
    torchrun = ["-m", "torch.distributed.run", "--nproc-per-node", "2"] if name in DISTRIBUTED else []
    return [*torchrun, PROGRAM, name]


def warm_up(name: str, *, limit_s: float) -> str:
    """Run a program for three steps, so that its kernels are in the compile caches."""
    begin = time.perf_counter()
    code, output = run([sys.executable, *command_of(name), "3"], limit_s)
    return f"{name}: exit {code} after {time.perf_counter() - begin:.0f} s {output[-600:] if code else ''}"


def measure(name: str, folder: Path, *, steps: int, limit_s: float) -> dict[str, Any]:
    """One program: the time of its own last steps, after the recording, and what the ledger says."""
    ledger = folder / f"{name}.ledger"
    begin = time.perf_counter()
    command = [sys.executable, "-m", "torchledger", "run", "--profile", "-f", "-o", str(ledger)]
    code, output = run([*command, *command_of(name), str(steps)], limit_s)
    row: dict[str, Any] = {"program": name, "exit": code, "own_ms": last_steps_ms(output)}
    row["seconds"] = round(time.perf_counter() - begin, 1)
    if code:
        row["output"] = output[-1500:]
    for path in sorted(folder.glob(f"{name}.rank*.ledger")) or [ledger]:
        row[path.stem] = facts_of(path)
    return row


def facts_of(path: Path) -> dict[str, Any]:
    """The ledger's own account of the step."""
    code, output = run([sys.executable, "-m", "torchledger", "show", str(path), "--json"], 60)
    if code:
        return {"error": output[-500:]}
    shown = json.loads(output)
    step = shown["step"]
    if step is None:
        return {"error": "no step", "remarks": shown["remarks"][:6], "balance": shown["balance"].get("device_time")}
    accounts = {
        name: {key: account[key] for key in ("ledger", "reference", "is_balanced", "missing", "differences")}
        for name, account in shown["balance"].items()
        if name.startswith("step_") or name in ("wall_time", "device_time")
    }
    return {
        key: step[key]
        for key in (
            *("found_by", "count", "recorded", "duration_us", "device_us", "busy_us", "launches", "flops"),
            *("covered_share", "known_share", "graph_calls", "operators", "idle_us", "notes"),
        )
    } | {
        "phases": {phase: round(work["device_us"], 1) for phase, work in step["phases"].items()},
        "accounts": accounts,
        "verdict": shown["verdict"],
        "uncovered": shown["balance"].get("step_device_time", {}).get("missing"),
    }


def as_markdown(rows: list[dict[str, Any]]) -> str:
    """The rows as a table: one line a program and rank."""
    head = (
        "| program | found by | step, ms | the script's own, ms | device, ms | belongs to entries | has FLOPs or bytes "
        "| outside graphs | operators, heard | wall time unexplained |\n|---|---|---|---|---|---|---|---|---|---|\n"
    )
    lines = []
    for row in rows:
        for name, facts in row.items():
            if not isinstance(facts, dict):
                continue
            if "error" in facts:
                lines.append(f"| {name} | {facts['error']} | | | | | | | | |")
                continue
            wall, operators = facts["accounts"]["wall_time"], facts["accounts"]["step_operators"]
            named = wall["reference"] + sum(each["amount"] for each in wall["differences"])
            inside = facts["accounts"]["device_time"]["reference"] / facts["recorded"]
            lines.append(
                f"| {name} | {facts['found_by']} | {facts['duration_us'] / 1e3:.2f} | {row['own_ms'] or 0:.2f} | "
                f"{facts['device_us'] / 1e3:.2f} | {facts['covered_share']:.2%} | {facts['known_share']:.2%} | "
                f"{1 - inside / facts['device_us']:.0%} | {operators['ledger']}, {operators['reference']} | "
                f"{abs(wall['ledger'] - named) / wall['reference']:.2%} |"
            )
    return head + "\n".join(lines) + "\n"


def main() -> None:
    """Measure the named programs and write what was found."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", default=list(ALONE))
    parser.add_argument("-o", "--output", type=Path, default=Path(os.environ.get("OUT", ".")) / "steps_cuda.json")
    parser.add_argument("--steps", type=int, default=30)
    parser.add_argument("--limit", type=float, default=100.0, help="seconds for one process")
    parser.add_argument("--table", type=Path, nargs="*", help="only print what these files of an earlier run hold")
    parser.add_argument("--jobs", type=int, default=5, help="programs that compile at once, before any is measured")
    arguments = parser.parse_args()
    if arguments.table:
        print(as_markdown([row for path in arguments.table for row in json.loads(path.read_text())]))
        return
    folder = Path("/tmp/torchledger-steps")
    folder.mkdir(exist_ok=True)
    with ThreadPoolExecutor(arguments.jobs) as pool:
        for said in pool.map(lambda name: warm_up(name, limit_s=arguments.limit), arguments.names):
            print(said, flush=True)
    rows = []
    for name in arguments.names:
        row = measure(name, folder, steps=arguments.steps, limit_s=arguments.limit)
        rows.append(row)
        arguments.output.write_text(json.dumps(rows, indent=1))
        print(json.dumps(row)[:1500], flush=True)


if __name__ == "__main__":
    main()
