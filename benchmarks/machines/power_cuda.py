"""What the power limit does to kernels that run without rest: each kind alone, with copies or pauses, and in a step.

``python -m benchmarks.machines.power_cuda -o FILE [--seconds S] [--budget S]``. A workload is a pattern of groups of
kernels; it repeats for some seconds after the device has rested; CUDA events stand around each group. ``cold_us`` is a
kernel's median time in the first 30 ms, ``hot_us`` in the last fifth; clocks and watts are what ``nvidia-smi`` says of
that last fifth. Steps are those of an eager transformer in bfloat16, by how much of it is products.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch.nn import functional

NEEDS: tuple[str, ...] = ("cuda",)
RUNS: tuple[tuple[str, ...], ...] = (("-o", "{out}/power_cuda.json"),)

PATTERN_MS = 5.0
"""About the length of a pattern."""

REST_S, COLD_MS = 0.7, 30.0
LIMIT = ("power.limit", "clocks.max.sm")


class Smi:
    """Clocks and watts of the first GPU, or of another, some twenty times a second."""

    def __init__(self, gpu: int = 0) -> None:
        self.rows: list[tuple[float, float, float]] = []
        query = ["nvidia-smi", "-i", str(gpu), "--query-gpu=clocks.sm,power.draw.instant"]
        query.append("--format=csv,noheader,nounits")
        self.process = subprocess.Popen([*query, "-lms", "40"], stdout=subprocess.PIPE, text=True)
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            try:
                clock, watts = (float(part) for part in line.split(","))
            except ValueError:
                continue
            self.rows.append((time.perf_counter(), clock, watts))

    def between(self, start: float, end: float) -> dict[str, float | None]:
        """Medians of a span."""
        rows = [row for row in self.rows if start <= row[0] <= end]
        names = ("sm_mhz", "watts")
        return {name: statistics.median(row[k + 1] for row in rows) if rows else None for k, name in enumerate(names)}


@dataclass(frozen=True)
class Group:
    """Calls of one kernel; ``share`` of the pattern's time alone. Without a call the host pauses."""

    name: str
    call: Callable[[], Any] | None
    share: float = 1.0


def run_pattern(groups: list[Group], seconds: float, smi: Smi) -> dict[str, Any]:
    """Repeat a pattern after a rest; times in microseconds."""
    alone_us = {group.name: time_once(group.call) for group in groups if group.call is not None}
    counts = dict.fromkeys(alone_us, 1)
    for group in groups:
        if group.call is not None:
            counts[group.name] = max(1, round(group.share * PATTERN_MS * 1e3 / alone_us[group.name]))
    torch.cuda.synchronize()
    time.sleep(REST_S)
    began = time.perf_counter()
    marks: list[tuple[float, dict[str, tuple[torch.cuda.Event, torch.cuda.Event]]]] = []
    behind: list[torch.cuda.Event] = []
    while time.perf_counter() - began < seconds:
        spans = {}
        moment = time.perf_counter() - began
        for group in groups:
            if group.call is None:
                torch.cuda.synchronize()
                time.sleep(group.share * PATTERN_MS / 1e3)
                continue
            first, last = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
            first.record()
            for _ in range(counts[group.name]):
                group.call()
            last.record()
            spans[group.name] = (first, last)
            behind.append(last)
        marks.append((moment, spans))
        while len(behind) > 6:  # the host stays a little ahead
            behind.pop(0).synchronize()
    torch.cuda.synchronize()
    ended = time.perf_counter()
    found: dict[str, Any] = {"counts": counts, "alone_us": alone_us, **smi.between(ended - seconds / 5, ended)}
    found["cold"] = {
        name: statistics.median(
            1e3 * spans[name][0].elapsed_time(spans[name][1]) for m, spans in marks if m < COLD_MS / 1e3
        )
        / counts[name]
        for name in counts
    }
    found["hot"] = {
        name: statistics.median(
            1e3 * spans[name][0].elapsed_time(spans[name][1]) for m, spans in marks if m > 0.8 * seconds
        )
        / counts[name]
        for name in counts
    }
    return found


def time_once(call: Callable[[], Any]) -> float:
    """Microseconds of one call, out of some."""
    for _ in range(3):
        call()
    first, last = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    torch.cuda.synchronize()
    first.record()
    for _ in range(5):
        call()
    last.record()
    torch.cuda.synchronize()
    return max(2.0, 200.0 * first.elapsed_time(last))


def product(m: int, n: int, k: int, dtype: torch.dtype = torch.bfloat16) -> Callable[[], Any]:
    """A product of random factors."""
    a, b = torch.randn(m, k, device="cuda", dtype=dtype), torch.randn(k, n, device="cuda", dtype=dtype)
    out = torch.empty(m, n, device="cuda", dtype=dtype)
    return lambda: torch.mm(a, b, out=out)


def attention(batch: int, heads: int, length: int, head: int, *, backward: bool) -> Callable[[], Any]:
    """Causal attention in bfloat16; with ``backward`` that alone."""
    q, k, v, grad = (torch.randn(batch, heads, length, head, device="cuda", dtype=torch.bfloat16) for _ in range(4))
    if not backward:
        return lambda: functional.scaled_dot_product_attention(q, k, v, is_causal=True)
    for each in (q, k, v):
        each.requires_grad_()
    mixed = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
    return lambda: torch.autograd.grad(mixed, (q, k, v), grad, retain_graph=True)


def step(width: int, blocks: int, batch: int, length: int) -> Callable[[], Any]:
    """A step of an eager transformer with a fused AdamW."""
    layer = torch.nn.TransformerEncoderLayer(
        width, width // 64, 4 * width, 0.0, "gelu", batch_first=True, norm_first=True, bias=False
    )
    model = torch.nn.TransformerEncoder(layer, blocks, enable_nested_tensor=False).to("cuda", torch.bfloat16)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)
    x = torch.randn(batch, length, width, device="cuda", dtype=torch.bfloat16)

    def call() -> None:
        model(x).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()

    return call


def workloads() -> dict[str, Callable[[], list[Group]]]:
    """By name, made when they are run, so that one's memory is free before the next."""

    def one(
        name: str, make: Callable[..., Callable[[], Any]], *sizes: Any, **options: Any
    ) -> Callable[[], list[Group]]:
        return lambda: [Group(name, make(*sizes, **options))]

    def moving(numel: int) -> Callable[[], Any]:
        x, y = torch.randn(2, numel, device="cuda")
        return lambda: torch.add(x, y)

    def gelu(numel: int) -> Callable[[], Any]:
        x = torch.randn(numel, device="cuda", dtype=torch.bfloat16)
        return lambda: functional.gelu(x)

    def norm(rows: int, columns: int) -> Callable[[], Any]:
        x = torch.randn(rows, columns, device="cuda", dtype=torch.bfloat16)
        weight = torch.ones(columns, device="cuda", dtype=torch.bfloat16)
        return lambda: functional.layer_norm(x, (columns,), weight, weight)

    def convolution(count: int, channels: int, side: int) -> Callable[[], Any]:
        made = {"device": "cuda", "dtype": torch.bfloat16}
        x = torch.randn(count, channels, side, side, **made).to(memory_format=torch.channels_last)
        weight = torch.randn(channels, channels, 3, 3, **made).to(memory_format=torch.channels_last)
        return lambda: functional.conv2d(x, weight, padding=1)

    found = {
        f"mm {m} {n} {k}": one("mm", product, m, n, k)
        for m, n, k in (
            (8192, 8192, 8192),
            (4096, 4096, 4096),
            (8192, 9216, 2304),
            (2048, 2304, 9216),
            (8192, 1024, 8192),
            (2048, 2048, 2048),
            (8192, 8192, 512),
        )
    }
    found |= {
        "mm float16 4096": one("mm", product, 4096, 4096, 4096, torch.float16),
        "mm float32 4096": one("mm", product, 4096, 4096, 4096, torch.float32),
        "attention forward 64": one("attention", attention, 4, 32, 2048, 64, backward=False),
        "attention forward 128": one("attention", attention, 4, 16, 2048, 128, backward=False),
        "attention backward 64": one("attention", attention, 4, 32, 2048, 64, backward=True),
        "attention backward 128": one("attention", attention, 4, 16, 2048, 128, backward=True),
        "add": one("add", moving, 2**27),
        "gelu": one("gelu", gelu, 2**27),
        "layer_norm": one("layer_norm", norm, 2**15, 2048),
        "convolution": one("convolution", convolution, 64, 256, 56),
    }
    for share in (0.25, 0.5, 0.75):
        found[f"mm and add {share}"] = lambda share=share: [
            Group("mm", product(4096, 4096, 4096), share),
            Group("add", moving(2**27), 1 - share),
        ]
        found[f"mm and layer_norm {share}"] = lambda share=share: [
            Group("mm", product(8192, 9216, 2304), share),
            Group("layer_norm", norm(2**15, 2048), 1 - share),
        ]
        found[f"mm and pause {share}"] = lambda share=share: [
            Group("mm", product(4096, 4096, 4096), share),
            Group("pause", None, 1 - share),
        ]
    for width, blocks, batch, length in (
        (2304, 8, 4, 2048),
        (4096, 4, 8, 1024),
        (1024, 12, 8, 1024),
        (1536, 8, 2, 4096),
    ):
        found[f"step {width} {blocks} {batch} {length}"] = one("step", step, width, blocks, batch, length)
    return found


def main() -> None:
    """Run all, write after each."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("-o", "--output", type=Path, required=True)
    parser.add_argument("--seconds", type=float, default=1.5)
    parser.add_argument("--budget", type=float, default=120)
    options = parser.parse_args()
    end = time.monotonic() + options.budget
    limits = subprocess.run(
        ["nvidia-smi", "-i", "0", f"--query-gpu={','.join(LIMIT)}", "--format=csv,noheader,nounits"],
        capture_output=True,
        text=True,
        check=False,
    ).stdout.strip()
    smi = Smi()
    rows: dict[str, Any] = {
        "device": torch.cuda.get_device_name(),
        "torch": torch.__version__,
        "limits": limits,
        "rows": {},
    }
    for name, make in workloads().items():
        if time.monotonic() > end:
            break
        try:
            rows["rows"][name] = run_pattern(make(), options.seconds, smi)
        except RuntimeError as error:
            rows["rows"][name] = {"failed": str(error)[:200]}
        torch.cuda.empty_cache()
        print(name, json.dumps(rows["rows"][name]), flush=True)
        options.output.write_text(json.dumps(rows, indent=1))
    smi.process.terminate()


if __name__ == "__main__":
    sys.exit(main())
