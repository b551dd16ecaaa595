"""One compiled step in three profilers: torchledger, ``compiled_module.py -p`` and torch's ``profile_analysis``.

    python -m benchmarks.capture.profile_side_by_side --out OUT [--budget 150]
        [--cases resnet50_inference gpt2 mixnet_l]

1. All cases are compiled at once under a capture; then, one at a time, their steps are profiled, and a few more are
   recorded by ``torch.profiler`` with shapes, as anybody would.
2. The generated wrapper of each graph runs by itself with ``-p``, one at a time.
3. ``profile_analysis --analysis`` and ``torchledger import`` read the trace of the step, ``profile_analysis`` also the
   trace that each ``-p`` left behind. A trace's own sum is taken from its JSON, by neither tool.

Every part is a process under a time limit and is printed as it ends. ``OUT/side_by_side.json`` holds all figures,
``OUT/side_by_side.md`` the tables, ``OUT/side_by_side_raw.txt`` what the tools printed. Cases ``zoo:NAME`` run without
a GPU too, where ``-p`` has no device to report.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from benchmarks.launches.bench_cuda import Turns
from benchmarks.shared.places import child_environment

NEEDS: tuple[str, ...] = ("cuda", "timm", "transformers")
RUNS: tuple[tuple[str, ...], ...] = (("--out", "{out}"),)

CASES = ("resnet50_inference", "gpt2", "mixnet_l")
STEPS = 3
DTYPE = "bfloat16"
ON_DEVICE = ("kernel", "gpu_memcpy", "gpu_memset")
_SECTION = re.compile(r"^\s*== (\w+) category kernels ==")
_TOTAL = re.compile(r"^Total\s+([\d.e+-]+)\s+([\d.]+)%")
_BUSY = re.compile(r"^Percent of time when \w+ is busy: ([\d.]+)%")
_WALL = re.compile(r"^Total wall time ([\d.]+) ms")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--cases", nargs="+", default=list(CASES), help="of cuda_models, or zoo:NAME")
    parser.add_argument("--budget", type=float, default=150.0, help="seconds for everything")
    parser.add_argument("--times", type=int, default=5, help="handed to -p (its own default: 10)")
    parser.add_argument("--repeat", type=int, default=3, help="handed to -p (its own default: 10)")
    parser.add_argument(
        "--work", type=Path, default=Path("/tmp/side_by_side"), help="ledgers, wrappers, traces, caches"
    )
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
        self.started = time.monotonic()
        self.results: dict[str, Any] = {"cases": {}, "argv": sys.argv[1:]}
        self.raw: list[str] = []

    def run(self) -> None:
        turns = Turns(self.arguments.work)
        turns.expect([_file_name(case) for case in self.arguments.cases])
        with ThreadPoolExecutor(len(self.arguments.cases)) as pool:
            for case, found in zip(self.arguments.cases, pool.map(self.record, self.arguments.cases), strict=True):
                self.results["cases"][case] = found
        self.say("everything is recorded", {})
        with ThreadPoolExecutor(3) as pool:
            jobs = []
            for case, found in self.results["cases"].items():
                if "error" not in found:
                    trace = str(self.folder(case) / "step.json")
                    jobs.append((found, "import", pool.submit(self.part, f"import of {case}", "imported", trace)))
                    jobs.append((found, "analysis", pool.submit(self.part, f"analysis of {case}", "analysed", trace)))
            # The largest first: the time may end.
            for case, found in sorted(self.results["cases"].items(), key=lambda item: -item[1].get("entries", 0)):
                for graph in sorted(found.get("graphs", ()), key=lambda name: -found["entries_of_graph"][name]):
                    ran = self.run_wrapper(case, graph)
                    found.setdefault("wrapper_p", {})[graph] = ran
                    if ran.get("trace"):
                        what = f"analysis of -p's trace of {case} {graph}"
                        jobs.append((ran, "analysis", pool.submit(self.part, what, "analysed", ran["trace"])))
                    self.write()
            for place, key, job in jobs:
                place[key] = job.result()
        self.write()
        print((self.arguments.out / "side_by_side.md").read_text(), flush=True)

    def folder(self, case: str) -> Path:
        path: Path = self.arguments.work / _file_name(case)
        path.mkdir(exist_ok=True)
        return path

    def record(self, case: str) -> dict[str, Any]:
        self.folder(case)
        found = self.part(f"record {case}", "record", case, str(self.arguments.work), limit=self.arguments.budget)
        Turns(self.arguments.work).ready(_file_name(case))  # nobody waits for one that failed
        return found

    def part(self, what: str, *child: str, limit: float = 60) -> dict[str, Any]:
        """A child of this script; its last line is its answer."""
        command = [sys.executable, "-m", __spec__.name, "--out", str(self.arguments.out), "--child", *child]
        done = self.process(what, command, limit)
        lines = done["stdout"].strip().splitlines()
        try:
            answer: dict[str, Any] = json.loads(lines[-1]) if done["exit_code"] == 0 and lines else {}
        except json.JSONDecodeError:
            answer = {}
        if not answer:
            answer = {"error": " | ".join(done["stderr"].strip().splitlines()[-5:])[-1200:] or "no answer"}
        self.raw += answer.pop("raw", [])
        self.say(what, answer)
        return answer | {"seconds": done["seconds"]}

    def process(
        self, what: str, command: list[str], limit: float, environment: dict[str, str] | None = None
    ) -> dict[str, Any]:
        limit = min(limit, self.arguments.budget - (time.monotonic() - self.started))
        if limit < 5:
            return {"exit_code": None, "stdout": "", "stderr": "the time was used up", "seconds": 0.0}
        merged = self.environment() | (environment or {})
        return run_limited(command, limit, merged)

    def environment(self) -> dict[str, str]:
        """One compile cache for all processes; the names of kernels are unique, as torch's own guide asks."""
        return child_environment() | {
            "TORCHINDUCTOR_CACHE_DIR": str(self.arguments.work / "cache"),
            "TORCHINDUCTOR_UNIQUE_KERNEL_NAMES": "1",
            "TORCHINDUCTOR_COMPILE_THREADS": os.environ.get("TORCHINDUCTOR_COMPILE_THREADS", "6"),
            "HF_HUB_OFFLINE": "1",
        }

    def run_wrapper(self, case: str, graph: str) -> dict[str, Any]:
        """``python WRAPPER -p``; it writes its trace under TMPDIR."""
        folder = self.folder(case) / graph
        command = [sys.executable, str(folder / "compiled_module.py"), "-p"]
        command += ["--times", str(self.arguments.times), "--repeat", str(self.arguments.repeat)]
        done = self.process(f"-p {case} {graph}", command, 45, {"TMPDIR": str(folder)})
        self.raw.append(f"==== -p {case} {graph} (exit {done['exit_code']})\n{done['stdout'][-100000:]}")
        answer = parse_wrapper_report(done["stdout"])
        answer |= {"exit_code": done["exit_code"], "seconds": done["seconds"]}
        if done["exit_code"] != 0:
            answer["error"] = _last_line(done["stderr"])
        trace = folder / "compiled_module_profile.json"
        if done["exit_code"] == 0 and trace.exists():
            sums = trace_sums(json.loads(trace.read_bytes()))
            runs = self.arguments.times * self.arguments.repeat
            answer |= {
                "trace": str(trace),
                "runs": runs,
                "trace_mb": round(trace.stat().st_size / 1e6, 1),
                "trace_device_ms": sums["device_ns"] / runs / 1e6,
                "trace_busy_share": sums["busy_share"],
                "trace_annotation_ms": sums["annotation_ns"] / runs / 1e6,
            }
        self.say(f"-p {case} {graph}", answer)
        return answer

    def say(self, what: str, answer: dict[str, Any]) -> None:
        print(f"{time.monotonic() - self.started:6.1f} s  {what}  {json.dumps(answer)[:1500]}", flush=True)

    def write(self) -> None:
        out = self.arguments.out
        self.results["seconds"] = round(time.monotonic() - self.started, 1)
        (out / "side_by_side.json").write_text(json.dumps(self.results, indent=1))
        (out / "side_by_side.md").write_text(as_markdown(self.results))
        (out / "side_by_side_raw.txt").write_text("\n\n".join(self.raw))


def run_limited(command: list[str], limit: float, environment: dict[str, str]) -> dict[str, Any]:
    """Run a command; its output even if it took too long (then without an exit code)."""
    started = time.monotonic()
    try:
        done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=limit, check=False)
        code, out, error = done.returncode, done.stdout, done.stderr
    except subprocess.TimeoutExpired as ended:
        code, out = None, (ended.stdout or b"").decode(errors="replace")
        error = (ended.stderr or b"").decode(errors="replace") + f"\ntook longer than {limit:.0f} s"
    return {"exit_code": code, "stdout": out, "stderr": error, "seconds": round(time.monotonic() - started, 1)}


def parse_wrapper_report(text: str) -> dict[str, Any]:
    """What ``-p`` prints: milliseconds a run and rows per category, its busy share and wall time."""
    categories: dict[str, dict[str, float]] = {}
    rows, name = 0, None
    found: dict[str, Any] = {}
    for line in text.splitlines():
        if section := _SECTION.match(line):
            name, rows = section[1], -2  # the head and the rule under it
        elif name and (total := _TOTAL.match(line)):
            categories[name] = {"ms": float(total[1]), "percent_of_wall": float(total[2]), "rows": rows}
            name = None
        elif name and line.strip():
            rows += 1
        elif busy := _BUSY.match(line):
            found["busy_percent"] = float(busy[1])
        elif wall := _WALL.match(line):
            found["wall_ms"] = float(wall[1])
        elif line.startswith("Output for tabulate"):
            found["line_for_tabulate"] = line
    total_ms = sum(category["ms"] for category in categories.values())
    without = sum(categories[name]["ms"] for name in ("unknown", "triton_unknown") if name in categories)
    return {
        **found,
        "categories": categories,
        "device_ms": total_ms,
        "without_category_share": without / total_ms if total_ms else None,
    }


def trace_sums(trace: dict[str, Any]) -> dict[str, Any]:
    """A trace's own sums over everything that ran on a device, and the union of its times over their span."""
    events = [event for event in trace["traceEvents"] if event.get("cat") in ON_DEVICE]
    spans = sorted((round(event["ts"] * 1e3), round((event["ts"] + event["dur"]) * 1e3)) for event in events)
    busy, end = 0, 0
    for start, stop in spans:
        busy += max(0, stop - max(start, end))
        end = max(end, stop)
    annotations = [event["dur"] for event in trace["traceEvents"] if event.get("cat") == "gpu_user_annotation"]
    return {
        "device_ns": sum(round(event["dur"] * 1e3) for event in events),
        "kernel_ns": sum(round(event["dur"] * 1e3) for event in events if event["cat"] == "kernel"),
        "kernels": sum(event["cat"] == "kernel" for event in events),
        "annotation_ns": sum(round(duration * 1e3) for duration in annotations),
        "busy_share": busy / (end - spans[0][0]) if spans else None,
    }


# --- children --------------------------------------------------------------------------------------------------------


def record(name: str, work: str) -> None:
    """Capture a case and profile its steps, then record the same steps with ``torch.profiler``."""
    import torch

    import torchledger
    from torchledger.nouns import Breakdown, Graph, Launch, Profile
    from torchledger.profiling.profile import attach
    from torchledger.store import open_ledger

    folder = Path(work) / _file_name(name)
    step = make_step(name)
    synchronize = torch.cuda.synchronize if torch.cuda.is_available() else lambda: None
    started = time.perf_counter()
    with torchledger.capture(folder / "step.ledger", force=True) as run:
        attach(run, {"warmup": 3, "repeats": STEPS, "timed": STEPS})
        step()
        synchronize()
        compile_s = time.perf_counter() - started
        step()
        synchronize()
        turns = Turns(Path(work))
        turns.ready(_file_name(name))
        turn = turns.wait(240)
        for _ in range(3 + 2 * STEPS + 4):
            step()
        synchronize()
    with torch.profiler.profile(record_shapes=True) as recorded:
        for _ in range(STEPS):
            step()
        synchronize()
    turn.close()
    recorded.export_chrome_trace(str(folder / "step.json"))
    with open_ledger(folder / "step.ledger") as ledger:
        launches, graphs = ledger.read(Launch), ledger.read(Graph)
        profile, breakdown = ledger.read(Profile)[0], ledger.read(Breakdown)[0]
    for graph in graphs:
        (folder / graph.name).mkdir(exist_ok=True)
        (folder / graph.name / "compiled_module.py").write_text(graph.wrapper_source or "")
    calls = [launch for launch in launches if launch.is_call]
    _answer(
        {
            "device": torch.cuda.get_device_name() if torch.cuda.is_available() else "cpu",
            "torch": torch.__version__,
            "compile_s": round(compile_s, 1),
            "graphs": [graph.name for graph in graphs],
            "entries": len(calls),
            "entries_of_graph": {graph.name: sum(call.graph == graph.name for call in calls) for graph in graphs},
            "entries_seen": profile.entries_seen,
            "matched_share": profile.matched_share,
            "flops": {g.name: sum(call.flops or 0 for call in calls if call.graph == g.name) for g in graphs},
            "bytes": {g.name: sum(call.bytes_moved or 0 for call in calls if call.graph == g.name) for g in graphs},
            "device_us": breakdown.device_us / STEPS,
            "graphs_us": {row.name: row.total_us / STEPS for row in breakdown.graphs},
            "categories_us": {row.name: row.total_us / STEPS for row in breakdown.categories},
            "categories_equal_device": abs(sum(r.total_us for r in breakdown.categories) - breakdown.device_us) < 5e-4,
            "known_share": breakdown.known_us / breakdown.device_us if breakdown.device_us else None,
            "unknown_us": dict(list(breakdown.unknown_us.items())[:5]),
            "busy_share": breakdown.busy_share,
            "plain_step_us": profile.plain_step_us,
            "profiled_step_us": profile.profiled_step_us,
            "verdict": breakdown.verdict,
        }
    )


def make_step(name: str) -> Callable[[], Any]:
    """A step of the compiled case."""
    import torch

    torch.manual_seed(0)
    if name.startswith("zoo:"):
        import model_zoo

        case = model_zoo.make(name.removeprefix("zoo:"))
        device = "cuda" if torch.cuda.is_available() else "cpu"
        compiled = torch.compile(case.module.to(device))
        inputs = tuple(tensor.to(device) for tensor in case.inputs)
        return lambda: case.loss(compiled, *inputs).backward()
    from benchmarks.shared import cuda_models

    gpu_case = cuda_models.make(name)
    compiled = torch.compile(gpu_case.module)
    return lambda: gpu_case.step(compiled)


def imported(path: str) -> None:
    """What ``torchledger import`` makes of a trace, beside the trace's own sums."""
    from torchledger.traces.breakdown import import_trace

    sums = trace_sums(json.loads(Path(path).read_bytes()))
    breakdown, events = import_trace(path)
    _answer(
        {
            "kernel_ns": round(breakdown.kernel_us * 1e3),
            "trace_kernel_ns": sums["kernel_ns"],
            "known_kernel_share": breakdown.known_kernel_us / breakdown.kernel_us if breakdown.kernel_us else None,
            "flops_of_a_step": sum(event.cost.flops or 0 for event in events) / STEPS,
            "unknown_us": dict(list(breakdown.unknown_us.items())[:5]),
        }
    )


def analysed(path: str) -> None:
    """What ``profile_analysis`` prints for a trace, and what it writes into it."""
    tool = [sys.executable, "-m", "torch._inductor.analysis.profile_analysis"]
    before = trace_sums(json.loads(Path(path).read_bytes()))
    done = run_limited([*tool, "--analysis", path, DTYPE, "--name_limit", "200"], 40, dict(os.environ))
    rows = [line for line in done["stdout"].splitlines() if re.search(r"\|\s*[\d.]+\s*\|", line)]
    answer: dict[str, Any] = {
        "exit_code": done["exit_code"],
        "tool_seconds": done["seconds"],
        "error": None if done["exit_code"] == 0 else _last_line(done["stderr"]),
        "error_in": re.findall(r'File ".*/(\w+\.py)", line (\d+), in (\w+)', done["stderr"])[-2:],
        "rows": len(rows),
        "trace_kernel_ns": before["kernel_ns"],
        "trace_kernels": before["kernels"],
        "raw": [f"==== profile_analysis {path} (exit {done['exit_code']})\n{done['stdout'][:6000]}"],
    }
    if done["exit_code"] == 0:
        target = f"{path}.augmented"
        again = run_limited([*tool, "--augment_trace", path, target, DTYPE], 40, dict(os.environ))
        if again["exit_code"] == 0:
            answer |= augmented_sums(json.loads(Path(target).read_bytes()))
    _answer(answer)


def augmented_sums(trace: dict[str, Any]) -> dict[str, Any]:
    """Shares of kernel time to which ``profile_analysis`` has given FLOPs and bytes, and their sums over the trace."""
    kernels = [event for event in trace["traceEvents"] if event.get("cat") == "kernel"]
    total = sum(event["dur"] for event in kernels) or 1.0

    def share(key: str) -> float:
        return sum(float(event["dur"]) for event in kernels if event["args"].get(key)) / total

    return {
        "with_name": sum("name" in event["args"] for event in kernels),
        "flops_time_share": share("kernel_flop"),
        "bytes_time_share": share("kernel_num_gb"),
        "flops": sum(event["args"].get("kernel_flop") or 0 for event in kernels),
        "gb": sum(event["args"].get("kernel_num_gb") or 0 for event in kernels),
    }


CHILDREN: dict[str, Callable[..., None]] = {"record": record, "imported": imported, "analysed": analysed}


# --- what is written -------------------------------------------------------------------------------------------------


def as_markdown(results: dict[str, Any]) -> str:
    """The tables of a results page."""
    cases = results["cases"]
    lines = table(
        "step | entries seen | matched | device, ms | categories, ms | known | plain, ms | profiled, ms",
        (
            [
                name, f"{c['entries_seen']} of {c['entries']}", percent(c["matched_share"], 2), milli(c["device_us"]),
                ", ".join(f"{category} {us / 1e3:.3f}" for category, us in c["categories_us"].items()),
                percent(c["known_share"], 2), milli(c["plain_step_us"]), milli(c["profiled_step_us"]),
            ]
            for name, c in cases.items() if "error" not in c
        ),
    )  # fmt: skip
    lines += table(
        "`-p` of | exit | seconds | wall, ms | device, ms | trace's, ms | in the step, ms | says busy | busy in its "
        "trace | without category | categories, ms",
        (
            [
                f"{name} {graph}", p["exit_code"], p["seconds"], p.get("wall_ms"), f"{p['device_ms']:.3f}",
                f"{p['trace_device_ms']:.3f}" if "trace_device_ms" in p else p.get("error", ""),
                milli(c["graphs_us"].get(graph)), p.get("busy_percent"), percent(p.get("trace_busy_share")),
                percent(p["without_category_share"]),
                ", ".join(f"{category} {row['ms']:.3f}" for category, row in p["categories"].items()),
            ]
            for name, c in cases.items() for graph, p in c.get("wrapper_p", {}).items()
        ),
    )  # fmt: skip
    traces = [
        (f"{name} step", c["analysis"], {key: STEPS * sum(c[key].values()) for key in ("flops", "bytes")})
        for name, c in cases.items()
        if "analysis" in c
    ]
    traces += [
        (f"{name} {graph} of -p", p["analysis"], {key: p["runs"] * c[key][graph] for key in ("flops", "bytes")})
        for name, c in cases.items()
        for graph, p in c.get("wrapper_p", {}).items()
        if "analysis" in p
    ]
    lines += table(
        "`profile_analysis` of | exit | ended with | rows | kernels | kernel time, ms | with FLOPs | with bytes | "
        "FLOPs over the ledger's | bytes over the ledger's",
        (
            [
                what, a.get("exit_code"), a.get("error") or "", a.get("rows"), a.get("trace_kernels"),
                f"{a.get('trace_kernel_ns', 0) / 1e6:.3f}", percent(a.get("flops_time_share")),
                percent(a.get("bytes_time_share")), ratio(a.get("flops"), asked["flops"]),
                ratio(a["gb"] * 1e9 if "gb" in a else None, asked["bytes"]),
            ]
            for what, a, asked in traces
        ),
    )  # fmt: skip
    lines += table(
        "`torchledger import` of | kernel time, ns | the trace's own sum, ns | known | FLOPs over the ledger's",
        (
            [
                f"{name} step", f"{i['kernel_ns']:,}", f"{i['trace_kernel_ns']:,}", percent(i["known_kernel_share"], 2),
                ratio(i["flops_of_a_step"], sum(c["flops"].values())),
            ]
            for name, c in cases.items() if "kernel_ns" in (i := c.get("import", {}))
        ),
    )  # fmt: skip
    failed = [f"- {name}: {c['error']}" for name, c in cases.items() if "error" in c]
    return "\n".join([*lines, *failed, f"{results['seconds']} s in all", ""])


def table(head: str, rows: Iterable[list[Any]]) -> list[str]:
    """A markdown table and a blank line."""
    columns = head.count("|") + 1
    body = [
        "| " + " | ".join("" if cell is None else str(cell).replace("|", "/") for cell in row) + " |" for row in rows
    ]
    return [f"| {head} |", "|" + "---|" * columns, *body, ""]


def percent(part: float | None, digits: int = 1) -> str:
    """A share as text."""
    return "" if part is None else f"{100 * part:.{digits}f} %"


def milli(microseconds: float | None) -> str:
    """Microseconds as milliseconds."""
    return "" if microseconds is None else f"{microseconds / 1e3:.3f}"


def ratio(part: float | None, whole: float) -> str:
    """A quotient as text, nothing where either is unknown."""
    return f"{part / whole:.4f}" if part is not None and whole else ""


def _last_line(text: str) -> str:
    return (text.strip().splitlines() or ["no output"])[-1][:400]


def _file_name(case: str) -> str:
    return case.replace(":", "_")


def _answer(content: dict[str, Any]) -> None:
    sys.stdout.flush()
    print("\n" + json.dumps(content), flush=True)


if __name__ == "__main__":
    main()
