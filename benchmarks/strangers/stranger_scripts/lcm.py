"""Latent consistency distillation: frozen teacher with guidance, student, EMA target; three U-Nets compiled, fp16 scaler."""

import copy
import torch, torch.nn as nn, torch.nn.functional as F
from tick import steps

B, CH, TEXT = 16, (192, 384, 576), 768


class Res(nn.Module):
    def __init__(s, i, o):
        super().__init__()
        s.n1, s.c1, s.n2, s.c2 = (
            nn.GroupNorm(32, i),
            nn.Conv2d(i, o, 3, 1, 1),
            nn.GroupNorm(32, o),
            nn.Conv2d(o, o, 3, 1, 1),
        )
        s.t, s.skip = nn.Linear(768, 2 * o), nn.Conv2d(i, o, 1) if i != o else nn.Identity()

    def forward(s, x, t):
        h = s.c1(F.silu(s.n1(x)))
        scale, shift = s.t(t)[:, :, None, None].chunk(2, 1)
        return s.skip(x) + s.c2(F.silu(s.n2(h) * (1 + scale) + shift))


class Attend(nn.Module):
    def __init__(s, d):
        super().__init__()
        s.n1, s.n2, s.n3, s.h = nn.LayerNorm(d), nn.LayerNorm(d), nn.LayerNorm(d), d // 64
        s.qkv, s.o1 = nn.Linear(d, 3 * d, bias=False), nn.Linear(d, d)
        s.q, s.kv, s.o2 = nn.Linear(d, d, bias=False), nn.Linear(TEXT, 2 * d, bias=False), nn.Linear(d, d)
        s.up, s.down = nn.Linear(d, 8 * d), nn.Linear(4 * d, d)

    def heads(s, x):
        return x.unflatten(-1, (s.h, -1)).transpose(1, 2)

    def forward(s, x, text):
        shape = x.shape
        x = x.flatten(2).transpose(1, 2)
        q, k, v = (s.heads(z) for z in s.qkv(s.n1(x)).chunk(3, -1))
        x = x + s.o1(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2))
        k, v = (s.heads(z) for z in s.kv(text).chunk(2, -1))
        x = x + s.o2(F.scaled_dot_product_attention(s.heads(s.q(s.n2(x))), k, v).transpose(1, 2).flatten(2))
        a, g = s.up(s.n3(x)).chunk(2, -1)
        return (x + s.down(a * F.gelu(g))).transpose(1, 2).reshape(shape)


class UNet(nn.Module):
    def __init__(s, guided):
        super().__init__()
        a, b, c = CH
        s.t = nn.Sequential(nn.Linear(256, 768), nn.SiLU(), nn.Linear(768, 768), nn.SiLU())
        s.w = nn.Linear(256, 256, bias=False) if guided else None
        s.into, s.out = (
            nn.Conv2d(4, a, 3, 1, 1),
            nn.Sequential(nn.GroupNorm(32, a), nn.SiLU(), nn.Conv2d(a, 4, 3, 1, 1)),
        )
        s.d1, s.down1 = nn.ModuleList([Res(a, a), Res(a, a)]), nn.Conv2d(a, a, 3, 2, 1)
        s.d2, s.a2, s.down2 = nn.ModuleList([Res(a, b), Res(b, b)]), Attend(b), nn.Conv2d(b, b, 3, 2, 1)
        s.m1, s.am, s.m2 = Res(b, c), Attend(c), Res(c, c)
        s.up2, s.u2, s.b2 = nn.Conv2d(c, b, 3, 1, 1), nn.ModuleList([Res(2 * b, b), Res(b, b)]), Attend(b)
        s.up1, s.u1 = nn.Conv2d(b, a, 3, 1, 1), nn.ModuleList([Res(2 * a, a), Res(a, a)])

    @staticmethod
    def wave(t):
        f = torch.exp(-torch.arange(128, device=t.device) * (9.21 / 128))
        return torch.cat([(t[:, None] * f).sin(), (t[:, None] * f).cos()], 1)

    def forward(s, x, t, text, w=None):
        e = s.wave(t)
        if s.w is not None:
            e = e + s.w(s.wave(w * 1000))
        e = s.t(e.to(s.into.weight.dtype))
        h = s.into(x)
        for r in s.d1:
            h = r(h, e)
        k1 = h
        h = s.down1(h)
        for r in s.d2:
            h = r(h, e)
        k2 = h = s.a2(h, text)
        h = s.m2(s.am(s.m1(s.down2(h), e), text), e)
        h = torch.cat([s.up2(F.interpolate(h, scale_factor=2, mode="nearest")), k2], 1)
        for r in s.u2:
            h = r(h, e)
        h = s.b2(h, text)
        h = torch.cat([s.up1(F.interpolate(h, scale_factor=2, mode="nearest")), k1], 1)
        for r in s.u1:
            h = r(h, e)
        return s.out(h)


teacher = UNet(False).half().cuda().eval().requires_grad_(False).to(memory_format=torch.channels_last)
student = UNet(True).cuda().to(memory_format=torch.channels_last)
target = copy.deepcopy(student).requires_grad_(False)
run_teacher, run_student, run_target = torch.compile(teacher), torch.compile(student), torch.compile(target)
alphas = torch.cumprod(1 - torch.linspace(0.00085**0.5, 0.012**0.5, 1000) ** 2, 0).cuda()
grid = (torch.arange(1, 51) * 20 - 1).cuda()
null = torch.zeros(B, 77, TEXT, device="cuda", dtype=torch.half)
opt = torch.optim.AdamW(student.parameters(), 1e-5, weight_decay=1e-2, fused=True)
scaler = torch.amp.GradScaler("cuda")


def boundary(t, sigma=0.5, scale=10.0):
    z = t * scale / 1000
    return sigma**2 / (z**2 + sigma**2), z / (z**2 + sigma**2) ** 0.5


def consistent(net, x, t, text, w):
    a = alphas[t][:, None, None, None]
    skip, out = (c[:, None, None, None] for c in boundary(t.float()))
    x0 = (x - (1 - a).sqrt() * net(x, t.float(), text, w)) / a.sqrt()
    return skip * x + out * x0


for i in steps(count=6):
    latent = torch.randn(B, 4, 64, 64, device="cuda").to(memory_format=torch.channels_last)
    text = torch.randn(B, 77, TEXT, device="cuda", dtype=torch.half)
    noise, w = torch.randn_like(latent), 2 + 12 * torch.rand(B, device="cuda")
    at = torch.randint(1, 50, (B,), device="cuda")
    t, s = grid[at], grid[at - 1]
    a, b = alphas[t][:, None, None, None], alphas[s][:, None, None, None]
    x = a.sqrt() * latent + (1 - a).sqrt() * noise
    with torch.no_grad():
        both = run_teacher(x.half().repeat(2, 1, 1, 1), t.half().repeat(2), torch.cat([text, null]))
        cond, free = both.float().chunk(2)
        eps = free + w[:, None, None, None] * (cond - free)
        x0 = (x - (1 - a).sqrt() * eps) / a.sqrt()
        nearer = b.sqrt() * x0 + (1 - b).sqrt() * eps
        with torch.autocast("cuda", torch.float16):
            goal = consistent(run_target, nearer, s, text, w)
    with torch.autocast("cuda", torch.float16):
        made = consistent(run_student, x, t, text, w)
    loss = ((made.float() - goal.float()).pow(2) + 1e-6).sqrt().sub(1e-3).mean()
    scaler.scale(loss).backward()
    scaler.unscale_(opt)
    torch.nn.utils.clip_grad_norm_(student.parameters(), 1.0)
    scaler.step(opt)
    scaler.update()
    opt.zero_grad(set_to_none=True)
    with torch.no_grad():
        for p, q in zip(target.parameters(), student.parameters()):
            p.lerp_(q, 0.05)
