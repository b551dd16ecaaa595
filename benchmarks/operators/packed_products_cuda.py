"""Products of half precision with weights of eight-bit integers on a GPU (``torch._weight_int8pack_mm``, as compiled
code with quantized weights calls it), and how far predictions are off.

    python -m benchmarks.operators.packed_products_cuda measure -o ROWS.json [--limit S] [--seed N]        # on the GPU
    python -m benchmarks.operators.packed_products_cuda judge ROWS.json [--model H200]

``measure`` draws sizes as decoders and small batches have them and times each warm: medians of runs between events.
"""

from __future__ import annotations

import argparse
import json
import math
import random
import statistics
import time
from functools import partial
from typing import Any

from benchmarks.operators.int8_products_cuda import WIDTHS, errors_of, run, warm_us, write_rows

NEEDS: tuple[str, ...] = ("cuda",)
RUNS: tuple[tuple[str, ...], ...] = (("measure", "-o", "{out}/packed.json"),)
QUICK: tuple[tuple[str, ...], ...] = (("measure", "-o", "{out}/packed.json", "--limit", "3"),)

_REPEATS, _CALLS = 5, 2


def measure(options: argparse.Namespace) -> None:
    """Time drawn products until the limit."""
    import torch

    pick, end, rows = random.Random(f"packed {options.seed}"), time.monotonic() + options.limit, []
    while time.monotonic() < end:
        count = max(1, round(2 ** pick.uniform(0, 11)))
        depth, width = pick.choice(WIDTHS), pick.choice(WIDTHS)
        dtype = pick.choice(("bfloat16", "bfloat16", "float16"))
        left = torch.randn(count, depth, device="cuda", dtype=getattr(torch, dtype))
        right = torch.randint(-9, 9, (width, depth), device="cuda", dtype=torch.int8)
        scales = torch.rand(width, device="cuda", dtype=left.dtype)
        us = warm_us(partial(torch._weight_int8pack_mm, left, right, scales), repeats=_REPEATS, calls=_CALLS, first=1)
        rows.append([count, depth, width, dtype, round(us, 3)])
    write_rows(rows, options.output)


def judge(options: argparse.Namespace) -> None:
    """Print how far a model is off."""
    from torchledger.nouns import Buffer, Launch

    def launch(place: int, row: list[Any]) -> Launch:
        count, depth, width, dtype, _ = row

        def buffer(name: str, kind: str, shape: tuple[int, ...], size: int) -> Buffer:
            strides = tuple(math.prod(shape[axis + 1 :]) for axis in range(len(shape)))
            is_made = name == "made"
            moved = math.prod(shape) * size
            return Buffer(
                name, "output" if is_made else "input", kind, shape, strides, "cuda:0",
                bytes_read=0 if is_made else moved, bytes_written=moved if is_made else 0,
            )  # fmt: skip

        buffers = (
            buffer("left", dtype, (count, depth), 2),
            buffer("right", "int8", (width, depth), 1),
            buffer("scales", dtype, (width,), 2),
            buffer("made", dtype, (count, width), 2),
        )
        name, flops = "torch.ops.aten._weight_int8pack_mm.default", 2 * count * depth * width
        return Launch("forward_0", place, "k", name, "extern", "cuda:0", buffers=buffers, call=name, flops=flops)

    rows = json.loads(options.rows.read_text())["rows"]
    errors, held = errors_of(rows, options.model, launch)
    print(f"{len(rows)} products, mean error {statistics.mean(map(abs, errors)):.1%}, ", end="")
    print(f"median {statistics.median(errors):+.1%}, worst {max(errors, key=abs):+.0%}, ", end="")
    print(f"intervals hold {held} of {len(rows)}")


if __name__ == "__main__":
    run(__doc__, measure, judge, "H200")
