"""LightGCN: three layers of sparse COO products over users and items, dropped edges, BPR with drawn negatives, full ranking."""

import torch, torch.nn as nn, torch.nn.functional as F
from tick import steps

USERS, ITEMS, EDGES, D, LAYERS, BATCH = 120_000, 80_000, 4_000_000, 128, 3, 16384
user = torch.randint(0, USERS, (EDGES,), device="cuda")
item = (ITEMS * torch.rand(EDGES, device="cuda") ** 2).long()
rows, cols = torch.cat([user, item + USERS]), torch.cat([item + USERS, user])
degree = torch.zeros(USERS + ITEMS, device="cuda").index_add_(0, rows, torch.ones(2 * EDGES, device="cuda"))
values = degree.clamp(min=1).rsqrt()[rows] * degree.clamp(min=1).rsqrt()[cols]
graph = torch.sparse_coo_tensor(torch.stack([rows, cols]), values, (USERS + ITEMS,) * 2).coalesce()
place, weight = graph.indices(), graph.values()


class LightGCN(nn.Module):
    def __init__(s):
        super().__init__()
        s.users, s.items = nn.Embedding(USERS, D), nn.Embedding(ITEMS, D)
        for e in (s.users, s.items):
            nn.init.normal_(e.weight, std=0.1)

    def forward(s, keep=0.9):
        w = F.dropout(weight, 1 - keep, s.training)
        g = torch.sparse_coo_tensor(place, w, graph.shape, is_coalesced=True)
        x = torch.cat([s.users.weight, s.items.weight])
        total = x
        for _ in range(LAYERS):
            x = torch.sparse.mm(g, x)
            total = total + x
        return (total / (LAYERS + 1)).split([USERS, ITEMS])


model = LightGCN().cuda()
opt = torch.optim.Adam(model.parameters(), 1e-3)


@torch.no_grad()
def recall(k=20, many=2048):
    """Whether a known item of each of some users is among the best k."""
    model.eval()
    u, v = model()
    some = torch.randint(0, EDGES, (many,), device="cuda")
    best = (u[user[some]] @ v.T).topk(k).indices
    model.train()
    return (best == item[some][:, None]).any(1).float().mean()


best = torch.zeros((), device="cuda")
for i in steps(count=6):
    edge = torch.randint(0, EDGES, (BATCH,), device="cuda")
    u, pos, neg = user[edge], item[edge], torch.randint(0, ITEMS, (BATCH,), device="cuda")
    eu, ei = model()
    score = (eu[u] * ei[pos]).sum(-1) - (eu[u] * ei[neg]).sum(-1)
    first = torch.cat([model.users(u), model.items(pos), model.items(neg)])
    loss = F.softplus(-score).mean() + 1e-4 * first.square().sum() / (2 * BATCH)
    opt.zero_grad()
    loss.backward()
    opt.step()
    if i % 100 == 99:
        best = torch.maximum(best, recall())
