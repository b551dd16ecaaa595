"""What kernels of ``flex_attention`` take.

    python -m benchmarks.launches.flex_cuda measure -o FLEX.json [--limit 120]

Configurations are drawn with a seed: sizes, grouped heads, masks (none, causal, sliding windows, prefixes) and scores
(as they are, a slope for each head, a soft cap), forward and backward. Each is compiled in a process of its own among
``--workers``, which take turns on the GPU; FLEX.json has the time of both kernels on the device, and which share of the
blocks the mask leaves. ``python -m benchmarks.launches.flex_cuda fit FLEX.json [FLEX.json ...]`` prints the constants
of ``expecting/flex_times.py`` and how far they are off, a quarter held out.
"""

from __future__ import annotations

import argparse
import fcntl
import json
import math
import multiprocessing
import os
import random
import statistics
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

NEEDS: tuple[str, ...] = ("cuda",)
RUNS: tuple[tuple[str, ...], ...] = ()

Row = dict[str, Any]

_REPEATS = 12
_MASKS = ("none", "causal", "causal", "window", "window", "prefix", "local")
_SCORES = ("none", "none", "slopes", "cap")


def draw(rng: random.Random) -> Row:
    """A configuration."""
    d = rng.choice((32, 64, 64, 128, 128, 256))
    length = rng.choice((512, 1024, 2048, 4096, 8192)) + rng.choice((0, 0, 0, 64, 100))
    heads = rng.choice((4, 8, 12, 16, 32))
    batch = max(1, min(16, round(2 ** rng.uniform(15, 21) / (length * heads))))
    return {
        "batch": batch,
        "heads": heads,
        "heads_kv": heads // rng.choice((1, 1, 1, 4)),
        "length": length,
        "d": d,
        "dtype": rng.choice(("bfloat16", "bfloat16", "bfloat16", "float16", "float32")),
        "mask": rng.choice(_MASKS),
        "window": rng.choice((64, 128, 256, 512, 1024)),
        "score": rng.choice(_SCORES),
    }


def measure_one(row: Row, lock: Path) -> Row:
    """The row with the times of its kernels, or why there are none."""
    import torch
    from torch.nn.attention.flex_attention import create_block_mask, flex_attention

    torch._dynamo.reset()
    dtype = getattr(torch, row["dtype"])

    def made(heads: int) -> Any:
        shape = (row["batch"], row["length"], heads, row["d"])
        return torch.randn(shape, device="cuda", dtype=dtype).transpose(1, 2).requires_grad_()

    query, key, value = made(row["heads"]), made(row["heads_kv"]), made(row["heads_kv"])
    window, slopes = row["window"], torch.rand(row["heads"], device="cuda")
    masks = {
        "causal": lambda b, h, q, k: q >= k,
        "window": lambda b, h, q, k: (q >= k) & (q - k < window),
        "prefix": lambda b, h, q, k: (q >= k) | (k < window),
        "local": lambda b, h, q, k: (q - k < window) & (k - q < window),
    }
    scores = {
        "slopes": lambda score, b, h, q, k: score + slopes[h] * (k - q),
        "cap": lambda score, b, h, q, k: 20 * torch.tanh(score / 20),
    }
    length = row["length"]
    mask = create_block_mask(masks[row["mask"]], None, None, length, length) if row["mask"] in masks else None
    visited = partial = 1.0
    if mask is not None:
        blocks = math.ceil(length / 128) ** 2
        partial = float(mask.kv_num_blocks.sum()) / blocks
        visited = partial + (
            float(mask.full_kv_num_blocks.sum()) / blocks if mask.full_kv_num_blocks is not None else 0
        )
    call = torch.compile(flex_attention)
    is_grouped = row["heads"] != row["heads_kv"]

    def step() -> None:
        out = call(query, key, value, score_mod=scores.get(row["score"]), block_mask=mask, enable_gqa=is_grouped)
        out.backward(grad)

    grad = torch.randn(row["batch"], row["length"], row["heads"], row["d"], device="cuda", dtype=dtype).transpose(1, 2)
    step()
    torch.cuda.synchronize()
    with lock.open("w") as turn:
        fcntl.flock(turn, fcntl.LOCK_EX)
        for _ in range(3):
            step()
        torch.cuda.synchronize()
        with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profile:
            for _ in range(_REPEATS):
                step()
            torch.cuda.synchronize()
    times: dict[bool, list[float]] = {False: [], True: []}
    for event in profile.events():
        if "flex_attention" in event.name and "tem_fused" in event.name:
            times["backward" in event.name].append(event.device_time)
    return row | {
        "visited": visited,
        "partial": partial if mask is not None else 0.0,
        "forward_us": statistics.median(times[False]),
        "backward_us": statistics.median(times[True]),
    }


def work(rows: Any, found: Any, lock: Path, until: float) -> None:
    """Measure rows until none are left, or the time is over."""
    while time.time() < until:
        try:
            row = rows.get(timeout=0.2)
        except Exception:  # none left
            return
        try:
            found.put(measure_one(row, lock))
        except Exception as error:
            found.put(row | {"error": f"{type(error).__name__}: {error}"[:200]})


def measure(options: argparse.Namespace) -> None:
    """Draw, measure and write."""
    os.environ["TORCHINDUCTOR_COMPILE_THREADS"] = "1"
    rng = random.Random(f"flex {options.seed}")
    context = multiprocessing.get_context("spawn")
    rows, found = context.Queue(), context.Queue()
    for _ in range(options.count):
        rows.put(draw(rng))
    lock = Path(tempfile.mkdtemp()) / "turn"
    until = time.time() + options.limit
    workers = [
        context.Process(target=work, args=(rows, found, lock, until), daemon=True) for _ in range(options.workers)
    ]
    for worker in workers:
        worker.start()
    measured: list[Row] = []
    while time.time() < until + 5 and any(worker.is_alive() for worker in workers):
        try:
            measured.append(found.get(timeout=0.5))
        except Exception:  # nothing yet
            continue
        options.output.write_text(json.dumps(measured))
    import torch

    told = {"device": torch.cuda.get_device_name(), "torch": torch.__version__, "rows": measured}
    options.output.write_text(json.dumps(told, separators=(",", ":")))
    print(f"{sum('error' not in row for row in measured)} of {len(measured)} measured", flush=True)
    for row in [each for each in measured if "error" in each][:5]:
        print(row, flush=True)
    os._exit(0)  # a compilation that is under way ends with this process


def read(paths: Sequence[Path]) -> list[Row]:
    """The rows that were measured."""
    return [row for path in paths for row in json.loads(path.read_text())["rows"] if "error" not in row]


def question_of(row: Mapping[str, Any], *, backward: bool) -> Any:
    """A row as ``flex_times.py`` is asked."""
    from torchledger.expecting.flex_times import FlexCall

    return FlexCall(
        backward=backward,
        is_float32=row["dtype"] == "float32",
        batch=row["batch"],
        heads=row["heads"],
        length=row["length"],
        length_kv=row["length"],
        d=row["d"],
        visited=row["visited"],
        partial=row["partial"],
        simple={"slopes": 4, "cap": 2}.get(row["score"], 0),
        hard=int(row["score"] == "cap"),
        heads_kv=row["heads_kv"],
    )


def fit(options: argparse.Namespace) -> None:
    """Constants by all rows, and errors of quarters that taught nothing."""
    from torchledger.expecting.flex_times import fit_flex, flex_us

    rows = read(options.rows)
    random.Random(0).shuffle(rows)
    for backward in (False, True):
        name = "backward_us" if backward else "forward_us"
        asked = [(question_of(row, backward=backward), row[name]) for row in rows]
        errors = []
        for fold in range(4):
            taught = fit_flex([each for place, each in enumerate(asked) if place % 4 != fold])
            errors += [flex_us(call, taught) / us - 1 for call, us in asked[fold::4]]
        sizes = sorted(map(abs, errors))
        print(
            f"{name}: {len(errors)} calls held out, mean {statistics.mean(sizes):.1%}, "
            f"median {sizes[len(sizes) // 2]:.1%}, "
            f"nine of ten within {sizes[int(0.9 * len(sizes))]:.1%}, signed {statistics.mean(errors):+.1%}"
        )
        print(json.dumps({key: round(value, 5) for key, value in fit_flex(asked).items()}))


def main() -> None:
    """Measure or fit."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(required=True)
    measuring = commands.add_parser("measure")
    measuring.add_argument("-o", "--output", type=Path, required=True)
    measuring.add_argument("--seed", type=int, default=1)
    measuring.add_argument("--count", type=int, default=400)
    measuring.add_argument("--limit", type=float, default=120.0)
    measuring.add_argument("--workers", type=int, default=15)
    measuring.set_defaults(run=measure)
    fitting = commands.add_parser("fit")
    fitting.add_argument("rows", type=Path, nargs="+")
    fitting.set_defaults(run=fit)
    options = parser.parse_args()
    options.run(options)


if __name__ == "__main__":
    main()
