import math
import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.checkpoint import checkpoint
from tick import steps

torch.manual_seed(1)
torch.backends.cuda.matmul.allow_tf32 = True
V, D, H, KV, L, T, B = 32000, 2048, 16, 4, 8, 2048, 4
HD = D // H


class RMSNorm(nn.Module):
    def __init__(self, d):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(d))

    def forward(self, x):
        h = x.float()
        h = h * torch.rsqrt(h.pow(2).mean(-1, keepdim=True) + 1e-5)
        return h.type_as(x) * self.weight


def rope_cache():
    inv = 1.0 / (500000 ** (torch.arange(0, HD, 2).float() / HD))
    f = torch.outer(torch.arange(T).float(), inv)
    return torch.cos(f), torch.sin(f)


def rope(x, cos, sin):
    x1, x2 = x.float().chunk(2, -1)
    return torch.cat([x1 * cos - x2 * sin, x2 * cos + x1 * sin], -1).type_as(x)


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.n1, self.n2 = RMSNorm(D), RMSNorm(D)
        self.q, self.k, self.v = (
            nn.Linear(D, D, bias=False),
            nn.Linear(D, KV * HD, bias=False),
            nn.Linear(D, KV * HD, bias=False),
        )
        self.o = nn.Linear(D, D, bias=False)
        self.w1, self.w3, self.w2 = (
            nn.Linear(D, 5632, bias=False),
            nn.Linear(D, 5632, bias=False),
            nn.Linear(5632, D, bias=False),
        )

    def forward(self, x, cos, sin):
        h = self.n1(x)
        q = self.q(h).view(B, T, H, HD).transpose(1, 2)
        k = self.k(h).view(B, T, KV, HD).transpose(1, 2)
        v = self.v(h).view(B, T, KV, HD).transpose(1, 2)
        q, k = rope(q, cos, sin), rope(k, cos, sin)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
        x = x + self.o(y.transpose(1, 2).reshape(B, T, D))
        h = self.n2(x)
        return x + self.w2(F.silu(self.w1(h)) * self.w3(h))


class Llama(nn.Module):
    def __init__(self):
        super().__init__()
        self.tok = nn.Embedding(V, D)
        self.layers = nn.ModuleList(Block() for _ in range(L))
        self.norm, self.head = RMSNorm(D), nn.Linear(D, V, bias=False)
        cos, sin = rope_cache()
        self.register_buffer("cos", cos, persistent=False)
        self.register_buffer("sin", sin, persistent=False)

    def forward(self, idx):
        x = self.tok(idx)
        for l in self.layers:
            x = l(x, self.cos, self.sin)
        return self.norm(x)


model = Llama().to(device="cuda", dtype=torch.bfloat16)
for l in model.layers:
    l.compile()


@torch.compile
def chunk_loss(h, w, y):
    return F.cross_entropy((h @ w.t()).float(), y, reduction="sum")


@torch.compile
def newton_schulz(g):
    x = g.bfloat16()
    x = x / (x.norm() + 1e-7)
    if g.size(0) > g.size(1):
        x = x.T
    for _ in range(5):
        a = x @ x.T
        b = -4.775 * a + 2.0315 * a @ a
        x = 3.4445 * x + b @ x
    return x.T if g.size(0) > g.size(1) else x


mats = [p for n, p in model.layers.named_parameters() if p.ndim == 2]
rest = [p for p in model.parameters() if not any(p is m for m in mats)]
adam = torch.optim.AdamW(rest, lr=3e-4, betas=(0.9, 0.95), fused=True)
moment = [torch.zeros_like(p) for p in mats]

for i in steps():
    x = torch.randint(0, V, (B, T + 1), device="cuda")
    h = model(x[:, :-1]).reshape(-1, D)
    y = x[:, 1:].reshape(-1)
    loss = 0.0
    for hc, yc in zip(h.chunk(4), y.chunk(4)):
        loss = loss + checkpoint(chunk_loss, hc, model.head.weight, yc, use_reentrant=False)
    loss = loss / y.numel()
    loss.backward()
    adam.step()
    with torch.no_grad():
        for p, m in zip(mats, moment):
            m.mul_(0.95).add_(p.grad)
            u = newton_schulz(p.grad.add(m, alpha=0.95))
            p.add_(u.to(p.dtype), alpha=-0.02 * math.sqrt(max(1, p.size(0) / p.size(1))))
    model.zero_grad(set_to_none=True)
