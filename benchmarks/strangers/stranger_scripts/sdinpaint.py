import math
from dataclasses import dataclass

import torch
from torch import nn
from torch.nn import functional as F

from tick import steps


@dataclass
class Args:
    batch: int = 6
    latent: int = 64
    base: int = 320
    mults: tuple = (1, 2, 4, 4)
    heads: int = 8
    context: int = 768
    tokens: int = 77
    lr: float = 1e-5
    snr_gamma: float = 5.0
    drop_caption: float = 0.1


args = Args()


def timestep_embedding(t, dim):
    freqs = torch.exp(-math.log(10000) * torch.arange(dim // 2, device=t.device).float() / (dim // 2))
    angles = t[:, None].float() * freqs
    return torch.cat([angles.cos(), angles.sin()], -1)


class ResBlock(nn.Module):
    def __init__(self, c_in, c_out, emb):
        super().__init__()
        self.in_layers = nn.Sequential(nn.GroupNorm(32, c_in), nn.SiLU(), nn.Conv2d(c_in, c_out, 3, padding=1))
        self.emb_layers = nn.Sequential(nn.SiLU(), nn.Linear(emb, c_out))
        self.out_layers = nn.Sequential(nn.GroupNorm(32, c_out), nn.SiLU(), nn.Conv2d(c_out, c_out, 3, padding=1))
        self.skip = nn.Identity() if c_in == c_out else nn.Conv2d(c_in, c_out, 1)

    def forward(self, x, emb, context):
        h = self.in_layers(x) + self.emb_layers(emb)[:, :, None, None]
        return self.skip(x) + self.out_layers(h)


class CrossAttention(nn.Module):
    def __init__(self, dim, context):
        super().__init__()
        self.to_q = nn.Linear(dim, dim, bias=False)
        self.to_k, self.to_v = nn.Linear(context, dim, bias=False), nn.Linear(context, dim, bias=False)
        self.to_out = nn.Linear(dim, dim)

    def forward(self, x, context=None):
        context = x if context is None else context
        q, k, v = (
            t.unflatten(-1, (args.heads, -1)).transpose(1, 2)
            for t in (self.to_q(x), self.to_k(context), self.to_v(context))
        )
        return self.to_out(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2))


class GEGLU(nn.Module):
    def __init__(self, dim, hidden):
        super().__init__()
        self.proj = nn.Linear(dim, 2 * hidden)

    def forward(self, x):
        x, gate = self.proj(x).chunk(2, -1)
        return x * F.gelu(gate)


class SpatialTransformer(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.norm = nn.GroupNorm(32, c, eps=1e-6)
        self.proj_in, self.proj_out = nn.Conv2d(c, c, 1), nn.Conv2d(c, c, 1)
        self.attn1, self.attn2 = CrossAttention(c, c), CrossAttention(c, args.context)
        self.ff = nn.Sequential(GEGLU(c, 4 * c), nn.Linear(4 * c, c))
        self.norm1, self.norm2, self.norm3 = nn.LayerNorm(c), nn.LayerNorm(c), nn.LayerNorm(c)
        nn.init.zeros_(self.proj_out.weight)

    def forward(self, x, emb, context):
        h, w = x.shape[-2:]
        y = self.proj_in(self.norm(x)).flatten(2).transpose(1, 2)
        y = y + self.attn1(self.norm1(y))
        y = y + self.attn2(self.norm2(y), context)
        y = y + self.ff(self.norm3(y))
        return x + self.proj_out(y.transpose(1, 2).unflatten(2, (h, w)))


class Down(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.op = nn.Conv2d(c, c, 3, stride=2, padding=1)

    def forward(self, x, emb, context):
        return self.op(x)


class Up(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.conv = nn.Conv2d(c, c, 3, padding=1)

    def forward(self, x, emb, context):
        return self.conv(F.interpolate(x, scale_factor=2, mode="nearest"))


class Stage(nn.ModuleList):
    def forward(self, x, emb, context):
        for layer in self:
            x = layer(x, emb, context)
        return x


class UNet(nn.Module):
    def __init__(self, c_in=9, c_out=4):
        super().__init__()
        base, emb = args.base, 4 * args.base
        self.time = nn.Sequential(nn.Linear(base, emb), nn.SiLU(), nn.Linear(emb, emb))
        self.stem = nn.Conv2d(c_in, base, 3, padding=1)
        self.down, self.up, widths, c = nn.ModuleList(), nn.ModuleList(), [base], base
        last = len(args.mults) - 1
        for level, mult in enumerate(args.mults):
            for _ in range(2):
                stage = [ResBlock(c, mult * base, emb)]
                c = mult * base
                if level != last:
                    stage.append(SpatialTransformer(c))
                self.down.append(Stage(stage))
                widths.append(c)
            if level != last:
                self.down.append(Stage([Down(c)]))
                widths.append(c)
        self.middle = Stage([ResBlock(c, c, emb), SpatialTransformer(c), ResBlock(c, c, emb)])
        for level, mult in reversed(list(enumerate(args.mults))):
            for i in range(3):
                stage = [ResBlock(c + widths.pop(), mult * base, emb)]
                c = mult * base
                if level != last:
                    stage.append(SpatialTransformer(c))
                if level and i == 2:
                    stage.append(Up(c))
                self.up.append(Stage(stage))
        self.out = nn.Sequential(nn.GroupNorm(32, c), nn.SiLU(), nn.Conv2d(c, c_out, 3, padding=1))

    def forward(self, x, t, context):
        emb = self.time(timestep_embedding(t, args.base))
        x = self.stem(x)
        skips = [x]
        for stage in self.down:
            x = stage(x, emb, context)
            skips.append(x)
        x = self.middle(x, emb, context)
        for stage in self.up:
            x = stage(torch.cat([x, skips.pop()], 1), emb, context)
        return self.out(x)


betas = torch.linspace(0.00085**0.5, 0.012**0.5, 1000, device="cuda") ** 2
alphas = (1 - betas).cumprod(0)
with torch.device("cuda"):
    unet = UNet()
optimizer = torch.optim.AdamW(unet.parameters(), lr=args.lr, weight_decay=1e-2, fused=True)
lr_scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda s: min(1.0, (s + 1) / 500))
empty = torch.zeros(1, args.tokens, args.context, device="cuda")
running = torch.zeros((), device="cuda")

for step in steps():
    latents = torch.randn(args.batch, 4, args.latent, args.latent, device="cuda") * 0.9
    text = torch.randn(args.batch, args.tokens, args.context, device="cuda")
    text = torch.where(torch.rand(args.batch, 1, 1, device="cuda") < args.drop_caption, empty, text)
    mask = torch.rand(args.batch, 1, args.latent // 8, args.latent // 8, device="cuda").round()
    mask = F.interpolate(mask, size=(args.latent, args.latent), mode="nearest")
    noise = torch.randn_like(latents)
    t = torch.randint(0, 1000, (args.batch,), device="cuda")
    a = alphas[t].view(-1, 1, 1, 1)
    noisy = a.sqrt() * latents + (1 - a).sqrt() * noise
    with torch.autocast("cuda", dtype=torch.bfloat16):
        pred = unet(torch.cat([noisy, mask, latents * (1 - mask)], 1), t, text)
    snr = alphas[t] / (1 - alphas[t])
    weight = snr.clamp(max=args.snr_gamma) / snr
    loss = (F.mse_loss(pred.float(), noise, reduction="none").mean((1, 2, 3)) * weight).mean()
    loss.backward()
    nn.utils.clip_grad_norm_(unet.parameters(), 1.0)
    optimizer.step()
    lr_scheduler.step()
    optimizer.zero_grad(set_to_none=True)
    running.lerp_(loss.detach(), 0.05)
