"""QLoRA by hand: NF4 base weights unpacked in forward, LoRA adapters, checkpointed blocks, gradient accumulation."""

import torch, torch.nn as nn, torch.nn.functional as F
from torch.utils.checkpoint import checkpoint
from tick import steps

D, H, FF, L, V, T, BLK = 2560, 20, 6912, 3, 32000, 1024, 64
NF4 = torch.tensor(
    [
        -1.0,
        -0.6962,
        -0.5251,
        -0.3949,
        -0.2844,
        -0.1848,
        -0.0911,
        0.0,
        0.0796,
        0.1609,
        0.2461,
        0.3379,
        0.4407,
        0.5626,
        0.7230,
        1.0,
    ]
)


def dequant(packed, absmax, table, shape):
    codes = torch.stack([packed >> 4, packed & 15], -1).flatten().to(torch.int32)
    return (table[codes].view(-1, BLK) * absmax[:, None]).view(shape).to(torch.bfloat16)


class MatMul4(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, packed, absmax, table, shape):
        ctx.save_for_backward(packed, absmax, table)
        ctx.shape = shape
        return x @ dequant(packed, absmax, table, shape).t()

    @staticmethod
    def backward(ctx, g):
        return g @ dequant(*ctx.saved_tensors, ctx.shape), None, None, None, None


class QLinear(nn.Module):
    def __init__(self, i, o, r=16):
        super().__init__()
        self.shape = (o, i)
        self.register_buffer("packed", torch.randint(0, 256, (o * i // 2,), dtype=torch.uint8, device="cuda"))
        self.register_buffer("absmax", torch.rand(o * i // BLK, device="cuda") * 0.05)
        self.register_buffer("table", NF4.cuda())
        self.a = nn.Parameter(torch.randn(r, i, device="cuda") * 0.01)
        self.b = nn.Parameter(torch.zeros(o, r, device="cuda"))
        self.drop = nn.Dropout(0.05)

    def forward(self, x):
        y = MatMul4.apply(x, self.packed, self.absmax, self.table, self.shape)
        return y + 2.0 * (self.drop(x) @ self.a.t().to(x.dtype)) @ self.b.t().to(x.dtype)


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.n1, self.n2 = nn.RMSNorm(D, device="cuda"), nn.RMSNorm(D, device="cuda")
        self.q, self.k, self.v, self.o = (QLinear(D, D) for _ in range(4))
        self.g, self.u, self.d = QLinear(D, FF), QLinear(D, FF), QLinear(FF, D)

    def forward(self, x):
        b, t, _ = x.shape
        y = self.n1(x.float()).to(x.dtype)
        q, k, v = (m(y).view(b, t, H, -1).transpose(1, 2) for m in (self.q, self.k, self.v))
        x = x + self.o(F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).reshape(b, t, D))
        y = self.n2(x.float()).to(x.dtype)
        return x + self.d(F.silu(self.g(y)) * self.u(y))


emb = nn.Embedding(V, D, device="cuda", dtype=torch.bfloat16).requires_grad_(False)
head = nn.Linear(D, V, bias=False, device="cuda", dtype=torch.bfloat16).requires_grad_(False)
blocks = nn.ModuleList(Block() for _ in range(L))
params = [p for n, p in blocks.named_parameters() if n.endswith((".a", ".b"))]
for n, p in blocks.named_parameters():
    p.requires_grad_(n.endswith((".a", ".b")))
opt = torch.optim.AdamW(params, 2e-4, fused=True)
ACC = 2
for i in steps(count=4):
    for micro in range(ACC):
        t = torch.randint(0, V, (2, T + 1), device="cuda")
        x = emb(t[:, :-1]).requires_grad_()
        for b in blocks:
            x = checkpoint(b, x, use_reentrant=True)
        loss = F.cross_entropy(head(x).float().view(-1, V), t[:, 1:].reshape(-1)) / ACC
        loss.backward()
    torch.nn.utils.clip_grad_norm_(params, 0.3)
    opt.step()
    opt.zero_grad()
