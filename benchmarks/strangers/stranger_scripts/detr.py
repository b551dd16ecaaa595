import torch, torch.nn as nn, torch.nn.functional as F
from tick import steps


class FrozenBN(nn.Module):
    def __init__(s, c):
        super().__init__()
        for n, v in (("w", 1.0), ("b", 0.0), ("m", 0.0), ("v", 1.0)):
            s.register_buffer(n, torch.full((c,), v))

    def forward(s, x):
        k = s.w * (s.v + 1e-5).rsqrt()
        return x * k[:, None, None] + (s.b - s.m * k)[:, None, None]


def conv(i, o, st):
    return nn.Sequential(nn.Conv2d(i, o, 3, st, 1, bias=False), FrozenBN(o), nn.ReLU())


class Detr(nn.Module):
    def __init__(s, d=256, q=100):
        super().__init__()
        s.back = nn.Sequential(
            conv(3, 64, 2),
            conv(64, 128, 2),
            conv(128, 128, 1),
            conv(128, 256, 2),
            conv(256, 256, 1),
            conv(256, 512, 2),
            conv(512, 512, 1),
            conv(512, 512, 2),
        )
        s.p = nn.Conv2d(512, d, 1)
        s.pos, s.q = nn.Parameter(torch.rand(16 * 16, d)), nn.Parameter(torch.rand(q, d))
        s.tr = nn.Transformer(d, 8, 3, 3, 1024, 0.1, batch_first=True)
        s.cls, s.box = nn.Linear(d, 92), nn.Sequential(nn.Linear(d, d), nn.ReLU(), nn.Linear(d, 4))

    def forward(s, x):
        h = s.p(s.back(x)).flatten(2).mT + s.pos
        o = s.tr(h, s.q.expand(x.size(0), -1, -1))
        return s.cls(o), s.box(o).sigmoid()


def xyxy(b):
    c, w = b[..., :2], b[..., 2:]
    return torch.cat([c - w / 2, c + w / 2], -1)


def giou(a, b):
    a, b = xyxy(a), xyxy(b)
    wh = (torch.min(a[..., 2:], b[..., 2:]) - torch.max(a[..., :2], b[..., :2])).clamp(0)
    inter = wh[..., 0] * wh[..., 1]
    area = lambda z: (z[..., 2] - z[..., 0]) * (z[..., 3] - z[..., 1])
    un = area(a) + area(b) - inter
    hull = (torch.max(a[..., 2:], b[..., 2:]) - torch.min(a[..., :2], b[..., :2])).clamp(0)
    h = hull[..., 0] * hull[..., 1]
    return inter / (un + 1e-6) - (h - un) / (h + 1e-6)


net = Detr().cuda()
f = torch.compile(net)
opt = torch.optim.AdamW(net.parameters(), 1e-4)
wt = torch.ones(92, device="cuda")
wt[91] = 0.1
for i in steps():
    x = torch.randn(16, 3, 512, 512, device="cuda")
    boxes, lab = torch.rand(16, 10, 4, device="cuda") * 0.5 + 0.2, torch.randint(0, 91, (16, 10), device="cuda")
    cl, bx = f(x)
    src = torch.stack([torch.randperm(100)[:10] for _ in range(16)]).cuda()
    tgt = torch.full((16, 100), 91, device="cuda").scatter(1, src, lab)
    pb = bx.gather(1, src[..., None].expand(-1, -1, 4))
    loss = F.cross_entropy(cl.transpose(1, 2), tgt, wt) + 5 * F.l1_loss(pb, boxes) + 2 * (1 - giou(pb, boxes)).mean()
    opt.zero_grad()
    loss.backward()
    nn.utils.clip_grad_norm_(net.parameters(), 0.1)
    opt.step()
