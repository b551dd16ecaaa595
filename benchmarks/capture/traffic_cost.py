"""Time to count the distinct addresses of typical accesses while the tensors grow a million times.

    python -m benchmarks.capture.traffic_cost [--output docs/results/traffic_cost.md]

Each pattern is counted with an empty cache. The answers are printed beside the times, so that they can be checked by
hand: the count grows with the tensor, the time does not.
"""

from __future__ import annotations

import argparse
import datetime
import platform
import statistics
import time
from collections.abc import Callable
from pathlib import Path

import sympy
import torch
from torch.utils._sympy.functions import FloorDiv, ModularIndexing

from torchledger.capturing import traffic
from torchledger.capturing.traffic import Bound, Extent, IndexedAccess, count_addresses

NEEDS: tuple[str, ...] = ()
RUNS: tuple[tuple[str, ...], ...] = (("--output", "docs/results/traffic_cost.md"),)
QUICK: tuple[tuple[str, ...], ...] = (("--output", "{out}/traffic_cost.md"),)

x, y, z, w, row = sympy.symbols("x y z w row", integer=True, nonnegative=True)
REPEATS = 15
SCALES = (1, 1_000, 1_000_000)

Accesses = tuple[list[IndexedAccess], Extent | None]


def contiguous(scale: int) -> Accesses:
    return [IndexedAccess(x, ((x, 4096 * scale),))], None


def broadcast_and_transpose(scale: int) -> Accesses:
    loops = ((x, 1024 * scale), (y, 1024))
    return [IndexedAccess(y, loops), IndexedAccess(1024 + x + 1024 * scale * y, loops)], None


def attention_view(scale: int) -> Accesses:
    index = 64 * ModularIndexing(x, 1, 512) + ModularIndexing(x, 512, 64) + 32768 * FloorDiv(x, 32768)
    return [IndexedAccess(index, ((x, 32768 * scale),))], None


def pooling_with_padding(scale: int) -> Accesses:
    loads = [
        IndexedAccess(
            2 * x + i - 1 + 112 * (2 * y + j - 1) + 12544 * z,
            ((z, 64 * scale), (y, 56), (x, 56)),
            bounds=(Bound(2 * x + i - 1, 0, 111), Bound(2 * y + j - 1, 0, 111)),
        )
        for i in range(3)
        for j in range(3)
    ]
    return loads, Extent((64 * scale, 112, 112), (12544, 112, 1))


def large_pooling_window(scale: int) -> Accesses:
    loads = [
        IndexedAccess(2 * x + i + 100 * (2 * y + j) + 10_000 * z, ((z, scale), (y, 44), (x, 44)))
        for i in range(12)
        for j in range(12)
    ]
    return loads, None


def concatenation(scale: int) -> Accesses:
    loops = ((x, 100 * scale), (y, 96))
    return [IndexedAccess(64 * x + y - 32, loops, bounds=(Bound(y, 32, None),))], Extent((100 * scale, 64), (64, 1))


def gather(scale: int) -> Accesses:
    access = IndexedAccess(64 * row + y, ((x, 16 * scale), (y, 64)), indirect=((row, 50257 * scale),))
    return [access], Extent((50257 * scale, 64), (64, 1))


def coprime_strides(scale: int) -> Accesses:
    return [IndexedAccess(k * x, ((x, 30_000 * scale // k),)) for k in (2, 3, 5)], None


PATTERNS: tuple[Callable[[int], Accesses], ...] = (
    contiguous,
    broadcast_and_transpose,
    attention_view,
    pooling_with_padding,
    large_pooling_window,
    concatenation,
    gather,
    coprime_strides,
)


def median_us(accesses: list[IndexedAccess], extent: Extent | None) -> float:
    times = []
    for _ in range(REPEATS):
        traffic.clear_caches()
        start = time.perf_counter()
        count_addresses(accesses, extent)
        times.append((time.perf_counter() - start) * 1e6)
    return statistics.median(times)


def report() -> str:
    lines = [
        "# Counting distinct addresses: cost against tensor size",
        "",
        f"`python -m benchmarks.capture.traffic_cost`, {datetime.date.today()}, Python {platform.python_version()}, "
        f"torch {torch.__version__}, {platform.machine()}. Median of {REPEATS} "
        "counts, each with empty caches; one row is all accesses of a kernel to one buffer.",
        "",
        "| pattern | accesses | " + " | ".join(f"µs at ×{scale:,}" for scale in SCALES) + " | addresses | |",
        "|---|---:|" + "---:|" * len(SCALES) + "---|---|",
    ]
    for pattern in PATTERNS:
        cells, counts, quality = [], [], "exact"
        for scale in SCALES:
            accesses, extent = pattern(scale)
            answer = count_addresses(accesses, extent)
            counts.append(f"{answer.count:,}")
            quality = answer.quality
            cells.append(f"{median_us(accesses, extent):,.0f}")
        name = pattern.__name__.replace("_", " ")
        lines.append(f"| {name} | {len(accesses)} | {' | '.join(cells)} | {'; '.join(counts)} | {quality} |")
    lines += [
        "",
        "The time follows the number of accesses and of digits in their indices, not the extents. A launch of a "
        "compiled model has a handful of accesses per buffer, and layers that repeat hit the cache.",
        "",
    ]
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--output", type=Path, help="also write the report to this file")
    arguments = parser.parse_args()
    text = report()
    print(text)
    if arguments.output:
        arguments.output.parent.mkdir(parents=True, exist_ok=True)
        arguments.output.write_text(text)


if __name__ == "__main__":
    main()
