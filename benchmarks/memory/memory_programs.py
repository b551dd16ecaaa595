"""Training scripts whose memory is looked at.

``python -m benchmarks.memory.memory_programs NAME [--tiny] [--device cpu] [--recompute P]``. They know nothing of
torchledger. Each prints the time of its own last steps and, on a GPU, the allocator's peak in them. ``--recompute``
checkpoints the modules whose path, with ``*`` for numbers, is ``P``.
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import re
import statistics
import time
from collections.abc import Callable

import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from benchmarks.capture.gpu_programs import Decoder

Step = Callable[[], None]


class Residual(nn.Module):
    """Two convolutions around which the input passes."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.first, self.second = (nn.Conv2d(width, width, 3, padding=1, bias=False) for _ in range(2))
        self.norm_1, self.norm_2 = nn.BatchNorm2d(width), nn.BatchNorm2d(width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return F.relu(x + self.norm_2(self.second(F.relu(self.norm_1(self.first(x))))))


class Convolutions(nn.Module):
    """Stages of residual blocks, each half as large and twice as wide as the one before."""

    def __init__(self, width: int, stages: int, blocks: int) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, width, 7, stride=2, padding=3)
        layers: list[nn.Module] = []
        for stage in range(stages):
            layers += [Residual(width << stage) for _ in range(blocks)]
            layers += [nn.Conv2d(width << stage, width << (stage + 1), 2, stride=2)]
        self.layers = nn.ModuleList(layers)
        self.head = nn.Linear(width << stages, 1000)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = F.relu(self.stem(x))
        for layer in self.layers:
            x = layer(x)
        return self.head(x.mean(dim=(2, 3)))


class Settings:
    """Device and sizes of one run."""

    def __init__(self, device: str, recompute: str | None, *, tiny: bool) -> None:
        self.device, self.recompute, self.tiny = device, recompute, tiny
        self.layers, self.width, self.vocabulary = (2, 64, 512) if tiny else (12, 768, 50304)
        self.batch, self.length = (2, 64) if tiny else (8, 1024)

    def decoder(self, dtype: torch.dtype = torch.float32) -> Decoder:
        """A GPT-2-shaped model, with modules checkpointed as asked for."""
        model = Decoder(self.layers, self.width, 4 if self.tiny else 12, self.vocabulary).to(self.device, dtype)
        return self.checkpointed(model)

    def checkpointed(self, model: nn.Module) -> nn.Module:
        for path, module in model.named_modules():
            generic = re.sub(r"(?<![^.])\d+(?![^.])", "*", path)
            if self.recompute and f".{generic}".endswith(f".{self.recompute}"):
                module.forward = functools.partial(checkpoint, module.forward, use_reentrant=False)
        return model

    def tokens(self) -> torch.Tensor:
        return torch.randint(0, self.vocabulary, (self.batch, self.length), device=self.device)

    def optimizer(self, model: nn.Module) -> torch.optim.Optimizer:
        return torch.optim.AdamW(model.parameters(), lr=1e-4, fused=self.device == "cuda")

    def autocast(self) -> contextlib.AbstractContextManager[None]:
        return torch.autocast(self.device, dtype=torch.bfloat16)


def _loss(logits: torch.Tensor, tokens: torch.Tensor) -> torch.Tensor:
    return F.cross_entropy(logits.flatten(0, 1), tokens.flatten())


def _training(settings: Settings, model: nn.Module, loss_of: Callable[[torch.Tensor], torch.Tensor]) -> Step:
    optimizer = settings.optimizer(model)

    def step() -> None:
        loss_of(settings.tokens()).backward()
        optimizer.step()
        optimizer.zero_grad()

    return step


def bf16(settings: Settings) -> Step:
    """The whole model and its loss in one graph, in plain bf16."""
    model = settings.decoder(torch.bfloat16)
    compiled = torch.compile(lambda tokens: _loss(model(tokens), tokens))
    return _training(settings, model, compiled)


def autocast(settings: Settings) -> Step:
    """fp32 parameters under autocast, the loss outside the compiled model."""
    model = settings.decoder()
    compiled = torch.compile(model)

    def loss_of(tokens: torch.Tensor) -> torch.Tensor:
        with settings.autocast():
            logits = compiled(tokens)
        return _loss(logits.float(), tokens)

    return _training(settings, model, loss_of)


def accumulation(settings: Settings) -> Step:
    """Three microsteps, whose gradients add up, for one step of the optimizer."""
    model = settings.decoder()
    compiled, optimizer = torch.compile(model), settings.optimizer(model)

    def step() -> None:
        for _ in range(3):
            tokens = settings.tokens()
            with settings.autocast():
                loss = _loss(compiled(tokens), tokens)
            (loss / 3).backward()
        optimizer.step()
        optimizer.zero_grad()

    return step


def checkpoint_inside(settings: Settings) -> Step:
    """Every block recomputed, within the compiled model."""
    settings.recompute = "blocks.*"
    return bf16(settings)


def checkpoint_outside(settings: Settings) -> Step:
    """Blocks compiled one by one and checkpointed by the eager program around them."""
    model = settings.decoder(torch.bfloat16)
    blocks = [torch.compile(block) for block in model.blocks]

    def loss_of(tokens: torch.Tensor) -> torch.Tensor:
        x = model.embedding(tokens)
        for block in blocks:
            x = checkpoint(block, x, use_reentrant=False)
        return _loss(model.head(model.norm(x)), tokens)

    return _training(settings, model, loss_of)


def eager_parts(settings: Settings) -> Step:
    """Blocks compiled one by one; embedding, head and loss are eager."""
    model = settings.decoder(torch.bfloat16)
    blocks = [torch.compile(block) for block in model.blocks]

    def loss_of(tokens: torch.Tensor) -> torch.Tensor:
        x = model.embedding(tokens)
        for block in blocks:
            x = block(x)
        return _loss(model.head(model.norm(x)), tokens)

    return _training(settings, model, loss_of)


def cuda_graphs(settings: Settings) -> Step:
    """The whole model under CUDA graphs."""
    model = settings.decoder(torch.bfloat16)
    compiled = torch.compile(
        lambda tokens: _loss(model(tokens), tokens), mode="reduce-overhead" if settings.device == "cuda" else None
    )
    return _training(settings, model, compiled)


def convolutions(settings: Settings) -> Step:
    """Residual blocks of convolutions under autocast."""
    size = (8, 1, 1, 2, 32) if settings.tiny else (64, 3, 3, 96, 224)
    width, stages, blocks, batch, pixels = size
    model = settings.checkpointed(Convolutions(width, stages, blocks).to(settings.device))
    compiled, optimizer = torch.compile(model), torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)

    def step() -> None:
        images = torch.randn(batch, 3, pixels, pixels, device=settings.device)
        labels = torch.randint(0, 1000, (batch,), device=settings.device)
        with settings.autocast():
            loss = F.cross_entropy(compiled(images), labels)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()

    return step


PROGRAMS: dict[str, Callable[[Settings], Step]] = {
    each.__name__: each
    for each in (
        *(bf16, autocast, accumulation, checkpoint_inside),
        *(checkpoint_outside, eager_parts, cuda_graphs, convolutions),
    )
}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("name", choices=PROGRAMS)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--tiny", action="store_true")
    parser.add_argument("--recompute")
    parser.add_argument("--steps", type=int, default=20)
    options = parser.parse_args()
    torch.manual_seed(0)
    torch.set_float32_matmul_precision("high")
    step = PROGRAMS[options.name](Settings(options.device, options.recompute, tiny=options.tiny))
    on_gpu = options.device == "cuda"
    times = []
    for number in range(options.steps):
        if on_gpu and number == options.steps - 3:  # the recording is over: these are the program's own
            torch.cuda.synchronize()
            torch.cuda.reset_peak_memory_stats()
        begin = time.perf_counter()
        step()
        if on_gpu:
            torch.cuda.synchronize()
        times.append((time.perf_counter() - begin) * 1e3)
    print(f"STEP_MS {statistics.median(times[-3:]):.3f}")
    if on_gpu:
        print(f"PEAK {torch.cuda.max_memory_allocated()}")


if __name__ == "__main__":
    main()
