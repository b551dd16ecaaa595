"""RAFT: all-pairs correlation pyramid, lookup by grid_sample, ConvGRU updates, convex upsampling, sequence loss."""

import torch, torch.nn as nn, torch.nn.functional as F
from tick import steps

ITERS, RAD, LEV, B, HH, WW = 8, 4, 4, 4, 368, 496


class RB(nn.Module):
    def __init__(s, i, o, st, norm):
        super().__init__()
        s.c1, s.c2, s.n1, s.n2 = nn.Conv2d(i, o, 3, st, 1), nn.Conv2d(o, o, 3, 1, 1), norm(o), norm(o)
        s.d = nn.Sequential(nn.Conv2d(i, o, 1, st), norm(o)) if st > 1 or i != o else nn.Identity()

    def forward(s, x):
        return F.relu(s.d(x) + F.relu(s.n2(s.c2(F.relu(s.n1(s.c1(x)))))))


def encoder(out, norm):
    return nn.Sequential(
        nn.Conv2d(3, 64, 7, 2, 3),
        norm(64),
        nn.ReLU(),
        RB(64, 64, 1, norm),
        RB(64, 64, 1, norm),
        RB(64, 96, 2, norm),
        RB(96, 96, 1, norm),
        RB(96, 128, 2, norm),
        RB(128, 128, 1, norm),
        nn.Conv2d(128, out, 1),
    )


class GRU(nn.Module):
    def __init__(s, h=128, i=256):
        super().__init__()
        s.g = nn.ModuleList(
            nn.ModuleList(nn.Conv2d(h + i, h, k, padding=p) for _ in range(3))
            for k, p in (((1, 5), (0, 2)), ((5, 1), (2, 0)))
        )

    def forward(s, h, x):
        for z, r, q in s.g:
            hx = torch.cat([h, x], 1)
            zz, rr = z(hx).sigmoid(), r(hx).sigmoid()
            h = (1 - zz) * h + zz * torch.tanh(q(torch.cat([rr * h, x], 1)))
        return h


class Update(nn.Module):
    def __init__(s):
        super().__init__()
        cp = LEV * (2 * RAD + 1) ** 2
        s.c1, s.c2 = nn.Conv2d(cp, 256, 1), nn.Conv2d(256, 192, 3, padding=1)
        s.f1, s.f2, s.m = (
            nn.Conv2d(2, 128, 7, padding=3),
            nn.Conv2d(128, 64, 3, padding=1),
            nn.Conv2d(256, 126, 3, padding=1),
        )
        s.gru = GRU()
        s.head = nn.Sequential(nn.Conv2d(128, 256, 3, padding=1), nn.ReLU(), nn.Conv2d(256, 2, 3, padding=1))
        s.mask = nn.Sequential(nn.Conv2d(128, 256, 3, padding=1), nn.ReLU(), nn.Conv2d(256, 576, 1))

    def forward(s, h, inp, corr, flow):
        c = F.relu(s.c2(F.relu(s.c1(corr))))
        f = F.relu(s.f2(F.relu(s.f1(flow))))
        h = s.gru(h, torch.cat([inp, F.relu(s.m(torch.cat([c, f], 1))), flow], 1))
        return h, s.head(h), 0.25 * s.mask(h)


def coords(b, h, w, d):
    y, x = torch.meshgrid(torch.arange(h, device=d), torch.arange(w, device=d), indexing="ij")
    return torch.stack([x, y]).float()[None].repeat(b, 1, 1, 1)


def lookup(pyr, c):
    b, _, h, w = c.shape
    c = c.permute(0, 2, 3, 1).reshape(-1, 1, 1, 2)
    r = torch.linspace(-RAD, RAD, 2 * RAD + 1, device=c.device)
    delta = torch.stack(torch.meshgrid(r, r, indexing="ij"), -1)[None]
    out = []
    for l, p in enumerate(pyr):
        g = c / 2**l + delta
        g = 2 * g / torch.tensor([p.shape[3] - 1, p.shape[2] - 1], device=g.device) - 1
        out.append(F.grid_sample(p, g, align_corners=True).view(b, h, w, -1))
    return torch.cat(out, -1).permute(0, 3, 1, 2).contiguous()


class RAFT(nn.Module):
    def __init__(s):
        super().__init__()
        s.fn, s.cn, s.up = encoder(256, nn.InstanceNorm2d), encoder(256, nn.BatchNorm2d), Update()

    def forward(s, a, b):
        with torch.autocast("cuda", torch.bfloat16):
            fa, fb = s.fn(torch.cat([a, b])).chunk(2)
            h, inp = s.cn(a).chunk(2, 1)
            h, inp = h.tanh(), inp.relu()
        fa, fb = fa.float(), fb.float()
        n, d, hh, ww = fa.shape
        v = (fa.flatten(2).mT @ fb.flatten(2) / d**0.5).view(n * hh * ww, 1, hh, ww)
        pyr = [v]
        for _ in range(LEV - 1):
            pyr.append(F.avg_pool2d(pyr[-1], 2))
        c0 = coords(n, hh, ww, a.device)
        c1, out = c0.clone(), []
        for _ in range(ITERS):
            c1 = c1.detach()
            corr = lookup(pyr, c1)
            with torch.autocast("cuda", torch.bfloat16):
                h, df, mask = s.up(h, inp, corr, c1 - c0)
            c1 = c1 + df.float()
            m = mask.float().view(n, 1, 9, 8, 8, hh, ww).softmax(2)
            fl = F.unfold(8 * (c1 - c0), 3, padding=1).view(n, 2, 9, 1, 1, hh, ww)
            out.append((m * fl).sum(2).permute(0, 1, 4, 2, 5, 3).reshape(n, 2, 8 * hh, 8 * ww))
        return out


net = RAFT().cuda().train()
for m in net.modules():
    if isinstance(m, nn.BatchNorm2d):
        m.eval()
opt = torch.optim.AdamW(net.parameters(), 4e-4, weight_decay=1e-4, eps=1e-8)
sched = torch.optim.lr_scheduler.OneCycleLR(
    opt, 4e-4, 100100, pct_start=0.05, cycle_momentum=False, anneal_strategy="linear"
)
for i in steps(count=4):
    a, b = torch.rand(B, 3, HH, WW, device="cuda") * 2 - 1, torch.rand(B, 3, HH, WW, device="cuda") * 2 - 1
    gt = torch.randn(B, 2, HH, WW, device="cuda") * 10
    valid = gt.norm(dim=1) < 400
    loss = sum(0.8 ** (ITERS - k - 1) * (valid[:, None] * (f - gt).abs()).mean() for k, f in enumerate(net(a, b)))
    opt.zero_grad()
    loss.backward()
    nn.utils.clip_grad_norm_(net.parameters(), 1.0)
    opt.step()
    sched.step()
