"""Zero-bubble pipeline in the shape of a V: rank 0 has the first and the last stage of four, rank 1 the two between."""

import os

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.pipelining import PipelineStage, ScheduleZBVZeroBubble
from torch.nn import functional as F
from tock import steps

args = {"vocab": 32768, "dim": 2048, "heads": 16, "kv_heads": 4, "hidden": 5632, "blocks": 12, "seq": 2048}
N_MICRO = 8
MICRO_BATCH = 1


class GQA(nn.Module):
    def __init__(self, dim, heads, kv_heads):
        super().__init__()
        self.head_dim = dim // heads
        self.q = nn.Linear(dim, heads * self.head_dim, bias=False)
        self.kv = nn.Linear(dim, 2 * kv_heads * self.head_dim, bias=False)
        self.o = nn.Linear(heads * self.head_dim, dim, bias=False)

    def forward(self, x):
        q = self.q(x).unflatten(-1, (-1, self.head_dim)).transpose(1, 2)
        k, v = self.kv(x).unflatten(-1, (-1, self.head_dim)).transpose(1, 2).chunk(2, dim=1)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
        return self.o(y.transpose(1, 2).flatten(2))


class ReluSquared(nn.Module):
    def forward(self, x):
        return F.relu(x).square()


class DecoderBlock(nn.Module):
    def __init__(self, dim, heads, kv_heads, hidden):
        super().__init__()
        self.attn_norm, self.mlp_norm = nn.LayerNorm(dim, bias=False), nn.LayerNorm(dim, bias=False)
        self.attn = GQA(dim, heads, kv_heads)
        self.mlp = nn.Sequential(nn.Linear(dim, hidden, bias=False), ReluSquared(), nn.Linear(hidden, dim, bias=False))

    def forward(self, x):
        x = x + self.attn(self.attn_norm(x))
        return x + self.mlp(self.mlp_norm(x))


class Embed(nn.Module):
    def __init__(self, vocab, dim, seq):
        super().__init__()
        self.tokens = nn.Embedding(vocab, dim)
        self.positions = nn.Parameter(torch.randn(seq, dim) * 0.02)

    def forward(self, ids):
        return self.tokens(ids) + self.positions[: ids.size(1)]


def build_stage(index, n_stages):
    a = args
    share = a["blocks"] // n_stages
    parts = [DecoderBlock(a["dim"], a["heads"], a["kv_heads"], a["hidden"]) for _ in range(share)]
    if index == 0:
        parts.insert(0, Embed(a["vocab"], a["dim"], a["seq"]))
    if index == n_stages - 1:
        parts += [nn.LayerNorm(a["dim"], bias=False), nn.Linear(a["dim"], a["vocab"], bias=False)]
    return nn.Sequential(*parts)


def token_loss(output, labels):
    return F.cross_entropy(output.flatten(0, 1).float(), labels.flatten())


def main():
    local_rank = int(os.environ["LOCAL_RANK"])
    device = torch.device(f"cuda:{local_rank}")
    torch.cuda.set_device(device)
    dist.init_process_group("nccl", device_id=device)
    rank, pp = dist.get_rank(), dist.get_world_size()
    n_stages = 2 * pp

    torch.manual_seed(1234 + rank)
    indices = [rank, n_stages - 1 - rank]
    modules = [build_stage(i, n_stages).to(device=device, dtype=torch.bfloat16) for i in indices]
    stages = [PipelineStage(m, i, n_stages, device) for m, i in zip(modules, indices)]
    schedule = ScheduleZBVZeroBubble(stages, n_microbatches=N_MICRO, loss_fn=token_loss)

    params = [p for m in modules for p in m.parameters()]
    optimizer = torch.optim.AdamW(params, lr=3e-4, betas=(0.9, 0.95), weight_decay=0.1, fused=True)

    for _ in steps():
        tokens = torch.randint(0, args["vocab"], (N_MICRO * MICRO_BATCH, args["seq"] + 1), device=device)
        inputs, labels = tokens[:, :-1], tokens[:, 1:]
        if rank == 0:
            losses = []
            schedule.step(inputs, target=labels, losses=losses)
        else:
            schedule.step()
        total = torch.zeros((), device=device)
        for g in torch._foreach_norm([p.grad for p in params], 2, dtype=torch.float32):
            total += g.square()
        dist.all_reduce(total)
        torch._foreach_mul_([p.grad for p in params], torch.clamp(1.0 / (total.sqrt() + 1e-6), max=1.0))
        optimizer.step()
        optimizer.zero_grad()


if __name__ == "__main__":
    main()
