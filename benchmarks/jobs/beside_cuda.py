"""What kernels lose beside a collective: drawn products, attention and kernels that move memory, alone and beside one.

``python -m benchmarks.jobs.beside_cuda -o FILE [--works N] [--seed S] [--budget S]`` starts one process on each GPU by
torchrun. Works are drawn with a seed. Each is queued on a stream of its own before a collective begins and until it
has ended; one row a work and a collective: the median time of its kernels that lie within the collective, of those
that overlap none, and the collective's own. ``late`` is an all-gather whose other rank comes a millisecond later, so
that this rank's kernel of it waits without moving anything. Grids are those that the profiler saw.
"""

from __future__ import annotations

import argparse
import json
import math
import random
import re
import statistics
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.nn import functional

from benchmarks.jobs.contention_cuda import is_collective, join, median, run_on_each_gpu
from torchledger._torch.device_trace import DeviceTrace, Piece
from torchledger.operators.collectives import make_call

NEEDS: tuple[str, ...] = ("two GPUs",)
RUNS: tuple[tuple[str, ...], ...] = (("-o", "{out}/beside_cuda.json"),)

COLLECTIVES = ("all_gather", "reduce_scatter", "all_reduce", "late")
ITERATIONS = 4
SIDES = (512, 768, 1024, 1280, 1536, 2048, 2560, 3072, 4096, 5120, 6144, 8192, 11008, 14336)
LEAST_US, MOST_US = 12.0, 700.0
SHORTEST_US = 8.0
"""Shorter kernels wait for a multiprocessor rather than being slowed."""

LATE_CYCLES = 2_000_000
MOVING = ("add", "layer_norm", "softmax", "sum", "gelu")


@dataclass(frozen=True)
class Work:
    """One operator at one shape: ``mm`` (m, n, k), ``attention`` (batch, heads, length, head), or one that moves so
    many elements (rows, columns). ``layout`` is which factors of a product are transposed, and ``causal``."""

    kind: str
    shape: tuple[int, ...]
    layout: str = ""


def draw_works(count: int, seed: int) -> list[Work]:
    """Two thirds products, the rest attention (with its backward) and what moves memory."""
    rng = random.Random(f"beside collectives {seed}")
    works: list[Work] = []
    while len(works) < count:
        draw = rng.random()
        if draw < 0.65:
            shape = (rng.choice((1024, 2048, 4096, 8192, 16384)), rng.choice(SIDES), rng.choice(SIDES))
            if 1.5e10 < 2.0 * shape[0] * shape[1] * shape[2] < 4e11:
                works.append(Work("mm", shape, rng.choice(("nn", "nt", "tn"))))
        elif draw < 0.8:
            shape = (
                rng.choice((1, 2, 4, 8)),
                rng.choice((8, 16, 32)),
                rng.choice((1024, 2048, 4096)),
                rng.choice((64, 128)),
            )
            if 1e10 < 4.0 * shape[0] * shape[1] * shape[2] ** 2 * shape[3] < 2.5e11:
                works.append(Work("attention", shape, rng.choice(("causal", "whole"))))
        else:
            rows, columns = rng.choice((2048, 8192, 32768)), rng.choice((1024, 2048, 4096, 8192))
            if 8e6 < rows * columns < 2e8:
                works.append(Work(rng.choice(MOVING), (rows, columns)))
    return works


def make_work(work: Work, place: str) -> Callable[[], Any]:
    """Call it on the present stream; tensors are of bfloat16."""

    def made(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, device=place, dtype=torch.bfloat16)

    if work.kind == "mm":
        m, n, k = work.shape
        a = made(k, m).t() if work.layout == "tn" else made(m, k)
        b = made(n, k).t() if work.layout == "nt" else made(k, n)
        out = made(m, n)
        return lambda: torch.mm(a, b, out=out)
    if work.kind == "attention":
        batch, heads, length, head = work.shape
        q, k_, v = (made(batch, heads, length, head).requires_grad_() for _ in range(3))
        grad = made(batch, heads, length, head)

        def both() -> Any:
            mixed = functional.scaled_dot_product_attention(q, k_, v, is_causal=work.layout == "causal")
            return torch.autograd.grad(mixed, (q, k_, v), grad)

        return both
    x, y = made(*work.shape), made(*work.shape)
    weight = made(work.shape[1])
    calls: dict[str, Callable[[], Any]] = {
        "add": lambda: torch.add(x, y),
        "layer_norm": lambda: functional.layer_norm(x, (work.shape[1],), weight, weight),
        "softmax": lambda: torch.softmax(x, 1),
        "sum": lambda: torch.sum(x, 0),
        "gelu": lambda: functional.gelu(x),
    }
    return calls[work.kind]


def look_alone(works: dict[int, Callable[[], Any]]) -> dict[int, dict[str, Any]]:
    """Each work's kernels alone: names, median microseconds, grids."""
    found: dict[int, dict[str, Any]] = {}
    activities = [torch.profiler.ProfilerActivity.CUDA]
    for number, call in works.items():
        for _ in range(3):
            call()
        torch.cuda.synchronize()
        with torch.profiler.profile(activities=activities) as profile:
            for _ in range(4):
                call()
            torch.cuda.synchronize()
        with tempfile.TemporaryDirectory() as folder:
            path = f"{folder}/trace.json"
            profile.export_chrome_trace(path)
            events = json.loads(Path(path).read_text())["traceEvents"]
        kernels: dict[str, list[dict[str, Any]]] = defaultdict(list)
        for event in events:
            if event.get("cat") == "kernel":
                kernels[event["name"]].append(event)
        found[number] = {
            name: {
                "us": statistics.median(event["dur"] for event in some),
                "grid": some[0]["args"].get("grid"),
                "block": some[0]["args"].get("block"),
                "shared": some[0]["args"].get("shared memory"),
            }
            for name, some in kernels.items()
        }
    return found


def split(piece: Piece) -> tuple[float | None, dict[str, list[float]], dict[str, list[float]]]:
    """Microseconds of the collective, and of each kernel that lies within it, and apart from it, by name."""
    spans = list(zip(piece.names, piece.intervals, strict=True))
    moving = [span for name, span in spans if is_collective(name)]
    within: dict[str, list[float]] = defaultdict(list)
    apart: dict[str, list[float]] = defaultdict(list)
    if not moving:
        return None, within, apart
    start, end = min(begun for begun, _ in moving), max(ended for _, ended in moving)
    for name, (begun, ended) in spans:
        if is_collective(name) or "Memset" in name:
            continue
        if begun >= start and ended <= end:
            within[name].append((ended - begun) / 1e3)
        elif ended <= start or begun >= end:
            apart[name].append((ended - begun) / 1e3)
    return (end - start) / 1e3, within, apart


def measure(
    call: Callable[[], Any], work: Callable[[], Any], queued: int, delay: int, meet: Callable[[], Any]
) -> dict[str, Any]:
    """One row of this rank. Raises ``RuntimeError`` where the profiler lost records."""
    aside = torch.cuda.Stream()

    def iteration() -> None:
        meet()
        with torch.cuda.stream(aside):
            for _ in range(queued):
                work()
        if delay:
            torch.cuda._sleep(delay)
        call()
        torch.cuda.synchronize()

    iteration()
    if delay:  # its spin would be taken for a mark, and nothing of this rank's is asked for
        for _ in range(ITERATIONS):
            iteration()
        return {}
    with DeviceTrace() as trace:
        for _ in range(ITERATIONS):
            trace.mark()
            iteration()
    pieces = trace.pieces()
    if pieces is None:
        raise RuntimeError("the profiler lost records")
    times, all_within, all_apart = [], defaultdict(list), defaultdict(list)
    for piece in pieces[1:]:
        took, within, apart = split(piece)
        if took is not None:
            times.append(took)
        for name, some in within.items():
            all_within[name] += some
        for name, some in apart.items():
            all_apart[name] += some
    return {
        "collective_us": median(times),
        "within_us": {name: median(some) for name, some in all_within.items()},
        "apart_us": {name: median(some) for name, some in all_apart.items()},
        "within": {name: len(some) for name, some in all_within.items()},
    }


def compact(row: dict[str, Any]) -> list[dict[str, Any]]:
    """A line for each kernel of a work beside each collective, as the first rank saw it."""
    lines = []
    for name, found in row["beside"].items():
        answer = found["ranks"][0]
        for symbol, within_us in answer.get("within_us", {}).items():
            alone_us = answer["apart_us"].get(symbol)
            if alone_us is None or alone_us < SHORTEST_US:
                continue
            known = re.search(r"(nvjet\w+|flash_\w+|cudnn\w+|\w*kernel\w*)", symbol)
            grid = row["alone"].get(symbol, {}).get("grid")
            lines.append(
                {key: row[key] for key in ("kind", "shape", "layout")}
                | {"collective": name, "bytes": found["bytes"], "kernel": (known[1] if known else symbol)[:64]}
                | {"blocks": grid and math.prod(grid), "alone_us": alone_us, "beside_us": within_us}
            )
    return lines


def keep(path: Path, rows: list[dict[str, Any]], moving: dict[str, dict[str, Any]]) -> None:
    """Write what was measured so far, a line a kernel."""
    head = {
        "device": torch.cuda.get_device_name(),
        "gpus": dist.get_world_size(),
        "torch": torch.__version__,
        "collective_blocks": {name: math.prod(next(iter(found.values()))["grid"]) for name, found in moving.items()},
    }
    lines = [json.dumps(line) for row in rows for line in compact(row)]
    shown = ",\n".join(f" {json.dumps(key)}: {json.dumps(value)}" for key, value in head.items())
    path.write_text("{\n" + shown + ',\n "rows": [\n  ' + ",\n  ".join(lines) + "\n ]\n}\n")


def message_bytes(work_us: float) -> int:
    """Bytes of a gather that outlasts some of these kernels (some 500 GB/s)."""
    return int(min(2**30, max(2**26, 2 ** round(4 * work_us * 5e5).bit_length())))


def main() -> None:
    """Run the table; the first rank writes it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("-o", "--output", type=Path, required=True)
    parser.add_argument("--works", type=int, default=120)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--budget", type=float, default=150, help="seconds")
    options = parser.parse_args()
    run_on_each_gpu()
    end_s = time.monotonic() + options.budget
    place, by_host = join()
    rank, world = dist.get_rank(), dist.get_world_size()
    rows: list[dict[str, Any]] = []
    moving = {
        name: look_alone({0: make_call(name, 2**27, "bfloat16", place, dist.group.WORLD)})[0]
        for name in COLLECTIVES
        if name != "late"
    }
    if rank == 0:
        print(json.dumps(moving), flush=True)
    for number, work in enumerate(draw_works(options.works, options.seed)):
        call_work = make_work(work, place)
        alone = look_alone({0: call_work})[0]
        work_us = sum(each["us"] for each in alone.values())
        answers: list[Any] = [None] * world
        dist.all_gather_object(answers, (time.monotonic() > end_s, work_us), group=by_host)
        if any(late for late, _ in answers):
            break
        work_us = max(us for _, us in answers)
        row: dict[str, Any] = {"number": number, **asdict(work), "alone": alone, "beside": {}}
        for name in COLLECTIVES if LEAST_US <= work_us <= MOST_US else ():
            nbytes = message_bytes(work_us)
            call = make_call("all_gather" if name == "late" else name, nbytes // 2, "bfloat16", place, dist.group.WORLD)
            expected_us = 30 + nbytes / 150e3 * (2 if name == "all_reduce" else 1) + (1100 if name == "late" else 0)
            queued = min(int(6 + 2.0 * expected_us / work_us), 400)
            delay = LATE_CYCLES if name == "late" and rank == world - 1 else 0
            try:
                found: Any = measure(call, call_work, queued, delay, lambda: dist.barrier(group=by_host))
            except RuntimeError as error:
                found = {"failed": str(error)}
            dist.all_gather_object(answers, found, group=by_host)
            row["beside"][name] = {"bytes": nbytes, "ranks": list(answers)}
        rows.append(row)
        if rank == 0:
            first = {name: each["ranks"][0].get("within_us") for name, each in row["beside"].items()}
            print(
                number,
                work.kind,
                work.shape,
                work.layout,
                {n[:40]: e["us"] for n, e in alone.items()},
                first,
                flush=True,
            )
            if number % 5 == 4:
                keep(options.output, rows, moving)
        del call_work
    if rank == 0:
        keep(options.output, rows, moving)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
