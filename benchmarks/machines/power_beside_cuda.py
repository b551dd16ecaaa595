"""What GPUs draw while collectives run: alone, beside products, attention and copies, and while one rank waits.

``python -m benchmarks.machines.power_beside_cuda -o FILE [--seconds S]`` starts one process on each GPU by torchrun.
Each pattern repeats for some seconds after the devices have rested; clocks and watts are what ``nvidia-smi`` says of
the last half, and the time of a call of each kind is that of the same half. ``waiting``: the other rank comes late to
each collective, by as long as the pattern's work takes.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from benchmarks.jobs.contention_cuda import join, run_on_each_gpu
from benchmarks.machines.power_cuda import Smi, attention, product, time_once
from torchledger.operators.collectives import make_call

NEEDS: tuple[str, ...] = ("two GPUs",)
RUNS: tuple[tuple[str, ...], ...] = (("-o", "{out}/power_beside.json"),)

CHUNK_MS = 20.0
"""About how much is queued on each stream at once."""

REST_S = 0.6
Call = Callable[[], Any]


def works(place: str) -> dict[str, Callable[[], Call]]:
    """What runs on the compute stream."""

    def copy() -> Call:
        source = torch.randn(2**26, device=place)
        target = torch.empty_like(source)
        return lambda: target.copy_(source)

    return {
        "mm 8192 8192 8192": lambda: product(8192, 8192, 8192),
        "mm 8192 9216 2304": lambda: product(8192, 9216, 2304),
        "mm 8192 2304 2304": lambda: product(8192, 2304, 2304),
        "attention backward": lambda: attention(4, 32, 2048, 64, backward=True),
        "copy": copy,
    }


def patterns() -> list[tuple[str | None, str | None, int]]:
    """Work, collective and its bytes."""
    alone = [(None, name, size) for name in ("all_reduce", "all_gather", "reduce_scatter") for size in (2**25, 2**29)]
    kinds = ("mm 8192 8192 8192", "mm 8192 9216 2304", "mm 8192 2304 2304", "attention backward", "copy")
    found: list[tuple[str | None, str | None, int]] = [*alone]
    for kind in kinds:
        found += [(kind, None, 0), (kind, "all_reduce", 2**27)]
    return [*found, ("mm 8192 9216 2304", "all_gather", 2**27), ("mm 8192 9216 2304", "waiting", 2**27)]


def run(
    work: Call | None, collective: Call | None, seconds: float, smi: Smi, group: Any, *, waits: bool
) -> dict[str, Any]:
    """Repeat a pattern: milliseconds of a call of each kind, watts and clocks of its last half."""
    aside = torch.cuda.Stream()
    rank, world = dist.get_rank(), dist.get_world_size()
    alone_us = [0.0 if call is None else time_once(call) for call in (work, collective)]
    answers: list[Any] = [None] * world
    dist.all_gather_object(answers, alone_us, group=group)
    longest = [max(each[kind] for each in answers) for kind in range(2)]
    counts = [max(1, round(CHUNK_MS * 1e3 / us)) if us else 0 for us in longest]
    chunks = round(seconds * 1e3 / CHUNK_MS / (2.0 if work and collective else 1.0))
    torch.cuda.synchronize()
    time.sleep(REST_S)
    dist.barrier(group=group)
    marks: list[tuple[torch.cuda.Event, ...]] = []
    moments: list[float] = []
    behind: list[torch.cuda.Event] = []
    for _ in range(chunks):
        moments.append(time.perf_counter())
        events = tuple(torch.cuda.Event(enable_timing=True) for _ in range(4))
        main = torch.cuda.current_stream()
        if work is not None:
            events[0].record(main)
            for _ in range(counts[0]):
                work()
            events[1].record(main)
        if collective is not None:
            with torch.cuda.stream(aside):
                if waits and rank:  # the other rank's kernel waits while this one rests
                    torch.cuda._sleep(int(CHUNK_MS * 1.7e6))
                events[2].record(aside)
                for _ in range(1 if waits else counts[1]):
                    collective()
                events[3].record(aside)
            behind.append(events[3])
        else:
            behind.append(events[1])
        marks.append(events)
        while len(behind) > 3:
            behind.pop(0).synchronize()
    torch.cuda.synchronize()
    ended = time.perf_counter()
    half = chunks // 2
    row: dict[str, Any] = {"chunks": chunks, "counts": counts, "alone_us": alone_us}
    row |= {"seconds": round(ended - moments[0], 3), **smi.between(moments[half], ended)}
    for kind, name in enumerate(("work", "collective")):
        if counts[kind]:
            spans = [1e3 * each[2 * kind].elapsed_time(each[2 * kind + 1]) for each in marks[half:]]
            row[f"{name}_us"] = round(sum(spans) / len(spans) / (1 if waits and kind else counts[kind]), 2)
            row[f"{name}_first_us"] = round(1e3 * marks[0][2 * kind].elapsed_time(marks[0][2 * kind + 1]), 1)
    return row


def main() -> None:
    """All patterns; the first rank writes."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("-o", "--output", type=Path, required=True)
    parser.add_argument("--seconds", type=float, default=1.2)
    parser.add_argument("--budget", type=float, default=75)
    options = parser.parse_args()
    run_on_each_gpu()
    end_s = time.monotonic() + options.budget
    place, by_host = join()
    rank, world = dist.get_rank(), dist.get_world_size()
    smi = Smi(rank)
    made = works(place)
    rows: list[dict[str, Any]] = []
    for kind, name, size in patterns():
        answers: list[Any] = [None] * world
        dist.all_gather_object(answers, time.monotonic() > end_s, group=by_host)
        if any(answers):
            break
        work = None if kind is None else made[kind]()
        operation = "all_reduce" if name == "waiting" else name
        collective = None if operation is None else make_call(operation, size // 2, "bfloat16", place, dist.group.WORLD)
        found = run(work, collective, options.seconds, smi, by_host, waits=name == "waiting")
        dist.all_gather_object(answers, found, group=by_host)
        rows.append({"work": kind, "collective": name, "bytes": size, "ranks": answers})
        del work, collective
        torch.cuda.empty_cache()
        if rank == 0:
            shown = [
                {key: each.get(key) for key in ("sm_mhz", "watts", "work_us", "collective_us")} for each in answers
            ]
            print(kind, name, size, json.dumps(shown), flush=True)
            options.output.write_text(json.dumps({"device": torch.cuda.get_device_name(), "rows": rows}))
    smi.process.terminate()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
