"""Speculative decoding: small draft, larger target, KV caches written in place, rejection sampling without syncs."""

import torch, torch.nn as nn, torch.nn.functional as F
from tick import steps

B, V, MAXT, GAMMA = 4, 32000, 2048, 5
torch.set_grad_enabled(False)


def rope(x, pos):
    d = x.shape[-1]
    f = 1.0 / 10000 ** (torch.arange(0, d, 2, device=x.device).float() / d)
    a = pos[:, None].float() * f
    c, s = a.cos().to(x.dtype), a.sin().to(x.dtype)
    x1, x2 = x.chunk(2, -1)
    return torch.cat([x1 * c - x2 * s, x2 * c + x1 * s], -1)


class Layer(nn.Module):
    def __init__(s, d, h, kv, f):
        super().__init__()
        s.h, s.kv, s.hd = h, kv, d // h
        s.q, s.k, s.v, s.o = (
            nn.Linear(d, d, False),
            nn.Linear(d, kv * s.hd, False),
            nn.Linear(d, kv * s.hd, False),
            nn.Linear(d, d, False),
        )
        s.g, s.u, s.w = nn.Linear(d, f, False), nn.Linear(d, f, False), nn.Linear(f, d, False)
        s.n1, s.n2 = nn.RMSNorm(d), nn.RMSNorm(d)
        s.register_buffer("ck", torch.zeros(B, kv, MAXT, s.hd), persistent=False)
        s.register_buffer("cv", torch.zeros(B, kv, MAXT, s.hd), persistent=False)

    def forward(s, x, pos, mask):
        b, t, d = x.shape
        y = s.n1(x)
        q, k, v = (w(y).view(b, t, -1, s.hd).transpose(1, 2) for w in (s.q, s.k, s.v))
        q, k = rope(q, pos), rope(k, pos)
        s.ck.index_copy_(2, pos, k)
        s.cv.index_copy_(2, pos, v)
        y = F.scaled_dot_product_attention(q, s.ck, s.cv, attn_mask=mask, enable_gqa=True)
        x = x + s.o(y.transpose(1, 2).reshape(b, t, d))
        y = s.n2(x)
        return x + s.w(F.silu(s.g(y)) * s.u(y))


class LM(nn.Module):
    def __init__(s, d, h, kv, f, n):
        super().__init__()
        s.e, s.l, s.n, s.head = (
            nn.Embedding(V, d),
            nn.ModuleList(Layer(d, h, kv, f) for _ in range(n)),
            nn.RMSNorm(d),
            nn.Linear(d, V, False),
        )

    def forward(s, tok, pos):
        x = s.e(tok)
        mask = torch.arange(MAXT, device=x.device)[None] <= pos[:, None]
        for l in s.l:
            x = l(x, pos, mask)
        return s.head(s.n(x)).float().softmax(-1)


draft = LM(768, 12, 4, 2048, 6).to("cuda", torch.bfloat16).eval()
target = LM(4096, 32, 8, 11008, 12).to("cuda", torch.bfloat16).eval()
cd = torch.compile(draft, fullgraph=True)
ct = torch.compile(target, fullgraph=True)
pick = lambda p: (p / torch.empty_like(p).exponential_()).argmax(-1)
pos = torch.full((1,), 500, device="cuda")
tok = torch.zeros(B, 1, dtype=torch.long, device="cuda")
length = torch.zeros(B, dtype=torch.long, device="cuda")
for i in steps(count=8):
    toks, qs, t = [tok], [], tok
    for g in range(GAMMA):
        q = cd(t, pos + g)[:, -1]
        t = pick(q)[:, None]
        toks.append(t)
        qs.append(q)
    seq, q = torch.cat(toks, 1), torch.stack(qs, 1)
    p = ct(seq, pos + torch.arange(GAMMA + 1, device="cuda"))
    ask = seq[:, 1:, None]
    ratio = (p[:, :-1].gather(2, ask) / q.gather(2, ask).clamp(min=1e-9)).squeeze(-1)
    ok = (torch.rand_like(ratio) < ratio).long().cumprod(1)
    n = ok.sum(1)
    at = n[:, None, None].expand(-1, 1, V)
    rest = (p.gather(1, at) - F.pad(q, (0, 0, 0, 1)).gather(1, at)).clamp(min=0).squeeze(1)
    tok = pick(rest / rest.sum(-1, keepdim=True).clamp(min=1e-9))[:, None]
    length += n + 1
