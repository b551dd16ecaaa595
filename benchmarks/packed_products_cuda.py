"""Products of half precision with weights of eight-bit integers on a GPU (``torch._weight_int8pack_mm``, as compiled
code with quantized weights calls it), and how far predictions are off.

    python benchmarks/packed_products_cuda.py measure -o ROWS.json [--limit S] [--seed N]        # on the GPU
    python benchmarks/packed_products_cuda.py judge ROWS.json [--model H200]

``measure`` draws sizes as decoders and small batches have them and times each warm: medians of runs between events.
"""

from __future__ import annotations

import argparse
import json
import math
import random
import statistics
import time
from pathlib import Path
from typing import Any

NEEDS: tuple[str, ...] = ("cuda",)
RUNS: tuple[tuple[str, ...], ...] = (("measure", "-o", "{out}/packed.json"),)
QUICK: tuple[tuple[str, ...], ...] = (("measure", "-o", "{out}/packed.json", "--limit", "3"),)

_WIDTHS = (256, 384, 512, 768, 1024, 1280, 1536, 2048, 2560, 3072, 4096, 5120, 8192, 11008, 14336)
_REPEATS, _CALLS = 5, 2


def measure(options: argparse.Namespace) -> None:
    """Time drawn products until the limit."""
    import torch

    pick, end, rows = random.Random(f"packed {options.seed}"), time.monotonic() + options.limit, []
    while time.monotonic() < end:
        count = max(1, round(2 ** pick.uniform(0, 11)))
        depth, width = pick.choice(_WIDTHS), pick.choice(_WIDTHS)
        dtype = pick.choice(("bfloat16", "bfloat16", "float16"))
        left = torch.randn(count, depth, device="cuda", dtype=getattr(torch, dtype))
        right = torch.randint(-9, 9, (width, depth), device="cuda", dtype=torch.int8)
        scales = torch.rand(width, device="cuda", dtype=left.dtype)
        times = []
        for _ in range(_REPEATS + 1):
            before, after = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            torch.cuda._sleep(60_000)  # so that the host is ahead
            before.record()
            for _ in range(_CALLS):
                torch._weight_int8pack_mm(left, right, scales)
            after.record()
            after.synchronize()
            times.append(before.elapsed_time(after) * 1e3 / _CALLS)
        rows.append([count, depth, width, dtype, round(statistics.median(times[1:]), 3)])
    record = {"device": torch.cuda.get_device_name(), "torch": torch.__version__, "rows": rows}
    options.output.write_text(json.dumps(record))
    print(f"{len(rows)} products on {record['device']}, torch {record['torch']}: {options.output}", flush=True)


def judge(options: argparse.Namespace) -> None:
    """Print how far a model is off."""
    from torchledger.nouns import Buffer, Launch
    from torchledger.predicting.devices import find_model
    from torchledger.predicting.launches import predict_launches

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
    found = predict_launches(find_model(options.model), [launch(place, row) for place, row in enumerate(rows)])
    errors = [said.duration_us / row[-1] - 1 for said, row in zip(found, rows, strict=True)]
    held = sum(said.low_us <= row[-1] <= said.high_us for said, row in zip(found, rows, strict=True))
    print(f"{len(rows)} products, mean error {statistics.mean(map(abs, errors)):.1%}, ", end="")
    print(f"median {statistics.median(errors):+.1%}, worst {max(errors, key=abs):+.0%}, ", end="")
    print(f"intervals hold {held} of {len(rows)}")


def main() -> None:
    """Measure or judge."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(required=True)
    measuring = commands.add_parser("measure")
    measuring.add_argument("-o", "--output", type=Path, required=True)
    measuring.add_argument("--limit", type=float, default=20.0, help="seconds")
    measuring.add_argument("--seed", type=int, default=1)
    measuring.set_defaults(run=measure)
    judging = commands.add_parser("judge")
    judging.add_argument("rows", type=Path)
    judging.add_argument("--model", default="H200")
    judging.set_defaults(run=judge)
    options = parser.parse_args()
    options.run(options)


if __name__ == "__main__":
    main()
