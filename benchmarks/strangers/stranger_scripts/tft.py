"""Temporal Fusion Transformer: variable selection by GRNs, LSTM encoder-decoder, interpretable attention, quantile loss."""

import torch, torch.nn as nn, torch.nn.functional as F
from tick import steps

B, PAST, FUT, VP, VF, D = 256, 168, 24, 8, 4, 160


class GRN(nn.Module):
    def __init__(s, i, o, ctx=None, h=D):
        super().__init__()
        s.a, s.b, s.g, s.n = nn.Linear(i, h), nn.Linear(h, h), nn.Linear(h, 2 * o), nn.LayerNorm(o)
        s.c = nn.Linear(ctx, h, bias=False) if ctx else None
        s.s = nn.Linear(i, o) if i != o else nn.Identity()

    def forward(s, x, c=None):
        h = s.a(x) if c is None else s.a(x) + s.c(c)
        return s.n(s.s(x) + F.glu(F.dropout(s.g(s.b(F.elu(h))), 0.1, s.training), -1))


class VSN(nn.Module):
    def __init__(s, n):
        super().__init__()
        s.p = nn.ModuleList(nn.Linear(1, D) for _ in range(n))
        s.v, s.w = nn.ModuleList(GRN(D, D) for _ in range(n)), GRN(n * D, n, D)

    def forward(s, x, c):
        e = [p(x[..., k : k + 1]) for k, p in enumerate(s.p)]
        w = s.w(torch.cat(e, -1), c[:, None].expand(-1, x.size(1), -1)).softmax(-1)
        return (torch.stack([g(v) for g, v in zip(s.v, e)], -1) * w[..., None, :]).sum(-1)


class TFT(nn.Module):
    def __init__(s):
        super().__init__()
        s.st, s.cs = nn.Embedding(1000, D), nn.ModuleList(GRN(D, D) for _ in range(4))
        s.vp, s.vf = VSN(VP), VSN(VF)
        s.e, s.d = nn.LSTM(D, D, 2, batch_first=True, dropout=0.1), nn.LSTM(D, D, 2, batch_first=True)
        s.gl, s.n1, s.en = nn.Linear(D, 2 * D), nn.LayerNorm(D), GRN(D, D, D)
        s.q, s.k, s.v, s.o = nn.Linear(D, D), nn.Linear(D, D), nn.Linear(D, D // 4), nn.Linear(D // 4, D)
        s.ga, s.n2, s.ff, s.out = nn.Linear(D, 2 * D), nn.LayerNorm(D), GRN(D, D), nn.Linear(D, 7)

    def forward(s, sid, past, fut):
        c = s.st(sid)
        cv, ch, cc, ce = (g(c) for g in s.cs)
        xp, xf = s.vp(past, cv), s.vf(fut, cv)
        ep, st = s.e(xp, (ch.expand(2, -1, -1).contiguous(), cc.expand(2, -1, -1).contiguous()))
        df, _ = s.d(xf, st)
        x = torch.cat([ep, df], 1)
        x = s.n1(torch.cat([xp, xf], 1) + F.glu(s.gl(x), -1))
        y = s.en(x, ce[:, None])
        b, t, _ = y.shape
        q, k = (m(y).view(b, t, 4, D // 4).transpose(1, 2) for m in (s.q, s.k))
        mask = torch.ones(t, t, dtype=torch.bool, device=y.device).triu(1)
        a = (q @ k.mT / (D // 4) ** 0.5).masked_fill(mask, float("-inf")).softmax(-1)
        h = s.o((a @ s.v(y)[:, None]).mean(1))
        return s.out(s.ff(s.n2(y + F.glu(s.ga(h), -1)))[:, PAST:])


m = TFT().cuda()
m.vp, m.vf = torch.compile(m.vp), torch.compile(m.vf)
opt = torch.optim.Adagrad(m.parameters(), 1e-2)
quant = torch.tensor([0.02, 0.1, 0.25, 0.5, 0.75, 0.9, 0.98], device="cuda")
series = torch.randn(1000, 4000, VP, device="cuda")
for i in steps():
    sid = torch.randint(0, 1000, (B,), device="cuda")
    at = torch.randint(0, 4000 - PAST - FUT, (B, 1), device="cuda") + torch.arange(PAST + FUT, device="cuda")
    win = series[sid[:, None], at]
    mean, std = win[:, :PAST].mean(1, keepdim=True), win[:, :PAST].std(1, keepdim=True)
    win = (win - mean) / (std + 1e-5)
    p = m(sid, win[:, :PAST], win[:, PAST:, :VF])
    e = win[:, PAST:, :1] - p
    loss = torch.maximum(quant * e, (quant - 1) * e).mean()
    opt.zero_grad()
    loss.backward()
    nn.utils.clip_grad_norm_(m.parameters(), 0.01)
    opt.step()
