"""Train a Llama on many GPUs: pipeline, tensor and sharded data parallel on one mesh, each block compiled.

``torchrun --nproc-per-node 8 train_llama.py --size 8b`` shards over all ranks; ``--tp 8 --pp 16`` on a world of many
more adds the other two. It knows nothing of torchledger: ``torchledger plan --world 128 examples/train_llama.py`` runs
it as it is, without a GPU.
"""

import argparse
import os

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.distributed.pipelining import PipelineStage, Schedule1F1B
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

SIZES = {
    "tiny": (256, 4, 8, 4, 512, 1024),
    "8b": (4096, 32, 32, 8, 14336, 128256),
    "70b": (8192, 80, 64, 8, 28672, 128256),
    "405b": (16384, 126, 128, 8, 53248, 128256),
}
"""Width, blocks, heads, heads of keys and values, hidden width, vocabulary."""


class Attention(nn.Module):
    """Causal attention with grouped keys and values."""

    def __init__(self, width, heads, kv_heads):
        super().__init__()
        self.head = width // heads
        self.groups = heads // kv_heads
        self.wq = nn.Linear(width, heads * self.head, bias=False)
        self.wk = nn.Linear(width, kv_heads * self.head, bias=False)
        self.wv = nn.Linear(width, kv_heads * self.head, bias=False)
        self.wo = nn.Linear(heads * self.head, width, bias=False)

    def forward(self, x):
        """Heads follow the width that this rank has."""
        q, k, v = (layer(x).unflatten(-1, (-1, self.head)).transpose(1, 2) for layer in (self.wq, self.wk, self.wv))
        k, v = (each.repeat_interleave(self.groups, dim=1) for each in (k, v))
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.wo(mixed.transpose(1, 2).flatten(-2))


class Block(nn.Module):
    """Attention and a gated feed-forward layer, each behind a norm."""

    def __init__(self, width, heads, kv_heads, hidden):
        super().__init__()
        self.norm1, self.norm2 = nn.RMSNorm(width), nn.RMSNorm(width)
        self.attention = Attention(width, heads, kv_heads)
        self.w1 = nn.Linear(width, hidden, bias=False)
        self.w2 = nn.Linear(hidden, width, bias=False)
        self.w3 = nn.Linear(width, hidden, bias=False)

    def forward(self, x):
        """Both halves, each with its residual."""
        x = x + self.attention(self.norm1(x))
        y = self.norm2(x)
        return x + self.w2(F.silu(self.w1(y)) * self.w3(y))


class Llama(nn.Module):
    """The blocks from ``first`` to ``last``, with the embedding before the first and the head behind the last."""

    def __init__(self, size, first=0, last=None):
        super().__init__()
        width, blocks, heads, kv_heads, hidden, vocabulary = SIZES[size]
        last = blocks if last is None else last
        self.embedding = nn.Embedding(vocabulary, width) if first == 0 else None
        self.blocks = nn.ModuleList(Block(width, heads, kv_heads, hidden) for _ in range(first, last))
        self.norm = nn.RMSNorm(width) if last == blocks else None
        self.head = nn.Linear(width, vocabulary, bias=False) if last == blocks else None

    def forward(self, x):
        """Tokens or hidden states to hidden states or logits."""
        if self.embedding is not None:
            x = self.embedding(x)
        for block in self.blocks:
            x = block(x)
        return x if self.head is None else self.head(self.norm(x))


def loss_of(logits, targets):
    """Cross entropy over all tokens."""
    return F.cross_entropy(logits.flatten(0, 1).float(), targets.flatten())


def spread(model, mesh, tp):
    """Tensor parallel blocks, compiled, sharded over the data parallel ranks in bfloat16."""
    columns, rows = ("attention.wq", "attention.wk", "attention.wv", "w1", "w3"), ("attention.wo", "w2")
    plan = {name: ColwiseParallel() for name in columns} | {name: RowwiseParallel() for name in rows}
    policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    for block in model.blocks:
        if tp > 1:
            parallelize_module(block, mesh["tp"], plan)
        block.compile()
        fully_shard(block, mesh=mesh["dp"], mp_policy=policy)
    fully_shard(model, mesh=mesh["dp"], mp_policy=policy)
    return model


def optimizers_of(model):
    """One for the parameters of each mesh: an operator over a list takes no mixture."""
    meshes = {}
    for parameter in model.parameters():
        meshes.setdefault(parameter.device_mesh, []).append(parameter)
    return [torch.optim.AdamW(some, lr=1e-4, foreach=True) for some in meshes.values()]


def main():
    """Train for some steps."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--size", choices=list(SIZES), default="8b")
    parser.add_argument("--tp", type=int, default=1)
    parser.add_argument("--pp", type=int, default=1)
    parser.add_argument("--batch", type=int, default=1, help="sequences a rank and microbatch")
    parser.add_argument("--microbatches", type=int, default=8)
    parser.add_argument("--sequence", type=int, default=8192)
    parser.add_argument("--steps", type=int, default=10)
    options = parser.parse_args()

    torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    dist.init_process_group("nccl")
    dp = dist.get_world_size() // (options.tp * options.pp)
    mesh = init_device_mesh("cuda", (options.pp, dp, options.tp), mesh_dim_names=("pp", "dp", "tp"))
    stage, blocks = mesh["pp"].get_local_rank(), SIZES[options.size][1]
    borders = [blocks * each // options.pp for each in range(options.pp + 1)]
    with torch.device("meta"):
        model = Llama(options.size, borders[stage], borders[stage + 1])
    model = spread(model, mesh, options.tp)
    model.to_empty(device="cuda")
    optimizers = optimizers_of(model)

    count = options.batch * (options.microbatches if options.pp > 1 else 1)
    tokens = torch.randint(0, SIZES[options.size][5], (count, options.sequence), device="cuda")
    targets = torch.randint(0, SIZES[options.size][5], (count, options.sequence), device="cuda")
    schedule = None
    if options.pp > 1:
        part = PipelineStage(model, stage, options.pp, torch.device("cuda"), group=mesh["pp"].get_group())
        schedule = Schedule1F1B(part, n_microbatches=options.microbatches, loss_fn=loss_of)
    for step in range(options.steps):
        if schedule is None:
            loss_of(model(tokens), targets).backward()
        elif stage == 0:
            schedule.step(tokens)
        elif stage == options.pp - 1:
            schedule.step(target=targets)
        else:
            schedule.step()
        for optimizer in optimizers:
            optimizer.step()
            optimizer.zero_grad()
        if dist.get_rank() == 0:
            print("step", step, flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
