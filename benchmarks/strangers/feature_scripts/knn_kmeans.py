"""k-means until converged (data-dependent), then kNN retrieval with topk per query batch; no optimizer."""

import argparse, time
import torch

p = argparse.ArgumentParser()
p.add_argument("--n", type=int, default=20000)
p.add_argument("--d", type=int, default=64)
p.add_argument("--k", type=int, default=64)
p.add_argument("--q", type=int, default=256)
p.add_argument("--batches", type=int, default=20)
p.add_argument("--iters", type=int, default=30)
a = p.parse_args()
dev = "cuda" if torch.cuda.is_available() else "cpu"
X = torch.randn(a.n, a.d, device=dev)


@torch.compile
def assign(X, C):
    return (C.square().sum(1) - 2 * X @ C.t()).argmin(1)


def kmeans():
    C = X[torch.randperm(a.n, device=dev)[: a.k]].clone()
    for it in range(a.iters):
        t = time.perf_counter()
        lab = assign(X, C)
        S = torch.zeros_like(C).index_add_(0, lab, X)
        n = torch.bincount(lab, minlength=a.k)
        new = torch.where(n[:, None] > 0, S / n.clamp(min=1)[:, None], C)
        shift = (new - C).norm().item()
        C = new
        print(f"iter {it} shift {shift:.4f} {1e3 * (time.perf_counter() - t):.2f} ms", flush=True)
        if shift < 1e-3:
            break
    return C, lab


@torch.compile(mode="reduce-overhead")
def search(q, X, x2):
    s = 2 * q @ X.t() - x2
    return s.topk(10, dim=1)


C, lab = kmeans()
x2 = X.square().sum(1)
hits = 0
for b in range(a.batches):
    q = torch.randn(a.q, a.d, device=dev)
    t = time.perf_counter()
    v, i = search(q, X, x2)
    hits += (lab[i] == lab[i[:, :1]]).float().mean().item()
    print(f"batch {b} {1e3 * (time.perf_counter() - t):.2f} ms", flush=True)
print(hits / a.batches)
