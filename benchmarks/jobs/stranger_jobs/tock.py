"""How the jobs here time their own steps, on each of their ranks.

Where ``JOB_BURSTS`` is set they also time how quick the host is behind their steps; ``python tock.py`` does so alone.
"""

import json
import os
import statistics
import time
from pathlib import Path

import torch
import torch.distributed as dist

NAME = os.environ.get("JOB_NAME", "job")


def _gate():
    folder = os.environ.get("DRAWN_GATE")
    if folder is None:
        return
    if dist.get_rank() == 0:
        (Path(folder) / f"{NAME}.ready").touch()
    while not (Path(folder) / f"{NAME}.go").exists():
        time.sleep(0.01)


def _leave(answer):
    folder = os.environ.get("DRAWN_GATE")
    if folder is None:
        return
    unfinished = Path(folder) / f".{NAME}.done"
    unfinished.write_text(json.dumps(answer))
    unfinished.rename(Path(folder) / f"{NAME}.done")
    until = time.monotonic() + (120 if "DRAWN_STAYS" in os.environ else 0)
    while time.monotonic() < until and not (Path(folder) / "all.done").exists():
        time.sleep(0.05)


def _bursts():
    """Microseconds of a piece of Python, 200 eager additions and a backward of 100 nodes, the median of twelve."""
    leaf = torch.ones(256, device="cuda", requires_grad=True)
    plain = torch.ones(256, device="cuda")

    def python():
        total = 0
        for i in range(20_000):
            total += i % 7

    def adds():
        for _ in range(200):
            plain.add_(1.0)

    def nodes():
        value = leaf
        for _ in range(100):
            value = value * 1.0
        value.sum().backward()
        leaf.grad = None

    found = {}
    for work in (python, adds, nodes):
        times = []
        for _ in range(12):
            torch.cuda.synchronize()
            begin = time.perf_counter()
            work()
            times.append(1e6 * (time.perf_counter() - begin))
        found[f"{work.__name__}_us"] = statistics.median(times)
    return found


def steps(warmup=12, count=24):
    """Yields the number of the step. Behind the warm-up and two more, each of `count` steps is timed: until its end on
    the device, and until all of it is issued."""
    for i in range(warmup):
        yield i
    dist.barrier()
    torch.cuda.synchronize()
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    _gate()
    for i in range(2):
        yield warmup + i
    moments, issued = [], []
    for i in range(count):
        torch.cuda.synchronize()
        moments.append(time.perf_counter())
        yield warmup + 2 + i
        issued.append(1e3 * (time.perf_counter() - moments[-1]))
    torch.cuda.synchronize()
    moments.append(time.perf_counter())
    times = [1e3 * (after - before) for before, after in zip(moments, moments[1:])]
    answer = {
        "own_ms": statistics.median(times),
        "issued_ms": statistics.median(issued),
        "steps": len(times),
        "rank": dist.get_rank(),
        "peak_allocated_bytes": torch.cuda.max_memory_allocated(),
    }
    if "JOB_BURSTS" in os.environ:
        answer |= _bursts()
    print(json.dumps(answer), flush=True)
    if dist.get_rank() == 0:
        _leave(answer)
    dist.destroy_process_group()


if __name__ == "__main__":
    print(json.dumps(_bursts()))
