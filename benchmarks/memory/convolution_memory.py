"""Peaks of memory of convolutional programs that nobody looked at: what their plans say beside what a GPU counted.

``python -m benchmarks.memory.convolution_memory measure -o ROWS.json [--first 5000] [--count 24] [--at-once 8] [--limit
S]`` runs drawn programs (``drawn_programs.py``: those with convolutions that no CUDA graph replays, from an index on)
on a GPU and keeps the allocator's peak of their steps. ``python -m benchmarks.memory.convolution_memory plan ROWS.json
[--device H200]`` plans the same programs on a machine without one and prints how far their peaks are off.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from benchmarks.shared.limited import run_limited
from benchmarks.strangers.drawn_programs import Recipe, draw

NEEDS: tuple[str, ...] = ("cuda", "transformers")
RUNS: tuple[tuple[str, ...], ...] = (
    ("measure", "-o", "{out}/rows.json", "--count", "2"),
    ("plan", "{out}/rows.json"),
)

PROGRAM = ("-m", "benchmarks.strangers.drawn_programs")
_STEPS = ("6", "--seconds", "0.1", "--pieces", "0")


def programs(first: int) -> Iterator[Recipe]:
    """Drawn programs with convolutions, without end."""
    for index in range(first, first + 100_000):
        recipe = draw(f"develop-{index}")
        is_wanted = recipe.family.startswith(("hf_conv", "torchvision")) or recipe.family in ("own.unet", "own.audio")
        if is_wanted and recipe.mode in ("default", "inference"):
            yield recipe


def measure(output: Path, *, first: int, count: int, at_once: int, limit_s: float) -> None:
    """Run programs beside each other until the limit; nothing of theirs is timed."""
    end = time.monotonic() + limit_s
    rows: list[dict[str, Any]] = []

    def one(recipe: Recipe) -> None:
        left = end - time.monotonic()
        if left < 10:
            return
        environment = os.environ | {"TORCHINDUCTOR_COMPILE_THREADS": "1", "OMP_NUM_THREADS": "2"}
        command = [sys.executable, *PROGRAM, recipe.name, *_STEPS]
        try:
            done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=left, check=False)
        except subprocess.TimeoutExpired:
            print(f"{recipe.name}: not done in time", flush=True)
            return
        if done.returncode:
            print(f"{recipe.name}: {done.stderr[-300:]}", flush=True)
            return
        answer = json.loads(done.stdout.strip().splitlines()[-1])
        rows.append({"program": recipe.name, "peak_bytes": round(answer["memory_gb"] * 1e9)})
        output.write_text(json.dumps(rows, indent=1) + "\n")
        print(rows[-1], flush=True)

    drawn = programs(first)
    with ThreadPoolExecutor(at_once) as pool:
        for done in [pool.submit(one, next(drawn)) for _ in range(count)]:
            done.result()


def plan(path: Path, *, device: str, limit_s: float) -> None:
    """Plan what was measured and print how far the peaks are off."""
    off: list[float] = []
    print("| program | precision, mode | planned, MB | measured, MB | apart |\n|---|---|---|---|---|", flush=True)
    for row in sorted(json.loads(path.read_text()), key=lambda row: row["program"]):
        recipe = draw(row["program"])
        command = [sys.executable, "-m", "torchledger", "plan", "--device", device, "--json"]
        code, said = run_limited([*command, *PROGRAM, recipe.name, *_STEPS], limit_s)
        start = said.find("{\n")
        if code or start < 0:
            print(f"| {recipe.name} {recipe.family} | {said[-200:]!r} | | | |", flush=True)
            continue
        peak = json.JSONDecoder().raw_decode(said[start:])[0]["memory"]["peak_allocated_bytes"]
        off.append(peak / row["peak_bytes"] - 1)
        layout = ", channels last" if recipe.channels_last else ""
        print(
            f"| {recipe.name} {recipe.family} | {recipe.precision}, {recipe.mode}{layout} | {peak / 1e6:,.1f} "
            f"| {row['peak_bytes'] / 1e6:,.1f} | {off[-1]:+.1%} |",
            flush=True,
        )
    if off:
        sizes = sorted(map(abs, off))
        print(
            f"\n{len(off)} programs: mean {statistics.mean(sizes):.1%}, median {statistics.median(sizes):.1%}, "
            f"worst {sizes[-1]:.1%}, within 3 % {sum(size < 0.03 for size in sizes)}"
        )


def main() -> None:
    """Measure on a GPU, or plan without one."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("measure", "plan"))
    parser.add_argument("rows", nargs="?", type=Path, help="plan: what was measured")
    parser.add_argument("-o", "--output", type=Path)
    parser.add_argument("--first", type=int, default=5000, help="index of the first program")
    parser.add_argument("--count", type=int, default=24)
    parser.add_argument("--at-once", type=int, default=8)
    parser.add_argument("--limit", type=float, default=240.0, help="seconds; plan: of each program")
    parser.add_argument("--device", default="H200")
    options = parser.parse_args()
    if options.what == "measure":
        if options.output is None:
            parser.error("measure writes its rows: -o FILE")
        measure(
            options.output,
            first=options.first,
            count=options.count,
            at_once=options.at_once,
            limit_s=options.limit,
        )
    elif options.rows is None:
        parser.error("plan reads what was measured: name the file")
    else:
        plan(options.rows, device=options.device, limit_s=options.limit)


if __name__ == "__main__":
    main()
