"""Peak memory of training steps on a GPU: the ledger's beside the allocator's, from a CPU's ledger, and the advice.

``python -m benchmarks.memory.memory_cuda -o FILE [NAME ...]``. Each program of ``memory_programs.py`` runs under
``torchledger run --profile`` in a process of its own with a time limit, several at once. Measured is
``torch.cuda.max_memory_allocated`` of the program's last three steps, when nothing is recorded any more. Meanwhile
the same programs are recorded on the host's CPU at the same shapes (as many as end in time), and their ledgers are
asked for the GPU's peak. Then the best advice of three programs is followed, and peak and time of the step are taken
again. Rows are written as they come.
"""

from __future__ import annotations

import argparse
import json
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from benchmarks.shared.limited import run_limited

NEEDS: tuple[str, ...] = ("cuda",)
RUNS: tuple[tuple[str, ...], ...] = (("-o", "{out}/memory_cuda.json"),)
PROGRAM = ("-m", "benchmarks.memory.memory_programs")
NAMES = (
    *("bf16", "autocast", "accumulation", "checkpoint_inside"),
    *("checkpoint_outside", "eager_parts", "cuda_graphs", "convolutions"),
)
ADVISED = ("bf16", "eager_parts", "convolutions")
ON_CPU = ("bf16", "eager_parts", "checkpoint_outside")
CPU_STEPS = ("--warmup", "0", "--repeats", "1")

_lock = threading.Lock()


def run(command: list[str], limit_s: float, **environment: str) -> tuple[int, str]:
    """Exit code (124 for a program that did not end in time) and what was printed."""
    return run_limited(command, limit_s, **{"HF_HUB_OFFLINE": "1"} | environment)


def said(output: str, key: str) -> float | None:
    """The number that a program printed behind a word."""
    found = [line.split()[1] for line in output.splitlines() if line.startswith(f"{key} ")]
    return float(found[-1]) if found else None


def record(
    name: str, ledger: Path, options: list[str], profile: list[str], limit_s: float, **env: str
) -> dict[str, Any]:
    """Run one program under torchledger."""
    begin = time.perf_counter()
    command = [
        sys.executable,
        "-m",
        "torchledger",
        "run",
        "--profile",
        *profile,
        "-f",
        "-o",
        str(ledger),
        *PROGRAM,
        name,
    ]
    code, output = run([*command, *options], limit_s, **env)
    row = {"program": name, "exit": code, "peak_bytes": said(output, "PEAK"), "step_ms": said(output, "STEP_MS")}
    return row | {"seconds": round(time.perf_counter() - begin, 1)} | ({"output": output[-1500:]} if code else {})


def memory_of(ledger: Path) -> dict[str, Any]:
    """What the ledger says of the step's memory, and its books."""
    from torchledger.reporting.overview import ledger_as_plain
    from torchledger.store import open_ledger

    with open_ledger(ledger) as reader:
        plain = ledger_as_plain(reader)
    memory = plain["memory"]
    if memory is None:
        return {"gaps": [gap for account in plain["balance"].values() for gap in account["missing"]][:5]}
    memory["heaviest"] = memory["heaviest"][:6]
    memory["by_module"] = dict(list(memory["by_module"].items())[:8])
    return {"memory": memory, "books": plain["balance"].get("memory")}


def on_gpu(ledger: Path, capability: tuple[int, int]) -> dict[str, Any]:
    """What a ledger of a CPU says of the step's memory on a GPU."""
    from torchledger.books import open_books
    from torchledger.memory.elsewhere import memory_on
    from torchledger.nouns import Device, Launch
    from torchledger.store import open_ledger

    with open_ledger(ledger) as reader:
        books = open_books(reader)
        launches = reader.read(Launch)
    if books.memory is None or books.step is None:
        return {}
    device = Device("GPU", kind="cuda", compute_capability=capability)
    totals = memory_on(device, books.memory, books.step.calls, launches)
    return {"predicted_peak_bytes": totals.peak_allocated_bytes, "by_category": dict(totals.by_category)}


def error_pct(predicted: float | None, measured: float | None) -> float | None:
    """Predicted over measured, less one, in per cent."""
    return round(100 * (predicted / measured - 1), 3) if predicted and measured else None


class Results:
    """The rows so far, in a file that is whole at any time."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.rows: list[dict[str, Any]] = []

    def add(self, row: dict[str, Any]) -> None:
        with _lock:
            self.rows.append(row)
            self.path.write_text(json.dumps(self.rows, indent=1))
            short = {
                key: value for key, value in row.items() if key not in ("memory", "books", "output", "by_category")
            }
            print(json.dumps(short), flush=True)
            if row.get("output"):
                print(row["output"][-600:], flush=True)


def measured_program(name: str, folder: Path, results: Results, options: list[str], limit_s: float) -> None:
    """One program on the GPU."""
    ledger = folder / f"{name}.ledger"
    row = {"kind": "gpu"} | record(name, ledger, options, [], limit_s)
    if ledger.exists():
        row |= _guarded(lambda: memory_of(ledger))
    predicted = (row.get("memory") or {}).get("peak_allocated_bytes")
    row |= {"ledger_bytes": predicted, "error_pct": error_pct(predicted, row["peak_bytes"])}
    results.add(row)


def cpu_program(name: str, folder: Path, results: Results, options: list[str], capability: tuple[int, int]) -> None:
    """One program on the host's CPU."""
    ledger = folder / f"{name}.cpu.ledger"
    flags = [*options, "--device", "cpu", "--steps", "8"]
    row = {"kind": "cpu"} | record(name, ledger, flags, list(CPU_STEPS), 200, OMP_NUM_THREADS="5")
    if ledger.exists():
        row |= _guarded(lambda: on_gpu(ledger, capability))
        row |= {"cpu": _guarded(lambda: memory_of(ledger))}
    results.add(row)


def advised_program(name: str, results: Results, options: list[str], limit_s: float) -> None:
    """The first advice on a program, followed."""
    before = next((row for row in results.rows if row["program"] == name and row["kind"] == "gpu"), {})
    advice = (before.get("memory") or {}).get("recompute") or []
    if not advice:
        results.add({"kind": "advice", "program": name, "said": "no advice"})
        return
    pattern = advice[0]["pattern"]
    code, output = run([sys.executable, *PROGRAM, name, *options, "--recompute", pattern], limit_s)
    plain_code, plain = run([sys.executable, *PROGRAM, name, *options], limit_s)
    peaks, times = [said(each, "PEAK") for each in (plain, output)], [said(each, "STEP_MS") for each in (plain, output)]
    results.add(
        {"kind": "advice", "program": name, "pattern": pattern, "exit": [plain_code, code]}
        | {"said_freed_bytes": advice[0]["freed_bytes"], "said_added_share": advice[0]["added_share"]}
        | {"peaks": peaks, "step_ms": times}
        | ({"output": output[-800:]} if code else {})
    )


def _guarded(action: Any) -> dict[str, Any]:
    try:
        return dict(action())
    except Exception as error:
        return {"failed": f"{type(error).__name__}: {error}"}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("names", nargs="*", default=NAMES)
    parser.add_argument("-o", "--output", type=Path, required=True)
    parser.add_argument("--tiny", action="store_true", help="small shapes, to try the script")
    parser.add_argument("--device", default="cuda", help="cpu, to try the script")
    parser.add_argument("--no-cpu", action="store_true", help="leave the host's CPU out")
    parser.add_argument("--at-once", type=int, default=5)
    options = parser.parse_args()
    folder = options.output.parent / "memory_ledgers"
    folder.mkdir(parents=True, exist_ok=True)
    results = Results(options.output)
    flags = ["--device", options.device, *(["--tiny"] if options.tiny else [])]
    small = ["--tiny"] if options.tiny else []
    capability = (9, 0)
    if options.device == "cuda":
        import torch

        capability = torch.cuda.get_device_capability()
    with ThreadPoolExecutor(options.at_once) as gpu, ThreadPoolExecutor(2) as cpu:
        waiting = [
            cpu.submit(cpu_program, name, folder, results, small, capability)
            for name in ON_CPU
            if name in options.names and not options.no_cpu
        ]
        running = [gpu.submit(measured_program, name, folder, results, flags, 150.0) for name in options.names]
        for each in running:
            each.result()
    measured = {row["program"]: row["peak_bytes"] for row in results.rows if row["kind"] == "gpu"}
    # One at a time: these are times.
    for name in ADVISED:
        if name in options.names:
            advised_program(name, results, flags, 60.0)
    for each in waiting:
        each.result()
    for row in [each for each in results.rows if each["kind"] == "cpu"]:
        error = error_pct(row.get("predicted_peak_bytes"), measured.get(row["program"]))
        results.add({"kind": "from a CPU's ledger", "program": row["program"], "error_pct": error})
    for ledger in folder.glob("*"):
        ledger.unlink()
    folder.rmdir()


if __name__ == "__main__":
    main()
