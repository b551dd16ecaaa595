# Mixture-of-Depths language model: every second block only sees the top 12.5 % of the tokens.
import math
from dataclasses import dataclass

import torch
import torch.nn as nn
import torch.nn.functional as F
from tick import steps


@dataclass
class Config:
    vocab: int = 32000
    dim: int = 1024
    layers: int = 24
    heads: int = 16
    hidden: int = 2816
    length: int = 2048
    batch: int = 4
    capacity: float = 0.125
    lr: float = 3e-4
    warmup: int = 200
    total: int = 10000


class RMSNorm(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.scale = nn.Parameter(torch.ones(dim))

    def forward(self, x):
        x32 = x.float()
        return (x32 * torch.rsqrt(x32.square().mean(-1, keepdim=True) + 1e-5)).type_as(x) * self.scale


def rope_table(length, head_dim, theta=10000.0):
    freq = theta ** (-torch.arange(0, head_dim, 2).float() / head_dim)
    angle = torch.outer(torch.arange(length).float(), freq)
    return angle.cos(), angle.sin()


def rotate(x, cos, sin):
    a, b = x.float().chunk(2, -1)
    return torch.cat([a * cos - b * sin, a * sin + b * cos], -1).type_as(x)


class Block(nn.Module):
    def __init__(self, cfg):
        super().__init__()
        self.heads = cfg.heads
        self.norm1, self.norm2 = RMSNorm(cfg.dim), RMSNorm(cfg.dim)
        self.qkv = nn.Linear(cfg.dim, 3 * cfg.dim, bias=False)
        self.proj = nn.Linear(cfg.dim, cfg.dim, bias=False)
        self.w13 = nn.Linear(cfg.dim, 2 * cfg.hidden, bias=False)
        self.w2 = nn.Linear(cfg.hidden, cfg.dim, bias=False)

    def delta(self, x, cos, sin):
        b, t, d = x.shape
        q, k, v = self.qkv(self.norm1(x)).view(b, t, 3, self.heads, -1).permute(2, 0, 3, 1, 4).unbind(0)
        y = F.scaled_dot_product_attention(rotate(q, cos, sin), rotate(k, cos, sin), v, is_causal=True)
        a = self.proj(y.transpose(1, 2).reshape(b, t, d))
        gate, up = self.w13(self.norm2(x + a)).chunk(2, -1)
        return a + self.w2(F.silu(gate) * up)

    def forward(self, x, cos, sin):
        return x + self.delta(x, cos, sin), None


class RoutedBlock(Block):
    def __init__(self, cfg):
        super().__init__(cfg)
        self.router = nn.Linear(cfg.dim, 1, bias=False)
        self.k = int(cfg.length * cfg.capacity)

    def forward(self, x, cos, sin):
        b, t, d = x.shape
        score = self.router(x).squeeze(-1).float()
        picked = score.topk(self.k, dim=1, sorted=False).indices.sort(dim=1).values
        weight = torch.sigmoid(score.gather(1, picked))
        spread = picked.unsqueeze(-1).expand(-1, -1, d)
        out = self.delta(x.gather(1, spread), cos[picked].unsqueeze(1), sin[picked].unsqueeze(1))
        x = x.scatter_add(1, spread, (out * weight.unsqueeze(-1)).to(x.dtype))
        target = torch.zeros_like(score).scatter(1, picked, 1.0)
        return x, F.binary_cross_entropy_with_logits(score, target)


class Model(nn.Module):
    def __init__(self, cfg):
        super().__init__()
        self.embed = nn.Embedding(cfg.vocab, cfg.dim)
        self.blocks = nn.ModuleList(RoutedBlock(cfg) if i % 2 else Block(cfg) for i in range(cfg.layers))
        self.norm = RMSNorm(cfg.dim)
        self.head = nn.Linear(cfg.dim, cfg.vocab, bias=False)
        cos, sin = rope_table(cfg.length, cfg.dim // cfg.heads)
        self.register_buffer("cos", cos, persistent=False)
        self.register_buffer("sin", sin, persistent=False)
        for name, p in self.named_parameters():
            if p.dim() == 2:
                nn.init.normal_(
                    p, std=0.02 / (math.sqrt(2 * cfg.layers) if name.endswith(("proj.weight", "w2.weight")) else 1)
                )

    def forward(self, ids, targets):
        x, aux = self.embed(ids), 0.0
        for block in self.blocks:
            x, extra = block(x, self.cos, self.sin)
            if extra is not None:
                aux = aux + extra
        logits = self.head(self.norm(x))
        lm = F.cross_entropy(logits.float().flatten(0, 1), targets.flatten())
        return lm, aux / (len(self.blocks) // 2)


class Trainer:
    def __init__(self, cfg):
        self.cfg = cfg
        self.model = Model(cfg).to("cuda")
        self.compiled = torch.compile(self.model)
        decay = [p for p in self.model.parameters() if p.dim() > 1]
        rest = [p for p in self.model.parameters() if p.dim() <= 1]
        groups = [{"params": decay, "weight_decay": 0.1}, {"params": rest, "weight_decay": 0.0}]
        self.opt = torch.optim.AdamW(groups, lr=cfg.lr, betas=(0.9, 0.95), fused=True)

    def lr_at(self, it):
        c = self.cfg
        if it < c.warmup:
            return c.lr * (it + 1) / c.warmup
        return c.lr * (0.1 + 0.45 * (1 + math.cos(math.pi * (it - c.warmup) / (c.total - c.warmup))))

    def step(self, it):
        c = self.cfg
        for g in self.opt.param_groups:
            g["lr"] = self.lr_at(it)
        tokens = torch.randint(c.vocab, (c.batch, c.length + 1), device="cuda")
        with torch.autocast("cuda", dtype=torch.bfloat16):
            lm, aux = self.compiled(tokens[:, :-1], tokens[:, 1:])
        (lm + 0.01 * aux).backward()
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        self.opt.step()
        self.opt.zero_grad(set_to_none=True)
        return lm.detach()


if __name__ == "__main__":
    torch.manual_seed(1337)
    trainer = Trainer(Config())
    for it in steps():
        loss = trainer.step(it)
    print(f"loss {loss.item():.3f}")
