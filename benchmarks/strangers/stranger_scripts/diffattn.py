"""Differential Transformer, 830M settings of the paper, every second layer with a window."""

import math
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import nn

from tick import steps


@dataclass
class Config:
    vocab: int = 50304
    dim: int = 1536
    heads: int = 8
    layers: int = 24
    ffn: int = 4096
    length: int = 2048
    window: int = 512
    batch: int = 2
    lr: float = 3e-4
    warmup: int = 100
    total: int = 40000
    device: str = "cuda"


class RMSNorm(nn.Module):
    def __init__(self, dim, affine=True):
        super().__init__()
        self.eps = 1e-5
        self.weight = nn.Parameter(torch.ones(dim)) if affine else None

    def forward(self, x):
        y = x.float()
        y = y * torch.rsqrt(y.pow(2).mean(-1, keepdim=True) + self.eps)
        y = y.type_as(x)
        return y if self.weight is None else y * self.weight


def rotate(x, cos, sin):
    even, odd = x[..., 0::2].float(), x[..., 1::2].float()
    return torch.stack((even * cos - odd * sin, even * sin + odd * cos), -1).flatten(-2).type_as(x)


class DiffAttention(nn.Module):
    def __init__(self, cfg, depth):
        super().__init__()
        self.heads, self.head_dim = cfg.heads, cfg.dim // cfg.heads // 2
        self.q_proj = nn.Linear(cfg.dim, cfg.dim, bias=False)
        self.k_proj = nn.Linear(cfg.dim, cfg.dim, bias=False)
        self.v_proj = nn.Linear(cfg.dim, cfg.dim, bias=False)
        self.out_proj = nn.Linear(cfg.dim, cfg.dim, bias=False)
        self.lambda_init = 0.8 - 0.6 * math.exp(-0.3 * depth)
        for name in ("lambda_q1", "lambda_k1", "lambda_q2", "lambda_k2"):
            self.register_parameter(name, nn.Parameter(torch.randn(self.head_dim) * 0.1))
        self.subln = RMSNorm(2 * self.head_dim)

    def forward(self, x, cos, sin, mask):
        b, n, _ = x.shape
        q = rotate(self.q_proj(x).view(b, n, 2 * self.heads, self.head_dim), cos, sin)
        k = rotate(self.k_proj(x).view(b, n, 2 * self.heads, self.head_dim), cos, sin)
        v = self.v_proj(x).view(b, n, self.heads, 2, self.head_dim)
        q1, q2 = q.view(b, n, self.heads, 2, self.head_dim).transpose(1, 2).unbind(3)
        k1, k2 = k.view(b, n, self.heads, 2, self.head_dim).transpose(1, 2).unbind(3)
        v1, v2 = v.transpose(1, 2).unbind(3)

        def attend(q, k, v):
            return F.scaled_dot_product_attention(q, k, v, attn_mask=mask, is_causal=mask is None)

        first = torch.cat([attend(q1, k1, v1), attend(q1, k1, v2)], dim=-1)
        second = torch.cat([attend(q2, k2, v1), attend(q2, k2, v2)], dim=-1)
        lambda_1 = torch.exp((self.lambda_q1 * self.lambda_k1).sum().float()).type_as(q)
        lambda_2 = torch.exp((self.lambda_q2 * self.lambda_k2).sum().float()).type_as(q)
        lambda_full = lambda_1 - lambda_2 + self.lambda_init
        out = self.subln(first - lambda_full * second) * (1 - self.lambda_init)
        return self.out_proj(out.transpose(1, 2).reshape(b, n, -1))


class FeedForward(nn.Module):
    def __init__(self, cfg):
        super().__init__()
        self.norm = RMSNorm(cfg.dim)
        self.gate = nn.Linear(cfg.dim, cfg.ffn, bias=False)
        self.up = nn.Linear(cfg.dim, cfg.ffn, bias=False)
        self.down = nn.Linear(cfg.ffn, cfg.dim, bias=False)

    def forward(self, x):
        h = self.norm(x)
        return x + self.down(F.silu(self.gate(h)) * self.up(h))


class Block(nn.Module):
    def __init__(self, cfg, depth):
        super().__init__()
        self.norm = RMSNorm(cfg.dim)
        self.attn = DiffAttention(cfg, depth)
        self.ffn = FeedForward(cfg)
        self.windowed = depth % 2 == 1

    def forward(self, x, cos, sin, band):
        x = x + self.attn(self.norm(x), cos, sin, band if self.windowed else None)
        return self.ffn(x)


class DiffTransformer(nn.Module):
    def __init__(self, cfg):
        super().__init__()
        self.embed = nn.Embedding(cfg.vocab, cfg.dim)
        self.blocks = nn.ModuleList(Block(cfg, i) for i in range(cfg.layers))
        self.norm = RMSNorm(cfg.dim)
        self.head = nn.Linear(cfg.dim, cfg.vocab, bias=False)
        half = cfg.dim // cfg.heads // 4
        angles = torch.outer(torch.arange(cfg.length).float(), 10000.0 ** (-torch.arange(half).float() / half))
        self.register_buffer("cos", angles.cos()[:, None])
        self.register_buffer("sin", angles.sin()[:, None])
        n = torch.arange(cfg.length)
        gap = n[:, None] - n[None]
        self.register_buffer("band", (gap >= 0) & (gap < cfg.window))
        self.apply(self._init)

    @staticmethod
    def _init(module):
        if isinstance(module, (nn.Linear, nn.Embedding)):
            nn.init.normal_(module.weight, std=0.02)

    def forward(self, tokens):
        x = self.embed(tokens)
        for block in self.blocks:
            x = block(x, self.cos, self.sin, self.band)
        return self.head(self.norm(x))


class Trainer:
    def __init__(self, cfg):
        self.cfg = cfg
        self.model = DiffTransformer(cfg).to(cfg.device)
        for block in self.model.blocks:
            block.ffn = torch.compile(block.ffn)
        decay = [p for p in self.model.parameters() if p.dim() > 1]
        rest = [p for p in self.model.parameters() if p.dim() <= 1]
        groups = [{"params": decay, "weight_decay": 0.1}, {"params": rest, "weight_decay": 0.0}]
        self.optimizer = torch.optim.AdamW(groups, lr=cfg.lr, betas=(0.9, 0.98), fused=True)
        self.corpus = torch.randint(cfg.vocab, (4_000_000,))

    def lr_at(self, step):
        if step < self.cfg.warmup:
            return self.cfg.lr * (step + 1) / self.cfg.warmup
        return self.cfg.lr * max(0.0, 1 - step / self.cfg.total)

    def get_batch(self):
        starts = torch.randint(len(self.corpus) - self.cfg.length - 1, (self.cfg.batch,))
        chunk = torch.stack([self.corpus[s : s + self.cfg.length + 1] for s in starts.tolist()])
        chunk = chunk.to(self.cfg.device, non_blocking=True)
        return chunk[:, :-1], chunk[:, 1:]

    def train_step(self, step):
        for group in self.optimizer.param_groups:
            group["lr"] = self.lr_at(step)
        x, y = self.get_batch()
        with torch.autocast(self.cfg.device, dtype=torch.bfloat16):
            logits = self.model(x)
            loss = F.cross_entropy(logits.flatten(0, 1), y.flatten())
        loss.backward()
        nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        return loss.detach()


if __name__ == "__main__":
    torch.manual_seed(1)
    torch.set_float32_matmul_precision("high")
    trainer = Trainer(Config())
    running = 0.0
    for step in steps():
        running = running + trainer.train_step(step)
        if step % 20 == 19:
            print(f"step {step} loss {running.item() / 20:.4f}", flush=True)
            running = 0.0
