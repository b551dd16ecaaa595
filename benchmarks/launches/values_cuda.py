"""Values on a CUDA device: coverage, identical bits, planted faults, and what watching a GPT-2 training step costs.

python -m benchmarks.launches.values_cuda -o FOLDER [--layers 12] [--batch 8] [--only cost,faults,coverage,peers]

Writes values_cuda.json and values_cuda.md into FOLDER after every part, so that what was measured before a time limit
is kept. Needs nothing but torch with CUDA and Triton; about four minutes on an H200.
"""

from __future__ import annotations

import argparse
import contextlib
import copy
import datetime
import io
import json
import os
import re
import signal
import statistics
import sys
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")

import torch

import torchledger
from planted import DIVISION, LOG, MODELS, SCALE, faulty, loss_of, make_planted, neutral
from planted import ROOT as ROOT_COLUMN
from torchledger.nouns import Gap, Launch, WatchedGraph
from torchledger.store import open_ledger

NEEDS: tuple[str, ...] = ("cuda",)
RUNS: tuple[tuple[str, ...], ...] = (("-o", "{out}"),)

DEVICE = "cuda"
COVERED = ("conv_net", "gpt_block", "mixer", "gpt2", "bert", "resnet")


class TimeIsUp(Exception):
    pass


@contextlib.contextmanager
def limit(seconds: int) -> Iterator[None]:
    """Raise ``TimeIsUp`` in the body after so many seconds."""

    def stop(number: int, frame: object) -> None:
        raise TimeIsUp(f"stopped after {seconds} s")

    former = signal.signal(signal.SIGALRM, stop)
    signal.alarm(seconds)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, former)


def coverage() -> list[dict[str, Any]]:
    """Launches seen over launches in the ledger, and results with and without, per model."""
    rows = []
    for name in COVERED:
        with limit(45):
            rows.append(cover(name))
    return rows


def cover(name: str) -> dict[str, Any]:
    import model_zoo

    case = model_zoo.make(name)
    inputs = [value.to(DEVICE) for value in case.inputs]

    def run(repeats: int) -> list[list[torch.Tensor]]:
        torch._dynamo.reset()
        torch.manual_seed(0)
        module = copy.deepcopy(case.module).to(DEVICE)
        compiled = torch.compile(module)
        found = []
        for _ in range(repeats):
            module.zero_grad()
            torch.manual_seed(1)
            loss = case.loss(compiled, *inputs)
            loss.backward()
            gradients = [parameter.grad for parameter in module.parameters() if parameter.grad is not None]
            found.append([loss.detach(), *gradients])
        return found

    # Atomic additions come in any order: only deterministic algorithms give bits to compare. Three steps, as the first
    # of a graph is watched in another way than those after it.
    torch.use_deterministic_algorithms(True, warn_only=True)
    try:
        with torchledger.values(find="nan", level="stats") as watch:
            watched = run(3)
        plain, again = run(3), run(3)
    finally:
        torch.use_deterministic_algorithms(False)
    with open_ledger(watch.path) as reader:
        graphs, gaps = reader.read(WatchedGraph), reader.read(Gap)
        categories = Counter(launch.category for launch in reader.iterate(Launch) if launch.is_call)
    return {
        "model": name,
        "launches": sum(graph.launches for graph in graphs),
        "watched": sum(graph.watched for graph in graphs),
        "seen": sum(graph.seen for graph in graphs),
        "categories": categories,
        "same_bits": _same_bits(watched, plain),
        "plain_runs_agree": _same_bits(plain, again),
        "findings": len(watch.findings),
        "stats": len(watch.stats),
        "gaps": [gap.reason for gap in gaps],
    }


def _same_bits(one: list[list[torch.Tensor]], other: list[list[torch.Tensor]]) -> bool:
    return all(
        torch.equal(a, b) for run, again in zip(one, other, strict=True) for a, b in zip(run, again, strict=True)
    )


def faults() -> list[dict[str, Any]]:
    """Planted faults: was the first bad launch named, and was a clean run silent?"""
    rows: list[dict[str, Any]] = []
    for name in MODELS:
        try:
            with limit(45):
                rows += faults_of(name)
        except Exception as error:  # the other models must still be asked
            rows.append({"model": name, "fault": f"{type(error).__name__}: {error}"[:500], "named": False})
    try:
        with limit(45):
            rows.append(wrong_kernel())
    except Exception as error:  # what was asked before must be kept
        rows.append({"model": "sine", "fault": f"{type(error).__name__}: {error}"[:500], "named": False})
    return rows


def faults_of(name: str) -> list[dict[str, Any]]:
    torch._dynamo.reset()
    rows: list[dict[str, Any]] = []
    with torchledger.values(find="nan", level="off") as watch:
        model, x = make_planted(name, DEVICE)
        compiled = torch.compile(model)

        def ask(question: str, dial: torch.Tensor, backward: bool = False) -> Any:
            watch.change(find=question)
            watch.findings.clear()
            with contextlib.nullcontext() if backward else torch.no_grad():
                output = compiled(x, dial)
            if backward:
                loss_of(output).backward()
            return watch.first_bad

        def judge(fault: str, place: int, first: Any) -> None:
            launch = watch.launch(first.subject) if first is not None else None
            named = launch is not None and f"plants.{place}" in launch.modules
            rows.append(
                {
                    "model": name,
                    "fault": fault,
                    "place": place,
                    "named": bool(named and first.verdict == "created here" and first.indices),
                    "kernel": launch.kernel_name if launch is not None else None,
                    "verdict": first.verdict if first is not None else None,
                    "count": first.count if first is not None else None,
                    "indices": [list(index) for index in first.indices] if first is not None else [],
                }
            )

        clean = [ask(question, neutral(model, DEVICE)) for question in ("nan", "inf")]
        rows.append({"model": name, "fault": "none", "place": None, "named": clean == [None, None]})
        for place in (0, 1):
            judge("division by zero", place, ask("inf", faulty(model, place, DIVISION, 0.0, DEVICE)))
            judge("log of a negative", place, ask("nan", faulty(model, place, LOG, -1.0, DEVICE)))
        ask("nan", neutral(model, DEVICE))
        judge("at the third call only", 1, ask("nan", faulty(model, 1, LOG, -1.0, DEVICE)))
        if name in ("float16", "bfloat16"):
            scale = 6e4 if name == "float16" else 3e38
            judge("overflow", 0, ask("overflow", faulty(model, 0, SCALE, scale, DEVICE)))
        if name in ("mlp", "norm"):
            silent = ask("nan", neutral(model, DEVICE), backward=True) is None
            rows.append({"model": name, "fault": "none, backward", "place": None, "named": silent})
            for place in (0, 1):
                first = ask("nan", faulty(model, place, ROOT_COLUMN, 0.0, DEVICE), backward=True)
                judge("in a gradient only", place, first)
    return rows


def wrong_kernel() -> dict[str, Any]:
    """A generated Triton source changed on purpose: ``--against eager`` has to name its launch."""
    from torch._inductor.async_compile import AsyncCompile

    method = "triton" if DEVICE == "cuda" else "cpp_pybinding"
    original = getattr(AsyncCompile, method)

    def change_one(self: Any, first: Any, source_code: str, *rest: Any, **keywords: Any) -> Any:
        return original(self, first, re.sub(r"\bsin\(", "cos(", source_code), *rest, **keywords)

    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(16, 16), Sine(), torch.nn.Linear(16, 16), torch.nn.Tanh()).to(DEVICE)
    x = torch.randn(8, 16, device=DEVICE)
    torch._dynamo.reset()
    setattr(AsyncCompile, method, change_one)
    try:
        with torch.no_grad(), torchledger.values(level="off", against_eager=True) as watch:
            torch.compile(model)(x)
    finally:
        setattr(AsyncCompile, method, original)
    first = next((item for item in watch.comparisons if item.is_within is False), None)
    launch = watch.launch(first.subject) if first is not None else None
    return {
        "model": "sine",
        "fault": "generated source changed",
        "place": None,
        "named": launch is not None and "aten.sin" in launch.aten_ops,
        "kernel": launch.kernel_name if launch is not None else None,
        "comparisons": len(watch.comparisons),
        "notes": sorted({item.note for item in watch.comparisons if item.note}),
    }


class Sine(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.sin(x)


class Gpt2:
    """A GPT-2 training step: bf16 autocast, fused AdamW, random tokens."""

    def __init__(self, layers: int, batch: int, length: int = 1024) -> None:
        from examples.train_gpt import GPT

        torch.manual_seed(0)
        self.model = GPT(50304, length, 768, 12, layers).cuda()
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-4, fused=True)
        self.tokens = torch.randint(50304, (batch, length + 1), device="cuda")
        self.compiled = torch.compile(self.model)

    def step(self) -> torch.Tensor:
        with torch.autocast("cuda", torch.bfloat16):
            loss = self.compiled(self.tokens[:, :-1], self.tokens[:, 1:])
        loss.backward()
        self.optimizer.step()
        self.optimizer.zero_grad()
        return loss.detach()


def timed(step: Callable[[], object], *, warmup: int = 3, repeats: int = 12) -> dict[str, float]:
    """Wall time of a step in ms, with the device idle before and after each."""
    for _ in range(warmup):
        step()
    samples = []
    for _ in range(repeats):
        torch.cuda.synchronize()
        begin = time.perf_counter()
        step()
        torch.cuda.synchronize()
        samples.append((time.perf_counter() - begin) * 1e3)
    return {"median_ms": statistics.median(samples), "min_ms": min(samples), "max_ms": max(samples)}


def host_us(step: Callable[[], object]) -> float:
    """How long the host is busy with a step before it waits for the device, in us."""
    torch.cuda.synchronize()
    begin = time.process_time()
    step()
    return (time.process_time() - begin) * 1e6


MODES: dict[str, dict[str, Any]] = {
    "unwatched": {"level": "off", "find": None},
    "find nan": {"level": "off", "find": "nan"},
    "statistics of every launch": {"level": "stats", "find": None},
    "names only": {"level": "names", "find": None},
}


def cost(layers: int, batch: int, rounds: int = 6) -> dict[str, Any]:
    """One compile, timed unwatched, with --find nan, with statistics, and with names only, by turns."""
    torch._dynamo.reset()
    rows: dict[str, Any] = {}
    with limit(170), torchledger.values(find="nan", level="off") as watch:
        gpt = Gpt2(layers, batch)
        begin = time.perf_counter()
        gpt.step()
        torch.cuda.synchronize()
        rows["compile_and_first_step_s"] = time.perf_counter() - begin
        rounds_ms: dict[str, list[float]] = {name: [] for name in MODES}
        host: dict[str, list[float]] = {name: [] for name in MODES}
        for number in range(rounds):
            for name, options in MODES.items():
                watch.change(**options)
                rounds_ms[name].append(timed(gpt.step, warmup=1 if number else 3, repeats=4)["median_ms"])
                host[name].append(host_us(gpt.step))
        rows["stats_per_step"] = len(watch.stats) / (rounds * 6 + 2)
        rows["findings"] = len(watch.findings)
    for name in MODES:
        ratios = [ms / base for ms, base in zip(rounds_ms[name], rounds_ms["unwatched"], strict=True)]
        rows[name] = {
            "median_ms": statistics.median(rounds_ms[name]),
            "rounds_ms": rounds_ms[name],
            "host_us": statistics.median(host[name]),
            "over_unwatched": statistics.median(ratios),
            "ratios": ratios,
        }
    with open_ledger(watch.path) as reader:
        graphs = reader.read(WatchedGraph)
    rows["launches"] = sum(graph.launches for graph in graphs)
    rows["watched"] = sum(graph.watched for graph in graphs)
    rows["batched_launches"] = [
        len(planned.plan.groups) for graph in watch._graphs for planned in graph._plans.values() if planned is not None
    ]
    from torchledger.watching.device_reductions import row_kernel

    kernel = row_kernel(torch.device("cuda", 0))
    rows["triton_reduction"] = kernel is not None
    rows["quick_launches"] = kernel is not None and kernel._is_quick
    rows["batches"] = kernel is not None and kernel._has_batches
    return rows


def peers(layers: int, batch: int) -> dict[str, Any]:
    """NAN_ASSERTS and the built-in printer on the same step: launches that they look at, and their cost."""
    from torch._inductor import config

    rows: dict[str, Any] = {}
    torch._dynamo.reset()
    with limit(100):
        rows["without torchledger"] = timed(Gpt2(layers, batch).step)
    torch._dynamo.reset()
    with limit(100), torchledger.values(level="off") as watch:
        rows["torchledger, off"] = timed(Gpt2(layers, batch).step)
    rows["torchledger, off"]["untouched"] = not watch._graphs
    for name, owner, option, value in (
        ("TORCHINDUCTOR_NAN_ASSERTS=1", config, "nan_asserts", True),
        ("built-in printer, level 2", config.aot_inductor, "debug_intermediate_value_printer", "2"),
    ):
        torch._dynamo.reset()
        former = getattr(owner, option)
        try:
            with limit(100):
                setattr(owner, option, value)
                from torch._inductor.codecache import PyCodeCache

                before = len(PyCodeCache.modules)
                quiet = io.StringIO()
                with contextlib.redirect_stdout(quiet):
                    gpt = Gpt2(layers, batch)
                    row: dict[str, Any] = timed(gpt.step, warmup=2, repeats=5)
                text = "\n".join(
                    Path(module.__file__).read_text()
                    for module in PyCodeCache.modules[before:]
                    if hasattr(module, "call") and module.__file__
                )
                from torchledger.capturing.wrapper_code import find_calls

                row["launches"] = sum(
                    len(find_calls(Path(module.__file__).read_text()))
                    for module in PyCodeCache.modules[before:]
                    if hasattr(module, "call") and module.__file__
                )
                row["assert_lines"] = len(re.findall(r"assert not \w+\.is(?:nan|inf)\(\)", text))
                row["launches_with_a_printed_line"] = len(
                    re.findall(r"_print_debugging_tensor_value_info\(.*after_launch - (\w+)", text)
                )
                row["printed_characters_per_step"] = len(quiet.getvalue()) // 7
                rows[name] = row
        except Exception as error:
            rows[name] = {"failed": f"{type(error).__name__}: {error}"[:500]}
        finally:
            setattr(owner, option, former)
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("-o", "--output", type=Path, required=True)
    parser.add_argument("--layers", type=int, default=12)
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--peer-layers", type=int, default=4)
    parser.add_argument("--only", default="cost,faults,coverage,peers")
    options = parser.parse_args()
    options.output.mkdir(parents=True, exist_ok=True)
    result: dict[str, Any] = {
        "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "torch": torch.__version__,
        "device": torch.cuda.get_device_name(0),
        "command": " ".join(["python", "-m", __spec__.name, *sys.argv[1:]]),
        "layers": options.layers,
        "peer_layers": options.peer_layers,
        "batch": options.batch,
    }
    parts: dict[str, Callable[[], Any]] = {
        "coverage": coverage,
        "faults": faults,
        "cost": lambda: cost(options.layers, options.batch),
        "peers": lambda: peers(options.peer_layers, options.batch),
    }
    for name in options.only.split(","):
        begin = time.perf_counter()
        try:
            result[name] = parts[name]()
        except BaseException as error:  # the other parts must still be measured
            result[name] = {
                "failed": f"{type(error).__name__}: {error}"[:500],
                "traceback": traceback.format_exc()[-3000:],
            }
        result[f"{name}_took_s"] = time.perf_counter() - begin
        (options.output / "values_cuda.json").write_text(json.dumps(result, indent=1, default=str))
        (options.output / "values_cuda.md").write_text(as_markdown(result))
        print(f"{name}: {result[f'{name}_took_s']:.0f} s", flush=True)


def as_markdown(result: dict[str, Any]) -> str:
    lines = [
        "# Values on CUDA",
        "",
        f"{result['device']}, torch {result['torch']}, {result['date']}: `{result['command']}`",
        "",
    ]
    rows = result.get("coverage")
    if isinstance(rows, list):
        lines += [
            "| model | launches | watched | ran | same bits | findings on a clean run |",
            "|---|---|---|---|---|---|",
        ]
        lines += [
            f"| {row['model']} | {row['launches']} | {row['watched']} | {row['seen']} | {row['same_bits']}"
            f"{'' if row['plain_runs_agree'] else ' (two plain runs differ too)'} | {row['findings']} |"
            for row in rows
        ]
        lines.append("")
    rows = result.get("faults")
    if isinstance(rows, list):
        real = [row for row in rows if not row["fault"].startswith("none")]
        clean = [row for row in rows if row["fault"].startswith("none")]
        lines.append(
            f"Planted faults: {sum(row['named'] for row in real)} of {len(real)} named; clean runs without alarm: "
            f"{sum(row['named'] for row in clean)} of {len(clean)}."
        )
        lines += [f"- missed: {row}" for row in rows if not row["named"]]
        lines.append("")
    rows = result.get("cost")
    if isinstance(rows, dict) and "unwatched" in rows:
        lines += [
            f"GPT-2, {result['layers']} layers, batch {result['batch']} x 1024, bf16 autocast, training step; "
            f"{rows['watched']} of {rows['launches']} launches watched:",
            "",
            "| | median ms | over unwatched | of each round |",
            "|---|---|---|---|",
        ]
        for name in MODES:
            row = rows[name]
            of_rounds = ", ".join(f"{ratio:.2f}" for ratio in row["ratios"])
            lines.append(f"| {name} | {row['median_ms']:.1f} | {row['over_unwatched']:.2f} | {of_rounds} |")
        lines.append("")
    rows = result.get("peers")
    if isinstance(rows, dict) and "without torchledger" in rows:
        base = rows["without torchledger"]["median_ms"]
        lines += [f"The same with {result['peer_layers']} layers:", "", "| | median ms | over plain | looks at |"]
        lines.append("|---|---|---|---|")
        for name, row in rows.items():
            if "median_ms" not in row:
                lines.append(f"| {name} | failed: {row['failed'][:200]} | | |")
                continue
            looks = ""
            if "launches" in row:
                looks = (
                    f"{row['assert_lines']} asserts on inputs and outputs, {row['launches_with_a_printed_line']} of "
                    f"{row['launches']} launches printed"
                )
            lines.append(f"| {name} | {row['median_ms']:.1f} | {row['median_ms'] / base:.2f} | {looks} |")
        lines.append("")
    lines += [f"{name}: {value}" for name, value in result.items() if isinstance(value, dict) and "failed" in value]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    main()
