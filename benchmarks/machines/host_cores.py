"""Which cores of a host are slow, and for how long: ``python -m benchmarks.machines.host_cores -o FILE [--seconds 8]``.

A piece of plain Python is timed on one core after the other, over and over: a core whose other hardware thread is busy
is slow while its neighbours are not. Then the same piece on each core while another process keeps one core busy, which
tells the cores that share a processor's core; and a small training step on the two quickest cores, on the two slowest,
and wherever the system puts it. Prints a summary and writes every time.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import statistics
import time
from itertools import pairwise
from pathlib import Path
from typing import Any

from benchmarks.strangers.drawn_programs import SmallStep

NEEDS: tuple[str, ...] = ("cuda",)
RUNS: tuple[tuple[str, ...], ...] = (("-o", "{out}/cores.json"),)
QUICK: tuple[tuple[str, ...], ...] = (("-o", "{out}/cores.json", "--device", "cpu", "--seconds", "0.3"),)

_SLOW = 1.5


def plain_once_us() -> float:
    """Microseconds of the piece of plain Python that ``doctor`` times, once."""
    begin, kept = time.perf_counter(), {}
    for number in range(2000):
        kept[number & 63] = [number, str(number)]
    return (time.perf_counter() - begin) * 1e6


def over_cores(cores: list[int], seconds: float) -> list[dict[str, Any]]:
    """Rounds over all cores until the time is over: when each began, and the times on each core (best of two)."""
    found = []
    begin = time.monotonic()
    while time.monotonic() < begin + seconds:
        at, times = time.monotonic() - begin, []
        for core in cores:
            os.sched_setaffinity(0, {core})
            times.append(round(min(plain_once_us(), plain_once_us()), 1))
        found.append({"at_s": round(at, 3), "us": times})
    os.sched_setaffinity(0, set(cores))
    return found


def _spin(core: int) -> None:
    os.sched_setaffinity(0, {core})
    while True:
        plain_once_us()


def beside_busy(cores: list[int]) -> dict[int, list[float]]:
    """Times on every core while one of them is busy with the same: by the busy core."""
    found = {}
    for busy in cores:
        process = multiprocessing.get_context("fork").Process(target=_spin, args=(busy,), daemon=True)
        process.start()
        time.sleep(0.02)
        times = []
        for core in cores:
            os.sched_setaffinity(0, {core})
            times.append(round(min(plain_once_us() for _ in range(3)), 1))
        process.kill()
        process.join()
        found[busy] = times
    os.sched_setaffinity(0, set(cores))
    return found


def small_steps(device: str, cores: list[int], seconds: float) -> dict[str, list[float]]:
    """Microseconds of a small training step on the quickest two cores, the slowest two, and on any, in turns."""
    import torch

    wait = torch.cuda.synchronize if device == "cuda" else (lambda: None)
    step = SmallStep(device)
    step.us(wait)
    found: dict[str, list[float]] = {"quickest": [], "slowest": [], "any": []}
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        order = sorted(cores, key=dict(zip(cores, over_cores(cores, 0.001)[0]["us"], strict=True)).__getitem__)
        for name, own in (("quickest", order[:2]), ("slowest", order[-2:]), ("any", cores)):
            for thread in os.listdir("/proc/self/task"):
                os.sched_setaffinity(int(thread), set(own))
            found[name].append(round(step.us(wait), 1))
    return found


def main() -> None:
    """Time and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("-o", "--output", type=Path, required=True)
    parser.add_argument("--seconds", type=float, default=8.0)
    parser.add_argument("--device", default="cuda")
    options = parser.parse_args()
    cores = sorted(os.sched_getaffinity(0))
    siblings = {
        core: path.read_text().strip()
        for core in cores
        if (path := Path(f"/sys/devices/system/cpu/cpu{core}/topology/thread_siblings_list")).exists()
    }
    told: dict[str, Any] = {"cores": cores, "siblings": siblings}
    told["rounds"] = over_cores(cores, options.seconds)
    told["beside_busy"] = beside_busy(cores)
    told["small_steps"] = small_steps(options.device, cores, options.seconds / 2)
    told["stat"] = Path("/proc/stat").read_text().splitlines()[0]
    options.output.write_text(json.dumps(told, separators=(",", ":")))
    best = min(min(each["us"]) for each in told["rounds"])
    for place, core in enumerate(cores):
        times = [each["us"][place] for each in told["rounds"]]
        is_slow = [time_us > _SLOW * best for time_us in times]
        changes = sum(one != other for one, other in pairwise(is_slow))
        print(
            f"core {core}: median {statistics.median(times):.0f} us, slow {sum(is_slow) / len(is_slow):.0%} of "
            f"{len(times)} rounds, {changes} changes, siblings {siblings.get(core)}",
            flush=True,
        )
    for busy, times in told["beside_busy"].items():
        print(f"beside busy core {busy}: {times}", flush=True)
    for name, times in told["small_steps"].items():
        print(f"small step on {name}: median {statistics.median(times):.0f} us, mean {statistics.mean(times):.0f}")


if __name__ == "__main__":
    main()
