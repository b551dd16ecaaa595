"""
Structure prediction: the trunk that refines pairs of residues (triangle multiplications, triangle attention) with a
distogram head. FSDP2; every block is recomputed in backward, and what is recomputed is one compiled function.
"""

import os
from dataclasses import dataclass

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.utils.checkpoint import checkpoint

from tock import steps


@dataclass
class TrunkConfig:
    n_res: int = 384
    c_s: int = 384
    c_z: int = 128
    c_hidden_mul: int = 128
    c_hidden_att: int = 32
    heads_pair: int = 4
    heads_single: int = 16
    blocks: int = 24
    bins: int = 64
    dropout: float = 0.25
    batch: int = 1
    lr: float = 1.8e-3


class Transition(nn.Module):
    def __init__(self, c, n=4):
        super().__init__()
        self.norm = nn.LayerNorm(c)
        self.a = nn.Linear(c, n * c, bias=False)
        self.b = nn.Linear(c, n * c, bias=False)
        self.out = nn.Linear(n * c, c, bias=False)

    def forward(self, x):
        x = self.norm(x)
        return self.out(F.silu(self.a(x)) * self.b(x))


class TriangleMultiplication(nn.Module):
    def __init__(self, c_z, c_hidden, outgoing):
        super().__init__()
        self.outgoing = outgoing
        self.norm_in = nn.LayerNorm(c_z)
        self.ab = nn.Linear(c_z, 2 * c_hidden, bias=False)
        self.ab_gate = nn.Linear(c_z, 2 * c_hidden, bias=False)
        self.norm_out = nn.LayerNorm(c_hidden)
        self.out = nn.Linear(c_hidden, c_z, bias=False)
        self.gate = nn.Linear(c_z, c_z, bias=False)

    def forward(self, z):
        z = self.norm_in(z)
        a, b = (self.ab(z) * torch.sigmoid(self.ab_gate(z))).chunk(2, dim=-1)
        if self.outgoing:
            x = torch.einsum("bikc,bjkc->bijc", a, b)
        else:
            x = torch.einsum("bkic,bkjc->bijc", a, b)
        return self.out(self.norm_out(x)) * torch.sigmoid(self.gate(z))


class TriangleAttention(nn.Module):
    def __init__(self, c_z, c_hidden, heads):
        super().__init__()
        self.heads = heads
        self.norm = nn.LayerNorm(c_z)
        self.bias = nn.Linear(c_z, heads, bias=False)
        self.qkv = nn.Linear(c_z, 3 * c_hidden * heads, bias=False)
        self.gate = nn.Linear(c_z, c_hidden * heads, bias=False)
        self.out = nn.Linear(c_hidden * heads, c_z, bias=False)

    def forward(self, z):
        b, n, _, _ = z.shape
        z = self.norm(z)
        bias = self.bias(z).permute(0, 3, 1, 2).contiguous()  # b h j k
        bias = bias[:, None].expand(-1, n, -1, -1, -1).flatten(0, 1)
        q, k, v = self.qkv(z).view(b * n, n, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        x = F.scaled_dot_product_attention(q, k, v, attn_mask=bias)
        x = x.transpose(1, 2).reshape(b, n, n, -1)
        return self.out(x * torch.sigmoid(self.gate(z)))


class SingleAttention(nn.Module):
    def __init__(self, c_s, c_z, heads):
        super().__init__()
        self.heads = heads
        self.norm_s, self.norm_z = nn.LayerNorm(c_s), nn.LayerNorm(c_z)
        self.bias = nn.Linear(c_z, heads, bias=False)
        self.qkv, self.gate = nn.Linear(c_s, 3 * c_s), nn.Linear(c_s, c_s, bias=False)
        self.out = nn.Linear(c_s, c_s, bias=False)

    def forward(self, s, z):
        b, n, c = s.shape
        s = self.norm_s(s)
        bias = self.bias(self.norm_z(z)).permute(0, 3, 1, 2).contiguous()
        q, k, v = self.qkv(s).view(b, n, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        x = F.scaled_dot_product_attention(q, k, v, attn_mask=bias).transpose(1, 2).reshape(b, n, c)
        return self.out(x * torch.sigmoid(self.gate(s)))


class PairformerBlock(nn.Module):
    def __init__(self, cfg):
        super().__init__()
        self.p = cfg.dropout
        self.mul_out = TriangleMultiplication(cfg.c_z, cfg.c_hidden_mul, True)
        self.mul_in = TriangleMultiplication(cfg.c_z, cfg.c_hidden_mul, False)
        self.att_start = TriangleAttention(cfg.c_z, cfg.c_hidden_att, cfg.heads_pair)
        self.att_end = TriangleAttention(cfg.c_z, cfg.c_hidden_att, cfg.heads_pair)
        self.pair_transition = Transition(cfg.c_z)
        self.single_att = SingleAttention(cfg.c_s, cfg.c_z, cfg.heads_single)
        self.single_transition = Transition(cfg.c_s)
        self.run = torch.compile(self.body)

    def drop(self, x, shared):
        shape = list(x.shape)
        shape[shared] = 1
        return x * F.dropout(x.new_ones(shape), self.p, self.training)

    def body(self, s, z):
        z = z + self.drop(self.mul_out(z), 1)
        z = z + self.drop(self.mul_in(z), 1)
        z = z + self.drop(self.att_start(z), 1)
        z = z + self.drop(self.att_end(z.transpose(1, 2)).transpose(1, 2), 2)
        z = z + self.pair_transition(z)
        s = s + self.single_att(s, z)
        s = s + self.single_transition(s)
        return s, z

    def forward(self, s, z):
        return checkpoint(self.run, s, z, use_reentrant=False)


class Trunk(nn.Module):
    def __init__(self, cfg):
        super().__init__()
        self.residue = nn.Embedding(32, cfg.c_s)
        self.left, self.right = nn.Linear(cfg.c_s, cfg.c_z, bias=False), nn.Linear(cfg.c_s, cfg.c_z, bias=False)
        self.relative = nn.Embedding(66, cfg.c_z)
        self.blocks = nn.ModuleList([PairformerBlock(cfg) for _ in range(cfg.blocks)])
        self.distogram = nn.Linear(cfg.c_z, cfg.bins)
        self.confidence = nn.Sequential(nn.LayerNorm(cfg.c_s), nn.Linear(cfg.c_s, 50))

    def forward(self, seq, index):
        s = self.residue(seq)
        offset = (index[:, :, None] - index[:, None, :]).clamp(-32, 32) + 32
        z = self.left(s)[:, :, None] + self.right(s)[:, None] + self.relative(offset)
        for block in self.blocks:
            s, z = block(s, z)
        return self.distogram(z + z.transpose(1, 2)), self.confidence(s)


def train():
    cfg = TrunkConfig()
    dist.init_process_group("nccl")
    rank = dist.get_rank()
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
    torch.cuda.set_device(device)

    torch.manual_seed(42)
    model = Trunk(cfg).to(device)
    mp = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.bfloat16)
    for block in model.blocks:
        fully_shard(block, mp_policy=mp)
    fully_shard(model, mp_policy=mp)
    opt = torch.optim.Adam(model.parameters(), lr=cfg.lr, betas=(0.9, 0.95), eps=1e-8)
    sched = torch.optim.lr_scheduler.LinearLR(opt, 1e-3, 1.0, total_iters=1000)
    edges = torch.linspace(2.3125, 21.6875, cfg.bins - 1, device=device)

    gen = torch.Generator(device=device)
    gen.manual_seed(1000 + rank)
    index = torch.arange(cfg.n_res, device=device).expand(cfg.batch, -1)
    for _ in steps():
        seq = torch.randint(0, 20, (cfg.batch, cfg.n_res), device=device, generator=gen)
        walk = torch.randn(cfg.batch, cfg.n_res, 3, device=device, generator=gen).cumsum(1) * 2.2
        bins = torch.bucketize(torch.cdist(walk, walk), edges)
        plddt = torch.randint(0, 50, (cfg.batch, cfg.n_res), device=device, generator=gen)

        disto, conf = model(seq, index)
        loss = F.cross_entropy(disto.float().flatten(0, 2), bins.flatten())
        loss = loss + 0.01 * F.cross_entropy(conf.float().flatten(0, 1), plddt.flatten())
        opt.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 0.1)
        opt.step()
        sched.step()


if __name__ == "__main__":
    train()
