"""Ordinary scripts that are planned without a GPU and recorded on one.

    python -m benchmarks.plans.plan_programs NAME [--steps N]

They know nothing of torchledger. Each prints the times of its own steps (host clock, the device finished) and, on a
GPU, the allocator's peak in the last of them. Where ``GPU_GATE`` names a file, a program holds its lock from its third
step to its last: several may compile beside each other, and one at a time is timed.
"""

from __future__ import annotations

import argparse
import contextlib
import time
from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F

from benchmarks.capture.gpu_programs import Decoder, gate
from benchmarks.memory.memory_programs import Convolutions

Step = Callable[[], None]

FIRST_TIMED, PEAK_STEPS = 2, 4
"""Steps before the gate, which compile; and steps at the end whose peak of memory is looked at."""


class Settings:
    """Device and sizes of one run."""

    def __init__(self, device: str, *, tiny: bool) -> None:
        self.device, self.tiny = device, tiny

    def size(self, real: int, tiny: int) -> int:
        return tiny if self.tiny else real

    def tokens(self, vocabulary: int, batch: int, length: int) -> torch.Tensor:
        return torch.randint(0, vocabulary, (self.size(batch, 2), self.size(length, 32)), device=self.device)

    def images(self, batch: int, pixels: int) -> torch.Tensor:
        return torch.randn(self.size(batch, 2), 3, pixels, pixels, device=self.device)

    def labels(self, batch: int, classes: int = 1000) -> torch.Tensor:
        return torch.randint(0, classes, (self.size(batch, 2),), device=self.device)

    def decoder(self, layers: int, width: int = 768, vocabulary: int = 50304) -> nn.Module:
        if self.tiny:
            layers, width, vocabulary = 2, 64, 512
        return Decoder(layers, width, width // 64 if not self.tiny else 4, vocabulary).to(self.device)

    def autocast(self, dtype: torch.dtype = torch.bfloat16) -> contextlib.AbstractContextManager[Any]:
        return torch.autocast(self.device, dtype=dtype)


def _next_token_loss(logits: torch.Tensor, tokens: torch.Tensor) -> torch.Tensor:
    return F.cross_entropy(logits[:, :-1].flatten(0, 1).float(), tokens[:, 1:].flatten())


def gpt_autocast(settings: Settings) -> Step:
    """fp32 parameters under autocast, the loss outside the compiled model, a fused optimizer."""
    model = settings.decoder(12)
    compiled = torch.compile(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)
    tokens = settings.tokens(settings.size(50304, 512), 8, 1024)

    def step() -> None:
        with settings.autocast():
            loss = _next_token_loss(compiled(tokens), tokens)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()

    return step


def gpt_bf16(settings: Settings) -> Step:
    """A pure bf16 model with its loss in one graph; gradients are clipped, a foreach optimizer."""
    model = settings.decoder(12).bfloat16()
    compiled = torch.compile(lambda tokens: _next_token_loss(model(tokens), tokens))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, foreach=True)
    tokens = settings.tokens(settings.size(50304, 512), 8, 1024)

    def step() -> None:
        compiled(tokens).backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)

    return step


def gpt_layers(settings: Settings) -> Step:
    """Blocks compiled one by one; embedding, head and loss are eager."""
    model = settings.decoder(12)
    model.blocks = nn.ModuleList(torch.compile(block) for block in model.blocks)
    optimizer = torch.optim.AdamW(model.parameters(), foreach=True)
    tokens = settings.tokens(settings.size(50304, 512), 8, 1024)

    def step() -> None:
        with settings.autocast():
            loss = _next_token_loss(model(tokens), tokens)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()

    return step


def gpt_inference(settings: Settings) -> Step:
    """A prefill in bf16 without gradients, and what is taken of its logits."""
    model = settings.decoder(24, 1024).bfloat16().eval()
    compiled = torch.compile(model)
    tokens = settings.tokens(settings.size(50304, 512), 8, 1024)

    @torch.no_grad()
    def step() -> None:
        compiled(tokens)[:, -1].float().softmax(-1).topk(5)

    return step


def llama(settings: Settings) -> Step:
    """``transformers``' Llama with grouped queries in bf16, its own loss; gradients are clipped."""
    from transformers import LlamaConfig, LlamaForCausalLM

    shape = LlamaConfig(
        vocab_size=settings.size(32000, 512), hidden_size=settings.size(1024, 64),
        intermediate_size=settings.size(2816, 128), num_hidden_layers=settings.size(12, 2),
        num_attention_heads=settings.size(16, 4), num_key_value_heads=settings.size(8, 2), use_cache=False,
        max_position_embeddings=1024,
    )  # fmt: skip
    model = LlamaForCausalLM(shape).to(settings.device).bfloat16()
    compiled = torch.compile(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)
    tokens = settings.tokens(shape.vocab_size, 4, 1024)

    def step() -> None:
        compiled(input_ids=tokens, labels=tokens).loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()

    return step


def bert(settings: Settings) -> Step:
    """``transformers``' BERT with dropout and a padding mask, under autocast."""
    from transformers import BertConfig, BertForMaskedLM

    shape = BertConfig(
        vocab_size=settings.size(30522, 512), hidden_size=settings.size(768, 64),
        num_hidden_layers=settings.size(12, 2), num_attention_heads=settings.size(12, 4),
        intermediate_size=settings.size(3072, 128),
    )  # fmt: skip
    model = BertForMaskedLM(shape).to(settings.device)
    compiled = torch.compile(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    tokens = settings.tokens(shape.vocab_size, 16, 512)
    mask = torch.ones_like(tokens)

    def step() -> None:
        with settings.autocast():
            loss = compiled(input_ids=tokens, attention_mask=mask, labels=tokens).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()

    return step


def t5(settings: Settings) -> Step:
    """``transformers``' T5, an encoder and a decoder in bf16."""
    from transformers import T5Config, T5ForConditionalGeneration

    shape = T5Config(
        vocab_size=settings.size(32128, 512), d_model=settings.size(768, 64), d_kv=settings.size(64, 16),
        d_ff=settings.size(3072, 128), num_layers=settings.size(6, 2), num_heads=settings.size(12, 4), use_cache=False,
        decoder_start_token_id=0,
    )  # fmt: skip
    model = T5ForConditionalGeneration(shape).to(settings.device).bfloat16()
    compiled = torch.compile(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    tokens = settings.tokens(shape.vocab_size, 8, 512)

    def step() -> None:
        compiled(input_ids=tokens, labels=tokens).loss.backward()
        optimizer.step()
        optimizer.zero_grad()

    return step


def _classifier(settings: Settings, model: nn.Module, batch: int, pixels: int) -> Step:
    model = model.to(settings.device)
    compiled, optimizer = torch.compile(model), torch.optim.SGD(model.parameters(), lr=1e-3, momentum=0.9)
    images, labels = settings.images(batch, settings.size(pixels, pixels)), settings.labels(batch)

    def step() -> None:
        with settings.autocast():
            loss = F.cross_entropy(compiled(images), labels)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()

    return step


def vit(settings: Settings) -> Step:
    """``timm``'s ViT under autocast."""
    import timm

    return _classifier(settings, timm.create_model(f"vit_{'tiny' if settings.tiny else 'base'}_patch16_224"), 64, 224)


def resnet(settings: Settings) -> Step:
    """``timm``'s ResNet-50 in channels last with fp16 autocast and a gradient scaler."""
    import timm

    model = timm.create_model("resnet18" if settings.tiny else "resnet50").to(settings.device)
    model = model.to(memory_format=torch.channels_last)
    compiled, optimizer = torch.compile(model), torch.optim.SGD(model.parameters(), lr=1e-3, momentum=0.9)
    scaler = torch.amp.GradScaler(settings.device, init_scale=1024.0)
    images = settings.images(64, settings.size(224, 64)).to(memory_format=torch.channels_last)
    labels = settings.labels(64)

    def step() -> None:
        optimizer.zero_grad()
        with settings.autocast(torch.float16 if settings.device == "cuda" else torch.bfloat16):
            loss = F.cross_entropy(compiled(images), labels)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()

    return step


def convnext(settings: Settings) -> Step:
    """``timm``'s ConvNeXt under autocast."""
    import timm

    model = timm.create_model("convnext_atto" if settings.tiny else "convnext_tiny")
    return _classifier(settings, model, 64, settings.size(224, 64))


def efficientnet(settings: Settings) -> Step:
    """``timm``'s EfficientNet without gradients, in half precision."""
    import timm

    model = timm.create_model("efficientnet_b0" if settings.tiny else "efficientnet_b3").to(settings.device).eval()
    compiled = torch.compile(model.bfloat16())
    images = settings.images(128, settings.size(288, 64)).bfloat16()

    @torch.no_grad()
    def step() -> None:
        compiled(images).softmax(-1)

    return step


def convolutions(settings: Settings) -> Step:
    """Residual blocks of convolutions under autocast."""
    width, stages, blocks, pixels = (8, 1, 1, 32) if settings.tiny else (64, 3, 2, 224)
    return _classifier(settings, Convolutions(width, stages, blocks), 64, pixels)


def recommender(settings: Settings) -> Step:
    """Eager embeddings between two compiled parts, in full precision, with a dense optimizer."""
    rows, batch = settings.size(100_000, 100), settings.size(8192, 4)
    tables = nn.ModuleList(nn.EmbeddingBag(rows, 64, mode="sum") for _ in range(8)).to(settings.device)
    bottom = nn.Sequential(nn.Linear(13, 512), nn.ReLU(), nn.Linear(512, 64)).to(settings.device)
    top = nn.Sequential(nn.Linear(9 * 64, 1024), nn.ReLU(), nn.Linear(1024, 1)).to(settings.device)
    dense_part, last_part = torch.compile(bottom), torch.compile(top)
    optimizer = torch.optim.Adagrad([*tables.parameters(), *bottom.parameters(), *top.parameters()], lr=0.01)
    dense = torch.randn(batch, 13, device=settings.device)
    sparse = torch.randint(0, rows, (8, batch, 4), device=settings.device)
    clicked = torch.rand(batch, 1, device=settings.device).round()

    def step() -> None:
        bags = [table(indices) for table, indices in zip(tables, sparse, strict=True)]
        logits = last_part(torch.cat([dense_part(dense), *bags], dim=1))
        loss = F.binary_cross_entropy_with_logits(logits, clicked)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()

    return step


PROGRAMS: dict[str, Callable[[Settings], Step]] = {
    each.__name__: each
    for each in (
        *(gpt_autocast, gpt_bf16, gpt_layers, gpt_inference, llama, bert, vit, resnet, convnext, recommender),
        *(t5, efficientnet, convolutions),
    )
}
"""Those after ``recommender`` are for judging alone: nothing was tuned on them."""


def main() -> None:
    """Run one program and print how long its steps took."""
    parser = argparse.ArgumentParser()
    parser.add_argument("name", choices=PROGRAMS)
    parser.add_argument("--steps", type=int, default=24)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--tiny", action="store_true")
    options = parser.parse_args()
    torch.manual_seed(0)
    torch.set_float32_matmul_precision("high")
    step = PROGRAMS[options.name](Settings(options.device, tiny=options.tiny))
    on_gpu = options.device == "cuda"
    times = []
    with contextlib.ExitStack() as stack:
        for number in range(options.steps):
            if number == FIRST_TIMED:
                stack.enter_context(gate())
            if on_gpu and number == options.steps - PEAK_STEPS:
                torch.cuda.reset_peak_memory_stats()
            begin = time.perf_counter()
            step()
            if on_gpu:
                torch.cuda.synchronize()
            times.append((time.perf_counter() - begin) * 1e3)
    print(f"STEPS {options.steps} MS {' '.join(f'{each:.3f}' for each in times)}", flush=True)
    if on_gpu:
        print(f"PEAK {torch.cuda.max_memory_allocated()}", flush=True)


if __name__ == "__main__":
    main()
