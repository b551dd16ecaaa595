import torch, torch.nn as nn, torch.nn.functional as F
from tick import steps


class GLN(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.g, self.b = nn.Parameter(torch.ones(1, c, 1)), nn.Parameter(torch.zeros(1, c, 1))

    def forward(self, x):
        m = x.mean((1, 2), keepdim=True)
        v = (x - m).pow(2).mean((1, 2), keepdim=True)
        return self.g * (x - m) / (v + 1e-8).sqrt() + self.b


class TCN(nn.Module):
    def __init__(self, b, h, d):
        super().__init__()
        self.net = nn.Sequential(
            nn.Conv1d(b, h, 1),
            nn.PReLU(),
            GLN(h),
            nn.Conv1d(h, h, 3, dilation=d, padding=d, groups=h),
            nn.PReLU(),
            GLN(h),
        )
        self.res, self.skip = nn.Conv1d(h, b, 1), nn.Conv1d(h, b, 1)

    def forward(self, x):
        y = self.net(x)
        return x + self.res(y), self.skip(y)


class Tas(nn.Module):
    def __init__(self, n=512, b=128, h=512):
        super().__init__()
        self.enc = nn.Conv1d(1, n, 16, 8, bias=False)
        self.norm, self.bott = GLN(n), nn.Conv1d(n, b, 1)
        self.tcn = nn.ModuleList(TCN(b, h, 2**i) for _ in range(2) for i in range(6))
        self.mask = nn.Sequential(nn.PReLU(), nn.Conv1d(b, 2 * n, 1))
        self.dec = nn.ConvTranspose1d(n, 1, 16, 8, bias=False)

    def forward(self, x):
        w = F.relu(self.enc(x[:, None]))
        y, out = self.bott(self.norm(w)), 0
        for t in self.tcn:
            y, s = t(y)
            out = out + s
        m = F.relu(self.mask(out)).view(x.size(0), 2, 512, -1)
        return self.dec((w[:, None] * m).flatten(0, 1)).view(x.size(0), 2, -1)


def sisnr(e, s):
    e, s = e - e.mean(-1, keepdim=True), s - s.mean(-1, keepdim=True)
    t = (e * s).sum(-1, keepdim=True) * s / (s.pow(2).sum(-1, keepdim=True) + 1e-8)
    return 10 * torch.log10(t.pow(2).sum(-1) / ((e - t).pow(2).sum(-1) + 1e-8) + 1e-8)


net = Tas().cuda()
opt = torch.optim.Adam(net.parameters(), 1e-3)
cnet = torch.compile(net)
for i in steps():
    src = torch.randn(8, 2, 32000, device="cuda")
    est = cnet(src.sum(1))
    loss = -torch.maximum(sisnr(est, src).mean(1), sisnr(est, src.flip(1)).mean(1)).mean()
    loss.backward()
    nn.utils.clip_grad_norm_(net.parameters(), 5.0)
    opt.step()
    opt.zero_grad()
