"""Exact Gaussian process: RBF kernel, cholesky, triangular solve, logdet; float64; plus an svd-based prediction at the end."""

import argparse, time, math
import torch

p = argparse.ArgumentParser()
p.add_argument("--n", type=int, default=400)
p.add_argument("--steps", type=int, default=14)
a = p.parse_args()
dev = "cuda" if torch.cuda.is_available() else "cpu"
X = torch.rand(a.n, 3, dtype=torch.float64, device=dev)
y = torch.sin(6 * X.sum(1)) + 0.1 * torch.randn(a.n, dtype=torch.float64, device=dev)
raw = {k: torch.zeros((), dtype=torch.float64, device=dev, requires_grad=True) for k in ("l", "s", "n")}
opt = torch.optim.Adam(raw.values(), 0.05)


def nll():
    l, s, n = (torch.nn.functional.softplus(v) for v in raw.values())
    K = s * torch.exp(-0.5 * torch.cdist(X / l, X / l, compute_mode="use_mm_for_euclid_dist").square()) + (
        n * 0.1 + 1e-4
    ) * torch.eye(a.n, dtype=X.dtype, device=dev)
    L = torch.linalg.cholesky(K)
    al = torch.cholesky_solve(y[:, None], L)
    return (0.5 * (y @ al.squeeze(1)) + L.diagonal().log().sum() + a.n / 2 * math.log(2 * math.pi)) / a.n


for i in range(a.steps):
    t = time.perf_counter()
    opt.zero_grad()
    loss = nll()
    loss.backward()
    opt.step()
    print(f"step {i} nll {loss.item():.4f} {1e3 * (time.perf_counter() - t):.2f} ms", flush=True)
U, S, Vh = torch.linalg.svd(X, full_matrices=False)
print(S.tolist())
