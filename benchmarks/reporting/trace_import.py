"""Reading a 500 MB trace beside a bare orjson parse of the same file: time and peak memory of whole processes.

python -m benchmarks.reporting.trace_import [-o docs/results/trace_import.md] [--megabytes 500] [--repeats 3]
        [--skip-built-in]
"""

from __future__ import annotations

import argparse
import datetime
import gzip
import os
import platform
import shutil
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from dataclasses import dataclass
from pathlib import Path

from benchmarks.reporting.synthetic_trace import write_trace

NEEDS: tuple[str, ...] = ()
RUNS: tuple[tuple[str, ...], ...] = (("-o", "docs/results/trace_import.md"),)
QUICK: tuple[tuple[str, ...], ...] = (
    ("--megabytes", "5", "--repeats", "1", "--skip-built-in", "-o", "{out}/trace_import.md"),
)

IMPORT = "from torchledger.cli import cli; cli(['import', PATH], standalone_mode=False)"
CASES = {
    "bare `orjson.loads`": "import orjson; orjson.loads(open(PATH, 'rb').read())",
    "bare `orjson.loads`, collector off": "import gc, orjson; gc.disable(); orjson.loads(open(PATH, 'rb').read())",
    "`read_trace` (columns)": "from torchledger.traces.reading import read_trace; read_trace(PATH)",
    "`torchledger import` (whole report)": IMPORT,
    "`torchledger import` of the file, gzipped": IMPORT.replace("PATH", "GZIPPED"),
}
BUILT_IN = (
    "from torch._inductor.analysis.profile_analysis import JsonProfile; "
    "profile = JsonProfile(PATH, dtype='bfloat16'); profile.augment_trace(); print(profile.report())"
)


@dataclass(frozen=True)
class Result:
    """One process: wall and CPU seconds, peak resident bytes, and how it ended."""

    wall_s: float
    cpu_s: float
    peak_bytes: int
    ending: str


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("-o", "--output", type=Path)
    parser.add_argument("--megabytes", type=float, default=500)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--skip-built-in", action="store_true", help="leave out torch's profile_analysis (minutes)")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        report = measure(Path(folder), options)
    print(report)
    if options.output:
        options.output.parent.mkdir(parents=True, exist_ok=True)
        options.output.write_text(report)


def measure(folder: Path, options: argparse.Namespace) -> str:
    path = folder / "trace.json"
    events = write_trace(path, options.megabytes)
    gzipped = folder / "trace.json.gz"
    with path.open("rb") as source, gzip.open(gzipped, "wb", compresslevel=1) as target:
        shutil.copyfileobj(source, target, 1 << 20)
    size = path.stat().st_size
    results: dict[str, list[Result]] = {name: [] for name in CASES}
    for _ in range(options.repeats):
        for name, code in CASES.items():
            results[name].append(run(code, path, gzipped))
    built_in = None if options.skip_built_in else run(BUILT_IN, path, gzipped, limit_s=1200)
    return draw(results, built_in, size=size, events=events, options=options)


def run(code: str, path: Path, gzipped: Path, *, limit_s: int = 600) -> Result:
    """Run Python code in a process of its own."""
    text = code.replace("PATH", repr(str(path))).replace("GZIPPED", repr(str(gzipped)))
    with tempfile.TemporaryFile() as errors:
        start = time.perf_counter()
        process = subprocess.Popen([sys.executable, "-c", text], stdout=subprocess.DEVNULL, stderr=errors)
        alarm = threading.Timer(limit_s, process.kill)
        alarm.start()
        # wait4 tells of this child alone, where getrusage tells of the largest child so far.
        _, status, usage = os.wait4(process.pid, 0)
        wall = time.perf_counter() - start
        alarm.cancel()
        process.returncode = os.waitstatus_to_exitcode(status)
        errors.seek(0)
        said = errors.read().decode(errors="replace").strip().splitlines()
    ending = "" if process.returncode == 0 else said[-1] if said else f"signal {-process.returncode} after {wall:.0f} s"
    return Result(wall, usage.ru_utime + usage.ru_stime, usage.ru_maxrss * 1024, ending)


def draw(
    results: dict[str, list[Result]], built_in: Result | None, *, size: int, events: int, options: argparse.Namespace
) -> str:
    base = results["bare `orjson.loads`"]
    base_wall, base_cpu = (statistics.median(getattr(r, field) for r in base) for field in ("wall_s", "cpu_s"))
    lines = [
        "# Reading a large trace",
        "",
        f"{datetime.date.today()}, {platform.processor() or platform.machine()}, {os.cpu_count()} cores, "
        f"Python {platform.python_version()}. A made-up eager trace of {size / 1e6:.0f} MB with {events:,} events.",
        f"Whole processes, taken in turns, median of {options.repeats}. "
        f"Load average {os.getloadavg()[2]:.0f}; above the number of cores, CPU time is the steadier clock.",
        "Redo: `python -m benchmarks.reporting.trace_import -o docs/results/trace_import.md`.",
        "",
        "| what | wall s | of bare | CPU s | of bare | peak memory | of the file |",
        "|---|---|---|---|---|---|---|",
    ]
    for name, some in results.items():
        wall, cpu = (statistics.median(getattr(r, field) for r in some) for field in ("wall_s", "cpu_s"))
        peak = max(r.peak_bytes for r in some)
        lines.append(
            f"| {name} | {wall:.1f} | {wall / base_wall:.2f} | {cpu:.1f} | {cpu / base_cpu:.2f} | "
            f"{peak / 1e6:.0f} MB | {peak / size:.2f} |"
        )
    if built_in is not None:
        lines.append(
            f"| `torch._inductor.analysis.profile_analysis`, once | {built_in.wall_s:.1f} | "
            f"{built_in.wall_s / base_wall:.2f} | {built_in.cpu_s:.1f} | {built_in.cpu_s / base_cpu:.2f} | "
            f"{built_in.peak_bytes / 1e6:.0f} MB | {built_in.peak_bytes / size:.2f} |"
        )
        if built_in.ending:
            lines += ["", f"`profile_analysis` ended with: {built_in.ending}"]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    main()
