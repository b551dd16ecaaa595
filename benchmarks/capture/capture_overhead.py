"""What capturing costs: compile time and steps with a recording over without, and what each run finds in the caches.

    python -m benchmarks.capture.capture_overhead [--models unet gpt] [--rounds 5] [-o docs/results/capture_overhead.md]
        [--caches docs/results/caches.md] [--json FILE] [--limit SECONDS]
    python -m benchmarks.capture.capture_overhead --device cuda --rounds 3 --limit 230
    python -m benchmarks.capture.capture_overhead --cpu-time --batches 200
    python -m benchmarks.capture.capture_overhead --scaling

Every run is a whole process of ``small_training.py``, which knows nothing of torchledger: under plain ``python``, under
``torchledger run`` or under ``torchledger run --profile``. A round has two caches of its own: in one the script runs
plain twice (cold, warm), in the other it is recorded twice; rounds alternate which comes first, and ratios are taken
round by round. So each step time comes from the process that compiled, or loaded, its graphs itself, and a cold cache
and a recording can be told apart. In the first model's first round the plain cache then meets recordings.

No round is begun that would not end within ``--limit`` if it takes as long as the one before. After each, the pages are
also written into the folder $OUT, where it is set. ``--cpu-time`` compares CPU seconds instead of those of a clock, in
processes of one thread that compile by themselves: a neighbour on the machine changes them little; a step's is then the
lowest of its batches. ``--scaling`` captures unrolled models of growing depth on the
CPU and counts the CPU time of our hooks, which a busy machine does not change much.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import datetime
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.shared.places import child_environment

NEEDS: tuple[str, ...] = ()
RUNS: tuple[tuple[str, ...], ...] = (("--models", "gpt_block", "--rounds", "3", "--json", "{out}.json"),)
QUICK: tuple[tuple[str, ...], ...] = (("--models", "gpt", "--rounds", "1", "--batches", "2", "--json", "{out}.json"),)

PLAIN: tuple[str, ...] = ()
RECORDED = ("run",)
PROFILED = ("run", "--profile")
KERNEL_FILES = (".main.so", ".cubin")


@dataclass(frozen=True)
class Finished:
    """One process: what it took, and what was not in the caches."""

    compile_s: float
    process_s: float
    step_us: float
    graphs_from_cache: int
    graphs_compiled: int
    kernels_compiled: int
    kernels_tuned: int
    said: str


@dataclass
class Measured:
    """All runs of one model: the rounds' by state, and those of the caches' table in order, with their names."""

    rounds: list[dict[str, Finished]] = field(default_factory=list)
    caches: list[tuple[str, Finished]] = field(default_factory=list)

    @property
    def last_round_s(self) -> float:
        return sum(each.process_s for each in self.rounds[-1].values())

    def ratios(self, what: str, above: str, below: str) -> list[float]:
        return [getattr(each[above], what) / getattr(each[below], what) for each in self.rounds]


@contextlib.contextmanager
def new_cache() -> Iterator[Path]:
    folder = Path(tempfile.mkdtemp(prefix="torchledger-caches-"))
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


@dataclass(frozen=True)
class Way:
    """How every script is run: where, for how many batches, and by which clock it is judged."""

    device: str = "cpu"
    batches: int = 30
    is_cpu_time: bool = False


# One process compiles and computes alone, so that all of its CPU time is counted and none is spent waiting in a loop.
ALONE = {"TORCHINDUCTOR_COMPILE_THREADS": "1", "OMP_NUM_THREADS": "1"}


def run(model: str, way: Way, how: Sequence[str], cache: Path) -> Finished:
    """The script in a process of its own, plain or under ``torchledger HOW``, with compile caches in ``cache``."""
    environment = child_environment() | {
        "TORCHINDUCTOR_CACHE_DIR": str(cache / "inductor"),
        "TRITON_CACHE_DIR": str(cache / "triton"),
    }
    if way.is_cpu_time:
        environment |= ALONE
    before = generated(cache)
    ledger = ["-m", "torchledger", *how, "-f", "-o", str(cache / "a.ledger")] if how else []
    program = ["-m", "benchmarks.capture.small_training", model]
    script = [*program, "--device", way.device, "--batches", str(way.batches)]
    command = [sys.executable, *ledger, *script]
    started = time.perf_counter()
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=400)
    process_s = time.perf_counter() - started
    lines = [line for line in done.stdout.splitlines() if line.startswith("{")]
    if done.returncode or not lines:
        raise SystemExit(f"{' '.join(command)}\n{done.stderr[-3000:]}")
    said = json.loads(lines[-1])
    new = generated(cache) - before
    finished = Finished(
        compile_s=said["compile_cpu_s" if way.is_cpu_time else "compile_s"],
        process_s=process_s,
        step_us=min(said["step_cpu_us"]) if way.is_cpu_time else statistics.median(said["step_us"]),
        graphs_from_cache=said["graphs_from_cache"],
        graphs_compiled=said["graphs_compiled"],
        kernels_compiled=sum(name.endswith(KERNEL_FILES) for name in new),
        kernels_tuned=sum(name.endswith(".best_config") for name in new),
        said=" ".join(line for line in done.stderr.splitlines() if "lowered again" in line),
    )
    print(
        f"{datetime.datetime.now():%H:%M:%S} {model} {' '.join(how) or 'plain'}: first step {finished.compile_s:.2f} s "
        f"({finished.graphs_compiled} graphs, {finished.kernels_compiled} kernels), step {finished.step_us:.0f} us",
        flush=True,
    )
    return finished


def generated(cache: Path) -> set[str]:
    """Names of what compilations left in a cache; the folders of Triton's are named by what is in them."""
    return {str(path.relative_to(cache)) for path in cache.rglob("*") if path.is_file()}


def one_round(model: str, way: Way, *, is_plain_first: bool, measured: Measured, has_caches: bool) -> None:
    """The four states, and where asked for what recordings find after the plain run, and the other way round."""
    found: dict[str, Finished] = {}
    with new_cache() as plain, new_cache() as recorded:
        ways = [("plain", PLAIN, plain), ("recorded", RECORDED, recorded)]
        for name, how, cache in ways if is_plain_first else reversed(ways):
            for state in ("cold", "warm"):
                found[f"{name} {state}"] = run(model, way, how, cache)
        measured.rounds.append(found)
        if has_caches:
            measured.caches += [("plain, nothing cached", found["plain cold"]), ("plain, again", found["plain warm"])]
            for name, how in (
                ("then `run`", RECORDED),
                ("`run`, again", RECORDED),
                ("then `run --profile`", PROFILED),
                ("`run --profile`, again", PROFILED),
            ):
                measured.caches.append((name, run(model, way, how, plain)))
    if has_caches:
        with new_cache() as profiled:
            measured.caches.append(("`run --profile`, nothing cached", run(model, way, PROFILED, profiled)))
            measured.caches.append(("then `run`", run(model, way, RECORDED, profiled)))


def spread(values: Sequence[float], digits: int = 3) -> str:
    """Median and range."""
    low, middle, high = min(values), statistics.median(values), max(values)
    return f"{middle:.{digits}f} ({low:.{digits}f} to {high:.{digits}f})"


def overhead_report(measured: dict[str, Measured], header: str, command: str) -> str:
    """The page on compile time and steps."""
    lines = [
        "# What capturing costs",
        "",
        header,
        f"Redo: `{command}`. Medians of the rounds, in brackets the range.",
        "",
        "## Compile time",
        "",
        "Forward and backward of the first step, in a process and cache folder of its own; ratios round by round.",
        "",
        "| model | rounds | plain, cold, s | recorded, cold, s | ratio, cold | ratio, both from a warm cache |",
        "|---|---|---|---|---|---|",
    ]
    for model, each in measured.items():
        cold = [spread([round_[f"{how} cold"].compile_s for round_ in each.rounds], 1) for how in ("plain", "recorded")]
        ratios = [spread(each.ratios("compile_s", f"recorded {state}", f"plain {state}")) for state in ("cold", "warm")]
        lines.append(f"| {model} | {len(each.rounds)} | {cold[0]} | {cold[1]} | {ratios[0]} | {ratios[1]} |")
    states = ("plain cold", "plain warm", "recorded cold", "recorded warm")
    lines += [
        "",
        "## Steps after compilation",
        "",
        "A step's time in the process that compiled its graphs (cold) or found them in a cache (warm), microseconds.",
        "",
        f"| model | {' | '.join(states)} "
        "| recorded over plain, cold | recorded over plain, warm | cold over warm, plain |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for model, each in measured.items():
        times = [spread([round_[state].step_us for round_ in each.rounds], 0) for state in states]
        pairs = (("recorded cold", "plain cold"), ("recorded warm", "plain warm"), ("plain cold", "plain warm"))
        ratios = [spread(each.ratios("step_us", *pair)) for pair in pairs]
        lines.append(f"| {model} | {' | '.join([*times, *ratios])} |")
    return "\n".join([*lines, ""])


def caches_report(measured: dict[str, Measured], header: str, command: str) -> str:
    """The page on what each run finds in the caches."""
    lines = [
        "# What a run finds in the compile caches",
        "",
        header,
        f"Redo: `{command}`.",
        "",
        "Runs of one script one after the other, each in a process of its own, with the same caches; the last two of",
        "each model begin anew. *Lowered* are graphs that went through Inductor, *from cache* those that did not;",
        "*kernels compiled* and *tuned* are binaries and results of trying configurations that were not there before.",
        "One run each.",
        "",
        "| model | run | graphs lowered | from cache | kernels compiled | kernels tuned | first step, s | process, s |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for model, each in measured.items():
        for name, found in each.caches:
            counts = f"{found.graphs_compiled} | {found.graphs_from_cache} | {found.kernels_compiled}"
            seconds = f"{found.compile_s:.2f} | {found.process_s:.1f}"
            lines.append(f"| {model} | {name} | {counts} | {found.kernels_tuned} | {seconds} |")
    said = sorted({found.said for each in measured.values() for _, found in each.caches if found.said})
    if said:
        lines += ["", "What the first recording after a plain run says:", "", *(f"> {text}" for text in said)]
    return "\n".join([*lines, ""])


def machine(device: str) -> str:
    """The line that says when and where."""
    import torch

    from torchledger.device.describe import describe_cpu, describe_environment

    environment, cpu = describe_environment(), describe_cpu()
    where = f"{cpu.name}, {cpu.num_cores} cores"
    if device == "cuda":
        where = f"{torch.cuda.get_device_name()}, host {where}"
    return f"{datetime.date.today():%Y-%m-%d}, {where}, Python {environment.python}, torch {environment.torch}."


def scaling() -> None:
    """CPU time inside our hooks, the writing of the ledger included, and of ``show``, for graphs of growing size."""
    import torch

    import torchledger
    from torchledger.capturing.recorder import Recorder
    from torchledger.nouns import Launch
    from torchledger.store import open_ledger

    spent = [0.0]

    def timed(method: Any) -> Any:
        def around(*arguments: Any, **keywords: Any) -> Any:
            started = time.process_time()
            try:
                return method(*arguments, **keywords)
            finally:
                spent[0] += time.process_time() - started

        return around

    for name in [name for name in vars(Recorder) if name.startswith("on_")]:
        setattr(Recorder, name, timed(getattr(Recorder, name)))
    print("| launches | CPU s, whole compile | CPU s, our hooks | share | CPU ms a launch, our hooks | show, s |")
    print("|---|---|---|---|---|---|")
    for layers in (20, 125, 250, 500):
        torch._dynamo.reset()
        spent[0] = 0.0
        weights = [torch.randn(8, 8) for _ in range(layers)]

        def deep(x: torch.Tensor, weights: list[torch.Tensor] = weights) -> torch.Tensor:
            for weight in weights:
                x = torch.mm(torch.softmax(torch.mm(x, weight), -1), weight).sin()
            return x

        with (
            tempfile.TemporaryDirectory() as folder,
            torch._inductor.config.patch(force_disable_caches=True),
            torch.no_grad(),
        ):
            path = Path(folder) / "a.ledger"
            started = time.process_time()
            with torchledger.capture(path):
                torch.compile(deep)(torch.randn(8, 8))
            whole = time.process_time() - started
            with open_ledger(path) as ledger:
                launches = ledger.count(Launch)
            started = time.perf_counter()
            subprocess.run([sys.executable, "-m", "torchledger", "show", str(path)], capture_output=True, check=True)
            show_s = time.perf_counter() - started
        hooks = spent[0]
        print(
            f"| {launches:,} | {whole:.1f} | {hooks:.2f} | {hooks / whole:.1%} | {hooks / launches * 1e3:.2f} "
            f"| {show_s:.2f} |",
            flush=True,
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--models", nargs="*", default=["unet", "gpt"])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--limit", type=float, default=3600.0, help="Seconds within which the last round ends.")
    parser.add_argument("-o", "--output", type=Path)
    parser.add_argument("--caches", type=Path, help="Where to write the page on the caches.")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--batches", type=int, default=30, help="Batches of five steps that each process times.")
    parser.add_argument("--cpu-time", action="store_true", help="Compare CPU time, which neighbours change little.")
    parser.add_argument("--scaling", action="store_true")
    arguments = parser.parse_args()
    if arguments.scaling:
        scaling()
        return
    out = Path(os.environ["OUT"]) if os.environ.get("OUT") else None
    output = arguments.output or (out and out / "capture_overhead.md")
    caches = arguments.caches or (out and out / "caches.md")
    raw = arguments.json or (out and out / "capture_overhead.json")
    command = f"python -m benchmarks.capture.capture_overhead {' '.join(sys.argv[1:])}".strip()
    measured: dict[str, Measured] = {model: Measured() for model in arguments.models}
    way = Way(arguments.device, arguments.batches, arguments.cpu_time)
    header = machine(arguments.device)
    if way.is_cpu_time:
        header += " Seconds and microseconds are CPU time of one thread; a step's is the lowest of its batches."
    began = time.monotonic()
    for number in range(arguments.rounds):
        for model, each in measured.items():
            if number and time.monotonic() - began + each.last_round_s > arguments.limit:
                continue
            one_round(
                model,
                way,
                is_plain_first=number % 2 == 0,
                measured=each,
                has_caches=number == 0 and model == arguments.models[0],
            )
            done = {name: found for name, found in measured.items() if found.rounds}
            pages = (overhead_report(done, header, command), caches_report(done, header, command))
            for path, text in zip((output, caches), pages, strict=True):
                if path:
                    path.write_text(text)
            if raw:
                raw.write_text(json.dumps({name: dataclasses.asdict(found) for name, found in done.items()}, indent=1))
    print("\n".join(pages))


if __name__ == "__main__":
    main()
