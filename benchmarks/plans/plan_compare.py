"""Plans beside recordings: the same launches, FLOPs, times and memory, or what differs.

``python -m benchmarks.plans.plan_compare RECORDED [NAME ...] -o FILE``: RECORDED is a folder of ledgers that
``plan_cuda.py`` recorded on a GPU (``NAME.ledger``, ``plan_cuda.json``). Each program of ``plan_programs.py`` is
planned here, without a GPU, unless ``--plans`` holds its plan already; then its launches are held against the
recorded ones, in order: kernel source (without names), shapes, dtypes, FLOPs and bytes. A name as ``tp_medium`` is the
first of two ranks of a strategy and size of ``job_programs.py``. ``-o`` gets a table in
Markdown. RECORDED may also be what ``strangers_cuda.py`` wrote: drawn programs, that nobody chose.
"""

from __future__ import annotations

import argparse
import json
import re
import shutil
import statistics
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher
from pathlib import Path
from typing import Any

from benchmarks.shared.limited import run_limited

HEAD = (
    "| program | launches | the same | FLOPs, plan over recording | eager calls, plan and recording "
    "| device ms: of plan, of recording, measured | apart | step ms predicted, measured | error "
    "| peak MB, plan and allocator | error |\n|---|---|---|---|---|---|---|---|---|---|---|"
)
_NAME = re.compile(
    r"\b(triton_\w+|extern_kernels\.\w+)|#.*|\bbuf\d+|\barg\d+_\d+"
    r"|'(kernel_name|backend_hash)': '[^']*'|'force_disable_caches': \w+"
)
"""What a kernel's source says of names and of the machine that it was written on."""

_DRAWN = re.compile(r"[a-z]+-\d+")
"""Names of ``drawn_programs.py``."""

_MOST_DIFFERENCES = 8


@dataclass(frozen=True)
class Side:
    """One of both ledgers."""

    launches: dict[str, list[Any]]
    sources: dict[tuple[str, str], str]
    calls: list[Any]
    prediction: Any
    device_us: float | None


def read(path: Path, model: Any) -> Side:
    """A ledger's launches by graph, as often called, and what is predicted of it."""
    from torchledger.nouns import Kernel, Launch, Step, StepCall
    from torchledger.predicting.step import predict_ledger
    from torchledger.store import open_ledger

    with open_ledger(path) as reader:
        step = reader.read(Step)[-1]
        calls = [call for call in reader.read(StepCall) if call.step == step.name]
        launches: dict[str, list[Any]] = {}
        for launch in reader.read(Launch):
            if launch.graph in step.graph_calls:
                launches.setdefault(launch.graph, []).append(launch)
        sources = {(kernel.key, kernel.name): _NAME.sub("", kernel.source or "") for kernel in reader.read(Kernel)}
    prediction, *_ = predict_ledger(model, path, host="usual")
    return Side(launches, sources, calls, prediction, step.device_us)


def identity(side: Side, launch: Any) -> tuple[Any, ...]:
    """What makes two launches the same."""
    source = side.sources.get((launch.kernel, launch.kernel_name), "")
    shapes = tuple((buffer.shape, buffer.stride, buffer.dtype, buffer.role) for buffer in launch.buffers)
    name = launch.kernel_name if launch.category == "extern" else ""
    return launch.category, name, source, shapes, launch.flops, launch.bytes_moved


def graph_pairs(ours: dict[str, list[Any]], theirs: dict[str, list[Any]]) -> Iterator[tuple[str, str]]:
    """Graphs that belong together: those of one content, as two processes may number theirs differently, then those of
    one name."""
    left, right = dict(ours), dict(theirs)
    for graph, own in ours.items():
        alike = [other for other, its in right.items() if its == own]
        if alike:
            other = graph if graph in alike else alike[0]
            yield graph, other
            del left[graph], right[other]
    yield from ((graph, graph) for graph in sorted(left.keys() | right.keys()))


def compare(plan: Side, recorded: Side) -> dict[str, Any]:
    """Launches that are the same, and a word on each that is not."""
    total = same = 0
    differences: list[str] = []
    ours_of, theirs_of = (
        {graph: [identity(side, launch) for launch in own] for graph, own in side.launches.items()}
        for side in (plan, recorded)
    )
    for graph, other in graph_pairs(ours_of, theirs_of):
        left, right = ours_of.get(graph, []), theirs_of.get(other, [])
        total += max(len(left), len(right))
        for kind, i1, i2, j1, j2 in SequenceMatcher(None, left, right, autojunk=False).get_opcodes():
            if kind == "equal":
                same += i2 - i1
                continue
            ours = [launch.kernel_name for launch in plan.launches.get(graph, [])[i1:i2]]
            theirs = [launch.kernel_name for launch in recorded.launches.get(other, [])[j1:j2]]
            differences.append(
                f"{graph}: planned {', '.join(ours) or 'nothing'}; recorded {', '.join(theirs) or 'nothing'}"
            )
    names = Counter(call.name for call in plan.calls if call.kind == "operator" and call.kernels)
    names.subtract(Counter(call.name for call in recorded.calls if call.kind == "operator" and call.kernels))
    differences += [f"eager {name}: {count:+d} calls in the plan" for name, count in sorted(names.items()) if count]
    return {"launches": total, "same": same, "differences": differences}


def flops(side: Side) -> int:
    """Of a whole step, compiled and eager."""
    return sum(call.flops or 0 for call in side.calls)


def eager_calls(side: Side) -> int:
    """Eager calls that launch kernels."""
    return sum(call.kind == "operator" and call.kernels > 0 for call in side.calls)


def row_of(name: str, plan: Side, recorded: Side, measured: dict[str, Any]) -> dict[str, Any]:
    """All figures of one program."""
    ours, theirs = plan.prediction, recorded.prediction
    peak = measured.get("peak_allocated_bytes")
    step_us = (measured.get("plain_ms") or 0) * 1e3 or None
    return {
        "program": name,
        **compare(plan, recorded),
        "flops": flops(plan),
        "recorded_flops": flops(recorded),
        "eager": (eager_calls(plan), eager_calls(recorded)),
        "device_us": (ours.device_us, theirs.device_us, recorded.device_us),
        "step_us": (ours.duration_us, step_us),
        "recorded_ms": measured.get("recorded_ms"),
        "peak_bytes": (ours.peak_allocated_bytes, peak),
    }


def line_of(row: dict[str, Any]) -> str:
    """A program's row of the table."""
    ours, theirs, on_device = row["device_us"]
    step_us, measured_us = row["step_us"]
    peak, counted = row["peak_bytes"]
    said = [
        row["program"],
        f"{row['launches']}",
        f"{row['same'] / max(row['launches'], 1):.1%}",
        f"{row['flops'] / row['recorded_flops']:.6f}" if row["recorded_flops"] else "?",
        f"{row['eager'][0]}, {row['eager'][1]}",
        f"{ours / 1e3:.2f}, {theirs / 1e3:.2f}, {(on_device or 0) / 1e3:.2f}",
        f"{ours / theirs - 1:+.1%}",
        f"{step_us / 1e3:.2f}, {measured_us / 1e3:.2f}" if measured_us else f"{step_us / 1e3:.2f}, ?",
        f"{step_us / measured_us - 1:+.1%}" if measured_us else "?",
        f"{peak / 1e6:,.0f}, {counted / 1e6:,.0f}" if peak and counted else "?",
        f"{peak / counted - 1:+.1%}" if peak and counted else "?",
    ]
    return f"| {' | '.join(said)} |"


def alone(name: str, path: Path, model: Any, measured: dict[str, Any]) -> str:
    """The row of a program that was timed and not recorded: its step and its memory."""
    from torchledger.predicting.step import predict_ledger

    step, *_ = predict_ledger(model, path, host="usual")
    peak, counted = step.peak_allocated_bytes, measured.get("peak_allocated_bytes")
    measured_us = (measured.get("plain_ms") or 0) * 1e3
    said = [name, *["not recorded"], *["-"] * 5]
    said += [f"{step.duration_us / 1e3:.2f}, {measured_us / 1e3:.2f}", f"{step.duration_us / measured_us - 1:+.1%}"]
    said += (
        [f"{peak / 1e6:,.0f}, {counted / 1e6:,.0f}", f"{peak / counted - 1:+.1%}"] if peak and counted else ["?", "?"]
    )
    return f"| {' | '.join(said)} |"


def plan(name: str, path: Path, limit_s: float, device: str) -> str:
    """Plan a program into a ledger; returns what went wrong, or how long it took."""
    begin = time.monotonic()
    strategy, _, size = name.rpartition("_")
    command = [sys.executable, "-m", "torchledger", "plan", "-f", "-o", str(path)]
    if size in ("small", "medium", "large"):
        program: tuple[str, ...] = (
            "-m",
            "benchmarks.jobs.job_programs",
            strategy,
            "--size",
            size,
            "--device",
            "cuda",
            "--steps",
            "6",
        )
        command += ["--device", device, "--world", "2"]
        code, output = run_limited([*command, *program], limit_s, HF_HUB_OFFLINE="1")
        if (first := path.with_suffix(".job") / "rank0.ledger").exists():
            shutil.copyfile(first, path)
    else:
        program = ("-m", "benchmarks.plans.plan_programs", name)
        if _DRAWN.fullmatch(name):
            drawn = ("-m", "benchmarks.strangers.drawn_programs", name)
            program = (*drawn, "24", "--pieces", "0", "--seconds", "0.6")
        code, output = run_limited([*command, "--device", device, *program], limit_s, HF_HUB_OFFLINE="1")
    return f"{name}: exit {code} after {time.monotonic() - begin:.0f} s {output[-600:] if code else ''}"


def summary(rows: Sequence[dict[str, Any]]) -> Iterator[str]:
    """What all programs come to."""
    if not rows:
        return
    launches, same = (sum(row[key] for row in rows) for key in ("launches", "same"))
    apart = sorted(abs(row["device_us"][0] / row["device_us"][1] - 1) for row in rows)
    equal = sum(row["flops"] == row["recorded_flops"] for row in rows)
    yield (
        f"{len(rows)} programs: {same / launches:.1%} of {launches:,} launches the same, all of them in "
        f"{sum(row['same'] == row['launches'] for row in rows)} programs; FLOPs equal in {equal}; device time of plan "
        f"and recording {statistics.mean(apart):.1%} apart in the mean (median {statistics.median(apart):.1%}, worst "
        f"{apart[-1]:.1%}), within 2 % in {sum(each <= 0.02 for each in apart)}"
    )


def recordings(folder: Path, work: Path) -> tuple[dict[str, Path], dict[str, dict[str, Any]]]:
    """The ledgers by the name of their program, and what its own timer and the allocator said."""
    if (rows := folder / "rows.json").exists():
        measured = {
            name: {"plain_ms": own.get("step_ms"), "peak_allocated_bytes": (own.get("memory_gb") or 0) * 1e9 or None}
            for name, row in json.loads(rows.read_text()).items()
            if (own := row.get("own"))
        }
        return {path.stem: path for path in _unpacked(folder, work)}, measured
    measured = json.loads(next(folder.rglob("plan_cuda.json")).read_text())
    return {path.stem: path for path in folder.glob("*.ledger")}, measured


def _unpacked(folder: Path, work: Path) -> Iterator[Path]:
    """The ledgers of drawn programs that hold a step."""
    from benchmarks.strangers.strangers_data import unpack
    from torchledger.nouns import Step
    from torchledger.store import open_ledger

    for archive in sorted(folder.glob("*.tar")):
        for path in unpack(archive, work):
            with open_ledger(path) as reader:
                has_step = bool(reader.read(Step))
            if has_step:
                yield path


def main() -> None:
    """Plan, compare, print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("recorded", type=Path)
    parser.add_argument("names", nargs="*")
    parser.add_argument("--plans", type=Path, help="plans that are there already, NAME.ledger; others are added")
    parser.add_argument("-o", "--output", type=Path)
    parser.add_argument("--limit", type=float, default=400.0, help="seconds for one plan")
    parser.add_argument("--device", default="H200")
    arguments = parser.parse_args()
    from torchledger.predicting.devices import find_model

    model = find_model(arguments.device)
    lines, notes, rows = [HEAD], [], []
    with tempfile.TemporaryDirectory() as folder:
        recorded, measured = recordings(arguments.recorded, Path(folder))
        timed = [name for name, row in measured.items() if row.get("plain_ms") and not _DRAWN.fullmatch(name)]
        plans = arguments.plans or Path(folder) / "plans"
        plans.mkdir(exist_ok=True)
        for name in arguments.names or sorted({*recorded, *timed}):
            if name not in recorded and name not in measured:
                print(f"{name}: nothing was recorded of it", flush=True)
                continue
            path = plans / f"{name}.ledger"
            if not path.exists():
                print(plan(name, path, arguments.limit, arguments.device), flush=True)
            if not path.exists():
                continue
            if name not in recorded:
                lines.append(alone(name, path, model, measured[name]))
            else:
                row = row_of(name, read(path, model), read(recorded[name], model), measured.get(name, {}))
                lines.append(line_of(row))
                rows.append(row)
                shown = row["differences"][:_MOST_DIFFERENCES]
                further = len(row["differences"]) - len(shown)
                notes += [f"- {name}: {each}" for each in shown]
                notes += [f"- {name}: {further} more of the kind"] if further else []
            print(lines[-1], flush=True)
    text = "\n".join([*lines, "", *summary(rows), "", *notes, ""])
    print(text)
    if arguments.output is not None:
        arguments.output.write_text(text)


if __name__ == "__main__":
    main()
