"""Products of eight-bit integers on a GPU, and how far predictions are off.

    python -m benchmarks.operators.int8_products_cuda measure -o ROWS.json [--limit S] [--seed N]        # on the GPU
    python -m benchmarks.operators.int8_products_cuda judge ROWS.json [--model H100]

``measure`` draws sizes as layers have them and times ``torch._int_mm`` with weights either way round, warm: medians of
runs between events, after two. ``judge`` asks a model for them as compiled code calls them.
"""

from __future__ import annotations

import argparse
import json
import math
import random
import statistics
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

NEEDS: tuple[str, ...] = ("cuda",)
RUNS: tuple[tuple[str, ...], ...] = (("measure", "-o", "{out}/int8.json"),)
QUICK: tuple[tuple[str, ...], ...] = (("measure", "-o", "{out}/int8.json", "--limit", "3"),)

WIDTHS = (256, 384, 512, 768, 1024, 1280, 1536, 2048, 2560, 3072, 4096, 5120, 8192, 11008, 14336)
_REPEATS = 9


def warm_us(call: Callable[[], Any], *, repeats: int, calls: int, first: int) -> float:
    """Microseconds of one of so many calls in turn, between events: the median of the repeats after the first ones."""
    import torch

    times = []
    for _ in range(repeats + first):
        before, after = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        torch.cuda._sleep(60_000)  # so that the host is ahead
        before.record()
        for _ in range(calls):
            call()
        after.record()
        after.synchronize()
        times.append(before.elapsed_time(after) * 1e3 / calls)
    return statistics.median(times[first:])


def write_rows(rows: Sequence[Sequence[Any]], output: Path) -> None:
    """Write what was measured, and of what."""
    import torch

    record = {"device": torch.cuda.get_device_name(), "torch": torch.__version__, "rows": rows}
    output.write_text(json.dumps(record))
    print(f"{len(rows)} products on {record['device']}, torch {record['torch']}: {output}", flush=True)


def errors_of(rows: Sequence[Sequence[Any]], model: str, launch: Callable[[int, Any], Any]) -> tuple[list[float], int]:
    """By how much a model is off, of each row's launch, and how many intervals hold."""
    from torchledger.predicting.devices import find_model
    from torchledger.predicting.launches import predict_launches

    found = predict_launches(find_model(model), [launch(place, row) for place, row in enumerate(rows)])
    errors = [said.duration_us / row[-1] - 1 for said, row in zip(found, rows, strict=True)]
    return errors, sum(said.low_us <= row[-1] <= said.high_us for said, row in zip(found, rows, strict=True))


def measure(options: argparse.Namespace) -> None:
    """Time drawn products until the limit."""
    import torch

    pick, end, rows = random.Random(f"int8 {options.seed}"), time.monotonic() + options.limit, []
    while time.monotonic() < end:
        count = 8 * round(2 ** pick.uniform(math.log2(3), math.log2(2048)))
        depth, width = pick.choice(WIDTHS), pick.choice(WIDTHS)
        is_transposed = pick.random() < 0.6
        left = torch.randint(-9, 9, (count, depth), device="cuda", dtype=torch.int8)
        shape = (width, depth) if is_transposed else (depth, width)
        right = torch.randint(-9, 9, shape, device="cuda", dtype=torch.int8)
        right = right.t() if is_transposed else right
        us = warm_us(partial(torch._int_mm, left, right), repeats=_REPEATS, calls=4, first=2)
        rows.append([count, depth, width, is_transposed, round(us, 3)])
    write_rows(rows, options.output)


def judge(options: argparse.Namespace) -> None:
    """Print how far a model is off."""
    from torchledger.nouns import Buffer, Launch

    def launch(place: int, row: list[Any]) -> Launch:
        count, depth, width, is_transposed, _ = row
        stride = (1, depth) if is_transposed else (width, 1)
        size = {"bytes_written": 0}
        left = Buffer("a", "input", "int8", (count, depth), (depth, 1), "cuda:0", bytes_read=count * depth, **size)
        right = Buffer("b", "input", "int8", (depth, width), stride, "cuda:0", bytes_read=depth * width, **size)
        made = Buffer(
            "c", "output", "int32", (count, width), (width, 1), "cuda:0", bytes_read=0, bytes_written=4 * count * width
        )
        name, flops = "extern_kernels._int_mm", 2 * count * depth * width
        buffers = (left, right, made)
        return Launch("forward_0", place, "k", name, "extern", "cuda:0", buffers=buffers, call=name, flops=flops)

    rows = json.loads(options.rows.read_text())["rows"]
    errors, held = errors_of(rows, options.model, launch)
    for way in (True, False):
        some = [error for error, row in zip(errors, rows, strict=True) if row[3] is way]
        print(f"weights {'transposed' if way else 'as they are'}: {len(some)}, ", end="")
        print(f"mean error {statistics.mean(map(abs, some)):.1%}, median {statistics.median(some):+.1%}")
    print(f"intervals hold {held} of {len(rows)}")


def run(description: str | None, measure: Callable[[Any], None], judge: Callable[[Any], None], model: str) -> None:
    """Measure or judge, as the command line says; ``model`` is judged where it names none."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(required=True)
    measuring = commands.add_parser("measure")
    measuring.add_argument("-o", "--output", type=Path, required=True)
    measuring.add_argument("--limit", type=float, default=20.0, help="seconds")
    measuring.add_argument("--seed", type=int, default=1)
    measuring.set_defaults(run=measure)
    judging = commands.add_parser("judge")
    judging.add_argument("rows", type=Path)
    judging.add_argument("--model", default=model)
    judging.set_defaults(run=judge)
    options = parser.parse_args()
    options.run(options)


if __name__ == "__main__":
    run(__doc__, measure, judge, "H100")
