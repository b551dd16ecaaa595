"""Weight+activation int8 inference (torch._int_mm) and, on cuda, fp8 (torch._scaled_mm)."""

import argparse, time
import torch, torch.nn as nn

p = argparse.ArgumentParser()
p.add_argument("--tokens", type=int, default=256)
p.add_argument("--dim", type=int, default=512)
p.add_argument("--layers", type=int, default=4)
p.add_argument("--fp8", action="store_true")
p.add_argument("--steps", type=int, default=15)
a = p.parse_args()
dev = "cuda" if torch.cuda.is_available() else "cpu"


class Int8Linear(nn.Module):
    def __init__(self, i, o):
        super().__init__()
        w = torch.randn(o, i)
        s = w.abs().amax(1, keepdim=True) / 127
        self.register_buffer("w", (w / s).round().to(torch.int8))
        self.register_buffer("s", s.squeeze(1))

    def forward(self, x):
        sx = x.abs().amax(1, keepdim=True) / 127
        q = (x / sx).round().to(torch.int8)
        return (torch._int_mm(q, self.w.t()).float() * sx * self.s).to(x.dtype)


class Fp8Linear(nn.Module):
    def __init__(self, i, o):
        super().__init__()
        w = torch.randn(o, i) / i**0.5
        s = w.abs().amax() / 448
        self.register_buffer("w", (w / s).to(torch.float8_e4m3fn))
        self.register_buffer("s", s.reshape(()).float())

    def forward(self, x):
        sx = (x.abs().amax() / 448).float()
        q = (x / sx).to(torch.float8_e4m3fn)
        return torch._scaled_mm(q, self.w.t(), scale_a=sx, scale_b=self.s, out_dtype=torch.bfloat16)


L = Fp8Linear if a.fp8 else Int8Linear
mods = []
for _ in range(a.layers):
    mods += [L(a.dim, 4 * a.dim), nn.GELU(), L(4 * a.dim, a.dim), nn.LayerNorm(a.dim, dtype=torch.bfloat16)]
model = nn.Sequential(*mods).to(dev).eval()
f = torch.compile(model)
with torch.inference_mode():
    for i in range(a.steps):
        x = torch.randn(a.tokens, a.dim, device=dev, dtype=torch.bfloat16)
        t = time.perf_counter()
        y = f(x)
        if dev == "cuda":
            torch.cuda.synchronize()
        print(f"step {i} {1e3 * (time.perf_counter() - t):.2f} ms", flush=True)
print(y.float().std().item())
