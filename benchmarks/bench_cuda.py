"""Bench on an NVIDIA GPU: time alone against time inside the step, repeatability, extracted files, other tools.

    python benchmarks/bench_cuda.py --out OUT [--budget 480] [--models gpt2 llama ...] [--skip record]

1. All models are captured at once (which fills Inductor's caches), then profiled one after another.
2. Every launch of each model is benched, and one model twice.
3. Ten kernels of every category at hand (at least two library calls) are extracted, and each file runs by itself.
4. One inference graph is compiled with Inductor's own kernel benchmarks: its ``-k``, ``triton.testing.do_bench`` and
   the bench time the same kernels.

Every part runs in processes of its own under a time limit, and what was not reached is written down. ``results.json``
holds all figures.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import statistics
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
MODELS = ("resnet50_inference", "gpt2", "llama", "mixnet_l")
WANTED = ("pointwise", "reduction", "persistent_reduction", "template", "foreach", "split_scan", "extern", "inline")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--models", nargs="+", default=list(MODELS))
    parser.add_argument("--budget", type=float, default=480.0, help="seconds for everything")
    parser.add_argument(
        "--skip", nargs="*", default=[], choices=["ceilings", "record", "bench", "repeat", "extract", "compare"]
    )
    parser.add_argument("--work", type=Path, default=Path("/tmp/bench_cuda"), help="ledgers and extracted files")
    parser.add_argument("--child", nargs="+", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.child:
        CHILDREN[arguments.child[0]](*arguments.child[1:])
        return
    arguments.out.mkdir(parents=True, exist_ok=True)
    arguments.work.mkdir(parents=True, exist_ok=True)
    Driver(arguments).run()


class Driver:
    """Starts the parts, keeps the time, writes what came of them."""

    def __init__(self, arguments: argparse.Namespace) -> None:
        self.arguments = arguments
        self.deadline = time.monotonic() + arguments.budget
        self.results: dict[str, Any] = {"models": {}, "seconds": {}}

    def run(self) -> None:
        for name, part in (
            ("ceilings", self.ceilings),
            ("record", self.record),
            ("bench", self.bench),
            ("repeat", self.repeat),
            ("extract", self.extract),
            ("compare", self.compare),
        ):
            if name in self.arguments.skip:
                continue
            started = time.monotonic()
            part()
            self.results["seconds"][name] = round(time.monotonic() - started, 1)
            self.write()
        print(json.dumps(self.results["seconds"]))

    def write(self) -> None:
        (self.arguments.out / "results.json").write_text(json.dumps(self.results, indent=1))

    def child(self, limit: float, *arguments: str, environment: dict[str, str] | None = None) -> dict[str, Any]:
        """One part in a process of its own; its last line of output is its answer."""
        limit = min(limit, self.deadline - time.monotonic())
        if limit < 5:
            return {"error": "the time was used up"}
        command = [sys.executable, __file__, "--out", str(self.arguments.out), "--child", *arguments]
        merged = os.environ | {"PYTHONPATH": _python_path()} | (environment or {})
        try:
            done = subprocess.run(command, env=merged, capture_output=True, text=True, timeout=limit, check=False)
        except subprocess.TimeoutExpired:
            return {"error": f"took longer than {limit:.0f} s"}
        lines = done.stdout.strip().splitlines()
        if done.returncode != 0 or not lines:
            tail = (done.stderr.strip().splitlines() or ["no output"])[-6:]
            return {"error": " | ".join(tail)[:1500]}
        answer: dict[str, Any] = json.loads(lines[-1])
        return answer

    def path(self, model: str) -> str:
        return str(self.arguments.work / f"{model}.ledger")

    def ceilings(self) -> None:
        self.results["ceilings"] = self.child(60, "ceilings")

    def record(self) -> None:
        names = [*self.arguments.models, "extras"]
        with ThreadPoolExecutor(len(names)) as pool:
            warm = list(pool.map(lambda name: self.child(170, "record", name, self.path(name), "capture"), names))
        self.results["captured"] = dict(zip(names, warm, strict=True))
        for name in self.arguments.models:
            self.results["models"][name] = {"record": self.child(60, "record", name, self.path(name), "profile")}

    def bench(self) -> None:
        for name in self.arguments.models:
            found = self.child(75, "bench", self.path(name), "0.08")
            self.results["models"].setdefault(name, {})["bench"] = found
            _print_summary(name, found)
            self.write()

    def repeat(self) -> None:
        name = self.arguments.models[0]
        first = self.results["models"].get(name, {}).get("bench", {}).get("times", {})
        again = self.child(75, "bench", self.path(name), "0.08").get("times", {})
        ratios = [again[key] / first[key] for key in first if key in again]
        self.results["repeat"] = {
            "model": name,
            "launches": len(ratios),
            "median_difference": statistics.median(abs(ratio - 1) for ratio in ratios) if ratios else None,
            "within_1_percent": _share([abs(ratio - 1) <= 0.01 for ratio in ratios]),
        }

    def extract(self) -> None:
        ledgers = [self.path(name) for name in [*self.arguments.models, "extras"] if Path(self.path(name)).exists()]
        plan = self.child(60, "plan_extracts", str(self.arguments.work), *ledgers)
        files = plan.get("files", [])

        def run(file: dict[str, str]) -> dict[str, Any]:
            limit = max(min(90, self.deadline - time.monotonic()), 1)
            try:
                done = subprocess.run(
                    [sys.executable, file["path"]],
                    capture_output=True, text=True, timeout=limit, check=False,
                )  # fmt: skip
            except subprocess.TimeoutExpired:
                return file | {"exit_code": None, "output": "took too long"}
            return file | {"exit_code": done.returncode, "output": (done.stdout + done.stderr[-600:])[-1500:]}

        with ThreadPoolExecutor(3) as pool:
            self.results["extracted"] = list(pool.map(run, files)) or plan
        wrong = next((file for file in files if file["category"] in ("pointwise", "persistent_reduction")), None)
        if wrong is not None:
            text = Path(wrong["path"]).read_text()
            changed = re.sub(r"(tl\.store\([^\n]*?, )(tmp\d+)(,)", r"\1\2 + 1\3", text, count=1)
            path = Path(wrong["path"]).with_name("made_wrong.py")
            path.write_text(changed)
            self.results["made_wrong"] = run({**wrong, "path": str(path)}) | {"was_changed": changed != text}

    def compare(self) -> None:
        name = "resnet50_inference"
        path = str(self.arguments.work / "with_k.ledger")
        environment = {"TORCHINDUCTOR_BENCHMARK_KERNEL": "1"}
        recorded = self.child(90, "record", name, path, "capture", environment=environment)
        found = self.child(120, "compare", path, str(self.arguments.work), environment=environment)
        self.results["compared"] = {"record": recorded, **found}


# --- children --------------------------------------------------------------------------------------------------------


def ceilings() -> None:
    from torchledger.measuring.doctor import examine
    from torchledger.reporting.document import as_plain

    _answer({"measured": as_plain(examine(["cuda:0"]).measured)})


def record(name: str, path: str, mode: str) -> None:
    """Capture a model (``mode`` "profile": and time its kernels inside the step)."""
    import torch

    import torchledger
    from torchledger.measuring.profile import attach

    torch.manual_seed(0)
    if name == "extras":
        steps = _extras()
    else:
        import cuda_models

        case = cuda_models.make(name)
        compiled = torch.compile(case.module)
        steps = [lambda: case.step(compiled)]
    started = time.perf_counter()
    with torchledger.capture(path, force=True) as run:
        if mode == "profile":
            attach(run, {"warmup": 5, "repeats": 5, "timed": 5})
        for _ in range(20 if mode == "profile" else 1):
            for step in steps:
                step()
        torch.cuda.synchronize()
    _answer({"seconds": round(time.perf_counter() - started, 1)})


def _extras() -> list[Any]:
    """Kinds of kernels that the models do not have: foreach, a template, a split scan."""
    import torch

    tensors = [torch.randn(1000 + index, device="cuda") for index in range(20)]
    left, right = (torch.randn(1024, 1024, device="cuda", dtype=torch.bfloat16) for _ in range(2))
    long = torch.randn(2**22, device="cuda")
    foreach = torch.compile(lambda values: torch._foreach_add(torch._foreach_mul(values, 2.0), 1.0))
    options = {"max_autotune_gemm": True, "max_autotune_gemm_backends": "TRITON"}
    template = torch.compile(lambda a, b: torch.relu(a @ b), options=options)
    scan = torch.compile(lambda values: torch.cumsum(values * 2, 0))
    return [lambda: foreach(tensors), lambda: template(left, right), lambda: scan(long)]


def bench(path: str, seconds: str) -> None:
    """Bench every launch of a ledger."""
    import torchledger
    from torchledger.measuring.bench_timing import Budget

    budget = Budget(seconds=float(seconds), min_repeats=25, max_repeats=100)
    report = torchledger.bench(path, all_kernels=True, budget=budget, save=False, total_s=65, timeout_s=40)
    entries = report.entries
    ratios = {entry.launch.launch_id: entry.over_step for entry in entries if entry.over_step is not None}
    cold = [entry.cold.duration_us / entry.in_step.duration_us for entry in entries if entry.cold and entry.in_step]
    outliers = [
        {
            "launch": entry.launch.launch_id,
            "kernel": entry.launch.kernel_name[:100],
            "category": entry.launch.category,
            "step_us": entry.in_step.duration_us if entry.in_step else None,
            "warm_us": entry.duration_us,
            "cold_us": entry.cold.duration_us if entry.cold else None,
            "bytes": entry.launch.bytes_moved,
        }
        for entry in entries
        if entry.over_step is not None and abs(entry.over_step - 1) > 0.15
    ]
    between = [
        min(entry.duration_us, entry.cold.duration_us) * 0.95
        <= entry.in_step.duration_us
        <= max(entry.duration_us, entry.cold.duration_us) * 1.05
        for entry in entries
        if entry.in_step and entry.cold and entry.duration_us is not None
    ]
    fractions = [entry.roofline_fraction for entry in entries if entry.roofline_fraction is not None]
    _answer(
        {
            "seconds": round(report.seconds, 1),
            "launches": len(entries),
            "timed": sum(entry.status == "ok" for entry in entries),
            "run_once": sum(entry.status == "ok" and not entry.same_as for entry in entries),
            "not_timed": [
                {"launch": entry.launch.launch_id, "status": entry.status, "reason": (entry.reason or "")[:300]}
                for entry in entries
                if entry.status != "ok"
            ][:40],
            "with_step_time": len(ratios),
            "median_ratio": statistics.median(ratios.values()) if ratios else None,
            "within_5_percent": _share([abs(ratio - 1) <= 0.05 for ratio in ratios.values()]),
            "within_15_percent": _share([abs(ratio - 1) <= 0.15 for ratio in ratios.values()]),
            "median_cold_ratio": statistics.median(cold) if cold else None,
            "step_between_warm_and_cold": _share(between),
            "sum_warm_us": sum(entry.duration_us for entry in entries if entry.in_step and entry.duration_us),
            "sum_step_us": sum(entry.in_step.duration_us for entry in entries if entry.in_step and entry.duration_us),
            "clock": sorted({entry.warm.clock for entry in entries if entry.warm}),
            "median_roofline_fraction": statistics.median(fractions) if fractions else None,
            "outliers": sorted(outliers, key=lambda item: -(item["step_us"] or 0))[:60],
            "times": {
                entry.launch.launch_id: entry.duration_us
                for entry in entries
                if entry.duration_us is not None and not entry.same_as
            },
        }
    )


def plan_extracts(folder: str, *ledgers: str) -> None:
    """Write ten kernels out of the ledgers, of every category that they have."""
    from torchledger.errors import TorchledgerError
    from torchledger.measuring.extract import extract_kernel
    from torchledger.nouns import Launch
    from torchledger.store import open_ledger

    candidates: dict[str, list[tuple[str, str]]] = {}
    for path in ledgers:
        with open_ledger(path) as reader:
            names = set()
            for launch in reader.read(Launch):
                if launch.is_call and launch.kernel_name not in names:
                    names.add(launch.kernel_name)
                    candidates.setdefault(launch.category, []).append((path, launch.launch_id))
    files: list[dict[str, str]] = []
    for round_number in range(8):
        for category in WANTED:
            wanted = candidates.get(category, [])
            if len(files) >= 10 or round_number >= len(wanted):
                continue
            ledger, launch_id = wanted[round_number * 7 % len(wanted)]
            path = Path(folder) / f"extracted_{len(files)}.py"
            try:
                extracted = extract_kernel(ledger, launch_id, path, force=True)
            except TorchledgerError as error:
                files.append({"category": category, "launch": launch_id, "path": "", "title": str(error)})
                continue
            files.append(
                {
                    "category": category, "launch": launch_id, "ledger": Path(ledger).stem, "path": str(path),
                    "title": extracted.title, "checked": str(len(extracted.checked)),
                }
            )  # fmt: skip
    _answer({"files": [file for file in files if file["path"]], "failed": [file for file in files if not file["path"]]})


def compare(path: str, folder: str) -> None:
    """The same kernels by the wrapper's own ``-k``, by ``triton.testing.do_bench`` and by the bench."""
    import torch
    import triton

    import torchledger
    from torchledger._torch.kernels import wait_for_kernels
    from torchledger.measuring.bench_timing import Budget
    from torchledger.measuring.call_site import find_call_site
    from torchledger.measuring.standalone import MAKE_TENSOR, body_text, head_text
    from torchledger.nouns import Graph, Kernel, Launch
    from torchledger.store import open_ledger

    with open_ledger(path) as reader:
        graph = reader.read(Graph)[0]
        launches, kernels = reader.read(Launch, graph=graph.name), reader.read(Kernel)
    triton_launches = [launch for launch in launches if launch.is_call and launch.category not in ("extern", "inline")]
    wrapper = Path(folder) / "wrapper.py"
    wrapper.write_text(graph.wrapper_source or "")
    started = time.perf_counter()
    own: dict[str, Any]
    try:
        done = subprocess.run(
            [sys.executable, str(wrapper), "-k"], capture_output=True, text=True, timeout=60, check=False
        )
        own = {"seconds": time.perf_counter() - started, "exit_code": done.returncode}
        own["lines"] = done.stdout.splitlines()
        own["error"] = done.stderr[-500:] if done.returncode else ""
    except subprocess.TimeoutExpired:
        own = {"seconds": 60.0, "exit_code": None, "lines": [], "error": "took longer than 60 s"}
    started = time.perf_counter()
    names = sorted({launch.launch_id for launch in triton_launches})
    report = torchledger.bench(
        path, names, budget=Budget(seconds=0.08, max_repeats=100), save=False, total_s=45, states=("warm", "cold")
    )
    ours_s = time.perf_counter() - started
    by_launch = {entry.launch.launch_id: entry for entry in report.entries}
    rows, started = [], time.perf_counter()
    seen = set()
    for launch in triton_launches:
        if launch.kernel_name in seen or time.perf_counter() - started > 30:
            continue
        seen.add(launch.kernel_name)
        site = find_call_site(graph, launch, launches, kernels)
        namespace: dict[str, Any] = {"__name__": "compare"}
        exec(head_text(site), namespace)
        wait_for_kernels(namespace)
        exec(MAKE_TENSOR + body_text(site), namespace)
        inputs = list(namespace["make_inputs"]().values())
        call = namespace["call"]
        milliseconds = triton.testing.do_bench(lambda call=call, inputs=inputs: call(*inputs), return_mode="median")
        entry = by_launch[launch.launch_id]
        rows.append(
            {
                "kernel": launch.kernel_name,
                "do_bench_us": milliseconds * 1e3,
                "warm_us": entry.duration_us,
                "cold_us": entry.cold.duration_us if entry.cold else None,
            }
        )
    do_bench_s = time.perf_counter() - started
    lines = [line for line in own.pop("lines") if re.search(r"\d\s*ms", line)]
    _answer(
        {
            "kernels": len(rows),
            "wrapper_k": own | {"kernels": len(lines), "sample": lines[:60]},
            "bench_seconds": ours_s,
            "do_bench_seconds": do_bench_s,
            "rows": rows,
            "device": torch.cuda.get_device_name(0),
        }
    )


CHILDREN = {
    "ceilings": ceilings,
    "record": record,
    "bench": bench,
    "plan_extracts": plan_extracts,
    "compare": compare,
}


def _answer(content: dict[str, Any]) -> None:
    sys.stdout.flush()
    print("\n" + json.dumps(content), flush=True)


def _share(claims: list[bool]) -> float | None:
    return sum(claims) / len(claims) if claims else None


def _python_path() -> str:
    paths = [str(HERE.parent / "src"), str(HERE.parent / "tests"), str(HERE), os.environ.get("PYTHONPATH", "")]
    return os.pathsep.join(filter(None, paths))


def _print_summary(name: str, found: dict[str, Any]) -> None:
    keys = ("seconds", "launches", "timed", "with_step_time", "median_ratio", "within_15_percent", "error")
    print(name, {key: found[key] for key in keys if key in found}, flush=True)


if __name__ == "__main__":
    main()
