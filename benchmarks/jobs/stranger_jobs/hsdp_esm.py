"""Protein language model (ESM-2, 650M) with FSDP2 on a replicate x shard mesh. Micro-batches reduce-scatter each time
and all-reduce over the replicas on the last one only. Every second block is recomputed. Blocks are compiled."""

import argparse
import os

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from tock import steps

ALPHABET, MASK, PAD = 33, 32, 1


def get_args():
    p = argparse.ArgumentParser()
    p.add_argument("--layers", type=int, default=33)
    p.add_argument("--dim", type=int, default=1280)
    p.add_argument("--heads", type=int, default=20)
    p.add_argument("--length", type=int, default=1024)
    p.add_argument("--micro-batch", type=int, default=4)
    p.add_argument("--accumulate", type=int, default=2)
    p.add_argument("--replicas", type=int, default=1)
    p.add_argument("--lr", type=float, default=4e-4)
    return p.parse_args()


class Rotary(nn.Module):
    def __init__(self, dim, length):
        super().__init__()
        freq = 1.0 / (10000 ** (torch.arange(0, dim, 2).float() / dim))
        emb = torch.outer(torch.arange(length).float(), freq).repeat(1, 2)
        self.register_buffer("cos", emb.cos()[None, None], persistent=False)
        self.register_buffer("sin", emb.sin()[None, None], persistent=False)

    def forward(self, x):
        x1, x2 = x.chunk(2, dim=-1)
        return (x * self.cos + torch.cat((-x2, x1), dim=-1) * self.sin).type_as(x)


class EsmLayer(nn.Module):
    def __init__(self, dim, heads, length):
        super().__init__()
        self.heads = heads
        self.rot = Rotary(dim // heads, length)
        self.ln1, self.ln2 = nn.LayerNorm(dim), nn.LayerNorm(dim)
        self.q_proj, self.k_proj, self.v_proj = nn.Linear(dim, dim), nn.Linear(dim, dim), nn.Linear(dim, dim)
        self.out_proj = nn.Linear(dim, dim)
        self.fc1, self.fc2 = nn.Linear(dim, 4 * dim), nn.Linear(4 * dim, dim)

    def forward(self, x, keep):
        residual, x = x, self.ln1(x)
        q, k, v = (
            f(x).unflatten(-1, (self.heads, -1)).transpose(1, 2) for f in (self.q_proj, self.k_proj, self.v_proj)
        )
        x = F.scaled_dot_product_attention(self.rot(q), self.rot(k), v, attn_mask=keep)
        x = residual + self.out_proj(x.transpose(1, 2).flatten(2))
        return x + self.fc2(F.gelu(self.fc1(self.ln2(x))))


class Esm(nn.Module):
    def __init__(self, a):
        super().__init__()
        self.embed = nn.Embedding(ALPHABET, a.dim, padding_idx=PAD)
        self.layers = nn.ModuleList(EsmLayer(a.dim, a.heads, a.length) for _ in range(a.layers))
        self.ln = nn.LayerNorm(a.dim)
        self.dense, self.lm_ln = nn.Linear(a.dim, a.dim), nn.LayerNorm(a.dim)
        self.lm_head = nn.Linear(a.dim, ALPHABET)

    def forward(self, ids):
        present = ids != PAD
        x = self.embed(ids)
        x = x * present.unsqueeze(-1)
        keep = present[:, None, None, :]
        for layer in self.layers:
            x = layer(x, keep)
        return self.lm_head(self.lm_ln(F.gelu(self.dense(self.ln(x)))))


def proteins(a, device):
    ids = torch.randint(4, 24, (a.micro_batch, a.length), device=device)
    lengths = torch.randint(a.length // 2, a.length + 1, (a.micro_batch, 1), device=device)
    ids = ids.masked_fill(torch.arange(a.length, device=device) >= lengths, PAD)
    chosen = (torch.rand(ids.shape, device=device) < 0.15) & (ids != PAD)
    labels = ids.masked_fill(~chosen, -100)
    return ids.masked_fill(chosen & (torch.rand(ids.shape, device=device) < 0.8), MASK), labels


def main():
    a = get_args()
    rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
    torch.cuda.set_device(device)
    dist.init_process_group("nccl")
    mesh = init_device_mesh("cuda", (a.replicas, world // a.replicas), mesh_dim_names=("replicate", "shard"))

    torch.manual_seed(3)
    model = Esm(a).to(device)
    for i, layer in enumerate(model.layers):
        if i % 2 == 1:
            layer = checkpoint_wrapper(layer)
        model.layers[i] = torch.compile(layer)
    policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    for layer in model.layers:
        fully_shard(layer, mesh=mesh, mp_policy=policy)
    root = MixedPrecisionPolicy(torch.bfloat16, reduce_dtype=torch.float32, output_dtype=torch.float32)
    fully_shard(model, mesh=mesh, mp_policy=root)
    optimizer = torch.optim.AdamW(model.parameters(), lr=a.lr, betas=(0.9, 0.98), weight_decay=0.01)
    warmup = torch.optim.lr_scheduler.LinearLR(optimizer, start_factor=0.01, total_iters=200)

    torch.manual_seed(50 + rank)
    for _ in steps():
        for micro in range(a.accumulate):
            model.set_requires_all_reduce(micro == a.accumulate - 1)
            ids, labels = proteins(a, device)
            logits = model(ids)
            loss = F.cross_entropy(logits.view(-1, ALPHABET), labels.view(-1)) / a.accumulate
            loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        warmup.step()


if __name__ == "__main__":
    main()
