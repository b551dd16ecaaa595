"""Atomics that add up the gradient of a table of distances.

    python -m benchmarks.launches.atomics_cuda measure -o ROWS.json

One kernel as Inductor writes it (elements in the order of heads, rows and columns; the row of the table is looked up)
is timed at drawn numbers of places, rows and heads, and in which way distances share rows: T5's buckets in both
directions or in one, clipped to a window, clipped to the past, all of their own, drawn at random, or one for all.
``judge ROWS.json`` says how far ``expecting/atomic_lines.py`` is off what was measured, of tables that are looked up in
by distance and take longer than a third of a millisecond; that needs no GPU.
"""

from __future__ import annotations

import argparse
import json
import math
import random
import statistics
import time
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from torchledger.expecting.atomic_lines import most_in_line, waiting_in_lines
from torchledger.predicting.devices import find_model

NEEDS: tuple[str, ...] = ("cuda",)
RUNS: tuple[tuple[str, ...], ...] = (("measure", "-o", "{out}/atomics.json"),)

_MOST_ATOMICS = 2**26
_LEAST_US = 300.0
_QUEUED_CYCLES = 1_000_000
"""Of a kernel that only waits, so that what is timed was issued before it begins."""
KINDS = ("buckets", "buckets", "past buckets", "clipped", "past clipped", "all", "random", "one")


@dataclass(frozen=True)
class Table:
    """A table of ``rows`` by ``heads`` float32 that pairs of ``places`` add to; ``block`` elements to a block.

    Of two bytes an element, atomics on one address compare and swap: minutes a kernel, which nobody waits for.
    """

    kind: str
    places: int
    rows: int
    heads: int
    block: int


def draw(count: int, seed: int) -> Iterator[Table]:
    """Tables as attention has them."""
    pick = random.Random(f"atomics {seed}")
    found = 0
    while found < count:
        kind, places = pick.choice(KINDS), round(2 ** pick.uniform(5, 11.2))
        if pick.random() < 0.6:
            places = max(32, places // 32 * 32)
        heads = pick.choice((1, 2, 3, 4, 6, 8, 12, 12, 16, 16, 20, 24, 32, 40))
        buckets = pick.choice((8, 16, 32, 32, 32, 64, 128))
        rows = {"all": 2 * places - 1, "clipped": 2 * buckets + 1, "past clipped": buckets, "one": 1}.get(kind, buckets)
        if heads * places**2 > _MOST_ATOMICS or rows > 2 * places - 1:
            continue
        found += 1
        yield Table(kind, places, rows, heads, pick.choice((512, 1024)))


def index_of(table: Table, device: Any) -> Any:
    """The row of the table of each pair of places: int64, ``[places, places]``."""
    import torch

    place = torch.arange(table.places, device=device)
    apart = place[None, :] - place[:, None]
    if table.kind == "one":
        return torch.zeros_like(apart)
    if table.kind == "random":
        return torch.randint(table.rows, apart.shape, device=device)
    if table.kind == "all":
        return apart + table.places - 1
    if table.kind == "clipped":
        return apart.clamp(-(table.rows // 2), table.rows // 2) + table.rows // 2
    if table.kind == "past clipped":
        return (-apart).clamp(0, table.rows - 1)
    return _buckets(apart if table.kind == "buckets" else -apart.clamp(max=0), table)


def _buckets(apart: Any, table: Table) -> Any:
    import torch

    both = table.kind == "buckets"
    half = table.rows // 2 if both else table.rows
    near, size = max(1, half // 2), apart.abs()
    far = near + ((size.float() / near).clamp(min=1).log() / math.log(4 * table.rows / near) * (half - near)).long()
    bucket = torch.where(size < near, size, far.clamp(max=half - 1))
    return bucket + half * (apart > 0) if both else bucket


def _kernel() -> Any:
    import triton
    import triton.language as tl

    globals()["tl"] = tl

    @triton.jit
    def add_up(given, index, table, numel, pairs, heads, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]
        at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
        mask = at < numel
        value = tl.load(given + at, mask)
        row = tl.load(index + at % pairs, mask, other=0)
        tl.atomic_add(table + at // pairs + heads * row, value, mask, sem="relaxed")

    return add_up


def measure(tables: Iterator[Table], output: Path, limit_s: float) -> int:
    """Time each until the time is up; the rows are written as they come."""
    import torch

    kernel, rows, end = _kernel(), [], time.monotonic() + limit_s
    for table in tables:
        if time.monotonic() > end:
            break
        index, pairs = index_of(table, "cuda"), table.places**2
        numel = pairs * table.heads
        given = torch.randn(numel, device="cuda")
        sums = torch.zeros(table.rows, table.heads, device="cuda")
        times = []
        for _ in range(5):
            begin, stop = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            torch.cuda._sleep(_QUEUED_CYCLES)
            begin.record()
            kernel[(-(-numel // table.block),)](
                given, index, sums, numel, pairs, table.heads, BLOCK=table.block, num_warps=table.block // 128
            )
            stop.record()
            torch.cuda.synchronize()
            times.append(1e3 * begin.elapsed_time(stop))
        rows.append({**asdict(table), "us": round(statistics.median(times[1:]), 3)})
        if len(rows) % 50 == 0:
            output.write_text(json.dumps(rows))
            print(f"{len(rows)} rows", flush=True)
    output.write_text(json.dumps(rows))
    return len(rows)


def judge(rows: list[dict[str, Any]], model: str) -> None:
    """Print how far off what was measured atomics are said, by kind: by whole lines, and by what is in flight."""
    machine = find_model(model).machine
    line_us = machine.constants.kernels.line_atomic_us
    groups: dict[str, list[tuple[float, float]]] = defaultdict(list)
    for row in rows:
        if row["us"] < _LEAST_US or row["kind"] not in ("buckets", "past buckets", "clipped"):
            continue
        table = row["places"], row["rows"], row["heads"], 4
        waiting = waiting_in_lines(*table, machine.in_flight, is_past=row["kind"] == "past buckets")
        said = line_us * most_in_line(*table), line_us * waiting
        groups[row["kind"]].append((said[0] / row["us"] - 1, said[1] / row["us"] - 1))
    groups["all"] = [pair for some in groups.values() for pair in some]
    for name, some in sorted(groups.items()):
        whole, flying = (np.abs([pair[place] for pair in some]) for place in range(2))
        print(
            f"{name}: {len(some)} tables, by whole lines {whole.mean():.1%} (median {np.median(whole):.1%}), "
            f"by what is in flight {flying.mean():.1%} ({np.median(flying):.1%})"
        )


def main() -> None:
    """Measure, or say how far off what is said is."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("measure", "judge"))
    parser.add_argument("rows", nargs="*", type=Path)
    parser.add_argument("-o", "--output", type=Path)
    parser.add_argument("--limit", type=float, default=60, help="seconds")
    parser.add_argument("--count", type=int, default=2000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--model", default="H100")
    options = parser.parse_args()
    if options.what == "judge":
        judge([row for path in options.rows for row in json.loads(path.read_text())], options.model)
    elif options.output is None:
        parser.error("measure: -o ROWS.json, where what is measured goes")
    else:
        print(f"{measure(draw(options.count, options.seed), options.output, options.limit)} rows", flush=True)


if __name__ == "__main__":
    main()
