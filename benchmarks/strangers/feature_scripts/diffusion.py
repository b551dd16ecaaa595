"""DDPM: small UNet, classifier-free guidance dropout, EMA by foreach, GradScaler+autocast fp16 on cuda; a CFG sample every 10 steps."""

import argparse, time, copy
import torch, torch.nn as nn, torch.nn.functional as F

p = argparse.ArgumentParser()
p.add_argument("--batch", type=int, default=8)
p.add_argument("--ch", type=int, default=32)
p.add_argument("--size", type=int, default=32)
p.add_argument("--steps", type=int, default=13)
p.add_argument("--every", type=int, default=100)
a = p.parse_args()
dev = "cuda" if torch.cuda.is_available() else "cpu"


class Res(nn.Module):
    def __init__(self, i, o, e):
        super().__init__()
        self.n1 = nn.GroupNorm(8, i)
        self.c1 = nn.Conv2d(i, o, 3, padding=1)
        self.t = nn.Linear(e, 2 * o)
        self.n2 = nn.GroupNorm(8, o)
        self.c2 = nn.Conv2d(o, o, 3, padding=1)
        self.s = nn.Conv2d(i, o, 1) if i != o else nn.Identity()

    def forward(self, x, e):
        h = self.c1(F.silu(self.n1(x)))
        sc, sh = self.t(F.silu(e))[:, :, None, None].chunk(2, 1)
        h = self.n2(h) * (1 + sc) + sh
        return self.s(x) + self.c2(F.silu(h))


class UNet(nn.Module):
    def __init__(self, c, classes=10):
        super().__init__()
        e = 4 * c
        self.c = c
        self.te = nn.Sequential(nn.Linear(c, e), nn.SiLU(), nn.Linear(e, e))
        self.ce = nn.Embedding(classes + 1, e)
        self.inp = nn.Conv2d(3, c, 3, padding=1)
        self.d1 = Res(c, c, e)
        self.dn = nn.Conv2d(c, 2 * c, 4, 2, 1)
        self.d2 = Res(2 * c, 2 * c, e)
        self.at = nn.MultiheadAttention(2 * c, 4, batch_first=True)
        self.up = nn.ConvTranspose2d(2 * c, c, 4, 2, 1)
        self.u1 = Res(2 * c, c, e)
        self.out = nn.Conv2d(c, 3, 3, padding=1)

    def forward(self, x, t, y):
        f = t[:, None].float() * torch.exp(-torch.arange(self.c // 2, device=x.device) * (9.2 / (self.c // 2)))
        e = self.te(torch.cat([f.sin(), f.cos()], 1)) + self.ce(y)
        h1 = self.d1(self.inp(x), e)
        h2 = self.d2(self.dn(h1), e)
        s = h2.flatten(2).transpose(1, 2)
        h2 = h2 + self.at(s, s, s, need_weights=False)[0].transpose(1, 2).view_as(h2)
        return self.out(self.u1(torch.cat([h1, self.up(h2)], 1), e))


net = UNet(a.ch).to(dev).to(memory_format=torch.channels_last)
ema = copy.deepcopy(net).eval().requires_grad_(False)
cnet = torch.compile(net)
cema = torch.compile(ema)
opt = torch.optim.AdamW(net.parameters(), 2e-4)
scaler = torch.amp.GradScaler(dev, enabled=dev == "cuda")
ab = torch.cumprod(1 - torch.linspace(1e-4, 0.02, 1000, device=dev), 0)


@torch.no_grad()
def sample(n=4, w=3.0, T=8):
    x = torch.randn(n, 3, a.size, a.size, device=dev)
    y = torch.randint(10, (n,), device=dev)
    null = torch.full_like(y, 10)
    for t in torch.linspace(999, 0, T).long().tolist():
        tt = torch.full((2 * n,), t, device=dev)
        c, u = cema(torch.cat([x, x]), tt, torch.cat([y, null])).chunk(2)
        e = u + w * (c - u)
        x0 = (x - (1 - ab[t]).sqrt() * e) / ab[t].sqrt()
        x = ab[max(t - 125, 0)].sqrt() * x0.clamp(-1, 1) + (1 - ab[max(t - 125, 0)]).sqrt() * e
    return x


for i in range(a.steps):
    x = torch.randn(a.batch, 3, a.size, a.size, device=dev).contiguous(memory_format=torch.channels_last)
    y = torch.randint(10, (a.batch,), device=dev)
    t0 = time.perf_counter()
    y = torch.where(torch.rand(a.batch, device=dev) < 0.1, 10, y)
    t = torch.randint(1000, (a.batch,), device=dev)
    n = torch.randn_like(x)
    k = ab[t][:, None, None, None]
    with torch.autocast(dev, torch.float16 if dev == "cuda" else torch.bfloat16):
        loss = F.mse_loss(cnet(k.sqrt() * x + (1 - k).sqrt() * n, t, y).float(), n)
    opt.zero_grad(set_to_none=True)
    scaler.scale(loss).backward()
    scaler.unscale_(opt)
    nn.utils.clip_grad_norm_(net.parameters(), 1.0)
    scaler.step(opt)
    scaler.update()
    with torch.no_grad():
        torch._foreach_lerp_(list(ema.parameters()), list(net.parameters()), 1e-3)
    print(f"step {i} loss {loss.item():.4f} {1e3 * (time.perf_counter() - t0):.2f} ms", flush=True)
    if (i + 1) % a.every == 0:
        print("sample", sample().std().item())
