"""Compiled autograd + optimizer in backward (post-accumulate-grad hooks), max-autotune-no-cudagraphs."""

import argparse, time
import torch, torch.nn as nn, torch.nn.functional as F

p = argparse.ArgumentParser()
p.add_argument("--batch", type=int, default=64)
p.add_argument("--dim", type=int, default=256)
p.add_argument("--ca", action="store_true")
p.add_argument("--mode", default="default")
p.add_argument("--steps", type=int, default=14)
a = p.parse_args()
dev = "cuda" if torch.cuda.is_available() else "cpu"
if a.ca:
    torch._dynamo.config.compiled_autograd = True
m = nn.Sequential(
    nn.Linear(a.dim, 4 * a.dim), nn.GELU(), nn.Linear(4 * a.dim, a.dim), nn.LayerNorm(a.dim), nn.Linear(a.dim, 10)
).to(dev)
opts = {q: torch.optim.Adam([q], lr=1e-3, foreach=False) for q in m.parameters()}


def hook(q):
    opts[q].step()
    opts[q].zero_grad()


if not a.ca:
    for q in m.parameters():
        q.register_post_accumulate_grad_hook(hook)
opt = torch.optim.Adam(m.parameters())
norms = []
m[0].register_full_backward_hook(lambda mod, gi, go: norms.append(go[0].detach().norm()) if False else None)


@torch.compile(mode=a.mode)
def train(x, y):
    loss = F.cross_entropy(m(x), y)
    if a.ca:
        loss.backward()
    return loss


for i in range(a.steps):
    x = torch.randn(a.batch, a.dim, device=dev)
    y = torch.randint(10, (a.batch,), device=dev)
    t = time.perf_counter()
    loss = train(x, y)
    if a.ca:
        opt.step()
        opt.zero_grad()
    else:
        loss.backward()
    print(f"step {i} loss {loss.item():.4f} {1e3 * (time.perf_counter() - t):.2f} ms", flush=True)
