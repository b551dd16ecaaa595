"""What a collective and the kernels beside it cost each other.

``python -m benchmarks.jobs.contention_cuda -o FILE`` starts one process on each GPU by torchrun.

Each collective at each size runs alone, beside large products that fill the device, and beside copies that fill its
memory, which are queued on a stream of their own. One row for each: the collective's time (the shortest over the ranks
of each iteration, as the sampler has it; median), and the median time of the work beside it, of the kernels that lie
within the collective and of those that overlap none.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from torchledger._torch.device_trace import DeviceTrace, Piece
from torchledger.operators.collectives import make_call

NEEDS: tuple[str, ...] = ("two GPUs",)
RUNS: tuple[tuple[str, ...], ...] = (("-o", "{out}/contention_cuda.json"),)

COLLECTIVES = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all", "p2p")
SIZES = tuple(2**power for power in range(20, 31, 2))
"""Bytes of a message."""

ITERATIONS = 6
PRODUCT, COPY = 4096, 2**28


def work_beside(kind: str, place: str) -> tuple[Callable[[], Any], float]:
    """What runs beside, and about how many microseconds one call of it takes."""
    if kind == "products":
        a, b = (torch.randn(PRODUCT, PRODUCT, device=place, dtype=torch.bfloat16) for _ in range(2))
        out = torch.empty_like(a)
        return lambda: torch.mm(a, b, out=out), 190.0
    source = torch.randn(COPY // 4, device=place)
    target = torch.empty_like(source)
    return lambda: target.copy_(source), 130.0


def is_collective(name: str) -> bool:
    """Whether a kernel is NCCL's."""
    return "nccl" in name.lower()


def parts(piece: Piece) -> tuple[float, list[float], list[float]]:
    """Microseconds of the collective, and of the kernels beside it: within it, and apart from it."""
    moving = [span for name, span in zip(piece.names, piece.intervals, strict=True) if is_collective(name)]
    if not moving:
        return float("inf"), [], []
    start, end = min(span[0] for span in moving), max(span[1] for span in moving)
    within, apart = [], []
    beside = [
        end - begun for name, (begun, end) in zip(piece.names, piece.intervals, strict=True) if not is_collective(name)
    ]
    longest = max(beside, default=0)
    for name, (begun, ended) in zip(piece.names, piece.intervals, strict=True):
        # A product begins with clearing its semaphores, which is no work of its own.
        if is_collective(name) or ended - begun < 0.2 * longest:
            continue
        overlap = max(0, min(end, ended) - max(start, begun))
        if overlap >= 0.95 * (ended - begun):
            within.append((ended - begun) / 1e3)
        elif not overlap:
            apart.append((ended - begun) / 1e3)
    return (end - start) / 1e3, within, apart


def measure(
    call: Callable[[], Any], work: Callable[[], Any] | None, queued: int, meet: Callable[[], Any]
) -> list[tuple[float, list[float], list[float]]]:
    """``parts`` of each iteration on this rank. Raises ``RuntimeError`` where the profiler lost records."""
    aside = torch.cuda.Stream()

    def iteration() -> None:
        meet()
        if work is not None:
            with torch.cuda.stream(aside):
                for _ in range(queued):
                    work()
        call()
        torch.cuda.synchronize()

    for _ in range(2):
        iteration()
    with DeviceTrace() as trace:
        for _ in range(ITERATIONS):
            trace.mark()
            iteration()
    pieces = trace.pieces()
    if pieces is None:
        raise RuntimeError("the profiler lost records")
    return [parts(piece) for piece in pieces[1:]]


def median(times: list[float]) -> float | None:
    """``None`` of nothing."""
    return round(statistics.median(times), 2) if times else None


def run_on_each_gpu() -> None:
    """Start what was started once on each GPU and end with what they return, unless it is one of these already."""
    if "RANK" not in os.environ:
        launcher = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(torch.cuda.device_count())]
        sys.exit(subprocess.call([sys.executable, *launcher, "-m", __spec__.name, *sys.argv[1:]]))


def join() -> tuple[str, Any]:
    """Join the other ranks: this rank's device, and a group in which the hosts meet."""
    place = f"cuda:{os.environ['LOCAL_RANK']}"
    torch.cuda.set_device(place)
    dist.init_process_group("nccl")
    return place, dist.new_group(backend="gloo")


def main() -> None:
    """Run the table; the first rank writes it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("-o", "--output", type=Path, required=True)
    parser.add_argument("--budget", type=float, default=90, help="seconds")
    options = parser.parse_args()
    run_on_each_gpu()
    end_s = time.monotonic() + options.budget
    place, by_host = join()
    rank, world = dist.get_rank(), dist.get_world_size()
    rows = []
    for beside in ("nothing", "products", "copies"):
        work, work_us = work_beside(beside, place) if beside != "nothing" else (None, 1.0)
        for name in COLLECTIVES:
            for size in SIZES:
                answers: list[Any] = [None] * world
                dist.all_gather_object(answers, time.monotonic() > end_s, group=by_host)
                if any(answers):
                    continue
                call = make_call(name, size // 2, "bfloat16", place, dist.group.WORLD)
                # Two queued before the collective begins, and enough that some end after it.
                expected_us = 30 + size / 150e3
                queued = int(8 + 2 * expected_us / work_us)
                try:
                    found: Any = measure(call, work, queued, lambda: dist.barrier(group=by_host))
                except RuntimeError as error:
                    found = str(error)
                dist.all_gather_object(answers, found, group=by_host)
                row: dict[str, Any] = {"collective": name, "bytes": size, "world": world, "beside": beside}
                if any(isinstance(each, str) for each in answers):
                    row["failed"] = next(each for each in answers if isinstance(each, str))
                else:
                    shortest = [min(one[0] for one in turn) for turn in zip(*answers, strict=True)]
                    row |= {
                        "duration_us": median(shortest),
                        "within_us": median([us for one in answers for turn in one for us in turn[1]]),
                        "apart_us": median([us for one in answers for turn in one for us in turn[2]]),
                    }
                rows.append(row)
                if rank == 0:
                    print(json.dumps(row), flush=True)
                    known = {"device": torch.cuda.get_device_name(), "torch": torch.__version__}
                    options.output.write_text(json.dumps(known | {"rows": rows}))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
