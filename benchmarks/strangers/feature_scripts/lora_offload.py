"""LoRA finetune of a tied LM with set_default_device, activations offloaded to the CPU, then merge and evaluate."""

import argparse, time
import torch, torch.nn as nn, torch.nn.functional as F

p = argparse.ArgumentParser()
p.add_argument("--batch", type=int, default=4)
p.add_argument("--len", type=int, default=64)
p.add_argument("--d", type=int, default=128)
p.add_argument("--layers", type=int, default=2)
p.add_argument("--r", type=int, default=8)
p.add_argument("--steps", type=int, default=13)
a = p.parse_args()
dev = "cuda" if torch.cuda.is_available() else "cpu"
torch.set_default_device(dev)


class LoRA(nn.Module):
    def __init__(self, base, r):
        super().__init__()
        self.base = base.requires_grad_(False)
        self.A = nn.Parameter(torch.randn(r, base.in_features) * 0.01)
        self.B = nn.Parameter(torch.zeros(base.out_features, r))
        self.merged = False

    def forward(self, x):
        y = self.base(x)
        return y if self.merged else y + (x @ self.A.t()) @ self.B.t()

    @torch.no_grad()
    def merge(self):
        self.base.weight += self.B @ self.A
        self.merged = True


class Blk(nn.Module):
    def __init__(self, d):
        super().__init__()
        self.n = nn.LayerNorm(d)
        self.a = nn.MultiheadAttention(d, 4, batch_first=True)
        self.f1 = LoRA(nn.Linear(d, 4 * d), a.r)
        self.f2 = LoRA(nn.Linear(4 * d, d), a.r)

    def forward(self, x):
        h = self.n(x)
        m = nn.Transformer.generate_square_subsequent_mask(x.shape[1], device=x.device)
        x = x + self.a(h, h, h, attn_mask=m, is_causal=True, need_weights=False)[0]
        return x + self.f2(F.gelu(self.f1(x)))


V = 1000
emb = nn.Embedding(V, a.d).requires_grad_(False)
body = nn.ModuleList(Blk(a.d) for _ in range(a.layers))
head = nn.Linear(a.d, V, bias=False)
head.weight = emb.weight
for b in body:
    b.n.requires_grad_(False)
    b.a.requires_grad_(False)


def fwd(ids):
    x = emb(ids)
    for b in body:
        x = b(x)
    return head(x)


ps = [q for q in body.parameters() if q.requires_grad]
opt = torch.optim.AdamW(ps, 1e-3)
for i in range(a.steps):
    ids = torch.randint(V, (a.batch, a.len + 1))
    t = time.perf_counter()
    with torch.autograd.graph.save_on_cpu(pin_memory=dev == "cuda"):
        loss = F.cross_entropy(fwd(ids[:, :-1]).flatten(0, 1), ids[:, 1:].flatten())
    loss.backward()
    opt.step()
    opt.zero_grad()
    print(f"step {i} loss {loss.item():.4f} {1e3 * (time.perf_counter() - t):.2f} ms", flush=True)
with torch.no_grad():
    for b in body:
        b.f1.merge()
        b.f2.merge()
    print("merged", fwd(torch.randint(V, (2, 16))).std().item())
