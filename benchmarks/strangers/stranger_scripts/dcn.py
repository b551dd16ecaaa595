import torch
from torch import nn
import torch.nn.functional as F
from tick import steps

torch.manual_seed(2024)
CAT = [
    1460,
    583,
    2000000,
    900000,
    305,
    24,
    12517,
    633,
    3,
    93145,
    5683,
    1500000,
    3194,
    27,
    14992,
    1000000,
    10,
    5652,
    2173,
    4,
    1200000,
    18,
    15,
    286181,
    105,
    142572,
]
NUM, EMB, BATCH = 13, 16, 32768


class FeatureEmbedding(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.tables = nn.ModuleDict({f"C{i + 1}": nn.Embedding(n, dim, padding_idx=0) for i, n in enumerate(CAT)})
        self.dense = nn.ModuleDict({f"I{i + 1}": nn.Linear(1, dim, bias=False) for i in range(NUM)})
        for t in self.tables.values():
            nn.init.normal_(t.weight, std=1e-4)

    def forward(self, num, cat):
        out = [self.dense[f"I{i + 1}"](num[:, i : i + 1]) for i in range(NUM)]
        out += [self.tables[f"C{i + 1}"](cat[:, i]) for i in range(len(CAT))]
        return torch.stack(out, dim=1)


class CrossMix(nn.Module):
    def __init__(self, d, layers=3, experts=4, rank=128):
        super().__init__()
        self.u = nn.ParameterList(
            nn.Parameter(nn.init.xavier_normal_(torch.empty(experts, d, rank))) for _ in range(layers)
        )
        self.v = nn.ParameterList(
            nn.Parameter(nn.init.xavier_normal_(torch.empty(experts, d, rank))) for _ in range(layers)
        )
        self.c = nn.ParameterList(
            nn.Parameter(nn.init.xavier_normal_(torch.empty(experts, rank, rank))) for _ in range(layers)
        )
        self.b = nn.ParameterList(nn.Parameter(torch.zeros(d)) for _ in range(layers))
        self.gate = nn.ModuleList(nn.Linear(d, 1, bias=False) for _ in range(experts))

    def forward(self, x0):
        x = x0
        for u, v, c, b in zip(self.u, self.v, self.c, self.b):
            outs, gates = [], []
            for e in range(len(self.gate)):
                h = torch.tanh(torch.tanh(x @ v[e]) @ c[e])
                outs.append(x0 * (h @ u[e].t() + b))
                gates.append(self.gate[e](x))
            x = torch.matmul(torch.stack(outs, 2), torch.stack(gates, 1).softmax(1)).squeeze(2) + x
        return x


class DeepCross(nn.Module):
    def __init__(self, hidden=(1024, 1024, 512)):
        super().__init__()
        d = EMB * (NUM + len(CAT))
        self.embedding, self.lr = FeatureEmbedding(EMB), FeatureEmbedding(1)
        self.cross, mlp = CrossMix(d), []
        for i, o in zip((d, *hidden), hidden):
            mlp += [nn.Linear(i, o), nn.BatchNorm1d(o), nn.ReLU(), nn.Dropout(0.1)]
        self.mlp = nn.Sequential(*mlp)
        self.fc = nn.Linear(d + hidden[-1], 1)

    def forward(self, num, cat):
        e = self.embedding(num, cat)
        fm = 0.5 * (e.sum(1).pow(2) - e.pow(2).sum(1)).sum(1, keepdim=True)
        x = e.flatten(1)
        deep = torch.cat([self.cross(x), self.mlp(x)], dim=-1)
        return torch.sigmoid(self.fc(deep) + fm + self.lr(num, cat).sum(1))


def regularization(model, lam=1e-6):
    return sum(
        lam / 2 * p.pow(2).sum() for n, p in model.named_parameters() if n.startswith("cross") or n.startswith("mlp")
    )


model = DeepCross().cuda()
net = torch.compile(model)
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
rows = BATCH * 8
num = torch.rand(rows, NUM)
cat = torch.stack([(torch.rand(rows).pow(3) * n).long().clamp(max=n - 1) for n in CAT], dim=1)
label = (torch.rand(rows, 1) < 0.25).float()
total = torch.zeros((), device="cuda")
for i in steps():
    part = slice(i % 8 * BATCH, (i % 8 + 1) * BATCH)
    x, c, y = num[part].cuda(), cat[part].cuda(), label[part].cuda()
    optimizer.zero_grad()
    loss = F.binary_cross_entropy(net(x, c), y) + regularization(model)
    loss.backward()
    nn.utils.clip_grad_norm_(model.parameters(), 10.0)
    optimizer.step()
    total += loss.detach()
