"""What the public rows of ``public_steps.py`` say of where they come from.

    python -m benchmarks.public.public_origin [--data DIR] [--tables DIR] [-o FILE.md]

Only rows that may be looked at count: the development halves, and nanotron's below 20 % MFU, which no set scores.
vTrain's rows on one node: of layouts that are alike but for layers and batch, how far times lie from a plane, and (with
``DIR``, a checkout of VIA-Research/vTrain at f8dda84) of how many pairs that differ in data parallelism alone the
times differ by just what the all-reduce differs in the look-up tables of its simulator. nanotron's rows: the least time
of a block of one microbatch by ranks of tensor parallelism, with and without a pipeline over several nodes.
"""

from __future__ import annotations

import argparse
import itertools
import os
import statistics
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.public.public_rows import Row, nanotron, vtrain
from benchmarks.public.public_steps import LEAST_MFU, gpus, split
from torchledger.nouns import Placement
from torchledger.planning.fabric import find_fabric, price_collective

NEEDS: tuple[str, ...] = ("public data",)
RUNS: tuple[tuple[str, ...], ...] = (("-o", "{out}/public_origin.md"),)

FEWEST_OF_PLANE = 6
"""Rows of a group: a plane over layers and microbatches has four numbers."""

LEAST_MEBIBYTES = 4
"""Below it a time is mostly latency."""

VOCABULARY = 50257
"""What vTrain's simulator shares among ranks: a word of GPT-2's vocabulary each, not padded."""


def micro_batches(row: Row) -> int:
    return row.model.batch // (row.layout.dp * row.layout.micro_batch)


def plane_errors(rows: Sequence[Row]) -> Iterator[tuple[int, float]]:
    """Of groups alike but for layers and microbatches on one data-parallel rank: how many rows, and the largest
    distance of a time from the plane through them, as a share of it."""
    groups: dict[Any, list[Row]] = defaultdict(list)
    for row in rows:
        if row.layout.dp == 1:
            groups[row.model.hidden, row.layout].append(row)
    for members in groups.values():
        if len(members) >= FEWEST_OF_PLANE:
            counts = [(micro_batches(row), row.model.layers) for row in members]
            sides = np.array([[n * layers, n, layers, 1.0] for n, layers in counts])
            times = np.array([row.measured_us or 1.0 for row in members])
            fitted = sides @ np.linalg.lstsq(sides, times, rcond=None)[0]
            yield len(members), float(np.max(np.abs(fitted / times - 1)))


def tables_of(folder: Path) -> dict[int, dict[int, int]]:
    """The simulator's all-reduces: nanoseconds by ranks and MiB."""
    found = {}
    for ranks in range(2, 9):
        lines = (folder / f"trace/a100/AR_GPU{ranks}_1M_1024M_LUT").read_text().splitlines()[1:]
        cells = [line.split(",") for line in lines]
        found[ranks] = {int(each[0]) >> 20: int(each[-2]) for each in cells}
    return found


def reduced_mebibytes(row: Row) -> int:
    """What the simulator takes a rank's gradients for, in its own rounding; without a pipeline."""
    hidden, tp = row.model.hidden, row.layout.tp
    block = 4 * hidden + 3 * hidden * (hidden // tp) + 3 * hidden // tp + hidden * (hidden // tp) + hidden
    block += hidden * (4 * hidden // tp) + 4 * hidden // tp + 4 * hidden * (hidden // tp) + hidden
    ends = 2 * (VOCABULARY // tp * hidden) + row.model.length * hidden
    return round(2 * (row.model.layers * block + ends) / 2**20)


def reduced_pairs(rows: Sequence[Row], tables: dict[int, dict[int, int]]) -> tuple[int, int]:
    """Pairs without a pipeline that differ in data parallelism alone and whose message the tables hold; and those of
    them whose times differ by what the tables say, to the nanosecond."""
    groups: dict[Any, list[Row]] = defaultdict(list)
    for row in rows:
        if row.layout.pp == 1:
            alike = replace(row.layout, dp=1)
            groups[row.model.hidden, row.model.layers, alike, micro_batches(row)].append(row)
    pairs = equal = 0
    for members in groups.values():
        for one, other in itertools.combinations(members, 2):
            size = reduced_mebibytes(one)
            reduce_ns = [0 if r.layout.dp == 1 else tables[r.layout.dp].get(size) for r in (one, other)]
            if None in reduce_ns:
                continue
            measured_ns = 1e3 * ((one.measured_us or 0) - (other.measured_us or 0))
            pairs += 1
            equal += round(measured_ns) == (reduce_ns[0] or 0) - (reduce_ns[1] or 0)
    return pairs, equal


def fabric_errors(tables: dict[int, dict[int, int]]) -> list[float]:
    """How far our A100's all-reduces within a node are from those tables, which nobody fitted it to, in per cent."""
    fabric = find_fabric("a100")
    return [
        100 * abs(1e3 * price_collective(fabric, "all_reduce", size * 2.0**20, Placement(ranks)).duration_us / ns - 1)
        for ranks, sizes in tables.items()
        for size, ns in sizes.items()
        if size >= LEAST_MEBIBYTES
    ]


def block_ms(row: Row) -> float:
    """A step by its microbatches, those of the pipeline's ends among them, and by a stage's blocks."""
    ticks = micro_batches(row) + row.layout.pp - 1
    return (row.measured_us or 0) / 1e3 / ticks / (row.model.layers / row.layout.pp)


def least_blocks(rows: Sequence[Row]) -> dict[tuple[str, int], list[float]]:
    """Times of a block by where its stage's neighbours are and by ranks of tensor parallelism."""
    found: dict[tuple[str, int], list[float]] = defaultdict(list)
    for row in rows:
        if row.layout.tp > 1 and (row.layout.pp == 1 or gpus(row) > 8):
            kind = "no pipeline" if row.layout.pp == 1 else "a pipeline over several nodes"
            found[kind, row.layout.tp].append(block_ms(row))
    return found


def main() -> None:
    """Look, print, and write where asked."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path, default=os.environ.get("TORCHLEDGER_PUBLIC_DATA"))
    parser.add_argument("--tables", type=Path)
    parser.add_argument("-o", "--output", type=Path)
    options = parser.parse_args()
    if options.data is None:
        parser.error("needs --data, or TORCHLEDGER_PUBLIC_DATA")
    looked_at, _ = split(vtrain(options.data, "single"))
    errors = list(plane_errors(looked_at))
    lines = [
        f"vTrain's rows on one node: {sum(count for count, _ in errors)} rows in {len(errors)} groups that differ in "
        f"layers and microbatches alone lie within {max(error for _, error in errors):.1e} of their planes."
    ]
    if options.tables is not None:
        tables = tables_of(options.tables)
        pairs, equal = reduced_pairs(looked_at, tables)
        apart = fabric_errors(tables)
        lines.append(
            f"Of {pairs} pairs that differ in data parallelism alone, the times of {equal} differ by what two entries "
            "of the look-up tables of vTrain's simulator differ, to the nanosecond."
        )
        lines.append(
            f"Those {len(apart):,} entries from {LEAST_MEBIBYTES} MiB on, and our A100's all-reduces, differ by "
            f"{statistics.mean(apart):.1f} % in the mean, {max(apart):.1f} % at most."
        )
    lines += ["", "| nanotron, below 20 % MFU | ranks of tensor parallelism | rows | least block, ms | a tenth below |"]
    lines.append("|---|---|---|---|---|")
    unscored = [
        row
        for row in nanotron(options.data, (0.0, 0.0))
        if row.measured_us and row.mfu is not None and row.mfu < LEAST_MFU
    ]
    for (kind, tp), times in sorted(least_blocks(unscored).items()):
        tenth = statistics.quantiles(times, n=10)[0] if len(times) > 1 else times[0]
        lines.append(f"| {kind} | {tp} | {len(times)} | {min(times):.1f} | {tenth:.1f} |")
    print("\n".join(lines))
    if options.output:
        options.output.parent.mkdir(parents=True, exist_ok=True)
        options.output.write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
