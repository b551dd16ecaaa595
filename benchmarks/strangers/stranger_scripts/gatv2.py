import torch
import torch.nn as nn
import torch.nn.functional as F
from tick import steps

NODES, EDGES, FEATS, HIDDEN, HEADS, CLASSES = 120000, 1200000, 128, 64, 3, 40


def scatter_softmax(score, dst, num_nodes):
    index = dst[:, None].expand_as(score)
    peak = torch.full((num_nodes, score.size(1)), float("-inf"), device=score.device)
    peak = peak.scatter_reduce(0, index, score.detach(), reduce="amax")
    score = (score - peak[dst]).exp()
    total = torch.zeros(num_nodes, score.size(1), device=score.device).scatter_add(0, index, score)
    return score / (total[dst] + 1e-16)


class GATv2Conv(nn.Module):
    def __init__(self, in_dim, out_dim, heads, attn_drop=0.1):
        super().__init__()
        self.heads, self.out_dim = heads, out_dim
        self.lin_src = nn.Linear(in_dim, heads * out_dim)
        self.lin_dst = nn.Linear(in_dim, heads * out_dim)
        self.att = nn.Parameter(torch.empty(1, heads, out_dim))
        self.attn_drop = nn.Dropout(attn_drop)
        nn.init.xavier_uniform_(self.att)

    def forward(self, x, src, dst):
        n = x.size(0)
        xs = self.lin_src(x).view(n, self.heads, self.out_dim)
        xd = self.lin_dst(x).view(n, self.heads, self.out_dim)
        e = F.leaky_relu(xs[src] + xd[dst], 0.2)
        alpha = self.attn_drop(scatter_softmax((e * self.att).sum(-1), dst, n))
        out = torch.zeros_like(xs).index_add_(0, dst, xs[src] * alpha.unsqueeze(-1))
        return out.flatten(1)


class GAT(nn.Module):
    def __init__(self, layers=3):
        super().__init__()
        dims = [FEATS] + [HIDDEN * HEADS] * (layers - 1)
        self.convs = nn.ModuleList(GATv2Conv(d, HIDDEN, HEADS) for d in dims)
        self.skips = nn.ModuleList(nn.Linear(d, HIDDEN * HEADS, bias=False) for d in dims)
        self.norms = nn.ModuleList(nn.BatchNorm1d(HIDDEN * HEADS) for _ in dims)
        self.head = nn.Linear(HIDDEN * HEADS, CLASSES)

    def forward(self, x, src, dst):
        for conv, skip, norm in zip(self.convs, self.skips, self.norms):
            x = conv(x, src, dst) + skip(x)
            x = F.dropout(F.relu(norm(x)), 0.5, self.training)
        return self.head(x)


device = torch.device("cuda")
x = torch.randn(NODES, FEATS, device=device)
y = torch.randint(0, CLASSES, (NODES,), device=device)
src = (NODES * torch.rand(EDGES, device=device) ** 2).long()
dst = torch.randint(0, NODES, (EDGES,), device=device)
loop = torch.arange(NODES, device=device)
src, dst = torch.cat([src, loop]), torch.cat([dst, loop])
perm = torch.randperm(NODES, device=device)
train_idx, val_idx = perm[: int(0.6 * NODES)], perm[int(0.6 * NODES) :]

model = GAT().to(device)
forward = torch.compile(model)
optimizer = torch.optim.Adam(model.parameters(), lr=2e-3, weight_decay=5e-4)
best = 0.0
for epoch in steps():
    model.train()
    optimizer.zero_grad()
    out = forward(x, src, dst)
    loss = F.cross_entropy(out[train_idx], y[train_idx])
    loss.backward()
    optimizer.step()
    model.eval()
    with torch.no_grad():
        pred = forward(x, src, dst).argmax(dim=-1)
    val_acc = (pred[val_idx] == y[val_idx]).float().mean().item()
    best = max(best, val_acc)
