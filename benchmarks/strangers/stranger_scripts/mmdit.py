import argparse
import math

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel
from tick import steps

parser = argparse.ArgumentParser()
parser.add_argument("--depth", type=int, default=18)
parser.add_argument("--batch", type=int, default=8)
parser.add_argument("--latent", type=int, default=64)
parser.add_argument("--text", type=int, default=154)
parser.add_argument("--lr", type=float, default=1e-4)
parser.add_argument("--clip", type=float, default=1.0)
args = parser.parse_args()
DIM, HEADS = 64 * args.depth, args.depth
device = torch.device("cuda")


def modulate(x, shift, scale):
    return x * (1 + scale[:, None]) + shift[:, None]


class Stream(nn.Module):
    def __init__(self, last=False):
        super().__init__()
        self.last = last
        self.norm1 = nn.LayerNorm(DIM, elementwise_affine=False, eps=1e-6)
        self.qkv = nn.Linear(DIM, 3 * DIM)
        self.q_norm, self.k_norm = nn.RMSNorm(64, eps=1e-6), nn.RMSNorm(64, eps=1e-6)
        self.ada = nn.Linear(DIM, (2 if last else 6) * DIM)
        if not last:
            self.proj = nn.Linear(DIM, DIM)
            self.norm2 = nn.LayerNorm(DIM, elementwise_affine=False, eps=1e-6)
            self.fc1, self.fc2 = nn.Linear(DIM, 4 * DIM), nn.Linear(4 * DIM, DIM)

    def before(self, x, c):
        parts = self.ada(F.silu(c)).chunk(2 if self.last else 6, -1)
        qkv = self.qkv(modulate(self.norm1(x), parts[0], parts[1]))
        q, k, v = qkv.unflatten(-1, (3, HEADS, 64)).permute(2, 0, 3, 1, 4)
        return self.q_norm(q), self.k_norm(k), v, parts[2:]

    def after(self, x, y, rest):
        gate1, shift, scale, gate2 = rest
        x = x + gate1[:, None] * self.proj(y)
        h = self.fc2(F.gelu(self.fc1(modulate(self.norm2(x), shift, scale)), approximate="tanh"))
        return x + gate2[:, None] * h


class JointBlock(nn.Module):
    def __init__(self, last=False):
        super().__init__()
        self.image, self.context, self.last = Stream(), Stream(last), last

    def forward(self, x, ctx, c):
        n = ctx.shape[1]
        cq, ck, cv, crest = self.context.before(ctx, c)
        q, k, v, rest = self.image.before(x, c)
        y = F.scaled_dot_product_attention(torch.cat([cq, q], 2), torch.cat([ck, k], 2), torch.cat([cv, v], 2))
        y = y.transpose(1, 2).flatten(2)
        x = self.image.after(x, y[:, n:], rest)
        if not self.last:
            ctx = self.context.after(ctx, y[:, :n], crest)
        return x, ctx


class MMDiT(nn.Module):
    def __init__(self, side):
        super().__init__()
        self.side = side
        self.patch = nn.Conv2d(16, DIM, 2, 2)
        self.pos = nn.Parameter(torch.randn(1, side * side, DIM) * 0.02)
        self.time = nn.Sequential(nn.Linear(256, DIM), nn.SiLU(), nn.Linear(DIM, DIM))
        self.pooled = nn.Sequential(nn.Linear(2048, DIM), nn.SiLU(), nn.Linear(DIM, DIM))
        self.text = nn.Linear(4096, DIM)
        self.blocks = nn.ModuleList(JointBlock(i == args.depth - 1) for i in range(args.depth))
        self.norm = nn.LayerNorm(DIM, elementwise_affine=False, eps=1e-6)
        self.ada, self.out = nn.Linear(DIM, 2 * DIM), nn.Linear(DIM, 64)
        nn.init.zeros_(self.out.weight)

    def forward(self, z, t, text, pooled):
        freq = torch.exp(-math.log(10000) * torch.arange(128, device=z.device) / 128)
        angle = t[:, None].float() * 1000 * freq
        c = self.time(torch.cat([angle.cos(), angle.sin()], -1).to(z.dtype)) + self.pooled(pooled)
        x = self.patch(z).flatten(2).transpose(1, 2) + self.pos
        ctx = self.text(text)
        for block in self.blocks:
            x, ctx = block(x, ctx, c)
        shift, scale = self.ada(F.silu(c)).chunk(2, -1)
        x = self.out(modulate(self.norm(x), shift, scale))
        x = x.view(len(x), self.side, self.side, 2, 2, 16)
        return torch.einsum("bhwpqc->bchpwq", x).reshape(z.shape)


torch.manual_seed(0)
model = MMDiT(args.latent // 2).to(device, torch.bfloat16)
for block in model.blocks:
    block.compile(fullgraph=True)
params = list(model.parameters())
master = [p.detach().float().clone() for p in params]
optimizer = torch.optim.AdamW(master, lr=args.lr, betas=(0.9, 0.95), weight_decay=0.01, fused=True)

for i in steps():
    latents = torch.randn(args.batch, 16, args.latent, args.latent, device=device)
    text = torch.randn(args.batch, args.text, 4096, device=device, dtype=torch.bfloat16)
    pooled = torch.randn(args.batch, 2048, device=device, dtype=torch.bfloat16)
    drop = torch.rand(args.batch, device=device) < 0.1
    text = torch.where(drop[:, None, None], torch.zeros_like(text), text)
    pooled = torch.where(drop[:, None], torch.zeros_like(pooled), pooled)

    t = torch.sigmoid(torch.randn(args.batch, device=device))
    t = 3.0 * t / (1 + 2.0 * t)
    noise = torch.randn_like(latents)
    tt = t[:, None, None, None]
    noised = ((1 - tt) * latents + tt * noise).bfloat16()
    with sdpa_kernel([SDPBackend.CUDNN_ATTENTION, SDPBackend.FLASH_ATTENTION], set_priority=True):
        velocity = model(noised, t, text, pooled)
        loss = F.mse_loss(velocity.float(), noise - latents)
        loss.backward()

    for m, p in zip(master, params):
        m.grad = None if p.grad is None else p.grad.float()
        p.grad = None
    norm = torch.nn.utils.clip_grad_norm_(master, args.clip)
    for group in optimizer.param_groups:
        group["lr"] = args.lr * min(1.0, (i + 1) / 1000)
    optimizer.step()
    optimizer.zero_grad()
    with torch.no_grad():
        torch._foreach_copy_(params, master)
    if i % 25 == 0:
        print("step", i, "loss", round(loss.item(), 4), "norm", round(norm.item(), 4))
