import math, torch, torch.nn as nn, torch.nn.functional as F
from tick import steps

D, H, L = 1152, 16, 8


class Blk(nn.Module):
    def __init__(s):
        super().__init__()
        s.n1, s.n2 = (
            nn.LayerNorm(D, elementwise_affine=False, eps=1e-6),
            nn.LayerNorm(D, elementwise_affine=False, eps=1e-6),
        )
        s.qkv, s.o = nn.Linear(D, 3 * D), nn.Linear(D, D)
        s.m = nn.Sequential(nn.Linear(D, 4 * D), nn.GELU("tanh"), nn.Linear(4 * D, D))
        s.ada = nn.Sequential(nn.SiLU(), nn.Linear(D, 6 * D))

    def forward(s, x, c):
        a, b, g, d, e, f = s.ada(c)[:, None].chunk(6, -1)
        h = s.n1(x) * (1 + b) + a
        q, k, v = s.qkv(h).unflatten(-1, (3, H, D // H)).permute(2, 0, 3, 1, 4)
        x = x + g * s.o(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2))
        return x + f * s.m(s.n2(x) * (1 + e) + d)


class DiT(nn.Module):
    def __init__(s):
        super().__init__()
        s.p, s.pos = nn.Conv2d(4, D, 2, 2), nn.Parameter(torch.randn(1, 256, D) * 0.02)
        s.t, s.y = nn.Sequential(nn.Linear(256, D), nn.SiLU(), nn.Linear(D, D)), nn.Embedding(1001, D)
        s.b = nn.ModuleList(Blk() for _ in range(L))
        s.n, s.out = nn.LayerNorm(D, elementwise_affine=False), nn.Linear(D, 2 * 2 * 4)

    def forward(s, x, t, y):
        f = torch.exp(-math.log(1e4) * torch.arange(128, device=x.device) / 128)
        te = torch.cat([(t[:, None] * f).cos(), (t[:, None] * f).sin()], -1).to(x.dtype)
        c = s.t(te) + s.y(y)
        h = s.p(x).flatten(2).mT + s.pos
        for b in s.b:
            h = b(h, c)
        return s.out(s.n(h)).view(-1, 16, 16, 2, 2, 4).permute(0, 5, 1, 3, 2, 4).reshape(-1, 4, 32, 32)


dit = DiT().to("cuda", torch.bfloat16).eval()


def up(i, o):
    return [nn.Upsample(scale_factor=2), nn.Conv2d(i, o, 3, padding=1), nn.GroupNorm(32, o), nn.SiLU()]


vae = (
    nn.Sequential(
        nn.Conv2d(4, 256, 3, padding=1), *up(256, 256), *up(256, 128), *up(128, 64), nn.Conv2d(64, 3, 3, padding=1)
    )
    .to("cuda", torch.float16, memory_format=torch.channels_last)
    .eval()
)
f, dec = torch.compile(dit), torch.compile(vae)
ab = torch.cumprod(1 - torch.linspace(1e-4, 0.02, 1000), 0).cuda()
ts = torch.linspace(999, 0, 10).long().tolist()
with torch.no_grad():
    for i in steps(count=4):
        x = torch.randn(8, 4, 32, 32, device="cuda", dtype=torch.bfloat16)
        y = torch.cat([torch.randint(0, 1000, (8,), device="cuda"), torch.full((8,), 1000, device="cuda")])
        for k, t in enumerate(ts):
            e = f(torch.cat([x, x]), torch.full((16,), t, device="cuda"), y)
            c, u = e.chunk(2)
            e = u + 4.0 * (c - u)
            a, an = ab[t], ab[ts[k + 1]] if k + 1 < len(ts) else torch.ones((), device="cuda")
            x0 = (x - (1 - a).sqrt() * e) / a.sqrt()
            x = (an.sqrt() * x0 + (1 - an).sqrt() * e).to(torch.bfloat16)
        img = dec(x.half().contiguous(memory_format=torch.channels_last))
