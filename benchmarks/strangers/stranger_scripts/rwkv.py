"""RWKV-6-like language model: data-dependent decay, chunked form, Lion by hand."""

import torch, torch.nn as nn, torch.nn.functional as F
from tick import steps

torch.backends.cuda.matmul.allow_tf32 = True
B, T, D, H, L, C, V = 8, 1024, 768, 12, 8, 32, 50304
K = D // H


class TimeMix(nn.Module):
    def __init__(self):
        super().__init__()
        self.mu = nn.Parameter(torch.rand(5, D))
        self.r, self.k, self.v, self.g, self.o = (nn.Linear(D, D, bias=False) for _ in range(5))
        self.w1, self.w2 = nn.Linear(D, 64, bias=False), nn.Linear(64, D)
        self.u = nn.Parameter(torch.randn(H, K) * 0.1)
        self.gn = nn.GroupNorm(H, D, eps=64e-5)

    def forward(self, x):
        b = x.size(0)
        prev = F.pad(x, (0, 0, 1, -1))
        xr, xk, xv, xw, xg = (torch.lerp(x, prev, m) for m in self.mu)
        heads = lambda y: y.view(b, T // C, C, H, K).permute(0, 3, 1, 2, 4).float()
        r, k, v = heads(self.r(xr)), heads(self.k(xk)), heads(self.v(xv))
        w = heads(-torch.exp(self.w2(torch.tanh(self.w1(xw))).float().clamp(max=1.0) - 3))
        cum = w.cumsum(3)
        total = cum[:, :, :, -1:]
        q_ = r * (cum - w).exp()
        k_ = k * (-cum).exp()
        att = torch.tril(q_ @ k_.mT, -1) + torch.diag_embed((r * self.u[:, None, None] * k).sum(-1))
        y = att @ v
        kv = (k * (total - cum).exp()).mT @ v
        s = torch.zeros_like(kv[:, :, 0])
        out = []
        for c in range(T // C):
            out.append(y[:, :, c] + q_[:, :, c] @ s)
            s = s * total[:, :, c].exp().mT + kv[:, :, c]
        y = torch.stack(out, 2).permute(0, 2, 3, 1, 4).reshape(b * T, D)
        y = self.gn(y).view(b, T, D).to(x.dtype)
        return self.o(y * F.silu(self.g(xg)))


class ChannelMix(nn.Module):
    def __init__(self):
        super().__init__()
        self.mu = nn.Parameter(torch.rand(2, D))
        self.k, self.v, self.r = (
            nn.Linear(D, 7 * D // 2, bias=False),
            nn.Linear(7 * D // 2, D, bias=False),
            nn.Linear(D, D, bias=False),
        )

    def forward(self, x):
        prev = F.pad(x, (0, 0, 1, -1))
        k = torch.relu(self.k(torch.lerp(x, prev, self.mu[0]))).square()
        return torch.sigmoid(self.r(torch.lerp(x, prev, self.mu[1]))) * self.v(k)


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.n1, self.n2, self.t, self.c = nn.LayerNorm(D), nn.LayerNorm(D), TimeMix(), ChannelMix()

    def forward(self, x):
        x = x + self.t(self.n1(x))
        return x + self.c(self.n2(x))


class RWKV(nn.Module):
    def __init__(self):
        super().__init__()
        self.e, self.b = nn.Embedding(V, D), nn.ModuleList(Block() for _ in range(L))
        self.n0, self.n, self.h = nn.LayerNorm(D), nn.LayerNorm(D), nn.Linear(D, V, bias=False)

    def forward(self, i):
        x = self.n0(self.e(i))
        for b in self.b:
            x = b(x)
        return self.h(self.n(x))


class Lion(torch.optim.Optimizer):
    def __init__(self, p, lr=1e-4, betas=(0.9, 0.99), wd=0.1):
        super().__init__(p, dict(lr=lr, betas=betas, wd=wd))

    @torch.no_grad()
    def step(self):
        for g in self.param_groups:
            ps = [p for p in g["params"] if p.grad is not None]
            gs = [p.grad for p in ps]
            ms = [self.state[p].setdefault("m", torch.zeros_like(p)) for p in ps]
            u = torch._foreach_lerp(ms, gs, 1 - g["betas"][0])
            torch._foreach_sign_(u)
            torch._foreach_mul_(ps, 1 - g["lr"] * g["wd"])
            torch._foreach_add_(ps, u, alpha=-g["lr"])
            torch._foreach_lerp_(ms, gs, 1 - g["betas"][1])


m = RWKV().cuda()
for b in m.b:
    b.compile()
opt = Lion(m.parameters())
for i in steps():
    x = torch.randint(V, (B, T + 1), device="cuda")
    with torch.autocast("cuda", torch.bfloat16):
        loss = F.cross_entropy(m(x[:, :-1]).flatten(0, 1), x[:, 1:].flatten())
    loss.backward()
    nn.utils.clip_grad_norm_(m.parameters(), 1.0, foreach=True)
    opt.step()
    opt.zero_grad()
