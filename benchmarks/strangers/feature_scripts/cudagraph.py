"""Manual CUDA graph capture of a training step, make_graphed_callables of a head."""

import argparse, time
import torch, torch.nn as nn, torch.nn.functional as F

p = argparse.ArgumentParser()
p.add_argument("--batch", type=int, default=128)
p.add_argument("--dim", type=int, default=512)
p.add_argument("--graphed", action="store_true")
p.add_argument("--steps", type=int, default=20)
a = p.parse_args()
dev = "cuda" if torch.cuda.is_available() else "cpu"
model = nn.Sequential(
    nn.Linear(a.dim, a.dim), nn.ReLU(), nn.Linear(a.dim, a.dim), nn.ReLU(), nn.Linear(a.dim, a.dim)
).to(dev)
opt = torch.optim.SGD(model.parameters(), lr=0.01)
x = torch.randn(a.batch, a.dim, device=dev)
y = torch.randn(a.batch, a.dim, device=dev)


def step():
    opt.zero_grad(set_to_none=True)
    loss = F.mse_loss(model(x), y)
    loss.backward()
    opt.step()
    return loss


if dev == "cuda" and not a.graphed:
    s = torch.cuda.Stream()
    s.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(s):
        for _ in range(3):
            step()
    torch.cuda.current_stream().wait_stream(s)
    g = torch.cuda.CUDAGraph()
    opt.zero_grad(set_to_none=True)
    with torch.cuda.graph(g):
        static_loss = step()
    for i in range(a.steps):
        x.copy_(torch.randn(a.batch, a.dim))
        y.copy_(torch.randn(a.batch, a.dim))
        t = time.perf_counter()
        g.replay()
        print(f"step {i} loss {static_loss.item():.4f} {1e3 * (time.perf_counter() - t):.2f} ms", flush=True)
else:
    if dev == "cuda":
        model = torch.cuda.make_graphed_callables(model, (x,))
    for i in range(a.steps):
        x.copy_(torch.randn(a.batch, a.dim))
        y.copy_(torch.randn(a.batch, a.dim))
        t = time.perf_counter()
        loss = step()
        print(f"step {i} loss {loss.item():.4f} {1e3 * (time.perf_counter() - t):.2f} ms", flush=True)
