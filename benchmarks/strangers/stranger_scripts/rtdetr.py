"""RT-DETR-like: top-k query selection, deformable attention by grid_sample, simOTA assignment, varifocal loss."""

import torch, torch.nn as nn, torch.nn.functional as F
from tick import steps

B, NC, D, Q, GT = 16, 80, 256, 300, 12


def cba(i, o, k=3, s=1):
    return nn.Sequential(nn.Conv2d(i, o, k, s, k // 2, bias=False), nn.BatchNorm2d(o), nn.SiLU(inplace=True))


class Backbone(nn.Module):
    def __init__(s):
        super().__init__()
        s.stem = nn.Sequential(cba(3, 32, 3, 2), cba(32, 64, 3, 2))
        s.st = nn.ModuleList(
            nn.Sequential(cba(i, o, 3, 2), cba(o, o), cba(o, o)) for i, o in ((64, 128), (128, 256), (256, 512))
        )
        s.pr = nn.ModuleList(cba(c, D, 1) for c in (128, 256, 512))

    def forward(s, x):
        x, out = s.stem(x), []
        for st, pr in zip(s.st, s.pr):
            x = st(x)
            out.append(pr(x))
        return out


class MSDeform(nn.Module):
    def __init__(s, h=8, p=4, lv=3):
        super().__init__()
        s.h, s.p, s.lv = h, p, lv
        s.off, s.w, s.v, s.o = nn.Linear(D, h * lv * p * 2), nn.Linear(D, h * lv * p), nn.Linear(D, D), nn.Linear(D, D)

    def forward(s, q, ref, mem, shapes):
        b, n, _ = q.shape
        v = s.v(mem).view(b, -1, s.h, D // s.h)
        off = s.off(q).view(b, n, s.h, s.lv, s.p, 2)
        w = s.w(q).view(b, n, s.h, s.lv * s.p).softmax(-1).view(b, n, s.h, s.lv, s.p)
        loc = ref[:, :, None, None, None, :2] + off / s.p * ref[:, :, None, None, None, 2:] * 0.5
        out = 0
        for l, (vl, (hh, ww)) in enumerate(zip(v.split([a * c for a, c in shapes], 1), shapes)):
            vl = vl.permute(0, 2, 3, 1).reshape(b * s.h, D // s.h, hh, ww)
            g = (2 * loc[:, :, :, l] - 1).transpose(1, 2).flatten(0, 1)
            sm = F.grid_sample(vl, g.to(vl.dtype), mode="bilinear", padding_mode="zeros", align_corners=False)
            out = out + (sm * w[:, :, :, l].permute(0, 2, 1, 3).reshape(b * s.h, 1, n, s.p)).sum(-1)
        return s.o(out.view(b, D, n).transpose(1, 2).to(q.dtype))


class DecLayer(nn.Module):
    def __init__(s):
        super().__init__()
        s.sa, s.ca = nn.MultiheadAttention(D, 8, batch_first=True), MSDeform()
        s.n = nn.ModuleList(nn.LayerNorm(D) for _ in range(3))
        s.ff = nn.Sequential(nn.Linear(D, 1024), nn.ReLU(), nn.Linear(1024, D))
        s.cls, s.box, s.pos = (
            nn.Linear(D, NC),
            nn.Sequential(nn.Linear(D, D), nn.ReLU(), nn.Linear(D, 4)),
            nn.Linear(4, D),
        )

    def forward(s, q, ref, mem, shapes):
        p = s.pos(ref)
        q = s.n[0](q + s.sa(q + p, q + p, q, need_weights=False)[0])
        q = s.n[1](q + s.ca(q + p, ref, mem, shapes))
        q = s.n[2](q + s.ff(q))
        box = (s.box(q).float() + torch.logit(ref, 1e-5)).sigmoid()
        return q, s.cls(q), box


class RTDETR(nn.Module):
    def __init__(s):
        super().__init__()
        s.bb, s.enc = Backbone(), nn.TransformerEncoderLayer(D, 8, 1024, 0.0, F.gelu, batch_first=True)
        s.sc, s.sb, s.dec = nn.Linear(D, NC), nn.Linear(D, 4), nn.ModuleList(DecLayer() for _ in range(3))

    def forward(s, x):
        f = s.bb(x)
        b, _, h, w = f[2].shape
        f[2] = s.enc(f[2].flatten(2).mT).mT.reshape(b, D, h, w)
        shapes = [tuple(t.shape[2:]) for t in f]
        mem = torch.cat([t.flatten(2).mT for t in f], 1)
        sc = s.sc(mem)
        top = sc.max(-1).values.topk(Q, 1).indices[..., None]
        q = mem.gather(1, top.expand(-1, -1, D))
        ref = s.sb(q).float().sigmoid()
        outs = [(sc.gather(1, top.expand(-1, -1, NC)), ref)]
        for d in s.dec:
            q, c, box = d(q.detach() if d is s.dec[0] else q, ref.detach(), mem, shapes)
            outs.append((c, box))
            ref = box
        return outs


def iou(a, b):
    xy = lambda t: torch.cat([t[..., :2] - t[..., 2:] / 2, t[..., :2] + t[..., 2:] / 2], -1)
    a, b = xy(a), xy(b)
    wh = (torch.min(a[..., 2:], b[..., 2:]) - torch.max(a[..., :2], b[..., :2])).clamp(min=0)
    i = wh.prod(-1)
    ar = lambda t: (t[..., 2:] - t[..., :2]).prod(-1)
    return i / (ar(a) + ar(b) - i + 1e-6)


def criterion(logits, box, lab, gt):
    logits = logits.float()
    with torch.no_grad():
        ious = iou(box[:, :, None], gt[:, None])
        pr = logits.sigmoid().gather(2, lab[:, None].expand(-1, Q, -1))
        cost = 5 * torch.cdist(box, gt, p=1) - 2 * ious - 2 * pr
        best = cost.topk(1, dim=1, largest=False).indices.squeeze(1)
    pb = box.gather(1, best[..., None].expand(-1, -1, 4))
    u = iou(pb, gt)
    t = torch.zeros_like(logits)
    bi = torch.arange(B, device=t.device)[:, None].expand_as(best)
    t[bi, best, lab] = u.detach().clamp(min=0)
    w = 0.75 * logits.sigmoid().detach().pow(2) * (t == 0) + t
    vfl = F.binary_cross_entropy_with_logits(logits, t, weight=w, reduction="sum")
    return (vfl + 5 * (pb - gt).abs().sum() + 2 * (1 - u).sum()) / (B * GT)


net = RTDETR().cuda().train()
net.bb = torch.compile(net.bb)
opt = torch.optim.AdamW(
    [
        dict(params=net.bb.parameters(), lr=1e-5),
        dict(params=[p for n, p in net.named_parameters() if not n.startswith("bb.")]),
    ],
    lr=1e-4,
)
for i in steps():
    x = torch.rand(B, 3, 640, 640, device="cuda")
    lab, gt = torch.randint(0, NC, (B, GT), device="cuda"), torch.rand(B, GT, 4, device="cuda") * 0.4 + 0.1
    with torch.autocast("cuda", torch.bfloat16):
        outs = net(x)
    loss = sum(criterion(c, b, lab, gt) for c, b in outs)
    opt.zero_grad()
    loss.backward()
    nn.utils.clip_grad_norm_(net.parameters(), 0.1)
    opt.step()
