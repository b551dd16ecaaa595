import torch, torch.nn as nn, torch.nn.functional as F
from tick import steps

B, T, D, L, E, K, HID, V = 8, 1024, 768, 6, 8, 2, 2048, 16000
CAP = int(1.25 * B * T * K / E)


class Attn(nn.Module):
    def __init__(self):
        super().__init__()
        self.qkv, self.proj = nn.Linear(D, 3 * D), nn.Linear(D, D)

    def forward(self, x):
        b, t, _ = x.shape
        q, k, v = self.qkv(x).view(b, t, 3, 12, 64).permute(2, 0, 3, 1, 4)
        return self.proj(F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(2))


class MoE(nn.Module):
    def __init__(self):
        super().__init__()
        self.router = nn.Linear(D, E, bias=False)
        self.w1 = nn.Parameter(torch.randn(E, D, HID) * 0.02)
        self.w2 = nn.Parameter(torch.randn(E, HID, D) * 0.02)

    def forward(self, x):
        flat = x.reshape(-1, D)
        logits = self.router(flat).float()
        probs = logits.softmax(-1)
        top, idx = probs.topk(K, -1)
        top = top / top.sum(-1, keepdim=True)
        e = idx.flatten()
        order = e.argsort(stable=True)
        counts = F.one_hot(e, E).sum(0)
        starts = counts.cumsum(0) - counts
        pos = torch.arange(e.numel(), device=x.device) - starts[e[order]]
        slot = e[order] * CAP + pos
        keep = pos < CAP
        slot = torch.where(keep, slot, E * CAP)
        token = order // K
        buf = flat.new_zeros(E * CAP + 1, D).index_copy(0, slot, flat[token])
        h = torch.bmm(buf[:-1].view(E, CAP, D), self.w1.to(buf.dtype))
        h = torch.bmm(F.gelu(h), self.w2.to(buf.dtype)).view(E * CAP, D)
        h = torch.cat([h, h.new_zeros(1, D)])[slot] * top.flatten()[order].unsqueeze(1).to(h.dtype)
        out = torch.zeros_like(h[: flat.size(0)]).index_add(0, token, h)
        aux = E * (counts.float() / e.numel() * probs.mean(0)).sum()
        return out.view_as(x), aux


class Layer(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.m, self.n1, self.n2 = Attn(), MoE(), nn.LayerNorm(D), nn.LayerNorm(D)

    def forward(self, x):
        x = x + self.a(self.n1(x))
        y, aux = self.m(self.n2(x))
        return x + y, aux


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.e, self.p = nn.Embedding(V, D), nn.Embedding(T, D)
        self.l, self.n, self.h = nn.ModuleList(Layer() for _ in range(L)), nn.LayerNorm(D), nn.Linear(D, V)

    def forward(self, i):
        x, aux = self.e(i) + self.p.weight, 0.0
        for l in self.l:
            x, a = l(x)
            aux = aux + a
        return self.h(self.n(x)), aux


m = torch.compile(Model().cuda())
o = torch.optim.AdamW(m.parameters(), 1e-4)
s = torch.optim.lr_scheduler.CosineAnnealingLR(o, 1000)
for i in steps():
    x = torch.randint(V, (B, T + 1)).cuda()
    with torch.autocast("cuda", dtype=torch.bfloat16):
        y, aux = m(x[:, :-1])
        loss = F.cross_entropy(y.view(-1, V), x[:, 1:].reshape(-1)) + 0.01 * aux
    loss.backward()
    o.step()
    o.zero_grad()
    s.step()
