"""MAML on sinusoids: functional_call, inner SGD steps with create_graph, vmap-free loop over tasks."""

import argparse, math, time
import torch, torch.nn as nn, torch.nn.functional as F
from torch.func import functional_call

p = argparse.ArgumentParser()
p.add_argument("--tasks", type=int, default=4)
p.add_argument("--shots", type=int, default=64)
p.add_argument("--width", type=int, default=128)
p.add_argument("--inner", type=int, default=2)
p.add_argument("--steps", type=int, default=14)
a = p.parse_args()
device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
torch.manual_seed(1)
model = nn.Sequential(
    nn.Linear(1, a.width), nn.Tanh(), nn.Linear(a.width, a.width), nn.Tanh(), nn.Linear(a.width, 1)
).to(device)
meta_opt = torch.optim.Adam(model.parameters(), lr=1e-3)


def task():
    amp = torch.rand((), device=device) * 4.9 + 0.1
    phase = torch.rand((), device=device) * math.pi
    x = torch.rand(2 * a.shots, 1, device=device) * 10 - 5
    y = amp * torch.sin(x + phase)
    return x[: a.shots], y[: a.shots], x[a.shots :], y[a.shots :]


def adapt(params, x, y):
    for _ in range(a.inner):
        loss = F.mse_loss(functional_call(model, params, (x,)), y)
        grads = torch.autograd.grad(loss, list(params.values()), create_graph=True)
        params = {k: v - 0.01 * g for (k, v), g in zip(params.items(), grads)}
    return params


for it in range(a.steps):
    tasks = [task() for _ in range(a.tasks)]
    t = time.perf_counter()
    meta_opt.zero_grad()
    total = 0.0
    for xs, ys, xq, yq in tasks:
        fast = adapt(dict(model.named_parameters()), xs, ys)
        total = total + F.mse_loss(functional_call(model, fast, (xq,)), yq)
    (total / a.tasks).backward()
    meta_opt.step()
    print(f"step {it} loss {total.item():.4f} {1e3 * (time.perf_counter() - t):.2f} ms", flush=True)
