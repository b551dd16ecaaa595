"""DP-SGD: per-sample gradients through vmap(grad), clipping and noise, plain SGD by hand."""

import argparse, time
import torch, torch.nn as nn, torch.nn.functional as F
from torch.func import functional_call, vmap, grad

p = argparse.ArgumentParser()
p.add_argument("--batch", type=int, default=64)
p.add_argument("--steps", type=int, default=14)
a = p.parse_args()
dev = "cuda" if torch.cuda.is_available() else "cpu"
model = nn.Sequential(
    nn.Conv2d(1, 16, 5, 2, 2),
    nn.Tanh(),
    nn.Conv2d(16, 32, 5, 2, 2),
    nn.Tanh(),
    nn.Flatten(),
    nn.Linear(32 * 49, 64),
    nn.Tanh(),
    nn.Linear(64, 10),
).to(dev)
opt = torch.optim.SGD(model.parameters(), 0.1)


def one(params, x, y):
    return F.cross_entropy(functional_call(model, params, (x[None],)), y[None])


per_sample = torch.compile(vmap(grad(one), in_dims=(None, 0, 0), randomness="different"))
for i in range(a.steps):
    x = torch.randn(a.batch, 1, 28, 28, device=dev)
    y = torch.randint(10, (a.batch,), device=dev)
    t = time.perf_counter()
    ps = per_sample({k: v.detach() for k, v in model.named_parameters()}, x, y)
    norms = torch.stack([g.flatten(1).norm(dim=1) for g in ps.values()], 1).norm(dim=1)
    factor = (1.0 / (norms + 1e-6)).clamp(max=1.0)
    for k, v in model.named_parameters():
        v.grad = torch.einsum("b,b...->...", factor, ps[k]) / a.batch + torch.randn_like(v) * 0.01
    opt.step()
    opt.zero_grad(set_to_none=True)
    print(f"step {i} norm {norms.mean().item():.3f} {1e3 * (time.perf_counter() - t):.2f} ms", flush=True)
