"""What programs do on a GPU, to be held against their plans, which are made without one.

``python -m benchmarks.plans.plan_cuda [NAME ...] -o FOLDER``: each program of ``plan_programs.py`` runs first so that
its kernels are in the compile caches (several at once), then, one at a time on the GPU, without torchledger (times of
its steps, the allocator's peak) and under ``torchledger run --profile``. ``plan_cuda.json`` and ``plan_ledgers.tar.gz``
are written anew after each program; ``plan_compare.py`` reads them. Each process has a time limit, all together
``--budget``.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import tarfile
import tempfile
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.shared.limited import TIME_IS_UP, run_limited

NEEDS: tuple[str, ...] = ("cuda", "timm", "transformers")
RUNS: tuple[tuple[str, ...], ...] = (("-o", "{out}"),)
PROGRAM = ("-m", "benchmarks.plans.plan_programs")
ALL = (
    *("llama", "bert", "vit", "resnet", "gpt_autocast", "gpt_bf16", "gpt_layers", "gpt_inference", "convnext"),
    *("recommender", "t5", "efficientnet", "convolutions"),
)
"""The longest to compile first."""

LAST_STEPS = 8
"""The steps whose median is a program's own: those before hold compilation or a recording."""

MARGIN_S = 15.0
"""Of the budget, for ending."""


@dataclass
class Session:
    """One call of this script: where it writes, until when, and how long one process may take."""

    folder: Path
    output: Path
    end_s: float
    limit_s: float
    options: tuple[str, ...]
    rows: dict[str, dict[str, Any]] = field(default_factory=dict)

    def run(self, command: list[str], **variables: str) -> tuple[int, str]:
        """Exit code (124 for a program that did not end in time) and what was printed."""
        limit_s = min(self.limit_s, self.end_s - time.monotonic())
        if limit_s < 5:
            return TIME_IS_UP, "not begun: the budget is spent"
        return run_limited(command, limit_s, **{"HF_HUB_OFFLINE": "1"} | variables)

    def write(self) -> None:
        """All that is known so far."""
        (self.output / "plan_cuda.json").write_text(json.dumps(self.rows, indent=1))
        with tarfile.open(self.output / "plan_ledgers.tar.gz", "w:gz") as archive:
            for name, row in self.rows.items():
                path = self.folder / f"{name}.ledger"
                if row.get("recorded_exit") == 0 and path.exists():
                    archive.add(path, arcname=path.name)


def printed(output: str, word: str) -> list[str]:
    """What a program printed after ``word``, the last time."""
    lines = [line for line in output.splitlines() if line.startswith(f"{word} ")]
    return lines[-1].split()[1:] if lines else []


def steps_ms(output: str) -> list[float]:
    """Times of the steps that a program printed."""
    return [float(each) for each in printed(output, "STEPS")[2:]]


def median(times: list[float]) -> float | None:
    """``None`` of nothing."""
    return statistics.median(times) if times else None


def program(session: Session, name: str, *, steps: int) -> list[str]:
    """A program's own command."""
    return [*PROGRAM, name, "--steps", str(steps), *session.options]


RECORD = [sys.executable, "-m", "torchledger", "run", "--profile", "--force"]


def warm_up(session: Session, name: str) -> str:
    """Run a program for two steps, under torchledger and without: their compile caches have keys of their own."""
    begin = time.monotonic()
    ledger = str(session.folder / f"{name}.warm.ledger")
    code, output = session.run([*RECORD, "-o", ledger, *program(session, name, steps=2)])
    if not code:
        code, output = session.run([sys.executable, *program(session, name, steps=2)])
    return f"{name}: exit {code} after {time.monotonic() - begin:.0f} s {output[-600:] if code else ''}"


def measure(session: Session, name: str, kind: str, steps: int, **variables: str) -> dict[str, Any]:
    """One program, ``"plain"`` or ``"recorded"``, timed alone on the GPU: what it took and its peak, into its row."""
    begin = time.monotonic()
    command = [sys.executable] if kind == "plain" else [*RECORD, "-o", str(session.folder / f"{name}.ledger")]
    gate = {"GPU_GATE": str(session.folder / "gate")}
    code, output = session.run([*command, *program(session, name, steps=steps)], **gate, **variables)
    row, prefix = session.rows.setdefault(name, {}), "" if kind == "plain" else "recorded_"
    own, peak = steps_ms(output), printed(output, "PEAK")
    row |= {f"{prefix}exit": code, f"{kind}_ms": median(own[-LAST_STEPS:])}
    row[f"{kind}_s"] = round(time.monotonic() - begin, 1)
    if kind == "plain":
        row |= {"steps_ms": own, "peak_allocated_bytes": int(peak[0]) if peak else None}
    if code:
        row[f"{prefix}output"] = output[-1500:]
    return row


def measure_both(session: Session, name: str, steps: int) -> dict[str, Any]:
    """One program without torchledger, then its recording."""
    measure(session, name, "plain", steps)
    return measure(session, name, "recorded", steps)


def measure_all_at_once(session: Session, names: Sequence[str], steps: int) -> None:
    """Every program twice, all started together: each compiles for itself and is timed alone on the GPU."""

    def run(name: str, kind: str) -> None:
        row = measure(session, name, kind, steps, TORCHINDUCTOR_COMPILE_THREADS="2")
        said = {key: value for key, value in row.items() if key != "steps_ms"}
        print(f"{name}, {kind}: {json.dumps(said)[:600]}", flush=True)

    session.rows.update({name: {} for name in names})
    with ThreadPoolExecutor(2 * len(names)) as pool:
        for done in as_completed([pool.submit(run, name, kind) for kind in ("recorded", "plain") for name in names]):
            if (error := done.exception()) is not None:
                print(f"{type(error).__name__}: {error}", flush=True)
            session.write()


def machine() -> dict[str, str]:
    """Device and versions."""
    import torch

    name = torch.cuda.get_device_name() if torch.cuda.is_available() else "cpu"
    cudnn = torch.backends.cudnn.version() if torch.backends.cudnn.is_available() else None
    return {"device": name, "torch": torch.__version__, "cudnn": str(cudnn), "python": sys.version.split()[0]}


def main() -> None:
    """Measure the named programs and write what was found."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", default=list(ALL))
    parser.add_argument("-o", "--output", type=Path, default=Path(os.environ.get("OUT", ".")))
    parser.add_argument("--steps", type=int, default=24)
    parser.add_argument("--limit", type=float, default=90.0, help="seconds for one process")
    parser.add_argument("--budget", type=float, default=330.0, help="seconds for everything")
    parser.add_argument("--jobs", type=int, default=7, help="programs that compile at once, before any is measured")
    parser.add_argument("--measured", type=int, default=4, help="programs that start at once; one at a time is timed")
    parser.add_argument("--together", action="store_true", help="all start at once, each compiles for itself")
    parser.add_argument("--tiny", action="store_true", help="the smallest sizes, to see that everything runs")
    parser.add_argument("--device", default="cuda")
    arguments = parser.parse_args()
    arguments.output.mkdir(parents=True, exist_ok=True)
    options = ("--device", arguments.device, *(["--tiny"] if arguments.tiny else []))
    end_s = time.monotonic() + arguments.budget - MARGIN_S
    with tempfile.TemporaryDirectory(prefix="torchledger-plan-") as folder:
        session = Session(Path(folder), arguments.output, end_s, arguments.limit, options)
        if arguments.together:
            measure_all_at_once(session, arguments.names, arguments.steps)
            arguments.names = []
        with ThreadPoolExecutor(arguments.jobs) as pool:
            for done in as_completed([pool.submit(warm_up, session, name) for name in arguments.names]):
                print(done.result(), flush=True)
        with ThreadPoolExecutor(arguments.measured) as pool:
            measured = {pool.submit(measure_both, session, name, arguments.steps): name for name in arguments.names}
            for done in as_completed(measured):
                try:
                    row = done.result()
                except Exception as error:  # the other programs go on
                    print(f"{measured[done]}: {type(error).__name__}: {error}", flush=True)
                    continue
                shown = {key: value for key, value in row.items() if key != "steps_ms"}
                print(f"{measured[done]}: {json.dumps(shown)}", flush=True)
                session.write()
        session.rows["machine"] = machine()
        session.write()
    print(f"{(arguments.output / 'plan_ledgers.tar.gz').stat().st_size / 1e6:.1f} MB of ledgers", flush=True)


if __name__ == "__main__":
    main()
