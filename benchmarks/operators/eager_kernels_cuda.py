"""What the eager kernels of a transformer move, and how long its attention, products and whole block take, on a GPU.

    python -m benchmarks.operators.eager_kernels_cuda -o FILE

Each kernel runs alone for a tenth of a second; GB/s are of the tensors that it reads and writes. The block is that of
``huggingface/nanotron`` at two widths in plain torch, forward and backward, for seconds: the median of its first and of
its last iterations. ``public_steps.py`` prices eager programs by what this measured.
"""

from __future__ import annotations

import argparse
import itertools
import json
import statistics
import time
from collections.abc import Callable
from pathlib import Path

import torch
from torch.nn import functional
from torch.nn.attention import SDPBackend, sdpa_kernel

NEEDS: tuple[str, ...] = ("cuda",)
RUNS: tuple[tuple[str, ...], ...] = (("-o", "{out}/eager_kernels_cuda.json"),)

SIZES = ((2048, 32, 8192, 2), (4096, 32, 14336, 1))
"""Width, heads, width of the feed-forward half, sequences of a microbatch."""

LENGTH, VOCABULARY = 4096, 131072
BURST_US = 1e5
ITERATIONS, FIRST, LAST = 700, slice(3, 20), slice(400, None)

Row = dict[str, object]


def half(*shape: int) -> torch.Tensor:
    """Drawn values in bfloat16."""
    return torch.randn(*shape, device="cuda", dtype=torch.bfloat16)


def duration_us(call: Callable[[], object]) -> float:
    """The mean over a tenth of a second."""

    def of(count: int) -> float:
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        for _ in range(count):
            call()
        end.record()
        end.synchronize()
        return float(begin.elapsed_time(end)) * 1e3 / count

    of(2)
    return of(max(3, int(BURST_US / of(3))))


def row(name: str, call: Callable[[], object], bytes_moved: float = 0.0, **sizes: int) -> Row:
    """One kernel's time and bandwidth."""
    took_us = duration_us(call)
    found = {"name": name, **sizes, "us": took_us, "gb_per_s": bytes_moved / took_us / 1e3 if bytes_moved else None}
    print(found, flush=True)
    return found


def loss_rows(hidden: int, batch: int) -> list[Row]:
    """The kernels of a cross entropy in float32, each of which writes its result."""
    tokens = LENGTH * batch
    logits, exact = half(tokens, VOCABULARY), half(tokens, VOCABULARY).float()
    count, most, sizes = exact.numel(), exact[:, :1].clone(), {"hidden": hidden, "tokens": tokens}
    return [
        row("cast", logits.float, 6 * count, **sizes),
        row("largest", lambda: exact.max(-1), 4 * count, **sizes),
        row("subtract broadcast", lambda: exact - most, 8 * count, **sizes),
        row("exponential", lambda: torch.exp(exact, out=exact), 8 * count, **sizes),
        row("sum", lambda: exact.sum(-1), 4 * count, **sizes),
        row("divide broadcast", lambda: exact.div_(most), 8 * count, **sizes),
        row("cast back", exact.bfloat16, 6 * count, **sizes),
    ]


def moving_rows(hidden: int, heads: int, ffn: int, batch: int) -> list[Row]:
    """Kernels that move memory: heads and activations rearranged, gradients added up."""
    tokens, head = LENGTH * batch, hidden // heads
    values, sizes = tokens * hidden * 2, {"hidden": hidden, "tokens": tokens}
    together = half(LENGTH, batch, 3 * hidden).view(LENGTH, batch, 3, heads, head)
    ordered = together.permute(2, 1, 0, 3, 4).contiguous()
    keys = ordered[1:].contiguous()
    merged = half(LENGTH, batch, 2 * ffn)
    gate, up = merged.chunk(2, -1)
    wide, moved = half(LENGTH, batch, ffn), tokens * ffn * 2
    total, gradient = torch.zeros(2 * ffn, hidden, device="cuda"), half(2 * ffn, hidden)
    backward = torch.ops.aten.silu_backward
    return [
        row("heads in order", lambda: together.permute(2, 1, 0, 3, 4).contiguous(), 6 * values, **sizes),
        row("concatenate", lambda: torch.cat([ordered[1][None], ordered[2][None]]), 4 * values, **sizes),
        row("keys and values", lambda: keys.permute(1, 2, 0, 3, 4).contiguous(), 4 * values, **sizes),
        row("stack", lambda: torch.stack([ordered[0], ordered[1], ordered[2]]), 6 * values, **sizes),
        row("heads back", lambda: ordered.permute(2, 1, 0, 3, 4).reshape(LENGTH, batch, -1), 6 * values, **sizes),
        row("silu of half", lambda: functional.silu(gate), 2 * moved, **sizes),
        row("times half", lambda: wide * up, 3 * moved, **sizes),
        row("silu backward", lambda: backward(wide, gate), 3 * moved, **sizes),
        row("halves together", lambda: torch.cat([wide, wide], -1), 4 * moved, **sizes),
        row("add to float32", lambda: total.add_(gradient), 20 * ffn * hidden, **sizes),
    ]


def attention_rows(hidden: int, heads: int, batch: int) -> list[Row]:
    """Attention by two libraries, forward and backward."""
    query = half(batch, heads, LENGTH, hidden // heads).requires_grad_()
    gradient, rows = torch.randn_like(query), []
    for backend in (SDPBackend.FLASH_ATTENTION, SDPBackend.CUDNN_ATTENTION):
        with sdpa_kernel(backend):

            def attend() -> torch.Tensor:
                return functional.scaled_dot_product_attention(query, query, query, is_causal=True)

            mixed = attend()
            rows.append(row(f"{backend.name} forward", attend, hidden=hidden))
            rows.append(row(f"{backend.name} backward", lambda m=mixed: m.backward(gradient, retain_graph=True)))
    return rows


def block_row(hidden: int, heads: int, ffn: int, batch: int) -> Row:
    """A block forward and backward, over and over."""
    sides = ((3 * hidden, hidden), (hidden, hidden), (2 * ffn, hidden), (hidden, ffn))
    qkv, out, wide, down = weights = [(0.02 * half(*side)).requires_grad_() for side in sides]
    given, gradient = half(LENGTH, batch, hidden).requires_grad_(), half(LENGTH, batch, hidden)

    def step() -> None:
        normed = functional.rms_norm(given, (hidden,))
        mixed = functional.linear(normed, qkv).view(LENGTH, batch, 3, heads, -1).permute(2, 1, 0, 3, 4).contiguous()
        pair = torch.cat([mixed[1][None], mixed[2][None]]).permute(1, 2, 0, 3, 4).contiguous()
        with sdpa_kernel(SDPBackend.FLASH_ATTENTION):
            query, key, value = (each.transpose(1, 2) for each in (mixed[0], pair[:, :, 0], pair[:, :, 1]))
            attended = functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        rows = attended.transpose(1, 2).reshape(batch, LENGTH, hidden).transpose(0, 1)
        after = given + functional.linear(rows, out)
        gate, up = functional.linear(functional.rms_norm(after, (hidden,)), wide).chunk(2, -1)
        (after + functional.linear(functional.silu(gate) * up, down)).backward(gradient)
        for weight in weights:
            weight.grad = None

    step()
    time.sleep(1)
    marks = [torch.cuda.Event(enable_timing=True) for _ in range(ITERATIONS)]
    for mark in marks:
        mark.record()
        step()
    torch.cuda.synchronize()
    took = [begin.elapsed_time(end) for begin, end in itertools.pairwise(marks)]
    found: Row = {
        "name": "block",
        "hidden": hidden,
        "first_ms": statistics.median(took[FIRST]),
        "last_ms": statistics.median(took[LAST]),
    }
    print(found, flush=True)
    return found


def main() -> None:
    """Measure and write."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("-o", "--output", type=Path, required=True)
    options = parser.parse_args()
    one, other = half(2**28), half(2**28)
    rows = [row("add", lambda: one + other, 6 * 2**28)]
    for hidden, heads, ffn, batch in SIZES:
        rows += loss_rows(hidden, batch)
        rows += moving_rows(hidden, heads, ffn, batch)
        rows += attention_rows(hidden, heads, batch)
        rows.append(block_row(hidden, heads, ffn, batch))
    facts = {"device": torch.cuda.get_device_name(), "torch": torch.__version__}
    options.output.write_text(json.dumps(facts | {"rows": rows}, indent=1))


if __name__ == "__main__":
    main()
