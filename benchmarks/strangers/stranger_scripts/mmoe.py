"""Recommender: EmbeddingBag with sparse gradients, DCN-v2 cross network, MMoE towers, two tasks, two optimizers."""

import torch, torch.nn as nn, torch.nn.functional as F
from tick import steps

B, TABLES, ROWS, DIM, DENSE = 16384, 24, 500_000, 32, 13


class Cross(nn.Module):
    def __init__(s, d, r=128, n=3):
        super().__init__()
        s.v, s.u = (
            nn.ModuleList(nn.Linear(d, r, bias=False) for _ in range(n)),
            nn.ModuleList(nn.Linear(r, d) for _ in range(n)),
        )

    def forward(s, x0):
        x = x0
        for v, u in zip(s.v, s.u):
            x = x0 * u(v(x)) + x
        return x


def mlp(*d):
    return nn.Sequential(*[m for a, b in zip(d, d[1:]) for m in (nn.Linear(a, b), nn.BatchNorm1d(b), nn.PReLU())])


class Dense(nn.Module):
    def __init__(s, experts=6, tasks=2):
        super().__init__()
        d = TABLES * DIM + 64 + DIM
        s.bot, s.cross = mlp(DENSE, 128, 64), Cross(d)
        s.experts = nn.ModuleList(mlp(d, 512, 256) for _ in range(experts))
        s.gates = nn.ModuleList(nn.Linear(d, experts) for _ in range(tasks))
        s.towers = nn.ModuleList(nn.Sequential(mlp(256, 128), nn.Dropout(0.2), nn.Linear(128, 1)) for _ in range(tasks))

    def forward(s, dense, emb, seq):
        x = s.cross(torch.cat([s.bot(dense), emb, seq], 1))
        e = torch.stack([m(x) for m in s.experts], 1)
        return [t((g(x).softmax(-1)[:, None] @ e).squeeze(1)).squeeze(1) for g, t in zip(s.gates, s.towers)]


bags = nn.ModuleList(nn.EmbeddingBag(ROWS, DIM, mode="sum", sparse=True) for _ in range(TABLES)).cuda()
hist = nn.EmbeddingBag(1_000_000, DIM, mode="mean", sparse=True).cuda()
net = Dense().cuda()
f = torch.compile(net)
od = torch.optim.AdamW(net.parameters(), 1e-3, fused=True)
os_ = torch.optim.SparseAdam(list(bags.parameters()) + list(hist.parameters()), 1e-3)
bce = nn.BCEWithLogitsLoss(pos_weight=torch.tensor(8.0, device="cuda"))
offs = torch.arange(0, B * 20, 20, device="cuda")
for i in steps(count=6):
    dense = torch.rand(B, DENSE, device="cuda").log1p()
    cats = torch.randint(0, ROWS, (TABLES, B, 2), device="cuda")
    items = torch.randint(0, 1_000_000, (B * 20,), device="cuda")
    click = (torch.rand(B, device="cuda") < 0.1).float()
    buy = click * (torch.rand(B, device="cuda") < 0.2)
    e = torch.cat([b(c) for b, c in zip(bags, cats)], 1)
    with torch.autocast("cuda", torch.bfloat16):
        pc, pb = f(dense, e, hist(items, offs))
    loss = bce(pc.float(), click) + bce(pb.float(), buy)
    od.zero_grad()
    os_.zero_grad()
    loss.backward()
    od.step()
    os_.step()
