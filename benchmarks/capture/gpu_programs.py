"""Ordinary training and inference scripts at real sizes, for a GPU.

    python -m benchmarks.capture.gpu_programs NAME [STEPS]

They know nothing of torchledger. Each prints the times of its own steps (host clock, the device finished). Where
``GPU_GATE`` names a file, a program holds its lock from its first use of the GPU to its last step: several may start
and end beside each other, and one at a time is timed.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import torch
from torch import nn
from torch.nn import functional as F

Step = Callable[[], None]


class Attention(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.qkv, self.out = nn.Linear(width, 3 * width, bias=False), nn.Linear(width, width, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, length, width = x.shape
        query, key, value = self.qkv(x).view(batch, length, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        mixed = F.scaled_dot_product_attention(query, key, value, is_causal=True)
        return self.out(mixed.transpose(1, 2).reshape(batch, length, width))


class Block(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.first, self.second = nn.LayerNorm(width), nn.LayerNorm(width)
        self.attention = Attention(width, heads)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x + self.attention(self.first(x))
        return x + self.mlp(self.second(x))


class Decoder(nn.Module):
    def __init__(self, layers: int = 12, width: int = 768, heads: int = 12, vocabulary: int = 50304) -> None:
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, width)
        self.blocks = nn.ModuleList(Block(width, heads) for _ in range(layers))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, vocabulary, bias=False)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.embedding(tokens)
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))


def _autocast() -> contextlib.AbstractContextManager[object]:
    return torch.autocast("cuda", dtype=torch.bfloat16)


def _next_token_loss(logits: torch.Tensor, tokens: torch.Tensor) -> torch.Tensor:
    return F.cross_entropy(logits[:, :-1].flatten(0, 1).float(), tokens[:, 1:].flatten())


def _train(model: nn.Module, called: nn.Module, optimizer: torch.optim.Optimizer, tokens: torch.Tensor) -> Step:
    def step() -> None:
        with _autocast():
            loss = _next_token_loss(called(tokens), tokens)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()

    return step


def loss_outside() -> Step:
    model = Decoder().cuda()
    tokens = torch.randint(0, 50304, (8, 1024), device="cuda")
    return _train(model, torch.compile(model), torch.optim.AdamW(model.parameters(), fused=True), tokens)


def layer_loop() -> Step:
    model = Decoder().cuda()
    model.blocks = nn.ModuleList(torch.compile(block) for block in model.blocks)
    tokens = torch.randint(0, 50304, (8, 1024), device="cuda")
    return _train(model, model, torch.optim.AdamW(model.parameters(), foreach=True), tokens)


def cuda_graphs() -> Step:
    model = Decoder(layers=6).cuda()
    tokens = torch.randint(0, 50304, (4, 512), device="cuda")
    optimizer = torch.optim.AdamW(model.parameters(), fused=True)
    return _train(model, torch.compile(model, mode="reduce-overhead"), optimizer, tokens)


def accumulation() -> Step:
    model = Decoder(layers=4).cuda().bfloat16()
    compiled = torch.compile(model)
    optimizer = torch.optim.AdamW(model.parameters(), fused=True)
    tokens = torch.randint(0, 50304, (4, 4, 1024), device="cuda")

    def step() -> None:
        for micro in tokens:
            (_next_token_loss(compiled(micro), micro) / 4).backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()

    return step


def scaler() -> Step:
    from torchvision.models import resnet50

    model = resnet50().cuda().to(memory_format=torch.channels_last)
    compiled = torch.compile(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3, momentum=0.9)
    scale = torch.amp.GradScaler("cuda", init_scale=1024.0)
    images = torch.randn(64, 3, 224, 224, device="cuda").to(memory_format=torch.channels_last)
    labels = torch.randint(0, 1000, (64,), device="cuda")

    def step() -> None:
        optimizer.zero_grad()
        with torch.autocast("cuda", dtype=torch.float16):
            loss = F.cross_entropy(compiled(images), labels)
        scale.scale(loss).backward()
        scale.step(optimizer)
        scale.update()

    return step


def compiled_optimizer() -> Step:
    model = Decoder(layers=4).cuda().bfloat16()
    compiled = torch.compile(model)
    optimizer = torch.optim.AdamW(model.parameters(), foreach=True, capturable=True)
    update = torch.compile(lambda: optimizer.step(), fullgraph=False)
    tokens = torch.randint(0, 50304, (8, 512), device="cuda")

    def step() -> None:
        _next_token_loss(compiled(tokens), tokens).backward()
        update()
        optimizer.zero_grad()

    return step


def recommender() -> Step:
    tables = nn.ModuleList(nn.EmbeddingBag(200_000, 64, mode="sum") for _ in range(8)).cuda()
    bottom = nn.Sequential(nn.Linear(13, 512), nn.ReLU(), nn.Linear(512, 64)).cuda()
    top = nn.Sequential(nn.Linear(9 * 64, 1024), nn.ReLU(), nn.Linear(1024, 1)).cuda()
    dense_part, last_part = torch.compile(bottom), torch.compile(top)
    optimizer = torch.optim.Adagrad([*tables.parameters(), *bottom.parameters(), *top.parameters()], lr=0.01)
    dense = torch.randn(4096, 13, device="cuda")
    sparse = torch.randint(0, 200_000, (8, 4096, 4), device="cuda")
    clicked = torch.rand(4096, 1, device="cuda").round()

    def step() -> None:
        bags = [table(indices) for table, indices in zip(tables, sparse, strict=True)]
        logits = last_part(torch.cat([dense_part(dense), *bags], dim=1))
        loss = F.binary_cross_entropy_with_logits(logits, clicked)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()

    return step


def gan() -> Step:
    generator = nn.Sequential(
        nn.ConvTranspose2d(128, 256, 4), nn.BatchNorm2d(256), nn.ReLU(),
        nn.ConvTranspose2d(256, 128, 4, 2, 1), nn.BatchNorm2d(128), nn.ReLU(), nn.ConvTranspose2d(128, 3, 4, 2, 1),
    ).cuda()  # fmt: skip
    discriminator = nn.Sequential(
        nn.Conv2d(3, 128, 4, 2, 1), nn.LeakyReLU(0.2), nn.Conv2d(128, 256, 4, 2, 1), nn.LeakyReLU(0.2), nn.Flatten(),
        nn.Linear(256 * 16, 1),
    ).cuda()  # fmt: skip
    make, judge = torch.compile(generator), torch.compile(discriminator)
    of_generator = torch.optim.Adam(generator.parameters(), lr=2e-4)
    of_discriminator = torch.optim.Adam(discriminator.parameters(), lr=2e-4)
    real = torch.randn(256, 3, 16, 16, device="cuda")
    yes, no = torch.ones(256, 1, device="cuda"), torch.zeros(256, 1, device="cuda")
    loss_of = F.binary_cross_entropy_with_logits

    def step() -> None:
        fake = make(torch.randn(256, 128, 1, 1, device="cuda"))
        of_discriminator.zero_grad()
        (loss_of(judge(real), yes) + loss_of(judge(fake.detach()), no)).backward()
        of_discriminator.step()
        of_generator.zero_grad()
        loss_of(judge(fake), yes).backward()
        of_generator.step()

    return step


def llama_loop() -> Step:
    from transformers import LlamaConfig, LlamaForCausalLM

    shape = LlamaConfig(
        vocab_size=32000, hidden_size=1024, intermediate_size=2816, num_hidden_layers=8, num_attention_heads=16,
        num_key_value_heads=8, max_position_embeddings=1024, use_cache=False,
    )  # fmt: skip
    model = LlamaForCausalLM(shape).cuda().bfloat16()
    compiled = torch.compile(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    tokens = torch.randint(0, 32000, (4, 1024), device="cuda")

    def step() -> None:
        loss = compiled(input_ids=tokens, labels=tokens).loss
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()

    return step


def inference() -> Step:
    model = Decoder().cuda().bfloat16().eval()
    compiled = torch.compile(model)
    tokens = torch.randint(0, 50304, (8, 512), device="cuda")

    @torch.no_grad()
    def step() -> None:
        compiled(tokens)[:, -1].float().softmax(-1).topk(5)

    return step


def ddp() -> Step:
    from torch.nn.parallel import DistributedDataParallel

    torch.manual_seed(0)
    model = DistributedDataParallel(Decoder(layers=6).cuda(), device_ids=[torch.cuda.current_device()])
    tokens = torch.randint(0, 50304, (8, 512), device="cuda")
    return _train(model, torch.compile(model), torch.optim.AdamW(model.parameters(), fused=True), tokens)


def fsdp2() -> Step:
    from torch.distributed.fsdp import fully_shard

    torch.manual_seed(0)
    model = Decoder(layers=6).cuda()
    for block in model.blocks:
        block.compile()
        fully_shard(block)
    fully_shard(model)
    tokens = torch.randint(0, 50304, (8, 512), device="cuda")
    return _train(model, model, torch.optim.AdamW(model.parameters(), foreach=True), tokens)


PROGRAMS: dict[str, Callable[[], Step]] = {
    each.__name__: each
    for each in (
        loss_outside, layer_loop, cuda_graphs, accumulation, scaler, compiled_optimizer, recommender, gan, llama_loop,
        inference, ddp, fsdp2,
    )
}  # fmt: skip
DISTRIBUTED = ("ddp", "fsdp2")


@contextlib.contextmanager
def gate() -> Iterator[None]:
    """Hold the lock; of several ranks the first one holds it, and the others wait for that one when they meet."""
    path = os.environ.get("GPU_GATE")
    if path is None or os.environ.get("LOCAL_RANK", "0") != "0":
        yield
        return
    with Path(path).open("w") as file:
        fcntl.lockf(file, fcntl.LOCK_EX)  # not inherited by the compiler's workers, as a flock would be
        yield


def main() -> None:
    """Run one program and print how long its steps took."""
    name, count = sys.argv[1], int(sys.argv[2]) if len(sys.argv) > 2 else 30
    torch.manual_seed(0)
    torch.set_float32_matmul_precision("high")
    with gate():
        times = _run(name, count)
    if os.environ.get("RANK", "0") == "0":
        print(f"STEPS {count} MS {' '.join(f'{each:.3f}' for each in times)}", flush=True)


def _run(name: str, count: int) -> list[float]:
    """Milliseconds of each step."""
    if name in DISTRIBUTED:
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
        torch.distributed.init_process_group("nccl")
    step = PROGRAMS[name]()
    times = []
    for _ in range(count):
        begin = time.perf_counter()
        step()
        torch.cuda.synchronize()
        times.append((time.perf_counter() - begin) * 1e3)
    if name in DISTRIBUTED:
        torch.distributed.destroy_process_group()
    return times


if __name__ == "__main__":
    main()
