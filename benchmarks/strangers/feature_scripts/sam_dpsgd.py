"""SAM: two forward/backward passes a step, ResNet-ish with GroupNorm, compiled model, clipping with inf check."""

import argparse, time
import torch, torch.nn as nn, torch.nn.functional as F


class SAM(torch.optim.Optimizer):
    def __init__(self, params, base, rho=0.05, **kw):
        super().__init__(params, dict(rho=rho, **kw))
        self.base = base(self.param_groups, **kw)
        self.param_groups = self.base.param_groups

    @torch.no_grad()
    def first_step(self):
        norm = torch.stack([p.grad.norm() for g in self.param_groups for p in g["params"]]).norm()
        for g in self.param_groups:
            s = g["rho"] / (norm + 1e-12)
            for p in g["params"]:
                self.state[p]["old"] = p.data.clone()
                p.add_(p.grad * s)
        self.zero_grad()

    @torch.no_grad()
    def second_step(self):
        for g in self.param_groups:
            for p in g["params"]:
                p.data = self.state[p]["old"]
        self.base.step()
        self.zero_grad()

    def step(self, closure=None):
        raise RuntimeError("use first_step / second_step")


class Block(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.a = nn.Conv2d(c, c, 3, padding=1, groups=c)
        self.b = nn.Conv2d(c, c, 1)
        self.n = nn.GroupNorm(8, c)

    def forward(self, x):
        return x + F.gelu(self.n(self.b(self.a(x))))


p = argparse.ArgumentParser()
p.add_argument("--batch", type=int, default=16)
p.add_argument("--channels", type=int, default=64)
p.add_argument("--size", type=int, default=32)
p.add_argument("--steps", type=int, default=12)
a = p.parse_args()
dev = "cuda" if torch.cuda.is_available() else "cpu"
model = nn.Sequential(
    nn.Conv2d(3, a.channels, 3, padding=1),
    *[Block(a.channels) for _ in range(3)],
    nn.AdaptiveAvgPool2d(1),
    nn.Flatten(),
    nn.Linear(a.channels, 10),
).to(dev)
net = torch.compile(model)
opt = SAM(model.parameters(), torch.optim.SGD, lr=0.1, momentum=0.9)
for i in range(a.steps):
    x = torch.randn(a.batch, 3, a.size, a.size, device=dev)
    y = torch.randint(10, (a.batch,), device=dev)
    t = time.perf_counter()
    loss = F.cross_entropy(net(x), y)
    loss.backward()
    opt.first_step()
    F.cross_entropy(net(x), y).backward()
    gn = torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    if not torch.isfinite(gn):
        print("skip")
        opt.zero_grad()
        continue
    opt.second_step()
    print(f"step {i} loss {loss.item():.4f} {1e3 * (time.perf_counter() - t):.2f} ms", flush=True)
