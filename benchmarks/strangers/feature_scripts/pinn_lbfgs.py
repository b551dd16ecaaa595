"""Burgers PINN in float64: second derivatives, Adam first, then LBFGS with strong Wolfe."""

import argparse, time
import torch, torch.nn as nn

p = argparse.ArgumentParser()
p.add_argument("--points", type=int, default=1000)
p.add_argument("--width", type=int, default=64)
p.add_argument("--adam", type=int, default=0)
p.add_argument("--steps", type=int, default=12)
a = p.parse_args()
torch.set_default_dtype(torch.float64)
dev = "cuda" if torch.cuda.is_available() else "cpu"
torch.manual_seed(0)
net = nn.Sequential(
    nn.Linear(2, a.width),
    nn.Tanh(),
    nn.Linear(a.width, a.width),
    nn.Tanh(),
    nn.Linear(a.width, a.width),
    nn.Tanh(),
    nn.Linear(a.width, 1),
).to(dev)
xt = torch.rand(a.points, 2, device=dev) * 2 - 1
x0 = torch.cat([torch.linspace(-1, 1, 200)[:, None], torch.zeros(200, 1)], 1).to(dev)
u0 = -torch.sin(torch.pi * x0[:, :1])


def residual():
    x = xt[:, :1].clone().requires_grad_(True)
    t = xt[:, 1:].clone().requires_grad_(True)
    u = net(torch.cat([x, t], 1))
    ux, ut = torch.autograd.grad(u.sum(), (x, t), create_graph=True)
    uxx = torch.autograd.grad(ux.sum(), x, create_graph=True)[0]
    return (ut + u * ux - 0.01 / torch.pi * uxx).square().mean()


def loss_fn():
    return residual() + (net(x0) - u0).square().mean()


if a.adam:
    opt = torch.optim.Adam(net.parameters(), 1e-3)
    for i in range(a.adam):
        opt.zero_grad()
        l = loss_fn()
        l.backward()
        opt.step()
opt = torch.optim.LBFGS(net.parameters(), lr=1.0, max_iter=10, history_size=20, line_search_fn="strong_wolfe")
evals = 0


def closure():
    global evals
    evals += 1
    opt.zero_grad()
    loss = loss_fn()
    loss.backward()
    return loss


for i in range(a.steps):
    e = evals
    t = time.perf_counter()
    l = opt.step(closure)
    print(f"step {i} loss {float(l):.3e} evals {evals - e} {1e3 * (time.perf_counter() - t):.2f} ms", flush=True)
