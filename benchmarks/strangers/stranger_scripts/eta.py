"""Click model for ads: SimHash retrieval from a long history (ETA), target attention over a short one,
several embedding sets with a DCN-v2 tower each (multi-embedding)."""

from dataclasses import dataclass

import torch
import torch.nn as nn
import torch.nn.functional as F

from tick import steps


@dataclass
class Config:
    device: str = "cuda"
    batch: int = 4096
    fields: int = 39
    rows: int = 6_000_000
    sets: int = 3
    dim: int = 16
    items: int = 3_000_000
    item_dim: int = 64
    long: int = 1024
    short: int = 50
    keep: int = 48
    bits: int = 32
    crosses: int = 3
    rank: int = 128
    hidden: tuple = (1024, 512, 256)
    lr: float = 1e-3
    embedding_lr: float = 0.02


class RowWiseAdagrad(torch.optim.Optimizer):
    """One accumulator a row; only for sparse gradients."""

    def __init__(self, params, lr, eps=1e-8):
        super().__init__(params, {"lr": lr, "eps": eps})

    @torch.no_grad()
    def step(self):
        for group in self.param_groups:
            for p in group["params"]:
                if p.grad is None:
                    continue
                state = self.state[p]
                if not state:
                    state["sum"] = torch.zeros(p.size(0), device=p.device)
                grad = p.grad.coalesce()
                rows, values = grad.indices()[0], grad.values()
                acc = state["sum"].index_select(0, rows) + values.square().mean(1)
                state["sum"].index_copy_(0, rows, acc)
                p.index_add_(0, rows, values / (acc.sqrt() + group["eps"]).unsqueeze(1), alpha=-group["lr"])


class TargetAttention(nn.Module):
    def __init__(self, d, heads=4):
        super().__init__()
        self.heads = heads
        self.q, self.kv, self.o = nn.Linear(d, d), nn.Linear(d, 2 * d), nn.Linear(d, d)

    def forward(self, target, seq, mask):
        b, n, d = seq.shape
        q = self.q(target).view(b, self.heads, 1, -1)
        k, v = self.kv(seq).view(b, n, 2, self.heads, -1).permute(2, 0, 3, 1, 4)
        w = (q * k).sum(-1) / (d / self.heads) ** 0.5
        w = w.masked_fill(~mask[:, None], -1e4).softmax(-1)
        return self.o((w.unsqueeze(-1) * v).sum(2).flatten(1))


class CrossLayer(nn.Module):
    def __init__(self, d, rank):
        super().__init__()
        self.v, self.u = nn.Linear(d, rank, bias=False), nn.Linear(rank, d)

    def forward(self, x0, x):
        return x0 * self.u(self.v(x)) + x


class Tower(nn.Module):
    def __init__(self, d, cfg):
        super().__init__()
        self.crosses = nn.ModuleList(CrossLayer(d, cfg.rank) for _ in range(cfg.crosses))
        layers, last = [], d
        for h in cfg.hidden:
            layers += [nn.Linear(last, h), nn.BatchNorm1d(h), nn.ReLU()]
            last = h
        self.deep = nn.Sequential(*layers)
        self.head = nn.Linear(last, 1)

    def forward(self, x):
        y = x
        for cross in self.crosses:
            y = cross(x, y)
        return self.head(self.deep(y)).squeeze(-1)


class Dense(nn.Module):
    def __init__(self, cfg):
        super().__init__()
        self.long_attention, self.short_attention = TargetAttention(cfg.item_dim), TargetAttention(cfg.item_dim)
        d = cfg.fields * cfg.dim + 3 * cfg.item_dim
        self.towers = nn.ModuleList(Tower(d, cfg) for _ in range(cfg.sets))

    def forward(self, sets, target, long, long_mask, short, short_mask):
        a = self.long_attention(target, long, long_mask)
        b = self.short_attention(target, short, short_mask)
        user = torch.cat([target, a, b], 1)
        logits = [tower(torch.cat([e.flatten(1), user], 1)) for tower, e in zip(self.towers, sets)]
        return torch.stack(logits).mean(0)


class Model(nn.Module):
    def __init__(self, cfg):
        super().__init__()
        self.cfg = cfg
        self.tables = nn.ModuleList(nn.Embedding(cfg.rows, cfg.dim, sparse=True) for _ in range(cfg.sets))
        self.items = nn.Embedding(cfg.items, cfg.item_dim, sparse=True)
        for table in [*self.tables, self.items]:
            nn.init.uniform_(table.weight, -0.01, 0.01)
        self.dense = Dense(cfg)
        self.register_buffer("planes", torch.randn(cfg.item_dim, cfg.bits))

    @torch.no_grad()
    def retrieve(self, target, history):
        weight = self.items.weight
        a = (weight[target] @ self.planes > 0).unsqueeze(1)
        b = F.embedding(history, weight) @ self.planes > 0
        alike = (a == b).sum(-1).masked_fill(history == 0, -1)
        score, where = alike.topk(self.cfg.keep, dim=1)
        return history.gather(1, where), score >= 0

    def forward(self, cats, target, history, recent):
        ids, mask = self.retrieve(target, history)
        sets = [table(cats) for table in self.tables]
        return self.dense(sets, self.items(target), self.items(ids), mask, self.items(recent), recent > 0)


def batches(cfg):
    per_field = cfg.rows // cfg.fields
    offsets = torch.arange(cfg.fields, device=cfg.device) * per_field
    while True:
        skew = torch.rand(cfg.batch, cfg.fields, device=cfg.device).pow(3)
        cats = (skew * per_field).long() + offsets
        target = torch.randint(1, cfg.items, (cfg.batch,), device=cfg.device)
        history = torch.randint(1, cfg.items, (cfg.batch, cfg.long), device=cfg.device)
        length = torch.randint(10, cfg.long, (cfg.batch, 1), device=cfg.device)
        history *= torch.arange(cfg.long, device=cfg.device) < length
        click = (torch.rand(cfg.batch, device=cfg.device) < 0.1).float()
        yield cats, target, history, history[:, : cfg.short], click


def main(cfg):
    torch.manual_seed(1)
    torch.set_float32_matmul_precision("high")
    with torch.device(cfg.device):
        model = Model(cfg)
    model.dense.compile()
    sparse = RowWiseAdagrad([*model.tables.parameters(), model.items.weight], cfg.embedding_lr)
    dense = torch.optim.Adam(model.dense.parameters(), cfg.lr, weight_decay=1e-6)
    data = batches(cfg)
    average = 0.0
    for i in steps():
        *inputs, click = next(data)
        loss = F.binary_cross_entropy_with_logits(model(*inputs), click)
        sparse.zero_grad()
        dense.zero_grad()
        loss.backward()
        sparse.step()
        dense.step()
        average = 0.98 * average + 0.02 * loss.item()
        if i % 20 == 0:
            print(f"step {i} logloss {average:.4f}")


if __name__ == "__main__":
    main(Config())
