"""What a host takes for random numbers and for what it reads and writes of tensors: the constants of
``src/torchledger/predicting/host_work.py``.

    python -m benchmarks.machines.host_tensors [-o FILE] [--most 40000000] [--repeats 9]

With one thread and with as many as torch takes by itself: nanoseconds a random number by kind, where the memory was
written before; nanoseconds a byte that is read or written, as the median over operators, and each of these; how much
longer a byte takes in memory that the system has just given; and FLOPs of a product. Each time is the least of some
repeats, as others may share these cores. Half a minute on two cores.
"""

from __future__ import annotations

import argparse
import json
import platform
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

NEEDS: tuple[str, ...] = ()
RUNS: tuple[tuple[str, ...], ...] = ((),)
QUICK: tuple[tuple[str, ...], ...] = (("--most", "400000", "--repeats", "2"),)

_SOME, _MANY, _LARGE = 1 << 18, 5_000_000, 40_000_000
"""Elements that lie in memory which an allocator keeps, that of a batch of pictures, and that it asks anew for."""

_FLOAT_BYTES = 4


def least_ns(run: Callable[[], Any], repeats: int) -> float:
    """The least time of one call, the result of the one before given back."""
    run()
    times = []
    for _ in range(repeats):
        begin = time.perf_counter_ns()
        result = run()
        times.append(time.perf_counter_ns() - begin)
        del result
    return float(min(times))


def random_numbers(most: int, repeats: int) -> dict[str, float]:
    """Nanoseconds a number, by kind."""
    some, many = min(_SOME, most), min(_MANY, most)
    shares = torch.full((some,), 0.5)
    kinds: dict[str, tuple[int, Callable[[], Any]]] = {
        "uniform": (some, lambda: torch.rand(some)),
        "normal": (some, lambda: torch.randn(some)),
        "integers": (some, lambda: torch.randint(0, 1000, (some,))),
        "bernoulli": (some, lambda: torch.bernoulli(shares)),
        "exponential": (some, lambda: shares.clone().exponential_()),
        "permutation": (some, lambda: torch.randperm(some)),
        "long permutation": (many, lambda: torch.randperm(many)),
    }
    return {name: least_ns(run, repeats) / numbers for name, (numbers, run) in kinds.items()}


def moved_bytes(most: int, repeats: int) -> dict[str, float]:
    """Nanoseconds a byte that an operator reads or writes, of tensors as large as a batch of pictures."""
    n = min(_MANY, most) // 192 * 192
    x, y, bytes_of_x = torch.rand(n), torch.rand(n), 4 * n
    pixels, rows = torch.randint(0, 255, (n,), dtype=torch.uint8), x.view(-1, 64)
    picked, pictures = torch.randperm(n // 64), x.view(-1, 64, 3)
    samples = list(x.chunk(32))
    cases: dict[str, tuple[float, Callable[[], Any]]] = {
        "clone": (2, lambda: x.clone()),
        "copy_": (2, lambda: y.copy_(x)),
        "add": (2, lambda: x + 1),
        "mul": (3, lambda: x * y),
        "mul_": (2, lambda: x.mul_(1.0)),
        "uint8 to float": (1.25, lambda: pixels.float()),
        "float to half": (1.5, lambda: x.half()),
        "exp": (2, lambda: x.exp()),
        "gt": (1.25, lambda: x > 0.5),
        "where": (3.25, lambda: torch.where(x > 0.5, x, y)),
        "stack": (2, lambda: torch.stack(samples)),
        "cat": (2, lambda: torch.cat(samples)),
        "index": (2, lambda: rows[picked]),
        "permute": (2, lambda: pictures.permute(0, 2, 1).contiguous()),
        "flip": (2, lambda: rows.flip(0)),
        "softmax": (2, lambda: rows.softmax(-1)),
        "argmax": (1, lambda: rows.argmax(-1)),
        "sum": (1, lambda: x.sum()),
    }
    return {name: least_ns(run, repeats) / (times * bytes_of_x) for name, (times, run) in cases.items()}


def new_bytes(most: int, repeats: int) -> dict[str, float]:
    """Nanoseconds that a byte of a tensor takes longer in memory that the system has just given, written by a generator
    and by an operator."""
    few = max(2, repeats // 3)
    kept = torch.empty(most)
    cases: dict[str, tuple[Callable[[], Any], Callable[[], Any]]] = {
        "generator": (lambda: torch.rand(most), lambda: kept.uniform_()),
        "operator": (lambda: torch.full((most,), 1.0), lambda: kept.fill_(1.0)),
    }
    return {
        name: (least_ns(anew, few) - least_ns(again, few)) / (_FLOAT_BYTES * most)
        for name, (anew, again) in cases.items()
    }


def gflops(repeats: int) -> float:
    """GFLOP/s of a product in float32."""
    side = 1024
    x = torch.rand(side, side)
    return 2 * side**3 / least_ns(lambda: x @ x, repeats)


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("-o", "--output", type=Path)
    parser.add_argument("--most", type=int, default=_LARGE)
    parser.add_argument("--repeats", type=int, default=9)
    options = parser.parse_args()
    usual = torch.get_num_threads()
    told: dict[str, Any] = {"torch": torch.__version__, "processor": _processor(), "cores": usual}
    for threads in dict.fromkeys((1, usual)):
        torch.set_num_threads(threads)
        moved = moved_bytes(options.most, options.repeats)
        told[f"threads {threads}"] = {
            "ns a random number": _rounded(random_numbers(options.most, options.repeats)),
            "ns a byte moved": round(statistics.median(moved.values()), 4),
            "ns a byte moved by": _rounded(moved),
            "ns more a new byte": _rounded(new_bytes(options.most, options.repeats)),
            "GFLOP/s": round(gflops(options.repeats)),
        }
    print(json.dumps(told, indent=1))
    if options.output is not None:
        options.output.write_text(json.dumps(told))


def _rounded(times: dict[str, float]) -> dict[str, float]:
    return {name: round(ns, 4) for name, ns in times.items()}


def _processor() -> str:
    path = Path("/proc/cpuinfo")
    lines = path.read_text().splitlines() if path.exists() else []
    return next((line.partition(": ")[2] for line in lines if line.startswith("model name")), platform.processor())


if __name__ == "__main__":
    main()
