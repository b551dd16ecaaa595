"""A small training script, as a user writes one: compiles a model, trains it some steps, says how long both took.

    python -m benchmarks.capture.small_training unet|gpt|ZOO_MODEL [--device cuda] [--batches 30]

The last line of its output is a JSON object. ``unet`` and ``gpt`` are small enough that a GPU waits for its host.
"""

from __future__ import annotations

import argparse
import json
import resource
import time
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch._dynamo.utils import counters

STEPS_A_BATCH = 5


class ConvolutionBlock(nn.Module):
    """Twice convolution, normalization and activation, and around it."""

    def __init__(self, channels_in: int, channels: int) -> None:
        super().__init__()
        self.first = nn.Conv2d(channels_in, channels, 3, padding=1)
        self.second = nn.Conv2d(channels, channels, 3, padding=1)
        self.around = nn.Conv2d(channels_in, channels, 1)
        self.norms = nn.ModuleList([nn.GroupNorm(8, channels) for _ in range(2)])

    def forward(self, x: Tensor) -> Tensor:
        inner = F.silu(self.norms[0](self.first(x)))
        found: Tensor = F.silu(self.norms[1](self.second(inner))) + self.around(x)
        return found


class UNet(nn.Module):
    """Down through halved images and up again, with what was seen on the way down beside it."""

    def __init__(self, width: int = 16, levels: int = 3) -> None:
        super().__init__()
        sizes = [width * 2**level for level in range(levels)]
        self.down = nn.ModuleList([ConvolutionBlock(i, o) for i, o in zip([3, *sizes[:-1]], sizes, strict=True)])
        self.middle = ConvolutionBlock(sizes[-1], sizes[-1])
        ups = list(reversed(sizes))
        self.up = nn.ModuleList([ConvolutionBlock(2 * i, o) for i, o in zip(ups, [*ups[1:], width], strict=True)])
        self.last = nn.Conv2d(width, 3, 1)

    def forward(self, x: Tensor) -> Tensor:
        seen = []
        for block in self.down:
            x = block(x)
            seen.append(x)
            x = F.avg_pool2d(x, 2)
        x = self.middle(x)
        for block in self.up:
            x = block(torch.cat([F.interpolate(x, scale_factor=2.0), seen.pop()], 1))
        found: Tensor = self.last(x)
        return found


class AttentionBlock(nn.Module):
    """Causal attention and a perceptron, each after a normalization and with what came in added."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norms = nn.ModuleList([nn.LayerNorm(width) for _ in range(2)])
        self.projected = nn.Linear(width, 3 * width)
        self.mixed = nn.Linear(width, width)
        self.perceptron = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, x: Tensor) -> Tensor:
        parts = self.projected(self.norms[0](x)).chunk(3, -1)
        q, k, v = (part.unflatten(-1, (self.heads, -1)).transpose(1, 2) for part in parts)
        x = x + self.mixed(F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(2))
        found: Tensor = x + self.perceptron(self.norms[1](x))
        return found


class Gpt(nn.Module):
    """A language model of a few layers."""

    def __init__(self, width: int = 128, layers: int = 4, words: int = 512) -> None:
        super().__init__()
        self.words = nn.Embedding(words, width)
        self.blocks = nn.Sequential(*[AttentionBlock(width, 4) for _ in range(layers)])
        self.head = nn.Linear(width, words)

    def forward(self, ids: Tensor) -> Tensor:
        found: Tensor = self.head(self.blocks(self.words(ids)))
        return found


def make(name: str, device: str) -> tuple[nn.Module, Callable[[Any], Tensor]]:
    """A model and ``loss(model)``."""
    torch.manual_seed(0)
    if name == "unet":
        images = torch.randn(2, 3, 32, 32, device=device)
        return UNet().to(device), lambda model: model(images).square().mean()
    if name == "gpt":
        ids = torch.randint(0, 512, (2, 64), device=device)
        return Gpt().to(device), lambda model: F.cross_entropy(model(ids).flatten(0, 1), ids.flatten())
    import model_zoo

    case = model_zoo.make(name)
    inputs = tuple(tensor.to(device) for tensor in case.inputs)
    return case.module.to(device), lambda model: case.loss(model, *inputs)


def cpu_s() -> float:
    """CPU seconds of this process and of the compilers that it has waited for, in user and kernel mode."""
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(each.ru_utime + each.ru_stime for each in used)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--batches", type=int, default=30)
    arguments = parser.parse_args()
    module, loss = make(arguments.model, arguments.device)

    def wait() -> None:
        if arguments.device == "cuda":
            torch.cuda.synchronize()

    wait()
    compiled = torch.compile(module)
    started, cpu_before = time.perf_counter(), cpu_s()
    loss(compiled).backward()
    wait()
    compile_s, compile_cpu_s = time.perf_counter() - started, cpu_s() - cpu_before
    times, cpu_times = [], []
    for _ in range(arguments.batches):
        started, cpu_before = time.perf_counter(), time.process_time()
        for _ in range(STEPS_A_BATCH):
            loss(compiled).backward()
        wait()
        times.append((time.perf_counter() - started) / STEPS_A_BATCH * 1e6)
        cpu_times.append((time.process_time() - cpu_before) / STEPS_A_BATCH * 1e6)
    found = counters["inductor"]
    print(
        json.dumps(
            {
                "compile_s": compile_s,
                "compile_cpu_s": compile_cpu_s,
                "step_us": times,
                "step_cpu_us": cpu_times,
                "graphs_from_cache": found["fxgraph_cache_hit"],
                "graphs_compiled": found["fxgraph_cache_miss"] + found["fxgraph_cache_bypass"],
            }
        )
    )


if __name__ == "__main__":
    main()
