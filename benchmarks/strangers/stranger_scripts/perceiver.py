"""Perceiver IO on byte arrays: latent array, tied blocks, checkpointing, no compiler."""

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint
import torch.nn.functional as F
from tick import steps


class Attention(nn.Module):
    def __init__(self, q, kv, heads, width):
        super().__init__()
        self.heads = heads
        self.nq, self.nkv = nn.LayerNorm(q), nn.LayerNorm(kv)
        self.q, self.kv, self.o = nn.Linear(q, width), nn.Linear(kv, 2 * width), nn.Linear(width, q)
        self.mlp = nn.Sequential(
            nn.LayerNorm(q), nn.Linear(q, 4 * q), nn.GELU(approximate="tanh"), nn.Dropout(0.1), nn.Linear(4 * q, q)
        )

    def forward(self, x, c=None, mask=None):
        q = self.q(self.nq(x))
        k, v = self.kv(self.nkv(x if c is None else c)).chunk(2, -1)
        q, k, v = (t.unflatten(-1, (self.heads, -1)).transpose(1, 2) for t in (q, k, v))
        y = F.scaled_dot_product_attention(q, k, v, attn_mask=mask)
        x = x + self.o(y.transpose(1, 2).flatten(2))
        return x + self.mlp(x)


class Perceiver(nn.Module):
    def __init__(self, v=262, d=768, latents=256, z=1280, repeats=2, blocks=6):
        super().__init__()
        self.emb, self.pos = nn.Embedding(v, d), nn.Embedding(2048, d)
        self.z = nn.Parameter(torch.empty(latents, z).normal_(std=0.02))
        self.read = Attention(z, d, 8, 1024)
        self.blocks = nn.ModuleList(Attention(z, z, 8, 1024) for _ in range(blocks))
        self.repeats = repeats
        self.write = Attention(d, z, 8, 512)
        self.bias = nn.Parameter(torch.zeros(v))

    def forward(self, x, keep):
        h = self.emb(x) + self.pos.weight[: x.size(1)]
        z = self.read(self.z.expand(x.size(0), -1, -1), h, keep[:, None, None, :])
        for _ in range(self.repeats):
            for b in self.blocks:
                z = checkpoint(b, z, use_reentrant=False)
        out = self.write(self.pos.weight[: x.size(1)].expand(x.size(0), -1, -1), z)
        return out @ self.emb.weight.T + self.bias


device = torch.device("cuda")
torch.manual_seed(0)
model = Perceiver().to(device)
decay = [p for p in model.parameters() if p.ndim > 1]
rest = [p for p in model.parameters() if p.ndim < 2]
opt = torch.optim.AdamW(
    [{"params": decay, "weight_decay": 0.01}, {"params": rest, "weight_decay": 0.0}], lr=1e-4, foreach=True
)
sched = torch.optim.lr_scheduler.OneCycleLR(opt, 1e-3, total_steps=10000)
text = torch.randint(6, 256, (512, 2048), dtype=torch.uint8)
for i in steps():
    rows = torch.randint(0, 512, (16,))
    x = text[rows].to(device, non_blocking=True).long()
    lengths = torch.randint(1024, 2049, (16, 1), device=device)
    keep = torch.arange(2048, device=device) < lengths
    hide = (torch.rand(16, 2048, device=device) < 0.15) & keep
    with torch.autocast(device_type="cuda", dtype=torch.bfloat16):
        logits = model(x.masked_fill(hide, 3), keep)
        loss = F.cross_entropy(logits.transpose(1, 2).float(), x.masked_fill(~hide, -100), ignore_index=-100)
    opt.zero_grad(set_to_none=True)
    loss.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    opt.step()
    sched.step()
