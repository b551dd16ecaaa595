"""Capture and profile on an NVIDIA GPU: do the books balance, and does every kernel's time find its entry?

    python -m benchmarks.capture.capture_cuda --out OUT [--only NAME ...] [--parallel 4]

Runs each case in a process of its own under a time limit: first all models compiled under a capture (several at a
time), then the profiled ones alone on the GPU with warm caches, launched eagerly and as CUDA graphs. Writes
``results.json`` and a few ledgers into OUT, and prints a line per case.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from benchmarks.shared.places import child_environment

NEEDS: tuple[str, ...] = ("cuda", "timm", "transformers")
RUNS: tuple[tuple[str, ...], ...] = (("--out", "{out}"),)

PROFILED = ("resnet50_inference", "gpt2", "llama", "mixnet_l", "zoo:gpt_block")


def listen(messages: list[str]) -> None:
    """Keep what the profile says of itself."""
    import logging

    class Keep(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            messages.append(record.getMessage())

    logger = logging.getLogger("torchledger.profiling.profile")
    logger.setLevel(logging.DEBUG)
    logger.addHandler(Keep())


def zoo_case(name: str) -> tuple[Any, Any]:
    import model_zoo

    case = model_zoo.make(name)
    module = case.module.cuda()
    inputs = tuple(tensor.cuda() for tensor in case.inputs)
    return module, lambda model: case.loss(model, *inputs).backward()


def work(arguments: argparse.Namespace) -> dict[str, Any]:
    """One case in this process."""
    import torch

    import torchledger
    from torchledger.nouns import Breakdown, Difference, Gap, Graph, Launch, Profile
    from torchledger.profiling.profile import attach
    from torchledger.store import open_ledger

    name, mode = arguments.case, arguments.mode
    if name.startswith("zoo:"):
        module, step = zoo_case(name.removeprefix("zoo:"))
    else:
        from benchmarks.shared import cuda_models

        case = cuda_models.make(name)
        module, step = case.module, case.step
    messages: list[str] = []
    listen(messages)
    eager = None
    path = arguments.out / f"{name.replace(':', '_')}.{mode}.ledger"
    started = time.perf_counter()

    def say(what: str) -> None:
        print(f"{name} {mode}: {time.perf_counter() - started:.1f} s, {what}", file=sys.stderr, flush=True)

    compiled = torch.compile(module, mode="reduce-overhead" if mode == "reduce-overhead" else None)
    with torchledger.capture(path, force=True) as run:
        if mode != "capture":
            attach(run, {"warmup": 5, "repeats": 5, "timed": 5})
        for index in range(20 if mode != "capture" else 2):
            if mode == "reduce-overhead":
                torch.compiler.cudagraph_mark_step_begin()
            step(compiled)
            if index == 0:
                torch.cuda.synchronize()
                compile_s = time.perf_counter() - started
            if index < 3:
                say(f"step {index} has run")
            module.zero_grad(set_to_none=True)
        torch.cuda.synchronize()
        if mode == "capture":
            eager = run.count_eager(lambda: step(compiled)).flops
        say("all steps have run")
    say("the ledger is written")
    with open_ledger(path) as ledger:
        launches, graphs = ledger.read(Launch), ledger.read(Graph)
        gaps, differences = ledger.read(Gap), ledger.read(Difference)
        profiles, breakdowns = ledger.read(Profile), ledger.read(Breakdown)
    calls = [launch for launch in launches if launch.category != "nop"]
    fused = [launch for launch in calls if launch.category not in ("extern", "inline")]
    result: dict[str, Any] = {
        "case": name,
        "mode": mode,
        "compile_s": round(compile_s, 2),
        "graphs": [f"{graph.name}{'*' if graph.cache_hit else ''}" for graph in graphs],
        "entries": len(calls),
        "wrapper_calls": sum(len(graph.wrapper_calls) for graph in graphs),
        "categories": {c: sum(x.category == c for x in calls) for c in sorted({x.category for x in calls})},
        "flops_eager": eager,
        "flops_reference": sum(r.flops for graph in graphs for r in graph.flop_references),
        "flops_ledger": sum(launch.flops or 0 for launch in launches),
        "differences": [(d.where, d.reason, d.amount) for d in differences][:8],
        "differences_sum": sum(d.amount for d in differences if d.account == "flops"),
        "differences_eager_sum": sum(d.amount for d in differences if d.account == "flops_eager"),
        "gaps": [(g.account, g.where, g.reason, g.amount) for g in gaps][:12],
        "without_source": [x.kernel_name for x in fused if not x.sources and not x.modules][:10],
        "unknown_bytes": sum(x.bytes_moved is None for x in calls),
        "unknown_bytes_reasons": sorted({str(x.reason) for x in calls if x.bytes_moved is None})[:5],
        "messages": messages,
        "skip_reasons": sorted({g.cudagraph_skip_reason for g in graphs if g.cudagraph_skip_reason}),
    }
    for profile in profiles:
        result |= {
            "matched_share": profile.matched_share,
            "inside_us": profile.inside_us,
            "unmatched_us": dict(list(profile.unmatched_us.items())[:8]),
            "plain_step_us": profile.plain_step_us,
            "profiled_step_us": profile.profiled_step_us,
            "entries_seen": profile.entries_seen,
            "graph_calls": dict(profile.graph_calls),
        }
    for breakdown in breakdowns:
        result |= {
            "kernel_us": breakdown.kernel_us,
            "busy_share": breakdown.busy_share,
            "category_sum_us": sum(row.total_us for row in breakdown.categories),
            "device_us": breakdown.device_us,
            "categories_share": {row.name: round(row.share, 4) for row in breakdown.categories},
            "verdict": breakdown.verdict,
        }
    return result


def run_case(case: str, mode: str, out: Path, limit_s: float) -> dict[str, Any]:
    """One case in a child process, under a time limit."""
    command = [sys.executable, "-m", __spec__.name, "--case", case, "--mode", mode, "--out", str(out)]
    started = time.perf_counter()
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=limit_s, env=environment())
        lines = [line for line in done.stdout.splitlines() if line.startswith("RESULT ")]
        if lines:
            result: dict[str, Any] = json.loads(lines[-1].removeprefix("RESULT "))
        else:
            result = {"case": case, "mode": mode, "error": (done.stderr or done.stdout)[-1500:]}
    except subprocess.TimeoutExpired as ended:
        reached = (ended.stderr or b"").decode(errors="replace").strip().splitlines()[-1:]
        result = {"case": case, "mode": mode, "error": f"exceeded {limit_s} s; {' '.join(reached)}"}
    result["wall_s"] = round(time.perf_counter() - started, 1)
    print(json.dumps(result)[:1800], flush=True)
    return result


def environment() -> dict[str, str]:
    return child_environment() | {
        "HF_HUB_OFFLINE": "1",
        "PYTHONUNBUFFERED": "1",
        "TORCHINDUCTOR_COMPILE_THREADS": os.environ.get("TORCHINDUCTOR_COMPILE_THREADS", "4"),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--case")
    parser.add_argument("--mode", default="capture", choices=("capture", "profile", "reduce-overhead"))
    parser.add_argument("--only", nargs="*")
    parser.add_argument("--modes", nargs="*", default=["capture", "profile", "reduce-overhead"])
    parser.add_argument("--parallel", type=int, default=4)
    parser.add_argument("--limit", type=float, default=240)
    arguments = parser.parse_args()
    arguments.out.mkdir(parents=True, exist_ok=True)
    if arguments.case:
        print("RESULT " + json.dumps(work(arguments)), flush=True)
        return
    import model_zoo

    results = []
    names = [*PROFILED[:-1], *(f"zoo:{name}" for name in (*model_zoo.REQUIRED, *model_zoo.BEYOND))]
    if arguments.only:
        names = [name for name in names if name in arguments.only]
    if "capture" in arguments.modes:
        with ThreadPoolExecutor(arguments.parallel) as pool:
            jobs = [pool.submit(run_case, name, "capture", arguments.out, arguments.limit) for name in names]
            results += [job.result() for job in jobs]
    for name in names:
        if name in PROFILED:
            for mode in ("profile", "reduce-overhead"):
                if mode in arguments.modes:
                    results.append(run_case(name, mode, arguments.out, arguments.limit))
    (arguments.out / "results.json").write_text(json.dumps(results, indent=1))


if __name__ == "__main__":
    main()
