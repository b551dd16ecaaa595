"""GraphGPS: GINE-like messages by index_add / scatter_reduce, PNA aggregators, dense attention by graph."""

import torch, torch.nn as nn, torch.nn.functional as F
from tick import steps

G, NODES, EDGES, D, LAYERS = 256, 32, 80, 192, 6
N, E = G * NODES, G * EDGES
dev = "cuda"


class Layer(nn.Module):
    def __init__(self):
        super().__init__()
        self.edge = nn.Linear(D, D)
        self.msg = nn.Sequential(nn.Linear(3 * D, D), nn.ReLU(), nn.Linear(D, D))
        self.post = nn.Linear(5 * D, D)
        self.att = nn.MultiheadAttention(D, 8, dropout=0.1, batch_first=True)
        self.bn = nn.ModuleList(nn.BatchNorm1d(D) for _ in range(3))
        self.ff = nn.Sequential(nn.Linear(D, 2 * D), nn.ReLU(), nn.Dropout(0.1), nn.Linear(2 * D, D))

    def forward(self, x, e, src, dst, deg):
        m = self.msg(torch.cat([x[src], x[dst], self.edge(e)], -1))
        total = torch.zeros_like(x).index_add(0, dst, m)
        idx = dst[:, None].expand_as(m)
        top = torch.full_like(x, -1e4).scatter_reduce(0, idx, m, "amax", include_self=True)
        low = torch.full_like(x, 1e4).scatter_reduce(0, idx, m, "amin", include_self=True)
        mean = total / deg
        sq = torch.zeros_like(x).scatter_add(0, idx, m * m) / deg
        std = (sq - mean * mean).clamp(min=0).add(1e-5).sqrt()
        h = self.bn[0](
            x + self.post(torch.cat([x, mean, top.clamp(-10, 10), low.clamp(-10, 10), std * torch.log1p(deg)], -1))
        )
        d = x.view(G, NODES, D)
        a = self.att(d, d, d, need_weights=False)[0].reshape(N, D)
        h = h + self.bn[1](x + F.dropout(a, 0.1, self.training))
        return self.bn[2](h + self.ff(h)), e + m


class GPS(nn.Module):
    def __init__(self):
        super().__init__()
        self.atom, self.bond, self.pe = nn.Embedding(119, D - 16), nn.Embedding(5, D), nn.Linear(16, 16)
        self.layers = nn.ModuleList(Layer() for _ in range(LAYERS))
        self.head = nn.Sequential(nn.Linear(D, D), nn.ReLU(), nn.Linear(D, 10))

    def forward(self, a, pe, b, src, dst, batch):
        deg = torch.zeros(N, 1, device=a.device).index_add(0, dst, torch.ones(E, 1, device=a.device)).clamp(min=1)
        x, e = torch.cat([self.atom(a), self.pe(pe)], -1), self.bond(b)
        for l in self.layers:
            x, e = l(x, e, src, dst, deg)
        pooled = torch.zeros(G, D, device=a.device).index_add(0, batch, x)
        return self.head(pooled / NODES)


model = GPS().to(dev)
model = torch.compile(model)
opt = torch.optim.AdamW(model.parameters(), lr=1e-3, weight_decay=1e-5, capturable=True)
batch = torch.arange(G, device=dev).repeat_interleave(NODES)
weights = torch.rand(10, device=dev)
for i in steps():
    off = torch.arange(G, device=dev).repeat_interleave(EDGES) * NODES
    src, dst = (torch.randint(0, NODES, (E,), device=dev) + off for _ in range(2))
    a, b = torch.randint(0, 119, (N,), device=dev), torch.randint(0, 5, (E,), device=dev)
    pe, y = torch.randn(N, 16, device=dev), torch.randint(0, 10, (G,), device=dev)
    loss = F.cross_entropy(model(a, pe, b, src, dst, batch), y, weight=weights, label_smoothing=0.05)
    opt.zero_grad()
    loss.backward()
    opt.step()
