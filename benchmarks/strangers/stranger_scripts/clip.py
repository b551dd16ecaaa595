import torch, torch.nn as nn, torch.nn.functional as F
from torch.utils.checkpoint import checkpoint
from tick import steps


class Blk(nn.Module):
    def __init__(s, d, h):
        super().__init__()
        s.h, s.l1, s.l2 = h, nn.LayerNorm(d), nn.LayerNorm(d)
        s.qkv, s.o = nn.Linear(d, 3 * d), nn.Linear(d, d)
        s.m = nn.Sequential(nn.Linear(d, 4 * d), nn.GELU(approximate="tanh"), nn.Linear(4 * d, d))

    def forward(s, x, causal=False):
        b, t, d = x.shape
        q, k, v = (z.view(b, t, s.h, -1).transpose(1, 2) for z in s.qkv(s.l1(x)).chunk(3, -1))
        x = x + s.o(F.scaled_dot_product_attention(q, k, v, is_causal=causal).transpose(1, 2).reshape(b, t, d))
        return x + s.m(s.l2(x))


class Vision(nn.Module):
    def __init__(s):
        super().__init__()
        s.p, s.pos, s.cls = (
            nn.Conv2d(3, 512, 32, 32),
            nn.Parameter(torch.randn(50, 512) * 0.01),
            nn.Parameter(torch.zeros(1, 1, 512)),
        )
        s.b, s.n, s.proj = (
            nn.ModuleList(Blk(512, 8) for _ in range(8)),
            nn.LayerNorm(512),
            nn.Linear(512, 512, bias=False),
        )

    def forward(s, x):
        x = s.p(x).flatten(2).mT
        x = torch.cat([s.cls.expand(x.size(0), -1, -1).to(x.dtype), x], 1) + s.pos
        for b in s.b:
            x = checkpoint(b, x, use_reentrant=False)
        return s.proj(s.n(x[:, 0]))


class Text(nn.Module):
    def __init__(s):
        super().__init__()
        s.e, s.pos = nn.Embedding(49408, 512), nn.Parameter(torch.randn(77, 512) * 0.01)
        s.b, s.n, s.proj = (
            nn.ModuleList(Blk(512, 8) for _ in range(6)),
            nn.LayerNorm(512),
            nn.Linear(512, 512, bias=False),
        )

    def forward(s, i):
        x = s.e(i) + s.pos
        for b in s.b:
            x = b(x, causal=True)
        return s.proj(s.n(x)[torch.arange(i.size(0), device=i.device), i.argmax(-1)])


v, t = Vision().cuda(), Text().cuda()
scale = nn.Parameter(torch.tensor(2.66, device="cuda"))
cv, ct = torch.compile(v), torch.compile(t)
opt = torch.optim.AdamW([*v.parameters(), *t.parameters(), scale], 5e-4, fused=True)
labels = torch.arange(512, device="cuda")
for i in steps():
    img, txt = torch.randn(512, 3, 224, 224, device="cuda"), torch.randint(0, 49408, (512, 77), device="cuda")
    with torch.autocast("cuda", torch.bfloat16):
        a, b = F.normalize(cv(img), dim=-1), F.normalize(ct(txt), dim=-1)
        lg = scale.exp() * a @ b.t()
        loss = (F.cross_entropy(lg, labels) + F.cross_entropy(lg.t(), labels)) / 2
    opt.zero_grad()
    loss.backward()
    opt.step()
    with torch.no_grad():
        scale.clamp_(0, 4.6)
