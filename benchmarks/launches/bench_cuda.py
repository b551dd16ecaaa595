"""Bench on an NVIDIA GPU: time alone against time inside the step, repeatability, extracted files, other tools.

    python -m benchmarks.launches.bench_cuda --out OUT [--budget 480] [--models gpt2 llama ...] [--skip compare]

1. All models are compiled at once; then, one at a time on an otherwise idle GPU, their steps are profiled.
2. Every launch of each model is benched: warm, cold, and after its lead-in. What time is left benches them again.
3. Ten kernels of every category at hand (at least two library calls) are extracted, and each file runs by itself; one
   is made wrong.
4. One inference graph is compiled with Inductor's own kernel benchmarks: its ``-k``, ``triton.testing.do_bench`` and
   the bench time the same kernels.

Every part runs in processes of its own under a time limit, is printed as it ends, and what was not reached is written
down. ``OUT/results.json`` holds all figures, ``OUT/entries.json`` the times of each launch, ``OUT/bench.md`` tables.
"""

from __future__ import annotations

import argparse
import fcntl
import json
import os
import re
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from benchmarks.shared.places import child_environment

NEEDS: tuple[str, ...] = ("cuda", "timm", "transformers")
RUNS: tuple[tuple[str, ...], ...] = (("--out", "{out}"),)
QUICK: tuple[tuple[str, ...], ...] = (("--out", "{out}", "--models", "resnet50", "--budget", "120"),)

MODELS = ("gpt2", "llama", "resnet50_inference", "mixnet_l")
WANTED = (
    "extern", "pointwise", "reduction", "persistent_reduction", "template", "foreach", "split_scan", "extern",
    "user_triton", "inline",
)  # fmt: skip
PARTS = ("ceilings", "record", "bench", "extract", "compare", "repeat")
COMPARED = "resnet50_inference"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--models", nargs="+", default=list(MODELS))
    parser.add_argument("--budget", type=float, default=480.0, help="seconds for everything")
    parser.add_argument("--seconds", default="0.006", help="per kernel and cache state, if its times scatter")
    parser.add_argument("--skip", nargs="*", default=[], choices=PARTS)
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
        self.entries: dict[str, Any] = {}
        self.skipped = set(arguments.skip)

    def run(self) -> None:
        for name in PARTS:
            if name in self.skipped:
                continue
            started = time.monotonic()
            getattr(self, name)()
            self.results["seconds"][name] = round(time.monotonic() - started, 1)
            print(f"== {name}: {self.results['seconds'][name]} s", flush=True)
            self.write()

    def write(self) -> None:
        out = self.arguments.out
        (out / "results.json").write_text(json.dumps(self.results, indent=1))
        (out / "entries.json").write_text(json.dumps(self.entries))
        (out / "bench.md").write_text(as_markdown(self.results, self.entries))

    def child(self, limit: float, *arguments: str, environment: dict[str, str] | None = None) -> dict[str, Any]:
        """One part in a process of its own; its last line of output is its answer."""
        limit = min(limit, self.deadline - time.monotonic())
        if limit < 5:
            return {"error": "the time was used up"}
        command = [sys.executable, "-m", __spec__.name, "--out", str(self.arguments.out), "--child", *arguments]
        merged = child_environment() | (environment or {})
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
        self.results["ceilings"] = found = self.child(40, "ceilings")
        print(json.dumps(found)[:400], flush=True)

    def record(self) -> None:
        turns = Turns(self.arguments.work)
        names = list(self.arguments.models)
        names += [name for name, part in (("extras", "extract"), ("with_k", "compare")) if part not in self.skipped]
        turns.expect(names)

        def one(name: str) -> dict[str, Any]:
            model, mode = (COMPARED, "capture") if name == "with_k" else (name, "capture")
            if name in self.arguments.models:
                mode = "profile"
            environment = {"TORCHINDUCTOR_BENCHMARK_KERNEL": "1"} if name == "with_k" else None
            found = self.child(200, "record", model, self.path(name), mode, environment=environment)
            turns.ready(name)
            print("recorded", name, json.dumps(found)[:300], flush=True)
            return found

        with ThreadPoolExecutor(len(names)) as pool:
            self.results["recorded"] = dict(zip(names, pool.map(one, names), strict=True))

    def bench(self) -> None:
        for name in self.arguments.models:
            found = self.child(120, "bench", self.path(name), self.arguments.seconds)
            self.entries[name] = found.pop("entries", [])
            self.results["models"][name] = found
            print(name, json.dumps({key: value for key, value in found.items() if key != "outliers"}), flush=True)
            self.write()

    def repeat(self) -> None:
        self.results["repeat"] = {}
        for name in sorted(self.entries, key=lambda name: len(self.entries[name])):
            needed = 15 + self.results["models"][name].get("seconds", 1e9)
            if self.deadline - time.monotonic() < needed:
                self.results["repeat"][name] = "the time was used up"
                continue
            again = self.child(120, "bench", self.path(name), self.arguments.seconds).get("entries", [])
            first = {entry["launch"]: entry for entry in self.entries.get(name, [])}
            self.results["repeat"][name] = found = {
                state: changes([(first[entry["launch"]][state], entry[state]) for entry in again if entry["run"]])
                for state in STATES
            }
            print("repeat", name, json.dumps(found), flush=True)
            self.write()

    def extract(self) -> None:
        ledgers = [self.path(name) for name in [*self.arguments.models, "extras"] if Path(self.path(name)).exists()]
        plan = self.child(40, "plan_extracts", str(self.arguments.work), *ledgers)
        files = plan.get("files", [])
        self.results["extract_plan"] = {key: value for key, value in plan.items() if key != "files"}
        wrong = next((file for file in files if file["category"] in ("pointwise", "persistent_reduction")), None)
        jobs = list(files)
        if wrong is not None:
            text = Path(wrong["path"]).read_text()
            changed = re.sub(r"(tl\.store\([^\n]*?, )(tmp\d+)(,)", r"\1\2 + 1\3", text, count=1)
            path = Path(wrong["path"]).with_name("made_wrong.py")
            path.write_text(changed)
            jobs.append({**wrong, "path": str(path), "was_changed": changed != text})

        def run(file: dict[str, Any]) -> dict[str, Any]:
            limit = max(min(60, self.deadline - time.monotonic()), 1)
            try:
                done = subprocess.run(
                    [sys.executable, file["path"]],
                    capture_output=True, text=True, timeout=limit, check=False,
                )  # fmt: skip
            except subprocess.TimeoutExpired:
                return file | {"exit_code": None, "output": "took too long"}
            return file | {"exit_code": done.returncode, "output": (done.stdout + done.stderr[-600:])[-1500:]}

        with ThreadPoolExecutor(6) as pool:
            found = list(pool.map(run, jobs))
        self.results["extracted"] = [file for file in found if "was_changed" not in file]
        self.results["made_wrong"] = next((file for file in found if "was_changed" in file), None)
        for file in found:
            print("extracted", file["category"], file["launch"], file["exit_code"], file["output"][-160:], flush=True)

    def compare(self) -> None:
        path = self.path("with_k")
        limit = min(75.0, self.deadline - time.monotonic() - 10)
        environment = {"TORCHINDUCTOR_BENCHMARK_KERNEL": "1"}
        found = self.child(limit, "compare", path, str(self.arguments.work), environment=environment)
        own = self.child(70, "wrapper_k", path, str(self.arguments.work), environment=environment)
        self.results["compared"] = {**found, "wrapper_k": own}
        print(json.dumps({key: value for key, value in found.items() if key != "rows"})[:600], flush=True)
        print(json.dumps({key: value for key, value in own.items() if key != "times_us"})[:900], flush=True)


class Turns:
    """Lets models compile at once and use the GPU one at a time for what is timed: files in a folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def expect(self, names: Sequence[str]) -> None:
        for name in names:
            (self.folder / f"{name}.ready").unlink(missing_ok=True)
        (self.folder / "expected.json").write_text(json.dumps(list(names)))

    def ready(self, name: str) -> None:
        (self.folder / f"{name}.ready").touch()

    def wait(self, limit_s: float = 150.0) -> Any:
        """Return, with the GPU to oneself, once nobody compiles any more; closing what is returned ends the turn."""
        names = json.loads((self.folder / "expected.json").read_text())
        deadline = time.monotonic() + limit_s
        while time.monotonic() < deadline and not all((self.folder / f"{name}.ready").exists() for name in names):
            time.sleep(0.1)
        turn = (self.folder / "turn").open("w")
        fcntl.flock(turn, fcntl.LOCK_EX)
        return turn


# --- children --------------------------------------------------------------------------------------------------------


def ceilings() -> None:
    from torchledger.device.doctor import examine
    from torchledger.reporting.document import as_plain

    _answer({"measured": as_plain(examine(["cuda:0"]).measured)})


def record(name: str, path: str, mode: str) -> None:
    """Capture a model (``mode`` "profile": and time its kernels inside the step)."""
    import torch

    import torchledger
    from torchledger.profiling.profile import attach

    torch.manual_seed(0)
    errors: list[str] = []
    if name == "extras":
        steps = _extras()
    else:
        from benchmarks.shared import cuda_models

        case = cuda_models.make(name)
        compiled = torch.compile(case.module)
        steps = [lambda: case.step(compiled)]
    started = time.perf_counter()
    with torchledger.capture(path, force=True) as run:
        if mode == "profile":
            attach(run, {"warmup": 4, "repeats": 5, "timed": 3})
        for step in steps:
            try:
                step()
            except Exception as error:  # one kind of kernel less, said in the answer
                errors.append(f"{type(error).__name__}: {error}"[:400])
        torch.cuda.synchronize()
        compile_s = time.perf_counter() - started
        if mode == "profile":
            turns = Turns(Path(path).parent)
            steps[0]()
            torch.cuda.synchronize()
            turns.ready(name)
            with turns.wait():
                for _ in range(18):
                    steps[0]()
                torch.cuda.synchronize()
    _answer({"compile_s": round(compile_s, 1), "seconds": round(time.perf_counter() - started, 1), "errors": errors})


def _extras() -> list[Any]:
    """Kinds of kernels that the models do not have: foreach, a template, a split scan, a kernel of the user's."""
    import torch

    tensors = [torch.randn(1000 + index, device="cuda") for index in range(20)]
    left, right = (torch.randn(1024, 1024, device="cuda", dtype=torch.bfloat16) for _ in range(2))
    long = torch.randn(2**22, device="cuda")
    foreach = torch.compile(lambda values: torch._foreach_add(torch._foreach_mul(values, 2.0), 1.0))
    options = {"max_autotune_gemm": True, "max_autotune_gemm_backends": "TRITON"}
    template = torch.compile(lambda a, b: torch.relu(a @ b), options=options)
    scan = torch.compile(lambda values: torch.cumsum(values * 2, 0))
    softmax = torch.compile(lambda values: torch.softmax(values.view(256, 16384), 1))
    doubled = torch.compile(_with_own_kernel())
    return [
        lambda: foreach(tensors),
        lambda: template(left, right),
        lambda: scan(long),
        lambda: softmax(long),
        lambda: doubled(long),
    ]


def _with_own_kernel() -> Callable[[Any], Any]:
    global tl  # what the kernel's source reads
    import torch
    import triton
    import triton.language as tl

    @triton.jit
    def double_kernel(source, target, count, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]
        places = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
        values = tl.load(source + places, mask=places < count)
        tl.store(target + places, values * 2, mask=places < count)

    def doubled(values: Any) -> Any:
        target = torch.empty_like(values)
        double_kernel[(triton.cdiv(values.numel(), 1024),)](values, target, values.numel(), BLOCK=1024)
        return target + 1

    return doubled


def bench(path: str, seconds: str) -> None:
    """Bench every launch of a ledger."""
    import torchledger
    from torchledger.replaying.bench_timing import Budget

    budget = Budget(seconds=float(seconds), min_repeats=20, max_repeats=60)
    report = torchledger.bench(path, all_kernels=True, budget=budget, save=False, total_s=105, timeout_s=60)
    rows = [
        {
            "launch": entry.launch.launch_id,
            "kernel": entry.launch.kernel_name[:100],
            "category": entry.launch.category,
            "step_us": entry.in_step.duration_us if entry.in_step else None,
            "warm_us": entry.warm.duration_us if entry.warm else None,
            "cold_us": entry.cold.duration_us if entry.cold else None,
            "placed_us": entry.placed.duration_us if entry.placed else None,
            "step_samples_us": [round(sample, 3) for sample in entry.in_step.samples_us] if entry.in_step else None,
            "lead_in": entry.lead_in,
            "bytes": entry.launch.bytes_moved,
            "run": not entry.same_as and entry.status == "ok",
            "unplaced": entry.unplaced,
            "explanation": entry.explanation,
            "roofline_fraction": entry.roofline_fraction,
            "status": entry.status,
            "reason": (entry.reason or "")[:300],
        }
        for entry in report.entries
    ]
    timed = [row for row in rows if row["step_us"] is not None and row["warm_us"] is not None]
    off = [row for row in timed if row["placed_us"] is not None and abs(row["placed_us"] / row["step_us"] - 1) > 0.15]
    between = [
        0.95 * min(row["warm_us"], row["cold_us"]) <= row["step_us"] <= 1.05 * max(row["warm_us"], row["cold_us"])
        for row in timed
        if row["cold_us"] is not None
    ]
    fractions = [row["roofline_fraction"] for row in rows if row["roofline_fraction"] is not None]
    explained: dict[str, int] = {}
    for row in timed:
        key = (row["explanation"] or "agrees within 5 %").partition(":")[0]
        explained[key] = explained.get(key, 0) + 1
    _answer(
        {
            "seconds": round(report.seconds, 1),
            "launches": len(rows),
            "timed": sum(row["status"] == "ok" for row in rows),
            "run_once": sum(row["run"] for row in rows),
            "placed": sum(row["placed_us"] is not None for row in rows),
            "not_timed": [row for row in rows if row["status"] != "ok"][:20],
            "unplaced": sorted({row["unplaced"] for row in rows if row["unplaced"]})[:8],
            "with_step_time": len(timed),
            **{state: agreement(timed, f"{state}_us") for state in ("placed", "warm", "cold")},
            "step_between_warm_and_cold": share(between),
            "why_warm_differs": explained,
            "clock": sorted({entry.warm.clock for entry in report.entries if entry.warm}),
            "median_roofline_fraction": statistics.median(fractions) if fractions else None,
            "outliers": sorted(off, key=lambda row: -row["step_us"])[:40],
            "notes": sorted({note for entry in report.entries for note in entry.notes})[:5],
            "entries": rows,
        }
    )


def agreement(rows: list[dict[str, Any]], key: str) -> dict[str, Any]:
    """How the times of one cache state compare with those inside the step."""
    pairs = [(row[key], row["step_us"]) for row in rows if row[key] is not None]
    ratios = [alone / step for alone, step in pairs]
    if not ratios:
        return {"launches": 0}
    near = sum(step for (_, step), ratio in zip(pairs, ratios, strict=True) if abs(ratio - 1) <= 0.15)
    return {
        "launches": len(ratios),
        "median_ratio": round(statistics.median(ratios), 4),
        "within_5_percent": round(share([abs(ratio - 1) <= 0.05 for ratio in ratios]) or 0.0, 4),
        "within_15_percent": round(share([abs(ratio - 1) <= 0.15 for ratio in ratios]) or 0.0, 4),
        "time_within_15_percent": round(near / sum(step for _, step in pairs), 4),
        "sum_over_step": round(sum(alone for alone, _ in pairs) / sum(step for _, step in pairs), 4),
    }


def changes(pairs: list[tuple[float | None, float | None]]) -> dict[str, Any]:
    """How two benches of the same launches differ."""
    differences = [abs(second / first - 1) for first, second in pairs if first and second]
    return {
        "launches": len(differences),
        "median_difference": statistics.median(differences) if differences else None,
        "within_1_percent": share([difference <= 0.01 for difference in differences]),
    }


def as_markdown(results: dict[str, Any], entries: dict[str, list[dict[str, Any]]]) -> str:
    """The tables of a results page."""
    lines = ["| model | launches | timed | state | median ratio | within 5 % | within 15 % | sum | seconds |"]
    lines.append("|---|" + "---|" * 8)
    everything = [row for rows in entries.values() for row in rows if row["step_us"] and row["warm_us"]]
    models = [*results["models"].items()]
    models.append(("all", {"launches": sum(map(len, entries.values())), "timed": len(everything)}))
    for name, found in models:
        for state in ("placed", "warm", "cold"):
            row = agreement(everything, f"{state}_us") if name == "all" else found.get(state, {})
            ratio = f"{row['median_ratio']:.3f}" if "median_ratio" in row else ""
            total = f"{row['sum_over_step']:.3f}" if "sum_over_step" in row else ""
            lines.append(
                f"| {name} | {found.get('launches')} | {found.get('timed')} | {state} | {ratio} | "
                f"{percent(row.get('within_5_percent'))} | {percent(row.get('within_15_percent'))} | {total} | "
                f"{found.get('seconds', '')} |"
            )
    lines += ["", "| repeat | launches | warm | cold | placed |", "|---|---|---|---|---|"]
    for name, found in (results.get("repeat") or {}).items():
        if isinstance(found, dict):
            cells = " | ".join(percent(found[state]["median_difference"], 2) for state in STATES)
            lines.append(f"| {name} | {found['warm_us']['launches']} | {cells} |")
    lines += ["", "| extracted | launch | outputs compared | exit code |", "|---|---|---|---|"]
    for file in [*results.get("extracted", []), *filter(None, [results.get("made_wrong")])]:
        what = f"{file['category']}{', made wrong' if 'was_changed' in file else ''}"
        lines.append(f"| {what} | {file['ledger']} {file['launch']} | {file['checked']} | {file['exit_code']} |")
    if "rows" in results.get("compared", {}):
        lines += ["", *compared_table(results["compared"], entries.get(COMPARED, []))]
    return "\n".join([*lines, "", "seconds: " + json.dumps(results["seconds"]), ""])


STATES = ("warm_us", "cold_us", "placed_us")


def percent(part: float | None, digits: int = 1) -> str:
    """A share as text."""
    return "" if part is None else f"{100 * part:.{digits}f} %"


def compared_table(compared: dict[str, Any], entries: list[dict[str, Any]]) -> list[str]:
    """Each tool's time over the time inside the step (median), by kind and length of the kernel."""
    step = {entry["launch"]: entry["step_us"] for entry in entries}
    own = dict(compared["wrapper_k"].get("times_us", []))
    rows = [row | {"k_us": own.get((row["file"] or "")[:10])} for row in compared["rows"] if step.get(row["launch"])]
    groups = {
        "Triton kernels above 5 us": [r for r in rows if r["category"] != "extern" and step[r["launch"]] > 5],
        "Triton kernels up to 5 us": [r for r in rows if r["category"] != "extern" and step[r["launch"]] <= 5],
        "library calls": [r for r in rows if r["category"] == "extern"],
    }
    names = {"k_us": "-k", "do_bench_us": "do_bench", "warm_us": "warm", "cold_us": "cold", "placed_us": "placed"}
    lines = ["| time over the step's, median | kernels | " + " | ".join(names.values()) + " |", "|---|" + "---|" * 6]
    for title, group in groups.items():
        cells = []
        for name in names:
            ratios = [row[name] / step[row["launch"]] for row in group if row[name]]
            cells.append(f"{statistics.median(ratios):.2f}" if ratios else "none")
        lines.append(f"| {title} | {len(group)} | " + " | ".join(cells) + " |")
    lines.append("")
    lines.append(
        f"Total: `-k` {compared['wrapper_k'].get('seconds')} s for {compared['wrapper_k'].get('kernels')} kernels, "
        f"`do_bench` {compared['do_bench_seconds']} s for {compared['do_bench_kernels']}, "
        f"bench {compared['bench_seconds']} s for {compared['kernels']}."
    )
    return lines


def plan_extracts(folder: str, *ledgers: str) -> None:
    """Write ten kernels out of the ledgers, of every category that they have; of each those that can be checked."""
    from torchledger.errors import TorchledgerError
    from torchledger.nouns import Launch
    from torchledger.replaying.extract import extract_kernel
    from torchledger.store import open_ledger

    candidates: dict[str, list[tuple[str, str]]] = {}
    for path in ledgers:
        with open_ledger(path) as reader:
            names = set()
            for launch in reader.read(Launch):
                if launch.is_call and launch.kernel_name not in names:
                    names.add(launch.kernel_name)
                    candidates.setdefault(launch.category, []).append((path, launch.launch_id))
    # Categories take turns; within one the models do, from the middle of each.
    for category, found in candidates.items():
        candidates[category] = sorted(found, key=lambda item: (found.index(item) * 7 % len(found), item))
    files: list[dict[str, Any]] = []
    skipped: list[dict[str, str]] = []
    for _ in range(8):
        for category in [*WANTED, *sorted(set(candidates) - set(WANTED))]:
            tries = 0
            while len(files) < 14 and candidates.get(category):
                tries += 1
                ledger, launch_id = candidates[category].pop(0)
                path = Path(folder) / f"extracted_{len(files)}.py"
                place = {"category": category, "launch": launch_id, "ledger": Path(ledger).stem}
                try:
                    extracted = extract_kernel(ledger, launch_id, path, force=True)
                except TorchledgerError as error:
                    skipped.append(place | {"reason": str(error)[:200]})
                    continue
                if not extracted.checked and candidates[category] and tries < 6:
                    skipped.append(place | {"reason": "; ".join(extracted.unchecked.values())[:200]})
                    continue
                files.append(place | {"path": str(path), "title": extracted.title, "checked": len(extracted.checked)})
                break
    _answer({"files": files, "skipped": skipped, "categories": {name: len(left) for name, left in candidates.items()}})


def compare(path: str, folder: str) -> None:
    """The same kernels by the bench and by ``triton.testing.do_bench``."""
    import torch
    import triton

    import torchledger
    from torchledger._torch.kernels import wait_for_kernels
    from torchledger.nouns import Graph, Kernel, Launch
    from torchledger.replaying.bench_timing import Budget
    from torchledger.replaying.call_site import CallSites
    from torchledger.replaying.standalone import MAKE_TENSOR, body_text, head_text
    from torchledger.store import open_ledger

    with open_ledger(path) as reader:
        graph = reader.read(Graph)[0]
        launches = [launch for launch in reader.read(Launch, graph=graph.name) if launch.is_call]
        kernels = reader.read(Kernel)
    first: dict[str, Launch] = {}
    for launch in launches:
        key = launch.kernel_name if launch.category not in ("extern", "inline") else launch.launch_id
        first.setdefault(key, launch)
    chosen = [launch.launch_id for launch in first.values()]
    started = time.perf_counter()
    report = torchledger.bench(path, chosen, budget=Budget(seconds=0.006, max_repeats=60), save=False, total_s=40)
    ours_s = time.perf_counter() - started
    by_launch = {entry.launch.launch_id: entry for entry in report.entries}
    paths = {kernel.key: Path(kernel.path).stem for kernel in kernels if kernel.path}
    sites = CallSites(graph, launches, kernels)
    rows, started = [], time.perf_counter()
    for launch in first.values():
        if time.perf_counter() - started > 25:
            break
        site = sites.find(launch)
        namespace: dict[str, Any] = {"__name__": "compare"}
        exec(head_text(site), namespace)
        wait_for_kernels(namespace)
        exec(MAKE_TENSOR + body_text(site), namespace)
        with torch.no_grad():
            inputs = list(namespace["make_inputs"]().values())
            call = namespace["call"]
            measured = triton.testing.do_bench(lambda call=call, inputs=inputs: call(*inputs), return_mode="median")
        entry = by_launch[launch.launch_id]
        rows.append(
            {
                "launch": launch.launch_id,
                "kernel": launch.kernel_name,
                "file": paths.get(launch.kernel),
                "category": launch.category,
                "do_bench_us": measured * 1e3,
                "warm_us": entry.warm.duration_us if entry.warm else None,
                "cold_us": entry.cold.duration_us if entry.cold else None,
                "placed_us": entry.placed.duration_us if entry.placed else None,
            }
        )
    _answer(
        {
            "kernels": len(first),
            "bench_seconds": round(ours_s, 2),
            "do_bench_seconds": round(time.perf_counter() - started, 2),
            "do_bench_kernels": len(rows),
            "rows": rows,
        }
    )


def wrapper_k(path: str, folder: str) -> None:
    """What the generated wrapper prints for ``-k``."""
    from torchledger.nouns import Graph
    from torchledger.store import open_ledger

    with open_ledger(path) as reader:
        graph = reader.read(Graph)[0]
    wrapper = Path(folder) / "wrapper.py"
    wrapper.write_text(graph.wrapper_source or "")
    # In one process: the wrapper finds the kernels that its own process has compiled.
    environment = os.environ | {"TORCHINDUCTOR_COMPILE_THREADS": "1"}
    started = time.perf_counter()
    try:
        done = subprocess.run(
            [sys.executable, str(wrapper), "-k"], env=environment, capture_output=True, text=True, timeout=60,
            check=False,
        )  # fmt: skip
        text, error, code = done.stdout, done.stderr, done.returncode
    except subprocess.TimeoutExpired as ended:
        text, error, code = (ended.stdout or b"").decode(), "took longer than 60 s", -1
    lines = [line for line in text.splitlines() if re.search(r"\d\s*ms", line)]
    times = [
        (found[1], float(found[2]) * 1e3)
        for line in lines
        if (found := re.search(r"\b(\w{10})\s+([\d.]+)\s*ms", line)) is not None
    ]
    _answer(
        {
            "seconds": round(time.perf_counter() - started, 2),
            "exit_code": code,
            "kernels": len(lines),
            "sample": lines[:3] or text.splitlines()[:3],
            "error": error[-300:] if code else "",
            "times_us": times,
        }
    )


CHILDREN: dict[str, Callable[..., None]] = {
    "ceilings": ceilings,
    "record": record,
    "bench": bench,
    "plan_extracts": plan_extracts,
    "compare": compare,
    "wrapper_k": wrapper_k,
}


def _answer(content: dict[str, Any]) -> None:
    sys.stdout.flush()
    print("\n" + json.dumps(content), flush=True)


def share(claims: list[bool]) -> float | None:
    """The part of them that is true."""
    return sum(claims) / len(claims) if claims else None


if __name__ == "__main__":
    main()
