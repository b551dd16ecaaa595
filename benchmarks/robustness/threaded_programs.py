"""Programs with threads, plain and under ``run --profile``: exit codes and outputs must be the same, every time.

    python -m benchmarks.robustness.threaded_programs [--runs 200] [--jobs 1] [--limit SECONDS] [--program NAME ...]
        [-o docs/results/threads.md]

Needs no GPU, and uses none. Programs: inference through one compiled function from two threads (of several lengths, so
that threads end in any state of the profile); training with DataLoader workers; a serving pool of threads; autograd on
two threads; an asyncio loop that computes in an executor. Each run is a process of its own, and the programs take
turns, so that a limit cuts all of them alike; the table is written anew after each run. The plain runs of a length come
before the others, which find its code in the compile caches. Exits with 1 if any run differs. Of stderr torchledger's
own lines, Kineto's log (what its initialisation says, whoever starts it) and the time and process in the stamps of
torch's log are left out of the comparison.
"""

from __future__ import annotations

import argparse
import datetime
import importlib.metadata
import math
import os
import platform
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Mapping
from concurrent.futures import Future, ThreadPoolExecutor, as_completed
from dataclasses import dataclass
from pathlib import Path

from benchmarks.shared.places import child_environment

NEEDS: tuple[str, ...] = ()
RUNS: tuple[tuple[str, ...], ...] = (("--runs", "200"),)
QUICK: tuple[tuple[str, ...], ...] = (("--runs", "1", "--program", "DataLoader workers"),)

HEAD = """
import sys, threading, torch
from torch import nn
torch.set_num_threads(1)
torch.manual_seed(0)
length = int(sys.argv[1])
model = nn.Sequential(nn.Linear(16, 16), nn.GELU(), nn.Linear(16, 4))
"""

INFER = """
compiled = torch.compile(model, dynamic=True)
def infer(seed, calls):
    generator = torch.Generator().manual_seed(seed)
    total = 0.0
    with torch.no_grad():
        for number in range(calls):
            total += float(compiled(torch.randn(4 + number % 7, 16, generator=generator)).sum())
    return f"{total:.4f}"
"""

PROGRAMS = {
    "inference from two threads": HEAD
    + INFER
    + """
results = {}
threads = [threading.Thread(target=lambda at=at: results.update({at: infer(at, length)})) for at in range(2)]
for thread in threads: thread.start()
for thread in threads: thread.join()
print(sorted(results.items()))
""",
    "DataLoader workers": HEAD
    + """
from torch.utils.data import DataLoader, TensorDataset
compiled = torch.compile(model)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
data = TensorDataset(torch.randn(4 * length, 16), torch.randn(4 * length, 4))
for epoch in range(2):
    for inputs, targets in DataLoader(data, batch_size=4, num_workers=2):
        loss = nn.functional.mse_loss(compiled(inputs), targets)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
print(f"{float(loss):.4f}")
""",
    "a serving pool": HEAD
    + INFER
    + """
from concurrent.futures import ThreadPoolExecutor
with ThreadPoolExecutor(4) as pool:
    print(list(pool.map(lambda seed: infer(seed, 2), range(length))))
""",
    "autograd on two threads": HEAD
    + """
import copy
models = [model, copy.deepcopy(model)]
compiled = [torch.compile(each) for each in models]
results = {}
def train(at):
    generator = torch.Generator().manual_seed(at)
    optimizer = torch.optim.SGD(models[at].parameters(), lr=1e-2)
    for _ in range(length):
        loss = compiled[at](torch.randn(4, 16, generator=generator)).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    results[at] = f"{float(loss):.4f}"
threads = [threading.Thread(target=train, args=(at,)) for at in range(2)]
for thread in threads: thread.start()
for thread in threads: thread.join()
print(sorted(results.items()))
""",
    "an asyncio loop": HEAD
    + INFER
    + """
import asyncio
async def request(seed):
    await asyncio.sleep(0)
    return await asyncio.get_running_loop().run_in_executor(None, infer, seed, 2)
async def serve():
    return [await asyncio.gather(*(request(3 * batch + at) for at in range(3))) for batch in range(length // 2)]
print(asyncio.run(serve()))
""",
}

LENGTHS = (4, 6, 8, 11, 14, 20, 40)
"""Calls or steps, in turn over the runs: short programs end while they are being recorded."""

LONGEST_S = 600
"""After which a program that has not ended is taken for one that never will."""

NOT_COMPARED = re.compile(r"torchledger|(INFO|WARNING|ERROR|STAGE): ?(\d{4}-\d\d-\d\d|External init callback)")
STAMP = re.compile(r"^(?P<level>[VIWEC])\d{4} [\d:.]+ \d+ ")
"""``W1123 01:06:49.210000 17792 `` before a line of torch's log: the time and the process are never those of before."""


@dataclass(frozen=True)
class Outcome:
    """How a run ended."""

    exit_code: int
    stdout: str
    stderr: str


def run(script: Path, length: int, number: int | None = None) -> Outcome:
    """One run of a program in a process of its own; profiled if it has a number, which its ledger is named by."""
    ledger = script.with_name(f"{script.stem}_{number}.ledger")
    ours = ["-m", "torchledger", "run", "--profile", "--force", "-o", str(ledger)]
    command = [sys.executable, *(ours if number is not None else []), str(script), str(length)]
    with subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=script.parent,
        env=child_environment(PYTHONFAULTHANDLER="1"),
        start_new_session=True,
    ) as process:
        try:
            stdout, stderr = process.communicate(timeout=LONGEST_S)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGABRT)  # so that it says where each of its threads is
            stdout, stderr = process.communicate()
    lines = [STAMP.sub(r"\g<level> ", line) for line in stderr.splitlines() if not NOT_COMPARED.match(line)]
    return Outcome(process.returncode, stdout, "\n".join(lines))


def main() -> int:
    """Run all programs and write the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=200, help="Of each program.")
    parser.add_argument("--jobs", type=int, default=1, help="Processes at a time, of all programs together.")
    parser.add_argument("--limit", type=float, default=math.inf, help="Seconds after which no further run begins.")
    parser.add_argument("--program", action="append", choices=list(PROGRAMS))
    parser.add_argument("-o", "--output", type=Path)
    options = parser.parse_args()
    began = time.monotonic()
    names = list(dict.fromkeys(options.program or PROGRAMS))
    found: dict[str, Counter[str]] = {name: Counter() for name in names}
    with tempfile.TemporaryDirectory() as folder, ThreadPoolExecutor(options.jobs) as pool:
        os.environ["CUDA_VISIBLE_DEVICES"] = ""
        os.environ["TORCHINDUCTOR_CACHE_DIR"] = str(Path(folder, "cache"))
        # Else each process tries its vector instructions in another that imports torch, under one lock for all.
        os.environ.setdefault("TORCHINDUCTOR_VEC_ISA_OK", "1")
        scripts = {name: Path(folder, f"program_{number}.py") for number, name in enumerate(names)}
        for name, script in scripts.items():
            script.write_text(PROGRAMS[name])

        def run_in_time(name: str, length: int, number: int | None = None) -> Outcome | None:
            is_late = time.monotonic() - began > options.limit
            return None if is_late else run(scripts[name], length, number)

        plain: dict[tuple[str, int], Future[Outcome | None]] = {}
        under_way = {}
        for number in range(options.runs):
            length = LENGTHS[number % len(LENGTHS)]
            for name in names:
                if (name, length) not in plain:
                    plain[name, length] = pool.submit(run_in_time, name, length)
            for name in names:
                under_way[pool.submit(run_in_time, name, length, number)] = (name, number)
        for done in as_completed(under_way):
            name, number = under_way[done]
            outcome, expected = done.result(), plain[name, LENGTHS[number % len(LENGTHS)]].result()
            if outcome is None:
                continue
            if expected is None or expected.exit_code:
                found[name]["the plain run failed"] += 1
                print(f"{name}, plain: {expected}", file=sys.stderr, flush=True)
            elif outcome == expected:
                found[name]["as without"] += 1
            else:
                found[name][f"exit code {outcome.exit_code}" if outcome.exit_code else "other output"] += 1
                print(f"{name}, run {number}: {outcome}\nplain: {expected}", file=sys.stderr, flush=True)
            if options.output is not None:
                options.output.write_text(page(found, options.runs, options.jobs, time.monotonic() - began))
    print(page(found, options.runs, options.jobs, time.monotonic() - began))
    return int(any(set(counts) - {"as without"} for counts in found.values()))


def page(found: Mapping[str, Counter[str]], runs: int, jobs: int, seconds: float) -> str:
    """The table, as far as the runs went."""
    rows = []
    for name, counts in found.items():
        others = ", ".join(f"{count} {what}" for what, count in counts.items() if what != "as without") or "none"
        rows.append(f"| {name} | {counts.total()} of {runs} | {counts['as without']} | {others} |\n")
    return (
        "# Programs with threads\n\n"
        f"`python -m benchmarks.robustness.threaded_programs --runs {runs} --jobs {jobs}`, {datetime.date.today()}, "
        f"{os.cpu_count()} cores, Python {platform.python_version()}, torch {importlib.metadata.version('torch')}, "
        f"{seconds:.0f} s.\nEach program runs plain, and so many times under `torchledger run --profile`; a run counts "
        "if exit code, output\nand errors are those of the plain one. "
        f"Lengths {', '.join(map(str, LENGTHS))} in turn.\n\n"
        "| program | runs | end as without | others |\n|---|---|---|---|\n" + "".join(rows)
    )


if __name__ == "__main__":
    sys.exit(main())
