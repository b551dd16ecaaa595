import torch, torch.nn as nn, torch.nn.functional as F
from tick import steps


class Spectral(nn.Module):
    def __init__(self, c, m):
        super().__init__()
        self.m = m
        self.w1 = nn.Parameter(torch.randn(c, c, m, m, dtype=torch.cfloat) / c**2)
        self.w2 = nn.Parameter(torch.randn(c, c, m, m, dtype=torch.cfloat) / c**2)

    def forward(self, x):
        b, c, h, w = x.shape
        f = torch.fft.rfft2(x)
        o = torch.zeros(b, c, h, w // 2 + 1, dtype=torch.cfloat, device=x.device)
        m = self.m
        o[:, :, :m, :m] = torch.einsum("bixy,ioxy->boxy", f[:, :, :m, :m], self.w1)
        o[:, :, -m:, :m] = torch.einsum("bixy,ioxy->boxy", f[:, :, -m:, :m], self.w2)
        return torch.fft.irfft2(o, s=(h, w))


class FNO(nn.Module):
    def __init__(self, c=64, m=16):
        super().__init__()
        self.lift = nn.Conv2d(3, c, 1)
        self.s, self.w = (
            nn.ModuleList(Spectral(c, m) for _ in range(4)),
            nn.ModuleList(nn.Conv2d(c, c, 1) for _ in range(4)),
        )
        self.p = nn.Sequential(nn.Conv2d(c, 128, 1), nn.GELU(), nn.Conv2d(128, 1, 1))

    def forward(self, x):
        x = self.lift(x)
        for s, w in zip(self.s, self.w):
            x = F.gelu(s(x) + w(x))
        return self.p(x)


net = FNO().cuda()
c = torch.compile(net)
opt = torch.optim.Adam(net.parameters(), 1e-3)
for i in steps():
    a, u = torch.randn(16, 3, 128, 128, device="cuda"), torch.randn(16, 1, 128, 128, device="cuda")
    out = c(a)
    loss = ((out - u).flatten(1).norm(dim=1) / u.flatten(1).norm(dim=1)).mean()
    loss.backward()
    opt.step()
    opt.zero_grad()
