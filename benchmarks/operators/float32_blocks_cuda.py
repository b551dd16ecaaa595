"""A block of a GPT in float32, eager as Megatron-LM runs it, on a GPU: how long it takes, and how long its pieces say.

    python -m benchmarks.operators.float32_blocks_cuda -o FILE       # on the GPU
    python -m benchmarks.operators.float32_blocks_cuda FILE --device H100

The block (masked scores, dropout, biases, as ``megatron/model/transformer.py`` of core_r0.5.0 has them) runs forward
and backward for some seconds: the median of its first iterations, behind a rest, and of its last. Kernels of it that
nothing else measures run alone for a tenth of a second. The second form prices the same block by a device's model,
piece by piece as ``torchledger.planning`` composes it, beside what was measured. No step of a training run is in it.
"""

from __future__ import annotations

import argparse
import itertools
import json
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks.operators.eager_kernels_cuda import row
from torchledger.nouns import Layout
from torchledger.planning.prices import ModelPrices
from torchledger.planning.transformer import Transformer, parts_of
from torchledger.predicting.devices import find_model

NEEDS: tuple[str, ...] = ("cuda",)
RUNS: tuple[tuple[str, ...], ...] = (("-o", "{out}/float32_blocks_cuda.json"),)

BLOCKS = (
    (1280, 20, 1, 1, 1024),
    (1280, 20, 1, 4, 1024),
    (1280, 20, 4, 4, 1024),
    (1280, 20, 4, 16, 1024),
    (3072, 24, 1, 4, 2048),
    (3072, 24, 4, 4, 2048),
    (2048, 16, 1, 4, 1024),
    (4096, 32, 2, 2, 2048),
)
"""Width, heads, ranks that share them, sequences, tokens of a sequence."""

SECONDS, REST_S, FIRST = 2.0, 1.0, slice(2, 8)

Row = dict[str, Any]


def block(hidden: int, heads: int, tp: int, batch: int, length: int) -> Callable[[], None]:
    """Forward and backward of one rank's block, without its collectives."""
    import torch
    from torch.nn import functional

    def drawn(*shape: int) -> torch.Tensor:
        return (0.02 * torch.randn(*shape, device="cuda")).requires_grad_()

    def dropped(x: torch.Tensor, bias: torch.Tensor, residual: torch.Tensor) -> torch.Tensor:
        return residual + functional.dropout(x + bias, 0.1)

    def activated(x: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
        return functional.gelu(x + bias, approximate="tanh")

    dropped, activated = torch.compile(dropped), torch.compile(activated)
    own, inner = heads // tp, hidden // tp
    weights = [drawn(3 * inner, hidden), drawn(hidden, inner), drawn(4 * inner, hidden), drawn(hidden, 4 * inner)]
    biases = [drawn(3 * inner), drawn(hidden), drawn(4 * inner), drawn(hidden)]
    norms = [drawn(hidden) for _ in range(4)]
    given = torch.randn(length, batch, hidden, device="cuda", requires_grad=True)
    gradient = torch.randn(length, batch, hidden, device="cuda")
    mask = torch.ones(1, 1, length, length, device="cuda", dtype=torch.bool).triu(1)
    buffer = torch.empty(batch * own, length, length, device="cuda")
    width = hidden // heads

    def run() -> None:
        mixed = functional.layer_norm(given, (hidden,), norms[0], norms[1]) @ weights[0].t() + biases[0]
        query, key, value = mixed.view(length, batch * own, 3 * width).split(width, -1)
        scores = torch.baddbmm(
            buffer, query.transpose(0, 1), key.transpose(0, 1).transpose(1, 2), beta=0.0, alpha=width**-0.5
        ).view(batch, own, length, length)
        scores.masked_fill_(mask, -10000.0)
        shares = functional.dropout(scores.softmax(-1), 0.1).view(batch * own, length, length)
        context = torch.bmm(shares, value.transpose(0, 1)).view(batch, own, length, width)
        context = context.permute(2, 0, 1, 3).contiguous().view(length, batch, inner)
        after = dropped(context @ weights[1].t(), biases[1], given)
        normed = functional.layer_norm(after, (hidden,), norms[2], norms[3])
        wide = activated(normed @ weights[2].t(), biases[2])
        dropped(wide @ weights[3].t(), biases[3], after).backward(gradient)
        for each in (*weights, *biases, *norms, given):
            each.grad = None

    return run


def lasting(run: Callable[[], None], seconds: float) -> tuple[float, float]:
    """Milliseconds of one run: the median of the first behind a rest, and of the last half of some seconds."""
    import torch

    def timed(count: int) -> list[float]:
        marks = [torch.cuda.Event(enable_timing=True) for _ in range(count + 1)]
        marks[0].record()
        for mark in marks[1:]:
            run()
            mark.record()
        torch.cuda.synchronize()
        return [begin.elapsed_time(end) for begin, end in itertools.pairwise(marks)]

    usual_ms = statistics.median(timed(6)[2:])
    time.sleep(REST_S)
    took = timed(max(16, int(seconds * 1e3 / usual_ms)))
    return statistics.median(took[FIRST]), statistics.median(took[len(took) // 2 :])


def block_row(sizes: tuple[int, int, int, int, int], seconds: float) -> Row:
    """One block's times."""
    first_ms, last_ms = lasting(block(*sizes), seconds)
    return {"name": "block", "sizes": sizes, "first_ms": first_ms, "last_ms": last_ms}


def product_rows(seconds: float) -> list[Row]:
    """Products of float32 for seconds: what a power limit takes of them."""
    import torch

    rows: list[Row] = []
    for m, k, n in ((4096, 1280, 5120), (8192, 8192, 8192), (8192, 3072, 12288)):
        a, b = torch.randn(m, k, device="cuda"), torch.randn(k, n, device="cuda")
        first_ms, last_ms = lasting(lambda a=a, b=b: a @ b, seconds)
        rows.append({"name": "product", "sizes": (m, k, n), "first_ms": first_ms, "last_ms": last_ms})
        print(rows[-1], flush=True)
    return rows


def kernel_rows() -> list[Row]:
    """Kernels over scores in float32: bytes are of what each reads and writes."""
    import torch

    scores = torch.randn(4, 20, 1024, 1024, device="cuda")
    mask = torch.ones(1, 1, 1024, 1024, device="cuda", dtype=torch.bool).triu(1)
    nbytes, other = 4 * scores.numel(), torch.randn_like(scores)
    kept, kept_mask = torch.ops.aten.native_dropout(scores, 0.1, True)
    shares = scores.softmax(-1)
    aten = torch.ops.aten
    wide, bias = torch.randn(1024, 4, 5120, device="cuda"), torch.randn(5120, device="cuda")
    calls: dict[str, tuple[Callable[[], object], float]] = {
        "add": (lambda: scores + other, 3 * nbytes),
        "mask in place": (lambda: scores.masked_fill_(mask, -10000.0), 2 * nbytes),
        "mask of a copy": (lambda: other.masked_fill(mask, 0.0), 4 * nbytes),
        "softmax": (lambda: scores.softmax(-1), 2 * nbytes),
        "softmax backward": (lambda: aten._softmax_backward_data(other, shares, -1, torch.float32), 3 * nbytes),
        "dropout": (lambda: aten.native_dropout(other, 0.1, True), 2.25 * nbytes),
        "dropout backward": (lambda: aten.native_dropout_backward(kept, kept_mask, 1 / 0.9), 2.25 * nbytes),
        "add a bias": (lambda: wide + bias, 8 * wide.numel()),
        "sum over rows": (lambda: wide.sum((0, 1)), 4 * wide.numel()),
    }
    return [row(name, call, moved) for name, (call, moved) in calls.items()]


def priced_ms(sizes: tuple[int, int, int, int, int], prices: ModelPrices) -> dict[str, float]:
    """What the pieces of a block say: milliseconds by what they are."""
    hidden, heads, tp, batch, length = sizes
    model = Transformer(
        layers=1, hidden=hidden, heads=heads, ffn=4 * hidden, vocabulary=1024, length=length, batch=batch, gated=False,
        norm="layer", attention="unfused", bias=True, rotary=False, dtype="float32", fused=False, own_kernels=True,
    )  # fmt: skip
    parts = parts_of(model, Layout(tp=tp, micro_batch=batch, sequence_parallel=False))
    found: dict[str, float] = {}
    for piece in (*parts.block, *parts.block_backward):
        if piece.group or piece.role == "accumulation":
            continue
        name = "products" if piece.operator in ("linear", "bmm") else piece.role
        found[name] = found.get(name, 0.0) + prices.price(piece).duration_us / 1e3
    return found


def main() -> None:
    """Measure and write, or price what was measured."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("measured", type=Path, nargs="?", help="price the blocks of this file")
    parser.add_argument("--device", default="H100")
    parser.add_argument("--seconds", type=float, default=SECONDS)
    parser.add_argument("-o", "--output", type=Path)
    options = parser.parse_args()
    if options.measured is not None:
        prices = ModelPrices(find_model(options.device), "float32")
        for row in json.loads(options.measured.read_text())["rows"]:
            if row["name"] == "block":
                by_role = priced_ms(tuple(row["sizes"]), prices)
                total = sum(by_role.values())
                shown = ", ".join(f"{name} {ms:.2f}" for name, ms in by_role.items())
                print(
                    f"{row['sizes']}: {row['first_ms']:.2f} ms, lasting {row['last_ms']:.2f}; priced {total:.2f} "
                    f"({total / row['first_ms'] - 1:+.1%}, {total / row['last_ms'] - 1:+.1%}): {shown}"
                )
        return
    if options.output is None:
        parser.error("needs -o, or a file to price")
    import torch

    torch.backends.cuda.matmul.allow_tf32 = False
    rows = kernel_rows() + product_rows(options.seconds)
    facts = {"device": torch.cuda.get_device_name(), "torch": torch.__version__}
    for sizes in BLOCKS:
        rows.append(block_row(sizes, options.seconds))
        print(rows[-1], flush=True)
        options.output.write_text(json.dumps(facts | {"rows": rows}, indent=1))


if __name__ == "__main__":
    main()
