"""How the jobs here time their own steps, on each of their ranks."""

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
    print(json.dumps(answer), flush=True)
    if dist.get_rank() == 0:
        _leave(answer)
    dist.destroy_process_group()
