"""Bench and extract on a CPU: can every entry be run alone, and do the extracted files agree with eager ops?

    python -m benchmarks.launches.bench_cpu -o docs/results/bench_cpu.md [MODEL ...]

Captures the models of ``tests/model_zoo.py`` (forward and backward, one thread), benches every launch, and runs the
check of every launch's extracted module and of every whole graph.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import os
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

NEEDS: tuple[str, ...] = ("transformers",)
RUNS: tuple[tuple[str, ...], ...] = (("-o", "docs/results/bench_cpu.md"),)
QUICK: tuple[tuple[str, ...], ...] = (("-o", "{out}/bench_cpu.md", "mlp"),)

os.environ.setdefault("OMP_NUM_THREADS", "1")

MODELS = ("mlp", "conv_net", "gpt_block", "mixer", "experts")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("-o", "--output", type=Path)
    parser.add_argument("models", nargs="*", default=list(MODELS))
    arguments = parser.parse_args()
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        for name in arguments.models:
            rows.append(measure(name, Path(folder) / f"{name}.ledger"))
            print(rows[-1], flush=True)
    text = page(rows)
    if arguments.output:
        arguments.output.write_text(text)
    print(text)


def measure(name: str, path: Path) -> dict[str, Any]:
    import torch

    import torchledger
    from captured import capture_call
    from model_zoo import make
    from torchledger.replaying.bench_timing import Budget
    from torchledger.replaying.extract import graph_module, kernel_module

    torch.set_num_threads(1)
    case = make(name)
    captured = capture_call(path, lambda: case.loss(torch.compile(case.module), *case.inputs).backward())
    started = time.perf_counter()
    budget = Budget(seconds=0.02, max_repeats=100)
    report = torchledger.bench(path, all_kernels=True, budget=budget, save=False)
    bench_s = time.perf_counter() - started
    again = torchledger.bench(path, all_kernels=True, budget=budget, save=False)
    changes = [
        abs(second.duration_us / first.duration_us - 1)
        for first, second in zip(report.entries, again.entries, strict=True)
        if first.duration_us and second.duration_us and not first.same_as
    ]
    graphs = {graph.name: graph for graph in captured.graphs}
    results: dict[bool | None, int] = {True: 0, False: 0, None: 0}
    for launch in captured.calls:
        others = [other for other in captured.launches if other.graph == launch.graph]
        results[check(kernel_module(graphs[launch.graph], launch, others, captured.kernels, title="")[0])] += 1
    whole = []
    for graph in captured.graphs:
        launches = [launch for launch in captured.launches if launch.graph == graph.name]
        whole.append(check(graph_module(graph, launches, captured.kernels, title="")[0]))
    return {
        "model": name,
        "launches": len(report.entries),
        "timed": sum(entry.status == "ok" for entry in report.entries),
        "once": sum(entry.status == "ok" and not entry.same_as for entry in report.entries),
        "seconds": bench_s,
        "change": statistics.median(changes),
        "correct": results[True],
        "wrong": results[False],
        "not_compared": results[None],
        "graphs": f"{sum(found is True for found in whole)} of {len(whole)}",
    }


def check(text: str) -> bool | None:
    """Run an extracted module's check in this process."""
    import torch

    namespace: dict[str, Any] = {"__name__": "extracted"}
    with contextlib.redirect_stdout(io.StringIO()), torch.no_grad():
        exec(compile(text, "<extracted>", "exec"), namespace)
        found: bool | None = namespace["check"]()
    return found


def page(rows: list[dict[str, Any]]) -> str:
    import torch

    from torchledger.device.describe import describe_cpu

    cpu = describe_cpu()
    lines = [
        "# Bench and extract on a CPU",
        "",
        f"torch {torch.__version__}, {cpu.name}, {cpu.num_cores} cores, 1 thread, load {os.getloadavg()[0]:.1f}, "
        f"{time.strftime('%Y-%m-%d', time.gmtime())}. Command: `python -m benchmarks.launches.bench_cpu -o "
        "docs/results/bench_cpu.md`.",
        "",
        "Forward and backward of small models. *Run*: launches of one kernel on equal sizes are run once. *Change*:",
        "median difference of a kernel's time between two benches. *Correct*: extracted modules whose outputs agree",
        "with eager ATen ops; *not compared*: every output is the compiler's own, random, or hangs on what the launch",
        "does not read.",
        "",
        "| model | launches | timed | run | bench | change | correct | wrong | not compared | whole graphs correct |",
        "|---|---|---|---|---|---|---|---|---|---|",
    ]
    for row in rows:
        lines.append(
            f"| {row['model']} | {row['launches']} | {row['timed']} | {row['once']} | {row['seconds']:.0f} s | "
            f"{100 * row['change']:.1f} % | {row['correct']} | {row['wrong']} | {row['not_compared']} | "
            f"{row['graphs']} |"
        )
    sums = {
        key: sum(row[key] for row in rows) for key in ("launches", "timed", "once", "correct", "wrong", "not_compared")
    }
    lines.append(
        f"| all | {sums['launches']} | {sums['timed']} | {sums['once']} | | | {sums['correct']} | {sums['wrong']} | "
        f"{sums['not_compared']} | |"
    )
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    main()
