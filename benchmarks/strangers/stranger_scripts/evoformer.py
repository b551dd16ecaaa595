import torch, torch.nn as nn, torch.nn.functional as F
from torch.utils.checkpoint import checkpoint
from tick import steps


class Att(nn.Module):
    def __init__(self, d, h, pair=None):
        super().__init__()
        self.h, self.n, self.qkv, self.g, self.o = (
            h,
            nn.LayerNorm(d),
            nn.Linear(d, 3 * d, bias=False),
            nn.Linear(d, d),
            nn.Linear(d, d),
        )
        self.b = nn.Linear(pair, h, bias=False) if pair else None

    def forward(self, x, z=None):
        y = self.n(x)
        q, k, v = self.qkv(y).unflatten(-1, (3, self.h, -1)).unbind(-3)
        q, k, v = (t.transpose(-2, -3) for t in (q, k, v))
        bias = self.b(z).permute(2, 0, 1)[None].to(q.dtype) if self.b is not None else None
        a = F.scaled_dot_product_attention(q, k, v, attn_mask=bias)
        return x + self.o(torch.sigmoid(self.g(y)) * a.transpose(-2, -3).flatten(-2))


class Tri(nn.Module):
    def __init__(self, d, out):
        super().__init__()
        self.eq = "ikc,jkc->ijc" if out else "kic,kjc->ijc"
        self.n, self.ab, self.gab, self.n2, self.o, self.g = (
            nn.LayerNorm(d),
            nn.Linear(d, 2 * d),
            nn.Linear(d, 2 * d),
            nn.LayerNorm(d),
            nn.Linear(d, d),
            nn.Linear(d, d),
        )

    def forward(self, z):
        y = self.n(z)
        a, b = (self.ab(y) * torch.sigmoid(self.gab(y))).chunk(2, -1)
        return z + torch.sigmoid(self.g(y)) * self.o(self.n2(torch.einsum(self.eq, a, b)))


class Block(nn.Module):
    def __init__(self, m=128, z=128):
        super().__init__()
        self.row, self.col = Att(m, 8, z), Att(m, 8)
        self.tm = nn.Sequential(nn.LayerNorm(m), nn.Linear(m, 4 * m), nn.ReLU(), nn.Linear(4 * m, m))
        self.l, self.r, self.opo = nn.Linear(m, 16), nn.Linear(m, 16), nn.Linear(256, z)
        self.tout, self.tin, self.ts, self.te = Tri(z, True), Tri(z, False), Att(z, 4, z), Att(z, 4, z)
        self.tz = nn.Sequential(nn.LayerNorm(z), nn.Linear(z, 4 * z), nn.ReLU(), nn.Linear(4 * z, z))

    def forward(self, m, z):
        m = self.row(m, z)
        m = self.col(m.transpose(0, 1)).transpose(0, 1)
        m = m + self.tm(m)
        z = z + self.opo(torch.einsum("sic,sjd->ijcd", self.l(m), self.r(m)).flatten(-2) / m.shape[0])
        z = self.tin(self.tout(z))
        z = self.ts(z, z)
        z = self.te(z.transpose(0, 1), z).transpose(0, 1)
        return m, z + self.tz(z)


blocks = nn.ModuleList(Block() for _ in range(4)).cuda()
head = nn.Linear(128, 64).cuda()
for b in blocks:
    b.compile()
opt = torch.optim.Adam([*blocks.parameters(), *head.parameters()], 1e-3)
for i in steps():
    m, z = torch.randn(64, 192, 128, device="cuda"), torch.randn(192, 192, 128, device="cuda")
    with torch.autocast("cuda", torch.bfloat16):
        for b in blocks:
            m, z = checkpoint(b, m, z, use_reentrant=False)
        logits = head(z)
    loss = F.cross_entropy(logits.float().flatten(0, 1), torch.randint(0, 64, (192 * 192,), device="cuda"))
    opt.zero_grad()
    loss.backward()
    opt.step()
