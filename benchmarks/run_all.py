"""Run every benchmark that this machine can run, and say which it cannot and why: what ``make bench`` does.

    python -m benchmarks.run_all [--list] [--quick] [--limit SECONDS] [NAME ...]

A benchmark is a module of a room with two constants: ``NEEDS`` names what it cannot do without (the keys of
``PROBES``), ``RUNS`` holds the arguments of each of its runs, ``{out}`` for a folder of its own under ``build/bench``.
NAME is one of them, or a room.
``--quick`` takes the arguments in ``QUICK`` instead, where a script has it: the smallest case, which shows that it
still runs and measures nothing, and writes into its own folder alone. The constants are read without importing the
module.
Those that fail, or take longer than ``--limit``, are named at the end, which is then 1.
"""

from __future__ import annotations

import argparse
import ast
import functools
import importlib.util
import os
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks.shared.places import ROOT
from browser import find_browser

OUT = ROOT / "build" / "bench"


@dataclass(frozen=True)
class Benchmark:
    """A module, the room that it is in, what it needs, and the arguments of each of its runs."""

    name: str
    room: str
    needs: tuple[str, ...]
    runs: tuple[tuple[str, ...], ...]
    quick: tuple[tuple[str, ...], ...] = ()

    @property
    def module(self) -> str:
        """What ``python -m`` runs."""
        return f"benchmarks.{self.room}.{self.name}"


@functools.cache
def _gpus() -> int:
    code = "import torch; print(torch.cuda.device_count())"
    answer = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    return int(answer.stdout or 0)


def _has_network() -> bool:
    try:
        urllib.request.urlopen("https://pypi.org/simple/pip/", timeout=5).close()
    except OSError:
        return False
    return True


def _has_public_data() -> bool:
    return Path(os.environ.get("TORCHLEDGER_PUBLIC_DATA") or ROOT.parent / "shared" / "data").is_dir()


PROBES: Mapping[str, Callable[[], bool]] = {
    "cuda": lambda: _gpus() >= 1,
    "two GPUs": lambda: _gpus() >= 2,
    "chromium": lambda: find_browser() is not None,
    "network": _has_network,
    "public data": _has_public_data,
    "jupyter": lambda: all(
        importlib.util.find_spec(name) is not None for name in ("nbclient", "nbconvert", "ipykernel")
    ),
    "timm": lambda: importlib.util.find_spec("timm") is not None,
    "training frameworks": lambda: bool(os.environ.get("TORCHLEDGER_FRAMEWORKS")),
    "triton": lambda: importlib.util.find_spec("triton") is not None,
    "transformers": lambda: importlib.util.find_spec("transformers") is not None,
}
"""What a script can need, and how to tell whether this machine has it."""


def find_benchmarks(folder: Path = ROOT / "benchmarks") -> list[Benchmark]:
    """The benchmarks of a folder's rooms; modules without the two constants are none (models, makers of data)."""
    found = []
    for path in sorted(folder.glob("*/*.py")):
        constants = {
            statement.target.id: statement.value
            for statement in ast.parse(path.read_text()).body
            if isinstance(statement, ast.AnnAssign) and isinstance(statement.target, ast.Name) and statement.value
        }
        if {"NEEDS", "RUNS"} <= constants.keys():
            needs, runs = (ast.literal_eval(constants[name]) for name in ("NEEDS", "RUNS"))
            quick = ast.literal_eval(constants["QUICK"]) if "QUICK" in constants else ()
            found.append(Benchmark(path.stem, path.parent.name, needs, runs, quick))
    return found


def lacking(benchmark: Benchmark) -> list[str]:
    """What the machine does not have of what a benchmark needs."""
    return [need for need in benchmark.needs if not PROBES[need]()]


def run(benchmark: Benchmark, *, quick: bool = False, limit_s: float | None = None) -> bool:
    """All runs of a benchmark, until one fails or takes longer than the limit; True if none does."""
    out = OUT / benchmark.name
    out.mkdir(parents=True, exist_ok=True)
    for arguments in (benchmark.quick or benchmark.runs) if quick else benchmark.runs:
        words = [word.replace("{out}", str(out)) for word in arguments]
        print(f"$ python -m {benchmark.module} {' '.join(words)}", flush=True)
        command = [sys.executable, "-m", benchmark.module, *words]
        began = time.monotonic()
        try:
            code = subprocess.run(command, cwd=ROOT, timeout=limit_s).returncode
        except subprocess.TimeoutExpired:
            print(f"{benchmark.name} took longer than {limit_s:,.0f} s", flush=True)
            return False
        print(f"{benchmark.name} ended with {code} after {time.monotonic() - began:,.0f} s", flush=True)
        if code:
            return False
    return True


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", help="only these, or those of these rooms")
    parser.add_argument("--list", action="store_true", help="say what would run, and run nothing")
    parser.add_argument("--quick", action="store_true", help="the smallest case of each, to see that it runs")
    parser.add_argument("--limit", type=float, help="seconds that a run may take")
    options = parser.parse_args(arguments)
    known = find_benchmarks()
    names = set(options.names)
    if unknown := names - {name for each in known for name in (each.name, each.room)}:
        parser.error(f"no benchmark {', '.join(sorted(unknown))}; there are {', '.join(each.name for each in known)}")
    chosen = [benchmark for benchmark in known if not names or {benchmark.name, benchmark.room} & names]
    able = []
    for benchmark in chosen:
        missing = lacking(benchmark)
        place = f"{benchmark.room} {benchmark.name}"
        print(f"{place:<36} " + (f"cannot run here: needs {', '.join(missing)}" if missing else "runs"))
        if not missing:
            able.append(benchmark)
    if options.list:
        return 0
    failed = [benchmark.name for benchmark in able if not run(benchmark, quick=options.quick, limit_s=options.limit)]
    print(f"{len(able) - len(failed)} of {len(chosen)} benchmarks ran; failed: {', '.join(failed) or 'none'}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
