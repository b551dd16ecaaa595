"""Glow: actnorm, invertible 1x1 by slogdet, affine coupling, multi-scale."""

import math, torch, torch.nn as nn, torch.nn.functional as F
from tick import steps


class ActNorm(nn.Module):
    def __init__(s, c):
        super().__init__()
        s.b, s.logs = nn.Parameter(torch.zeros(1, c, 1, 1)), nn.Parameter(torch.zeros(1, c, 1, 1))

    def forward(s, x, ld):
        return (x + s.b) * s.logs.exp(), ld + s.logs.sum() * x.shape[2] * x.shape[3]


class Inv1x1(nn.Module):
    def __init__(s, c):
        super().__init__()
        s.w = nn.Parameter(torch.linalg.qr(torch.randn(c, c))[0])

    def forward(s, x, ld):
        return F.conv2d(x, s.w[:, :, None, None]), ld + torch.linalg.slogdet(s.w)[1] * x.shape[2] * x.shape[3]


class Coupling(nn.Module):
    def __init__(s, c, h=512):
        super().__init__()
        s.net = nn.Sequential(
            nn.Conv2d(c // 2, h, 3, padding=1),
            nn.ReLU(True),
            nn.Conv2d(h, h, 1),
            nn.ReLU(True),
            nn.Conv2d(h, c, 3, padding=1),
        )
        nn.init.zeros_(s.net[-1].weight)
        s.scale = nn.Parameter(torch.zeros(1, c, 1, 1))

    def forward(s, x, ld):
        a, b = x.chunk(2, 1)
        t, r = (s.net(a) * (s.scale * 3).exp()).chunk(2, 1)
        sc = torch.sigmoid(r + 2)
        return torch.cat([a, (b + t) * sc], 1), ld + sc.log().flatten(1).sum(1)


class Glow(nn.Module):
    def __init__(s, levels=3, k=8):
        super().__init__()
        s.flows, c = nn.ModuleList(), 3
        for _ in range(levels):
            c *= 4
            s.flows.append(nn.ModuleList(m for _ in range(k) for m in (ActNorm(c), Inv1x1(c), Coupling(c))))
            c //= 2

    def forward(s, x):
        ld, lp = x.new_zeros(x.size(0)), 0
        for n, level in enumerate(s.flows):
            x = F.pixel_unshuffle(x, 2)
            for f in level:
                x, ld = f(x, ld)
            if n < len(s.flows) - 1:
                x, z = x.chunk(2, 1)
                lp = lp - 0.5 * (z**2 + math.log(2 * math.pi)).flatten(1).sum(1)
        return lp - 0.5 * (x**2 + math.log(2 * math.pi)).flatten(1).sum(1) + ld


torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = True
flow = Glow().to("cuda")
run = torch.compile(flow, dynamic=False)
opt = torch.optim.Adamax(flow.parameters(), 1e-3)
warm = torch.optim.lr_scheduler.LambdaLR(opt, lambda n: min(1.0, (n + 1) / 1000))
for i in steps():
    x = (torch.randint(0, 32, (64, 3, 32, 32), device="cuda") + torch.rand(64, 3, 32, 32, device="cuda")) / 32 - 0.5
    nll = -(run(x) - math.log(32) * 3072).mean() / (math.log(2) * 3072)
    opt.zero_grad()
    nll.backward()
    torch.nn.utils.clip_grad_norm_(flow.parameters(), 50.0)
    opt.step()
    warm.step()
