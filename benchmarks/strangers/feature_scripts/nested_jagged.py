"""Variable-length attention with NestedTensor (jagged), compiled."""

import argparse, time, random
import torch, torch.nn as nn, torch.nn.functional as F

p = argparse.ArgumentParser()
p.add_argument("--batch", type=int, default=8)
p.add_argument("--dim", type=int, default=128)
p.add_argument("--max-len", type=int, default=96)
p.add_argument("--steps", type=int, default=14)
a = p.parse_args()
dev = "cuda" if torch.cuda.is_available() else "cpu"
dt = torch.bfloat16 if dev == "cuda" else torch.float32
random.seed(0)


class Layer(nn.Module):
    def __init__(self, d, h=4):
        super().__init__()
        self.h = h
        self.qkv = nn.Linear(d, 3 * d)
        self.o = nn.Linear(d, d)
        self.n1 = nn.LayerNorm(d)
        self.n2 = nn.LayerNorm(d)
        self.f1 = nn.Linear(d, 4 * d)
        self.f2 = nn.Linear(4 * d, d)

    def forward(self, x):
        q, k, v = self.qkv(self.n1(x)).chunk(3, -1)
        q, k, v = [t.unflatten(-1, (self.h, -1)).transpose(1, 2) for t in (q, k, v)]
        y = F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(-2)
        x = x + self.o(y)
        return x + self.f2(F.gelu(self.f1(self.n2(x))))


model = nn.Sequential(Layer(a.dim), Layer(a.dim)).to(dev, dt)
opt = torch.optim.AdamW(model.parameters(), 1e-4)
net = torch.compile(model, dynamic=True)
lens = [random.randint(a.max_len // 4, a.max_len) for _ in range(a.batch)]
for i in range(a.steps):
    random.shuffle(lens)
    seqs = [torch.randn(n, a.dim, device=dev, dtype=dt) for n in lens]
    t = time.perf_counter()
    x = torch.nested.nested_tensor(seqs, layout=torch.jagged)
    out = net(x)
    loss = out.values().float().square().mean()
    opt.zero_grad()
    loss.backward()
    opt.step()
    print(f"step {i} loss {loss.item():.4f} {1e3 * (time.perf_counter() - t):.2f} ms", flush=True)
print("tokens", sum(lens), "sum sq", sum(n * n for n in lens))
