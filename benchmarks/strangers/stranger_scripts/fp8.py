"""FP8 training of an MLP-heavy transformer: tensor-wise dynamic scales, torch._scaled_mm forward and backward, compiled."""

import torch, torch.nn as nn, torch.nn.functional as F
from tick import steps

B, T, D, H, L, V = 4, 2048, 2048, 16, 6, 32768
E4, E5 = torch.float8_e4m3fn, torch.float8_e5m2


def cast(x, dt):
    s = torch.finfo(dt).max / x.abs().amax().float().clamp(min=1e-12)
    return (x.float() * s).clamp(-torch.finfo(dt).max, torch.finfo(dt).max).to(dt), s.reciprocal()


class FP8(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, w):
        xs = x.reshape(-1, x.shape[-1])
        x8, sx = cast(xs, E4)
        w8, sw = cast(w, E4)
        ctx.save_for_backward(x8, sx, w8, sw)
        ctx.lead = x.shape[:-1]
        y = torch._scaled_mm(x8, w8.t(), scale_a=sx, scale_b=sw, out_dtype=torch.bfloat16, use_fast_accum=True)
        return y.view(*x.shape[:-1], -1)

    @staticmethod
    def backward(ctx, g):
        x8, sx, w8, sw = ctx.saved_tensors
        g = g.reshape(-1, g.shape[-1])
        g8, sg = cast(g, E5)
        dx = torch._scaled_mm(g8, w8.t().contiguous().t(), scale_a=sg, scale_b=sw, out_dtype=torch.bfloat16)
        dw = torch._scaled_mm(
            g8.t().contiguous(), x8.t().contiguous().t(), scale_a=sg, scale_b=sx, out_dtype=torch.bfloat16
        )
        return dx.view(*ctx.lead, -1), dw


class FP8Linear(nn.Linear):
    def forward(self, x):
        return FP8.apply(x.to(torch.bfloat16), self.weight.to(torch.bfloat16))


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.n1, self.n2 = nn.RMSNorm(D), nn.RMSNorm(D)
        self.qkv, self.o = FP8Linear(D, 3 * D, bias=False), FP8Linear(D, D, bias=False)
        self.up, self.dn = FP8Linear(D, 4 * D, bias=False), FP8Linear(4 * D, D, bias=False)

    def forward(self, x):
        q, k, v = self.qkv(self.n1(x)).view(B, T, 3, H, D // H).permute(2, 0, 3, 1, 4).unbind(0)
        x = x + self.o(F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).reshape(B, T, D))
        return x + self.dn(F.relu(self.up(self.n2(x))).square())


class LM(nn.Module):
    def __init__(self):
        super().__init__()
        self.e, self.b, self.n = nn.Embedding(V, D), nn.ModuleList(Block() for _ in range(L)), nn.RMSNorm(D)
        self.h = nn.Linear(D, V, bias=False)

    def forward(self, x):
        x = self.e(x).to(torch.bfloat16)
        for b in self.b:
            x = b(x)
        return F.linear(self.n(x).to(torch.bfloat16), self.h.weight.to(torch.bfloat16))


m = LM().cuda()
c = torch.compile(m)
opt = torch.optim.Adafactor(m.parameters(), lr=1e-2)
for i in steps(count=6):
    t = torch.randint(0, V, (B, T + 1), device="cuda")
    loss = F.cross_entropy(c(t[:, :-1]).flatten(0, 1).float(), t[:, 1:].flatten())
    loss.backward()
    opt.step()
    opt.zero_grad()
