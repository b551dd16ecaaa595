"""autograd.Function in a compiled model, and a torch.library.custom_op with a fake and autograd."""

import argparse, time
import torch, torch.nn as nn, torch.nn.functional as F


class Clipped(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, w):
        ctx.save_for_backward(x, w)
        return (x @ w).clamp(-3, 3)

    @staticmethod
    def backward(ctx, g):
        x, w = ctx.saved_tensors
        g = g.clamp(-1, 1)
        return g @ w.t(), x.t() @ g


@torch.library.custom_op("mine::rope", mutates_args=())
def rope(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    a, b = x.chunk(2, -1)
    return torch.cat([a * cos - b * sin, a * sin + b * cos], -1)


@rope.register_fake
def _(x, cos, sin):
    return torch.empty_like(x)


def setup(ctx, inputs, output):
    ctx.save_for_backward(inputs[1], inputs[2])


def back(ctx, g):
    cos, sin = ctx.saved_tensors
    return rope(g, cos, -sin), None, None


rope.register_autograd(back, setup_context=setup)


@torch.library.custom_op("mine::gram", mutates_args=())
def gram(x: torch.Tensor) -> torch.Tensor:
    return torch.bmm(x, x.transpose(1, 2))


@gram.register_fake
def _(x):
    return x.new_empty(x.shape[0], x.shape[1], x.shape[1])


p = argparse.ArgumentParser()
p.add_argument("--batch", type=int, default=8)
p.add_argument("--length", type=int, default=128)
p.add_argument("--dim", type=int, default=256)
p.add_argument("--steps", type=int, default=14)
a = p.parse_args()
dev = "cuda" if torch.cuda.is_available() else "cpu"


class M(nn.Module):
    def __init__(self):
        super().__init__()
        self.w1 = nn.Parameter(torch.randn(a.dim, 4 * a.dim) / a.dim**0.5)
        self.w2 = nn.Parameter(torch.randn(4 * a.dim, a.dim) / a.dim)
        self.out = nn.Linear(a.dim, 100)
        f = torch.outer(torch.arange(a.length), 1e4 ** (-torch.arange(a.dim // 2) / a.dim))
        self.register_buffer("cos", f.cos())
        self.register_buffer("sin", f.sin())

    def forward(self, x):
        x = rope(x, self.cos, self.sin)
        with torch.no_grad():
            s = gram(x).mean(-1, keepdim=True).sigmoid()
        h = Clipped.apply((x * s).flatten(0, 1), self.w1)
        h = Clipped.apply(F.silu(h), self.w2)
        return self.out(h)


m = M().to(dev)
c = torch.compile(m, fullgraph=True)
opt = torch.optim.AdamW(m.parameters(), fused=(dev == "cuda"))
for i in range(a.steps):
    x = torch.randn(a.batch, a.length, a.dim, device=dev)
    y = torch.randint(100, (a.batch * a.length,), device=dev)
    t = time.perf_counter()
    opt.zero_grad()
    loss = F.cross_entropy(c(x), y)
    loss.backward()
    opt.step()
    print(f"step {i} loss {loss.item():.4f} {1e3 * (time.perf_counter() - t):.2f} ms", flush=True)
