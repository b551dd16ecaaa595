"""Neural ODE with an adaptive Heun-Euler solver: number of evaluations depends on the data; backprop through the solver; EMA weights by SWA."""

import argparse, time
import torch, torch.nn as nn

p = argparse.ArgumentParser()
p.add_argument("--batch", type=int, default=256)
p.add_argument("--width", type=int, default=128)
p.add_argument("--tol", type=float, default=1e-3)
p.add_argument("--steps", type=int, default=14)
a = p.parse_args()
dev = "cuda" if torch.cuda.is_available() else "cpu"
torch.manual_seed(0)
f = nn.Sequential(nn.Linear(2, a.width), nn.Tanh(), nn.Linear(a.width, a.width), nn.Tanh(), nn.Linear(a.width, 2)).to(
    dev
)
cf = torch.compile(f)
nfe = 0


def solve(y, t1=1.0):
    global nfe
    t, h = 0.0, 0.1
    while t < t1 - 1e-9:
        h = min(h, t1 - t)
        k1 = cf(y)
        k2 = cf(y + h * k1)
        nfe += 2
        err = (h / 2 * (k2 - k1)).norm() / y.shape[0] ** 0.5
        e = err.item()
        if e <= a.tol:
            y = y + h / 2 * (k1 + k2)
            t += h
        h = h * min(2.0, max(0.3, 0.9 * (a.tol / max(e, 1e-12)) ** 0.5))
        if h < 1e-6:
            raise RuntimeError("step size underflow")
    return y


opt = torch.optim.RMSprop(f.parameters(), 1e-3)
swa = torch.optim.swa_utils.AveragedModel(f, multi_avg_fn=torch.optim.swa_utils.get_ema_multi_avg_fn(0.99))
for i in range(a.steps):
    y0 = torch.randn(a.batch, 2, device=dev)
    n0 = nfe
    t = time.perf_counter()
    out = solve(y0)
    target = torch.stack([-y0[:, 1], y0[:, 0]], 1)
    loss = (out - target).square().mean()
    opt.zero_grad()
    loss.backward()
    opt.step()
    swa.update_parameters(f)
    print(f"step {i} loss {loss.item():.4f} nfe {nfe - n0} {1e3 * (time.perf_counter() - t):.2f} ms", flush=True)
