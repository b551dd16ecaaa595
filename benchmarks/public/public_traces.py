"""What `torchledger import` and torch's own tool make of public traces.

python -m benchmarks.public.public_traces [TRACE...] [-o docs/results/public_traces.md]

Without arguments: all traces under $TORCHLEDGER_PUBLIC_DATA/traces (default: ../shared/data/traces beside the project).
"""

from __future__ import annotations

import argparse
import datetime
import gzip
import json
import os
import platform
import subprocess
import sys
import time
from decimal import Decimal
from pathlib import Path

from benchmarks.shared.places import ROOT
from torchledger.nouns import Breakdown, Cost
from torchledger.traces.breakdown import import_trace

NEEDS: tuple[str, ...] = ("public data",)
RUNS: tuple[tuple[str, ...], ...] = (("-o", "docs/results/public_traces.md"),)
QUICK: tuple[tuple[str, ...], ...] = (("-o", "{out}/public_traces.md"),)

BUILT_IN = """
import sys
from torch._inductor.analysis.profile_analysis import JsonProfile
profile = JsonProfile(sys.argv[1], dtype="bfloat16")
profile.augment_trace()
report = profile.report()
lines = [line for line in report.splitlines() if line.strip().startswith("|")]
rows = [line for line in lines if "Kernel" not in line and "---" not in line]
print(f"finished, {len(rows)} kernel rows")
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("traces", nargs="*", type=Path)
    parser.add_argument("-o", "--output", type=Path)
    options = parser.parse_args()
    folder = Path(os.environ.get("TORCHLEDGER_PUBLIC_DATA", ROOT.parent / "shared" / "data")) / "traces"
    traces = options.traces or sorted(folder.glob("*.json*"))
    if not traces:
        sys.exit(f"no trace in {folder}; name some, or set TORCHLEDGER_PUBLIC_DATA")
    report = "\n".join([*head(), *table(traces)]) + "\n"
    print(report)
    if options.output:
        options.output.parent.mkdir(parents=True, exist_ok=True)
        options.output.write_text(report)


def head() -> list[str]:
    import torch

    return [
        "# Public traces",
        "",
        f"{datetime.date.today()}, {platform.processor() or platform.machine()}, {os.cpu_count()} cores, "
        f"Python {platform.python_version()}, torch {torch.__version__}. "
        "Redo: `python -m benchmarks.public.public_traces -o docs/results/public_traces.md`.",
        "",
        "*The trace's kernel time* is added up from the file's text by other code: the decimals of `dur` of all events "
        "of category `kernel`. *Known* is the share of that time whose kernels carry FLOPs or bytes; the rest carries "
        "a reason. Without the messages that stand beside collectives on the host (`nccl:all_reduce` inside "
        "`record_param_comms`), 64.3 % and 91.1 % of the two sampled ranks are known.",
        "",
    ]


def table(traces: list[Path]) -> list[str]:
    lines = [
        "| trace | kernel time, us | the trace's, us | known | exact | busy | seconds | `profile_analysis` |",
        "|---|---|---|---|---|---|---|---|",
    ]
    details = []
    for path in traces:
        start = time.perf_counter()
        breakdown, events = import_trace(path)
        seconds = time.perf_counter() - start
        own, independent = Decimal(str(breakdown.kernel_us)), sum_of_kernels(path)
        mark = "" if own == independent else " **differs**"
        kernels = [event for event in events if event.kind == "kernel"]
        exact = sum(event.duration_ns for event in kernels if is_exact(event.cost))
        unexplained = [event for event in kernels if not event.cost.is_known and not event.cost.reason]
        assert not unexplained, unexplained
        lines.append(
            f"| {path.name} | {own}{mark} | {independent} | {share(breakdown.known_kernel_us, breakdown.kernel_us)} | "
            f"{share(exact / 1e3, breakdown.kernel_us)} | {share(breakdown.busy_us, breakdown.wall_us)} | "
            f"{seconds:.2f} | {built_in(path)} |"
        )
        details += detail(path, breakdown)
    return [*lines, *details]


def is_exact(cost: Cost) -> bool:
    """Bytes or (tensor) FLOPs that follow from recorded shapes alone."""
    return cost.bytes_quality == "exact" or bool(cost.flops and cost.flops_quality == "exact")


def detail(path: Path, breakdown: Breakdown) -> list[str]:
    device = breakdown.devices[0].name if breakdown.devices else "unnamed device"
    lines = ["", f"## {path.name} ({device})", "", " ".join(breakdown.verdict), ""]
    lines += [f"- {row.name}: {row.total_us:.1f} us in {row.calls:,} calls" for row in breakdown.categories]
    for reason, time_us in breakdown.unknown_us.items():
        lines.append(f"- without FLOPs or bytes, {time_us:.1f} us: {reason}")
    lines += [f"- {text}" for text in (*breakdown.problems, *breakdown.notes)]
    return lines


def sum_of_kernels(path: Path) -> Decimal:
    """The file's own kernel time, by a parser that keeps decimals and shares nothing with ours."""
    text = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
    document = json.loads(text, parse_float=Decimal, parse_int=Decimal)
    return sum((event["dur"] for event in document["traceEvents"] if event.get("cat") == "kernel"), Decimal(0))


def built_in(path: Path) -> str:
    """How torch's tool ends on the trace (it reads plain JSON only, so it gets a plain copy)."""
    import tempfile

    with tempfile.NamedTemporaryFile(suffix=".json") as plain:
        plain.write(gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes())
        plain.flush()
        done = subprocess.run(
            [sys.executable, "-c", BUILT_IN, plain.name], capture_output=True, text=True, timeout=600, check=False
        )
    said = (done.stdout if done.returncode == 0 else done.stderr).strip().splitlines()
    return (said[-1] if said else f"exit {done.returncode}").replace("|", "/")[:120]


def share(part: float, whole: float) -> str:
    return f"{part / whole * 100:.1f} %" if whole else "?"


if __name__ == "__main__":
    main()
