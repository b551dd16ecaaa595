import torch
import torch.nn as nn
import torch.nn.functional as F
from tick import steps

torch.set_float32_matmul_precision("high")
USERS, ITEMS, DIM, B, HIST = 3_000_000, 2_000_000, 64, 12288, 50


class Tower(nn.Module):
    def __init__(self, i, hidden=(1024, 512), out=128):
        super().__init__()
        layers = []
        for h in hidden:
            layers += [nn.Linear(i, h), nn.LayerNorm(h), nn.ReLU(), nn.Dropout(0.1)]
            i = h
        self.net = nn.Sequential(*layers, nn.Linear(i, out))

    def forward(self, *parts):
        return F.normalize(self.net(torch.cat(parts, 1)), dim=1)


class TwoTower(nn.Module):
    def __init__(self):
        super().__init__()
        self.user = nn.Embedding(USERS, DIM, sparse=True)
        self.item = nn.Embedding(ITEMS, DIM, sparse=True)
        self.history = nn.EmbeddingBag(ITEMS, DIM, mode="mean", sparse=True)
        self.city, self.category = nn.Embedding(5000, 32), nn.Embedding(2000, 32)
        self.query, self.candidate = Tower(2 * DIM + 32 + 16), Tower(DIM + 32 + 32)
        self.log_temperature = nn.Parameter(torch.tensor(-3.0))

    def forward(self, b):
        u = self.query(self.user(b["user"]), self.history(b["history"]), self.city(b["city"]), b["context"])
        v = self.candidate(self.item(b["item"]), self.category(b["category"]), b["content"])
        return u, v


@torch.compile
def in_batch_softmax(u, v, items, log_q, log_temperature):
    logits = u @ v.t() * torch.exp(-log_temperature) - log_q
    same = items[:, None] == items[None]
    same = same & ~torch.eye(len(items), dtype=torch.bool, device=u.device)
    logits = logits.masked_fill(same, -1e9)
    return F.cross_entropy(logits, torch.arange(len(items), device=u.device))


with torch.device("cuda"):
    model = TwoTower()
model.query, model.candidate = torch.compile(model.query), torch.compile(model.candidate)
sparse = [model.user.weight, model.item.weight, model.history.weight]
dense = [p for p in model.parameters() if all(p is not s for s in sparse)]
opt_sparse = torch.optim.SparseAdam(sparse, lr=1e-3)
opt_dense = torch.optim.AdamW(dense, lr=1e-3)
popularity = torch.rand(ITEMS, device="cuda").add_(0.01)
popularity /= popularity.sum()
running = torch.zeros((), device="cuda")


def batch():
    skew = lambda n, *shape: (torch.rand(*shape, device="cuda") ** 3 * n).long()
    return {
        "user": torch.randint(0, USERS, (B,), device="cuda"),
        "item": skew(ITEMS, B),
        "history": skew(ITEMS, B, HIST),
        "city": skew(5000, B),
        "category": skew(2000, B),
        "context": torch.randn(B, 16, device="cuda"),
        "content": torch.randn(B, 32, device="cuda"),
    }


for i in steps():
    b = batch()
    u, v = model(b)
    loss = in_batch_softmax(u, v, b["item"], popularity[b["item"]].log(), model.log_temperature)
    opt_sparse.zero_grad()
    opt_dense.zero_grad()
    loss.backward()
    opt_sparse.step()
    opt_dense.step()
    running = 0.99 * running + 0.01 * loss.detach()
    if i % 10 == 0:
        print(i, running.item())
