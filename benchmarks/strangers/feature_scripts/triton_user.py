"""A user's Triton kernel in a compiled function (cuda), plain torch otherwise; threads feed a queue."""

import argparse, time, threading, queue
import torch, torch.nn as nn, torch.nn.functional as F

p = argparse.ArgumentParser()
p.add_argument("--n", type=int, default=4096)
p.add_argument("--d", type=int, default=1024)
p.add_argument("--steps", type=int, default=14)
a = p.parse_args()
dev = "cuda" if torch.cuda.is_available() else "cpu"
try:
    import triton, triton.language as tl

    @triton.jit
    def swiglu_k(x, y, o, n, BLOCK: tl.constexpr):
        i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
        m = i < n
        g = tl.load(x + i, m).to(tl.float32)
        u = tl.load(y + i, m).to(tl.float32)
        tl.store(o + i, g * tl.sigmoid(g) * u, m)
except ImportError:
    triton = None


def swiglu(x, y):
    if x.is_cuda:
        o = torch.empty_like(x)
        swiglu_k[(triton.cdiv(x.numel(), 1024),)](x, y, o, x.numel(), BLOCK=1024)
        return o
    return F.silu(x) * y


class M(nn.Module):
    def __init__(self):
        super().__init__()
        self.g = nn.Linear(a.d, 4 * a.d)
        self.u = nn.Linear(a.d, 4 * a.d)
        self.o = nn.Linear(4 * a.d, a.d)

    def forward(self, x):
        return self.o(swiglu(self.g(x), self.u(x))) + x


m = M().to(dev, torch.bfloat16).eval()
f = torch.compile(m)
q = queue.Queue(4)


def feed():
    for _ in range(a.steps):
        q.put(torch.randn(a.n, a.d).to(torch.bfloat16))
    q.put(None)


threading.Thread(target=feed, daemon=True).start()
i = 0
with torch.no_grad():
    while (x := q.get()) is not None:
        t = time.perf_counter()
        y = f(x.to(dev, non_blocking=True))
        s = y.float().mean().item()
        i += 1
        print(f"step {i} {1e3 * (time.perf_counter() - t):.2f} ms", flush=True)
