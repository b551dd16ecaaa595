import torch, torch.nn as nn, torch.nn.functional as F
from tick import steps

Hh, Ww, WS, D, NH = 64, 128, 8, 384, 12


def part(x):
    b = x.size(0)
    return x.view(b, Hh // WS, WS, Ww // WS, WS, -1).transpose(2, 3).reshape(-1, WS * WS, x.size(-1))


def merge(x, b):
    return x.view(b, Hh // WS, Ww // WS, WS, WS, -1).transpose(2, 3).reshape(b, Hh, Ww, -1)


def shift_mask():
    m = torch.zeros(1, Hh, Ww, 1)
    for c, s in enumerate((slice(0, -WS), slice(-WS, -WS // 2), slice(-WS // 2, None))):
        m[:, s] = c
    w = part(m).squeeze(-1)
    return (w[:, None] != w[:, :, None]).float() * -100.0


class Blk(nn.Module):
    def __init__(s, shift):
        super().__init__()
        s.shift = shift
        s.n1, s.n2, s.qkv, s.o = nn.LayerNorm(D), nn.LayerNorm(D), nn.Linear(D, 3 * D), nn.Linear(D, D)
        s.m = nn.Sequential(nn.Linear(D, 4 * D), nn.GELU(), nn.Linear(4 * D, D))
        s.table = nn.Parameter(torch.zeros((2 * WS - 1) ** 2, NH))
        c = torch.stack(torch.meshgrid(torch.arange(WS), torch.arange(WS), indexing="ij")).flatten(1)
        r = (c[:, :, None] - c[:, None]).permute(1, 2, 0) + WS - 1
        s.register_buffer("idx", (r[..., 0] * (2 * WS - 1) + r[..., 1]).flatten())
        if shift:
            s.register_buffer("mask", shift_mask())

    def forward(s, x):
        b = x.size(0)
        h = s.n1(x)
        if s.shift:
            h = h.roll((-WS // 2, -WS // 2), (1, 2))
        h = part(h)
        q, k, v = s.qkv(h).view(h.size(0), WS * WS, 3, NH, D // NH).permute(2, 0, 3, 1, 4)
        bias = s.table[s.idx].view(WS * WS, WS * WS, NH).permute(2, 0, 1)[None]
        if s.shift:
            bias = bias + s.mask.repeat(b, 1, 1)[:, None]
        y = F.scaled_dot_product_attention(q, k, v, attn_mask=bias.to(q.dtype))
        y = merge(s.o(y.transpose(1, 2).reshape(h.shape)), b)
        if s.shift:
            y = y.roll((WS // 2, WS // 2), (1, 2))
        x = x + y
        return x + s.m(s.n2(x))


class Net(nn.Module):
    def __init__(s):
        super().__init__()
        s.i, s.b, s.o = (
            nn.Conv2d(69, D, 2, 2),
            nn.Sequential(*[Blk(k % 2 == 1) for k in range(6)]),
            nn.Linear(D, 69 * 4),
        )

    def forward(s, x):
        h = s.b(s.i(x).permute(0, 2, 3, 1))
        return s.o(h).view(-1, Hh, Ww, 69, 2, 2).permute(0, 3, 1, 4, 2, 5).reshape(-1, 69, 2 * Hh, 2 * Ww)


net = Net().cuda()
f = torch.compile(net)
opt = torch.optim.AdamW(net.parameters(), 1e-4, weight_decay=0.1)
lat = torch.cos(torch.linspace(-1.5, 1.5, 128, device="cuda")).view(1, 1, -1, 1)
for i in steps():
    x, y = torch.randn(2, 69, 128, 256, device="cuda"), torch.randn(2, 69, 128, 256, device="cuda")
    with torch.autocast("cuda", torch.bfloat16):
        p = f(x)
    loss = (lat * (p.float() - y) ** 2).mean()
    loss.backward()
    opt.step()
    opt.zero_grad()
