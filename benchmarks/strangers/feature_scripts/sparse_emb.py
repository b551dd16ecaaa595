"""Recommender: EmbeddingBag (sparse grads) with SparseAdam + dense Adam, per_sample_weights, two optimizers, uneven accumulation."""

import argparse, time
import torch, torch.nn as nn, torch.nn.functional as F

p = argparse.ArgumentParser()
p.add_argument("--batch", type=int, default=256)
p.add_argument("--rows", type=int, default=20000)
p.add_argument("--dim", type=int, default=64)
p.add_argument("--bag", type=int, default=20)
p.add_argument("--steps", type=int, default=14)
a = p.parse_args()
dev = "cuda" if torch.cuda.is_available() else "cpu"


class M(nn.Module):
    def __init__(self):
        super().__init__()
        self.bags = nn.ModuleList(nn.EmbeddingBag(a.rows, a.dim, mode="sum", sparse=True) for _ in range(4))
        self.top = nn.Sequential(nn.Linear(4 * a.dim + 6, 256), nn.ReLU(), nn.Linear(256, 1))

    def forward(self, idx, off, w):
        e = [b(i, off, per_sample_weights=w) for b, i in zip(self.bags, idx)]
        z = torch.stack(e, 1)
        inter = torch.bmm(z, z.transpose(1, 2))
        r, c = torch.triu_indices(4, 4, 1, device=z.device)
        return self.top(torch.cat([z.flatten(1), inter[:, r, c]], 1)).squeeze(1)


m = M().to(dev)
sp = torch.optim.SparseAdam(list(m.bags.parameters()), 1e-3)
de = torch.optim.Adam(m.top.parameters(), 1e-3)
for i in range(a.steps):
    t = time.perf_counter()
    sp.zero_grad()
    de.zero_grad()
    for b in (a.batch, a.batch, a.batch // 3):
        idx = [torch.randint(a.rows, (b * a.bag,), device=dev) for _ in range(4)]
        off = torch.arange(0, b * a.bag, a.bag, device=dev)
        w = torch.rand(b * a.bag, device=dev)
        y = (torch.rand(b, device=dev) < 0.3).float()
        loss = F.binary_cross_entropy_with_logits(m(idx, off, w), y) / 3
        loss.backward()
    sp.step()
    de.step()
    print(f"step {i} loss {loss.item():.4f} {1e3 * (time.perf_counter() - t):.2f} ms", flush=True)
