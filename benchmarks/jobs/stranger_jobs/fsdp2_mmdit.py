import copy
import os

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from tock import steps

DIM, HEADS, DEPTH, LATENT, CHANNELS, PATCH = 2048, 16, 8, 64, 16, 2
TEXT_LEN, TEXT_DIM, BATCH = 128, 4096, 8


class Stream(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm1 = nn.LayerNorm(DIM, elementwise_affine=False, eps=1e-6)
        self.norm2 = nn.LayerNorm(DIM, elementwise_affine=False, eps=1e-6)
        self.modulation = nn.Linear(DIM, 6 * DIM)
        self.qkv, self.proj = nn.Linear(DIM, 3 * DIM), nn.Linear(DIM, DIM)
        self.q_norm, self.k_norm = nn.RMSNorm(DIM // HEADS, eps=1e-6), nn.RMSNorm(DIM // HEADS, eps=1e-6)
        self.mlp = nn.Sequential(nn.Linear(DIM, 4 * DIM), nn.GELU(approximate="tanh"), nn.Linear(4 * DIM, DIM))

    def before(self, x, c):
        shift, scale, *rest = self.modulation(F.silu(c)).unsqueeze(1).chunk(6, dim=-1)
        q, k, v = self.qkv(self.norm1(x) * (1 + scale) + shift).unflatten(-1, (3, HEADS, -1)).unbind(2)
        return (self.q_norm(q), self.k_norm(k), v), rest

    def after(self, x, attended, mod):
        gate1, shift, scale, gate2 = mod
        x = x + gate1 * self.proj(attended)
        return x + gate2 * self.mlp(self.norm2(x) * (1 + scale) + shift)


class JointBlock(nn.Module):
    def __init__(self):
        super().__init__()
        self.image, self.text = Stream(), Stream()

    def forward(self, x, y, c):
        image_qkv, image_mod = self.image.before(x, c)
        text_qkv, text_mod = self.text.before(y, c)
        q, k, v = (torch.cat(pair, dim=1).transpose(1, 2) for pair in zip(text_qkv, image_qkv))
        out = F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2)
        attended_y, attended_x = out.split([y.size(1), x.size(1)], dim=1)
        return self.image.after(x, attended_x, image_mod), self.text.after(y, attended_y, text_mod)


class MMDiT(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Conv2d(CHANNELS, DIM, PATCH, stride=PATCH)
        self.pos = nn.Parameter(0.02 * torch.randn(1, (LATENT // PATCH) ** 2, DIM))
        self.text_in = nn.Linear(TEXT_DIM, DIM)
        self.time = nn.Sequential(nn.Linear(256, DIM), nn.SiLU(), nn.Linear(DIM, DIM))
        self.blocks = nn.ModuleList(JointBlock() for _ in range(DEPTH))
        self.norm, self.out = nn.LayerNorm(DIM), nn.Linear(DIM, PATCH * PATCH * CHANNELS)

    def forward(self, x, t, text):
        freqs = torch.exp(-9.21 * torch.arange(128, device=x.device) / 128)
        angles = 1000 * t[:, None] * freqs
        c = self.time(torch.cat([angles.cos(), angles.sin()], dim=-1).to(x.dtype))
        h, y = self.embed(x).flatten(2).transpose(1, 2) + self.pos, self.text_in(text)
        for block in self.blocks:
            h, y = block(h, y, c)
        return F.fold(self.out(self.norm(h)).transpose(1, 2), (LATENT, LATENT), PATCH, stride=PATCH)


def shard(model, mesh):
    policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    for block in model.blocks:
        fully_shard(block, mesh=mesh, mp_policy=policy)
    return fully_shard(model, mesh=mesh, mp_policy=policy)


@torch.no_grad()
def update_ema(ema, model, decay):
    averages, params = ([p.to_local() for p in m.parameters()] for m in (ema, model))
    torch._foreach_lerp_(averages, params, 1 - decay)


torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
mesh = init_device_mesh("cuda", (int(os.environ["WORLD_SIZE"]),))
torch.manual_seed(0)
with torch.device("cuda"):
    model = MMDiT()
ema = shard(copy.deepcopy(model).requires_grad_(False).eval(), mesh)
for block in model.blocks:
    block.compile()
model = shard(model, mesh)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, weight_decay=0.0, fused=True)
torch.manual_seed(1 + dist.get_rank())
for _ in steps():
    latents = torch.randn(BATCH, CHANNELS, LATENT, LATENT, device="cuda")
    text = torch.randn(BATCH, TEXT_LEN, TEXT_DIM, device="cuda")
    noise = torch.randn_like(latents)
    t = torch.sigmoid(torch.randn(BATCH, device="cuda"))
    s = t.view(-1, 1, 1, 1)
    velocity = model((1 - s) * latents + s * noise, t, text)
    loss = F.mse_loss(velocity.float(), noise - latents)
    loss.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    optimizer.zero_grad()
    update_ema(ema, model, 0.9999)
