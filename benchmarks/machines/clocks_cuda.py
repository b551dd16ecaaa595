"""The clock of a GPU over the phases of a training step that keeps it busy, told by the GPU itself.

    python -m benchmarks.machines.clocks_cuda -o FILE.json [--steps 30] [drawn17 drawn16 ...]

Trains the transformer of ``job_programs.py`` alone, each block compiled, at one size after the other; all are compiled
first, side by side. A kernel of one block between the phases writes down its multiprocessor's cycles and the time in
nanoseconds: cycles over time are the clock between two of them, where both ran on the same multiprocessor. The step's
time without these kernels stands beside, as do watts and clocks as the driver tells them.
"""

from __future__ import annotations

import argparse
import itertools
import json
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import nn

from benchmarks.jobs.job_programs import SIZES, VOCABULARY, Net, loss_of
from benchmarks.machines.device_marks import read_clocks
from benchmarks.machines.power_cuda import Smi

NEEDS: tuple[str, ...] = ("cuda",)
RUNS: tuple[tuple[str, ...], ...] = (("-o", "{out}/clocks.json", "--steps", "10", "drawn22"),)

DRAWN = ("drawn17", "drawn16", "drawn21", "drawn22", "drawn5", "drawn7")
WARM = 4


class Marks:
    """What the marks of a run read, and what each of them ended."""

    def __init__(self, most: int) -> None:
        self.read = torch.zeros(most, 3, dtype=torch.int64, device="cuda")
        self.names: list[str] = []
        self.is_on = True

    def mark(self, name: str) -> None:
        """The work launched since the mark before is this phase's."""
        if self.is_on and len(self.names) < len(self.read):
            read_clocks[(1,)](self.read[len(self.names)], num_warps=1)
            self.names.append(name)

    def spans(self) -> list[tuple[str, float, float]]:
        """Of each phase its name, microseconds and megahertz, where one multiprocessor read both ends."""
        rows = self.read[: len(self.names)].tolist()
        found = []
        for number in range(1, len(rows)):
            (cycles, ns, place), (more, later, same) = rows[number - 1], rows[number]
            if place == same and later > ns:
                found.append((self.names[number], (later - ns) / 1e3, 1e3 * (more - cycles) / (later - ns)))
        return found


class _Between(torch.autograd.Function):
    @staticmethod
    def forward(context: Any, x: torch.Tensor, marks: Marks, name: str) -> torch.Tensor:
        context.marks, context.name = marks, name
        marks.mark(f"forward {name}")
        return x.view_as(x)

    @staticmethod
    def backward(context: Any, *gradients: torch.Tensor) -> Any:
        # The gradient arrives when what lies behind this place has been gone back through.
        context.marks.mark(f"backward behind {context.name}")
        return gradients[0], None, None


class Marked(nn.Module):
    """A block whose end is marked, on the way there and on the way back."""

    def __init__(self, block: nn.Module, marks: Marks) -> None:
        super().__init__()
        self.block, self.marks = block, marks

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """The block's."""
        mixed: torch.Tensor = _Between.apply(self.block(x), self.marks, "block")
        return mixed


def trained(size: str) -> tuple[Callable[[], None], Marks]:
    """A step of the transformer, and its marks."""
    width, blocks, sequence, batch = SIZES[size]
    torch.manual_seed(0)
    marks = Marks(64 * (2 * blocks + 4))
    model = Net(width, blocks).to("cuda", torch.bfloat16)
    for block in model.blocks:
        block.compile()
    model.blocks = nn.ModuleList(Marked(block, marks) for block in model.blocks)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    tokens, targets = (torch.randint(0, VOCABULARY, (batch, sequence), device="cuda") for _ in range(2))

    def step() -> None:
        marks.mark("between")
        loss = loss_of(model(tokens), targets)
        marks.mark("loss")
        loss.backward()
        marks.mark("backward end")
        optimizer.step()
        optimizer.zero_grad()
        marks.mark("optimizer")

    return step, marks


def timed_ms(step: Callable[[], None], steps: int) -> float:
    """The median step, each waited for."""
    moments = []
    for _ in range(steps):
        torch.cuda.synchronize()
        moments.append(time.perf_counter())
        step()
    torch.cuda.synchronize()
    moments.append(time.perf_counter())
    return statistics.median(1e3 * (after - before) for before, after in itertools.pairwise(moments))


def measured(step: Callable[[], None], marks: Marks, steps: int) -> dict[str, Any]:
    """Times without marks, then clocks with them."""
    smi = Smi()
    marks.is_on = False
    time.sleep(0.7)
    plain_ms = timed_ms(step, steps)
    began = time.perf_counter()
    plain_again_ms = timed_ms(step, steps)
    told = smi.between((began + time.perf_counter()) / 2, time.perf_counter())
    time.sleep(0.7)
    marks.is_on = True
    marked_ms = timed_ms(step, min(steps, 60))
    marks.is_on = False
    smi.process.terminate()
    phases: dict[str, list[tuple[float, float]]] = {}
    for name, duration_us, mhz in marks.spans():
        phases.setdefault(name, []).append((duration_us, mhz))
    return {
        "plain_ms": [plain_ms, plain_again_ms],
        "marked_ms": marked_ms,
        **told,
        "phases": {
            name: {
                "count": len(rows),
                "median_us": statistics.median(row[0] for row in rows),
                "total_us": sum(row[0] for row in rows),
                "mhz": sum(row[0] * row[1] for row in rows) / sum(row[0] for row in rows),
                "mhz_first": [round(row[1], 1) for row in rows[:12]],
                "mhz_last": [round(row[1], 1) for row in rows[-12:]],
            }
            for name, rows in phases.items()
        },
    }


def child(size: str, steps: int) -> None:
    """Compile, say so, wait to be let through, measure."""
    step, marks = trained(size)
    marks.mark("compiled")
    marks.names.clear()
    marks.is_on = False
    wait_at_gate(step)
    print(json.dumps(measured(step, marks, steps)), flush=True)


def wait_at_gate(step: Callable[[], None]) -> None:
    """Compile, say so, and wait to be let through."""
    for _ in range(WARM):
        step()
    torch.cuda.synchronize()
    print("ready", flush=True)
    sys.stdin.readline()


def let_through(module: str, sizes: Sequence[str], *settings: str) -> Iterator[tuple[str, Any]]:
    """What a child of the module said for each size: all compile side by side, one after the other measures."""
    children = {}
    for size in sizes:
        command = [sys.executable, "-m", module, "--child", *settings, size]
        children[size] = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    for size, process in children.items():
        assert process.stdout is not None
        print(size, process.stdout.readline().strip() or "failed", flush=True)
    for size, process in children.items():
        if process.poll() is not None:
            continue
        said, _ = process.communicate("go\n")
        if process.returncode == 0:
            yield size, json.loads(said)


def main() -> None:
    """Start all, let them through one by one, write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("sizes", nargs="*", default=list(DRAWN))
    parser.add_argument("-o", "--out", type=Path)
    parser.add_argument("--steps", type=int, default=30)
    parser.add_argument("--child", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child:
        child(options.sizes[0], options.steps)
        return
    found: dict[str, Any] = {"device": torch.cuda.get_device_name(), "torch": torch.__version__, "sizes": {}}
    for size, said in let_through(__spec__.name, options.sizes, "--steps", str(options.steps)):
        found["sizes"][size] = said
        print(size, {key: value for key, value in said.items() if key != "phases"}, flush=True)
        for name, row in said["phases"].items():
            print(f"  {name:24s} {row['count']:5d} {row['median_us']:9.1f} us {row['mhz']:7.1f} MHz", flush=True)
    if options.out:
        options.out.write_text(json.dumps(found))


if __name__ == "__main__":
    main()
