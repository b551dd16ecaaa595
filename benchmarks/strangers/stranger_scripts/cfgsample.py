"""Text-to-image sampling: DiT with cross attention, classifier-free guidance, DPM-like multistep solver, inference_mode."""

import torch
from torch import nn
import torch.nn.functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel
from tick import steps

D, H, L, TXT = 1152, 16, 14, 120


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.n1, self.n2 = (
            nn.LayerNorm(D, elementwise_affine=False, eps=1e-6),
            nn.LayerNorm(D, elementwise_affine=False, eps=1e-6),
        )
        self.qkv, self.o = nn.Linear(D, 3 * D), nn.Linear(D, D)
        self.q2, self.kv2, self.o2 = nn.Linear(D, D), nn.Linear(D, 2 * D), nn.Linear(D, D)
        self.mlp = nn.Sequential(nn.Linear(D, 4 * D), nn.GELU("tanh"), nn.Linear(4 * D, D))
        self.table = nn.Parameter(torch.randn(6, D) / D**0.5)

    def forward(self, x, c, t):
        b, n, _ = x.shape
        s1, k1, g1, s2, k2, g2 = (self.table[None] + t.view(b, 6, D)).chunk(6, 1)
        q, k, v = self.qkv(self.n1(x) * (1 + k1) + s1).view(b, n, 3, H, -1).permute(2, 0, 3, 1, 4).unbind(0)
        x = x + g1 * self.o(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(b, n, D))
        k, v = self.kv2(c).view(b, -1, 2, H, D // H).permute(2, 0, 3, 1, 4).unbind(0)
        q = self.q2(x).view(b, n, H, -1).transpose(1, 2)
        x = x + self.o2(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(b, n, D))
        return x + g2 * self.mlp(self.n2(x) * (1 + k2) + s2)


class PixArt(nn.Module):
    def __init__(self):
        super().__init__()
        self.patch, self.cap = (
            nn.Conv2d(4, D, 2, 2),
            nn.Sequential(nn.Linear(4096, D), nn.GELU("tanh"), nn.Linear(D, D)),
        )
        self.t = nn.Sequential(nn.Linear(256, D), nn.SiLU(), nn.Linear(D, D))
        self.t6 = nn.Sequential(nn.SiLU(), nn.Linear(D, 6 * D))
        self.blocks = nn.ModuleList(Block() for _ in range(L))
        self.n, self.out = nn.LayerNorm(D, elementwise_affine=False), nn.Linear(D, 16)
        self.register_buffer("pos", torch.randn(1, 1024, D) * 0.02)

    def forward(self, x, t, y):
        f = torch.exp(-torch.arange(128, device=x.device) * 0.07195)
        e = t[:, None].float() * f
        t = self.t(torch.cat([e.cos(), e.sin()], -1).to(x.dtype))
        h = self.patch(x).flatten(2).mT + self.pos
        c, t = self.cap(y), self.t6(t)
        for b in self.blocks:
            h = b(h, c, t)
        h = self.out(self.n(h)).view(-1, 32, 32, 2, 2, 4)
        return h.permute(0, 5, 1, 3, 2, 4).reshape(-1, 4, 64, 64)


net = PixArt().to("cuda", torch.float16).eval()
model = torch.compile(net, mode="reduce-overhead", fullgraph=True)
sig = torch.linspace(1, 0, 9)


@torch.inference_mode()
def sample(y, un, scale=4.5):
    x, old = torch.randn(y.size(0), 4, 64, 64, device="cuda", dtype=torch.half), None
    yy = torch.cat([un, y])
    for k in range(8):
        t = torch.full((2 * y.size(0),), float(sig[k]) * 1000, device="cuda")
        u, c = model(torch.cat([x, x]), t, yy).chunk(2)
        eps = u + scale * (c - u)
        x0 = x - sig[k].item() * eps
        d = x0 if old is None else 1.5 * x0 - 0.5 * old
        old = x0
        x = d + sig[k + 1].item() * eps
    return x


un = torch.randn(1, TXT, 4096, device="cuda", dtype=torch.half)
for i in steps(count=4):
    y = torch.randn(4, TXT, 4096, device="cuda", dtype=torch.half)
    with sdpa_kernel([SDPBackend.FLASH_ATTENTION, SDPBackend.EFFICIENT_ATTENTION]):
        lat = sample(y, un.expand(4, -1, -1))
    img = lat.float().clamp(-1, 1).cpu()
