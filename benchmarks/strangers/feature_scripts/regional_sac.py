"""Regional compilation of repeated blocks, selective checkpointing, bf16 autocast inside the blocks, weights tied, clipping."""

import argparse, time, functools
import torch, torch.nn as nn, torch.nn.functional as F
from torch.utils.checkpoint import checkpoint, create_selective_checkpoint_contexts, CheckpointPolicy

p = argparse.ArgumentParser()
p.add_argument("--batch", type=int, default=4)
p.add_argument("--length", type=int, default=128)
p.add_argument("--dim", type=int, default=128)
p.add_argument("--layers", type=int, default=4)
p.add_argument("--vocab", type=int, default=1000)
p.add_argument("--steps", type=int, default=14)
a = p.parse_args()
dev = "cuda" if torch.cuda.is_available() else "cpu"
SAVE = {
    torch.ops.aten.mm.default,
    torch.ops.aten.addmm.default,
    torch.ops.aten._scaled_dot_product_flash_attention.default,
    torch.ops.aten._scaled_dot_product_flash_attention_for_cpu.default,
}


def policy(ctx, op, *args, **kw):
    return CheckpointPolicy.MUST_SAVE if op in SAVE else CheckpointPolicy.PREFER_RECOMPUTE


class Block(nn.Module):
    def __init__(self, d, h=4):
        super().__init__()
        self.h = h
        self.qkv = nn.Linear(d, 3 * d, bias=False)
        self.o = nn.Linear(d, d, bias=False)
        self.w1 = nn.Linear(d, 4 * d, bias=False)
        self.w2 = nn.Linear(4 * d, d, bias=False)
        self.n1 = nn.RMSNorm(d)
        self.n2 = nn.RMSNorm(d)

    def forward(self, x):
        B, T, D = x.shape
        with torch.autocast(x.device.type, torch.bfloat16):
            q, k, v = self.qkv(self.n1(x)).view(B, T, 3, self.h, D // self.h).permute(2, 0, 3, 1, 4)
            y = F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).reshape(B, T, D)
            x = x + self.o(y)
            x = x + self.w2(F.silu(self.w1(self.n2(x))))
        return x.float()


class LM(nn.Module):
    def __init__(self):
        super().__init__()
        self.emb = nn.Embedding(a.vocab, a.dim)
        self.blocks = nn.ModuleList(Block(a.dim) for _ in range(a.layers))
        self.head = nn.Linear(a.dim, a.vocab, bias=False)
        self.head.weight = self.emb.weight

    def forward(self, ids):
        x = self.emb(ids)
        for b in self.blocks:
            x = checkpoint(
                b, x, use_reentrant=False, context_fn=functools.partial(create_selective_checkpoint_contexts, policy)
            )
        return self.head(x)


m = LM().to(dev)
for b in m.blocks:
    b.compile()
opt = torch.optim.AdamW(m.parameters(), 3e-4)
for i in range(a.steps):
    ids = torch.randint(a.vocab, (a.batch, a.length + 1), device=dev)
    t = time.perf_counter()
    loss = F.cross_entropy(m(ids[:, :-1]).flatten(0, 1), ids[:, 1:].flatten())
    loss.backward()
    torch.nn.utils.clip_grad_norm_(m.parameters(), 1.0, error_if_nonfinite=True)
    opt.step()
    opt.zero_grad()
    print(f"step {i} loss {loss.item():.4f} {1e3 * (time.perf_counter() - t):.2f} ms", flush=True)
