# Principal neighbourhood aggregation on a citation graph the size of ogbn-arxiv, whole graph per step.
import torch
import torch.nn as nn
import torch.nn.functional as F
from tick import steps

NODES, EDGES, FEATURES, HIDDEN, CLASSES, LAYERS = 169_343, 1_166_243, 128, 80, 40, 4
torch.manual_seed(1)
dev = "cuda"


def aggregate(messages, dst, n, degree):
    index = dst[:, None].expand_as(messages)
    zeros = messages.new_zeros(n, messages.shape[1])
    mean = zeros.index_add(0, dst, messages) / degree
    square = zeros.index_add(0, dst, messages * messages) / degree
    std = (F.relu(square - mean * mean) + 1e-5).sqrt()
    top = zeros.scatter_reduce(0, index, messages, "amax", include_self=False)
    bottom = zeros.scatter_reduce(0, index, messages, "amin", include_self=False)
    return torch.cat([mean, std, top, bottom], 1)


class PNALayer(nn.Module):
    def __init__(self, d):
        super().__init__()
        self.pre = nn.Linear(2 * d, d)
        self.post = nn.Sequential(nn.Linear(13 * d, d), nn.ReLU(), nn.Linear(d, d))
        self.mix, self.norm = nn.Linear(d, d), nn.BatchNorm1d(d)

    def forward(self, x, src, dst, degree, scale):
        m = F.relu(self.pre(torch.cat([x[dst], x[src]], 1)))
        a = aggregate(m, dst, len(x), degree)
        y = self.post(torch.cat([x, a, a * scale, a / scale], 1))
        return x + F.dropout(F.relu(self.norm(self.mix(y))), 0.3, self.training)


class PNA(nn.Module):
    def __init__(self):
        super().__init__()
        self.encode = nn.Linear(FEATURES, HIDDEN)
        self.layers = nn.ModuleList([PNALayer(HIDDEN) for _ in range(LAYERS)])
        self.decode = nn.Sequential(nn.Linear(HIDDEN, HIDDEN), nn.ReLU(), nn.Linear(HIDDEN, CLASSES))

    def forward(self, x, src, dst, degree, scale):
        x = self.encode(x)
        for layer in self.layers:
            x = layer(x, src, dst, degree, scale)
        return self.decode(x)


src = (NODES * torch.rand(EDGES, device=dev) ** 2).long().clamp(max=NODES - 1)
dst = torch.randint(0, NODES, (EDGES,), device=dev)
degree = torch.bincount(dst, minlength=NODES).clamp(min=1).float()[:, None]
scale = torch.log(degree + 1)
scale = scale / scale.mean()
adjacency = torch.sparse_coo_tensor(torch.stack([dst, src]), 1 / degree[dst, 0], (NODES, NODES)).coalesce()

x = torch.randn(NODES, FEATURES, device=dev)
y = torch.randint(0, CLASSES, (NODES,), device=dev)
train = torch.randperm(NODES, device=dev)[: int(0.54 * NODES)]

model = PNA().to(dev)
optimizer = torch.optim.NAdam(model.parameters(), lr=2e-3, weight_decay=1e-5)
plateau = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, factor=0.5, patience=50)

for epoch in steps():
    model.train()
    optimizer.zero_grad()
    logits = model(x, src, dst, degree, scale)
    smooth = logits
    for _ in range(3):
        smooth = 0.8 * torch.sparse.mm(adjacency, smooth) + 0.2 * logits
    loss = F.cross_entropy(logits[train], y[train]) + 0.5 * F.cross_entropy(smooth[train], y[train])
    loss.backward()
    optimizer.step()
    accuracy = (smooth.argmax(1)[train] == y[train]).float().mean()
    plateau.step(loss.item())
