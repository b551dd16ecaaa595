"""A diffusion transformer trained data-parallel by hand: gradients flattened into one buffer and reduced; EMA, compiled."""

import copy
import os

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch._utils import _flatten_dense_tensors, _unflatten_dense_tensors
from tock import steps

DIM, DEPTH, HEADS, PATCH, CHANNELS, SIZE, CLASSES = 1152, 12, 16, 2, 4, 32, 1000
BATCH = 64


def modulate(x, shift, scale):
    return x * (1 + scale.unsqueeze(1)) + shift.unsqueeze(1)


def timestep_embedding(t, dim=256):
    freqs = torch.exp(-9.21034 * torch.arange(dim // 2, device=t.device) / (dim // 2))
    args = t[:, None].float() * freqs[None]
    return torch.cat([args.cos(), args.sin()], dim=-1)


class DiTBlock(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm1 = nn.LayerNorm(DIM, elementwise_affine=False, eps=1e-6)
        self.norm2 = nn.LayerNorm(DIM, elementwise_affine=False, eps=1e-6)
        self.qkv, self.proj = nn.Linear(DIM, 3 * DIM), nn.Linear(DIM, DIM)
        self.mlp = nn.Sequential(nn.Linear(DIM, 4 * DIM), nn.GELU(approximate="tanh"), nn.Linear(4 * DIM, DIM))
        self.adaLN = nn.Sequential(nn.SiLU(), nn.Linear(DIM, 6 * DIM))

    def forward(self, x, c):
        shift1, scale1, gate1, shift2, scale2, gate2 = self.adaLN(c).chunk(6, dim=1)
        B, N, _ = x.shape
        qkv = self.qkv(modulate(self.norm1(x), shift1, scale1))
        q, k, v = qkv.view(B, N, 3, HEADS, DIM // HEADS).permute(2, 0, 3, 1, 4).unbind(0)
        attn = F.scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(B, N, DIM)
        x = x + gate1.unsqueeze(1) * self.proj(attn)
        return x + gate2.unsqueeze(1) * self.mlp(modulate(self.norm2(x), shift2, scale2))


class DiT(nn.Module):
    def __init__(self):
        super().__init__()
        self.patchify = nn.Conv2d(CHANNELS, DIM, PATCH, PATCH)
        self.pos = nn.Parameter(0.02 * torch.randn(1, (SIZE // PATCH) ** 2, DIM))
        self.time = nn.Sequential(nn.Linear(256, DIM), nn.SiLU(), nn.Linear(DIM, DIM))
        self.label = nn.Embedding(CLASSES + 1, DIM)
        self.blocks = nn.ModuleList(DiTBlock() for _ in range(DEPTH))
        self.norm = nn.LayerNorm(DIM, elementwise_affine=False, eps=1e-6)
        self.out = nn.Linear(DIM, PATCH * PATCH * CHANNELS)

    def forward(self, x, t, y):
        x = self.patchify(x).flatten(2).transpose(1, 2) + self.pos
        c = self.time(timestep_embedding(t)) + self.label(y)
        for block in self.blocks:
            x = block(x, c)
        n = SIZE // PATCH
        x = self.out(self.norm(x)).view(-1, n, n, PATCH, PATCH, CHANNELS)
        return torch.einsum("nhwpqc->nchpwq", x).reshape(-1, CHANNELS, SIZE, SIZE)


def average_gradients(params):
    grads = [p.grad for p in params]
    flat = _flatten_dense_tensors(grads)
    dist.all_reduce(flat)
    flat.div_(dist.get_world_size())
    torch._foreach_copy_(grads, list(_unflatten_dense_tensors(flat, grads)))


def main():
    torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    dist.init_process_group("nccl")
    torch.manual_seed(0)
    model = DiT().cuda()
    ema = copy.deepcopy(model).requires_grad_(False)
    params, ema_params = list(model.parameters()), list(ema.parameters())
    for p in params:
        dist.broadcast(p.data, src=0)
    optimizer = torch.optim.AdamW(params, lr=1e-4, weight_decay=0, fused=True)
    compiled = torch.compile(model)
    alphas = torch.cumprod(1 - torch.linspace(1e-4, 0.02, 1000, device="cuda"), 0)
    torch.manual_seed(dist.get_rank())
    for _ in steps():
        latents = torch.randn(BATCH, CHANNELS, SIZE, SIZE, device="cuda")
        y = torch.randint(0, CLASSES, (BATCH,), device="cuda")
        y = torch.where(torch.rand(BATCH, device="cuda") < 0.1, CLASSES, y)
        t, noise = torch.randint(0, 1000, (BATCH,), device="cuda"), torch.randn_like(latents)
        a = alphas[t].view(-1, 1, 1, 1)
        with torch.autocast("cuda", dtype=torch.bfloat16):
            predicted = compiled(a.sqrt() * latents + (1 - a).sqrt() * noise, t, y)
        loss = F.mse_loss(predicted.float(), noise)
        optimizer.zero_grad()
        loss.backward()
        average_gradients(params)
        optimizer.step()
        torch._foreach_lerp_(ema_params, params, 1e-4)


if __name__ == "__main__":
    main()
