"""Byte latent transformer: bytes are pooled into patches, a latent transformer runs over the patches."""

import math
from dataclasses import dataclass

import torch
import torch.nn as nn
import torch.nn.functional as F
from tick import steps


@dataclass
class Config:
    vocab: int = 260
    local_dim: int = 512
    local_heads: int = 8
    encoder_layers: int = 1
    decoder_layers: int = 6
    window: int = 256
    dim: int = 1024
    heads: int = 16
    layers: int = 12
    bytes: int = 2048
    patches: int = 512
    hash_vocab: int = 100_000
    batch: int = 8


class RMSNorm(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(dim))

    def forward(self, x):
        y = x.float()
        y = y * torch.rsqrt(y.pow(2).mean(-1, keepdim=True) + 1e-5)
        return (y * self.weight).type_as(x)


def rope_table(length, dim, theta=500000.0):
    freqs = 1.0 / theta ** (torch.arange(0, dim, 2).float() / dim)
    angles = torch.outer(torch.arange(length).float(), freqs)
    return torch.stack([angles.cos(), angles.sin()])


def rotate(x, table):
    a, b = x.float().chunk(2, dim=-1)
    cos, sin = table
    return torch.cat([a * cos - b * sin, a * sin + b * cos], -1).type_as(x)


class Attention(nn.Module):
    def __init__(self, dim, heads):
        super().__init__()
        self.heads = heads
        self.wqkv, self.wo = nn.Linear(dim, 3 * dim, bias=False), nn.Linear(dim, dim, bias=False)

    def forward(self, x, rope, mask):
        b, t, d = x.shape
        q, k, v = self.wqkv(x).view(b, t, 3, self.heads, d // self.heads).permute(2, 0, 3, 1, 4)
        q, k = rotate(q, rope), rotate(k, rope)
        y = F.scaled_dot_product_attention(q, k, v, attn_mask=mask, is_causal=mask is None)
        return self.wo(y.transpose(1, 2).reshape(b, t, d))


class FeedForward(nn.Module):
    def __init__(self, dim):
        super().__init__()
        hidden = 256 * math.ceil(8 * dim / 3 / 256)
        self.w1, self.w3 = nn.Linear(dim, hidden, bias=False), nn.Linear(dim, hidden, bias=False)
        self.w2 = nn.Linear(hidden, dim, bias=False)

    def forward(self, x):
        return self.w2(F.silu(self.w1(x)) * self.w3(x))


class Block(nn.Module):
    def __init__(self, dim, heads):
        super().__init__()
        self.n1, self.attn, self.n2, self.ff = RMSNorm(dim), Attention(dim, heads), RMSNorm(dim), FeedForward(dim)

    def forward(self, x, rope, mask=None):
        x = x + self.attn(self.n1(x), rope, mask)
        return x + self.ff(self.n2(x))


class CrossAttention(nn.Module):
    def __init__(self, q_dim, kv_dim, dim, heads):
        super().__init__()
        self.heads, self.dim = heads, dim
        self.nq, self.nkv = RMSNorm(q_dim), RMSNorm(kv_dim)
        self.wq, self.wkv = nn.Linear(q_dim, dim, bias=False), nn.Linear(kv_dim, 2 * dim, bias=False)
        self.wo = nn.Linear(dim, q_dim, bias=False)

    def forward(self, x, kv, mask):
        b, t, s, h = x.shape[0], x.shape[1], kv.shape[1], self.heads
        q = self.wq(self.nq(x)).view(b, t, h, -1).transpose(1, 2)
        k, v = self.wkv(self.nkv(kv)).view(b, s, 2, h, -1).permute(2, 0, 3, 1, 4)
        y = F.scaled_dot_product_attention(q, k, v, attn_mask=mask)
        return x + self.wo(y.transpose(1, 2).reshape(b, t, self.dim))


class BLT(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.c = c
        self.embed = nn.Embedding(c.vocab, c.local_dim)
        self.ngrams = range(3, 9)
        self.hashed = nn.ModuleList(nn.Embedding(c.hash_vocab, c.local_dim) for _ in self.ngrams)
        self.encoder = nn.ModuleList(Block(c.local_dim, c.local_heads) for _ in range(c.encoder_layers))
        self.to_patch = nn.Linear(c.local_dim, c.dim, bias=False)
        self.enter = CrossAttention(c.dim, c.local_dim, c.local_dim, c.local_heads)
        self.latent = nn.ModuleList(Block(c.dim, c.heads) for _ in range(c.layers))
        self.leave = nn.ModuleList(
            CrossAttention(c.local_dim, c.dim, c.local_dim, c.local_heads) for _ in range(c.decoder_layers)
        )
        self.decoder = nn.ModuleList(Block(c.local_dim, c.local_heads) for _ in range(c.decoder_layers))
        self.norm, self.head = RMSNorm(c.local_dim), nn.Linear(c.local_dim, c.vocab, bias=False)
        self.register_buffer("byte_rope", rope_table(c.bytes, c.local_dim // c.local_heads), persistent=False)
        self.register_buffer("patch_rope", rope_table(c.patches, c.dim // c.heads), persistent=False)
        t = torch.arange(c.bytes)
        gap = t[:, None] - t[None]
        self.register_buffer("band", (gap >= 0) & (gap < c.window), persistent=False)
        for p in self.parameters():
            if p.dim() > 1:
                nn.init.trunc_normal_(p, std=0.02)

    def hash_embeddings(self, x):
        out = self.embed(x)
        for n, table in zip(self.ngrams, self.hashed):
            value = torch.zeros_like(x)
            for j in range(n):
                value = value * 1000003 + F.pad(x, (j, 0))[:, : x.shape[1]]
            out = out + table(value % self.c.hash_vocab)
        return out / (len(self.hashed) + 1)

    def forward(self, x, patch_ids):
        c = self.c
        h = self.hash_embeddings(x)
        for block in self.encoder:
            h = block(h, self.byte_rope, self.band)
        index = patch_ids[..., None].expand(-1, -1, c.local_dim)
        pooled = h.new_zeros(x.shape[0], c.patches, c.local_dim).scatter_reduce(1, index, h, "amax", include_self=False)
        inside = patch_ids[:, None] == torch.arange(c.patches, device=x.device)[None, :, None]
        z = self.enter(self.to_patch(pooled).to(h.dtype), h, (inside | ~inside.any(-1, keepdim=True))[:, None])
        for block in self.latent:
            z = block(z, self.patch_rope)
        z = F.pad(z, (0, 0, 1, 0))[:, :-1]
        seen = inside.transpose(1, 2)[:, None]
        for cross, block in zip(self.leave, self.decoder):
            h = block(cross(h, z, seen), self.byte_rope, self.band)
        return self.head(self.norm(h))


def cut(x, c):
    """Patches begin behind bytes that stand for spaces, at a quarter of the places at most."""
    start = F.pad((x % 5 == 0)[:, :-1], (1, 0), value=False)
    return start.cumsum(1).clamp(max=c.patches - 1)


def main():
    torch.manual_seed(0)
    config = Config()
    model = BLT(config).cuda()
    for block in [*model.encoder, *model.latent, *model.decoder]:
        block.compile()
    decay = [p for p in model.parameters() if p.dim() > 1]
    rest = [p for p in model.parameters() if p.dim() < 2]
    optimizer = torch.optim.AdamW(
        [{"params": decay, "weight_decay": 0.1}, {"params": rest, "weight_decay": 0.0}],
        lr=4e-4,
        betas=(0.9, 0.95),
        fused=True,
    )
    data = torch.randint(4, config.vocab, (64, config.bytes + 1))
    for step in steps():
        for group in optimizer.param_groups:
            group["lr"] = 4e-4 * min(1.0, (step + 1) / 2000)
        batch = data[torch.randint(0, len(data), (config.batch,))].cuda(non_blocking=True)
        x, y = batch[:, :-1], batch[:, 1:]
        with torch.autocast("cuda", dtype=torch.bfloat16):
            logits = model(x, cut(x, config))
        loss = F.cross_entropy(logits.float().flatten(0, 1), y.flatten())
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0, foreach=True)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        if step % 10 == 0:
            print(f"step {step} bpb {loss.item() / math.log(2):.3f}")


if __name__ == "__main__":
    main()
