"""VQ-VAE-2-like: EMA codebooks, cdist + argmin, straight-through, code resets, channels_last bf16."""

import torch, torch.nn as nn, torch.nn.functional as F
from tick import steps


class Res(nn.Module):
    def __init__(self, c, h=64):
        super().__init__()
        self.f = nn.Sequential(nn.ReLU(), nn.Conv2d(c, h, 3, padding=1), nn.ReLU(), nn.Conv2d(h, c, 1))

    def forward(self, x):
        return x + self.f(x)


def stack(c):
    return nn.Sequential(Res(c), Res(c), Res(c), nn.ReLU())


class EMAQuantizer(nn.Module):
    def __init__(self, k=1024, d=64, decay=0.99):
        super().__init__()
        e = torch.randn(k, d)
        self.k, self.decay = k, decay
        self.register_buffer("e", e)
        self.register_buffer("n", torch.zeros(k))
        self.register_buffer("m", e.clone())

    def forward(self, x):
        flat = x.permute(0, 2, 3, 1).reshape(-1, x.shape[1]).float()
        ind = torch.cdist(flat, self.e).argmin(1)
        if self.training:
            with torch.no_grad():
                oh = F.one_hot(ind, self.k).to(flat.dtype)
                self.n.mul_(self.decay).add_(oh.sum(0), alpha=1 - self.decay)
                self.m.mul_(self.decay).add_(oh.t() @ flat, alpha=1 - self.decay)
                tot = self.n.sum()
                n = (self.n + 1e-5) / (tot + self.k * 1e-5) * tot
                dead = self.n < 0.01
                new = flat[torch.randint(0, flat.shape[0], (self.k,), device=x.device)]
                self.e.copy_(torch.where(dead[:, None], new, self.m / n[:, None]))
        q = F.embedding(ind, self.e).view(x.shape[0], x.shape[2], x.shape[3], -1).permute(0, 3, 1, 2)
        diff = (q.detach() - x.float()).pow(2).mean()
        return x + (q - x).detach(), diff, ind


class VQVAE(nn.Module):
    def __init__(self, c=128):
        super().__init__()
        self.eb = nn.Sequential(
            nn.Conv2d(3, c // 2, 4, 2, 1),
            nn.ReLU(),
            nn.Conv2d(c // 2, c, 4, 2, 1),
            nn.ReLU(),
            nn.Conv2d(c, c, 3, 1, 1),
            stack(c),
        )
        self.et = nn.Sequential(nn.Conv2d(c, c, 4, 2, 1), stack(c))
        self.qt, self.qb = EMAQuantizer(), EMAQuantizer()
        self.pt, self.pb = nn.Conv2d(c, 64, 1), nn.Conv2d(c + 64, 64, 1)
        self.dt = nn.Sequential(nn.Conv2d(64, c, 3, 1, 1), stack(c), nn.ConvTranspose2d(c, 64, 4, 2, 1))
        self.up = nn.ConvTranspose2d(64, 64, 4, 2, 1)
        self.dec = nn.Sequential(
            nn.Conv2d(128, c, 3, 1, 1),
            stack(c),
            nn.ConvTranspose2d(c, c // 2, 4, 2, 1),
            nn.ReLU(),
            nn.ConvTranspose2d(c // 2, 3, 4, 2, 1),
        )

    def forward(self, x):
        b = self.eb(x)
        t = self.et(b)
        zt, d1, _ = self.qt(self.pt(t))
        zb, d2, _ = self.qb(self.pb(torch.cat([self.dt(zt), b], 1)))
        return self.dec(torch.cat([self.up(zt), zb], 1)), d1 + d2


net = VQVAE().cuda().to(memory_format=torch.channels_last)
net = torch.compile(net, mode="max-autotune-no-cudagraphs")
opt = torch.optim.Adam(net.parameters(), lr=3e-4, fused=True)
for i in steps():
    img = torch.randint(0, 256, (64, 3, 256, 256), device="cuda", dtype=torch.uint8)
    x = img.to(torch.float32).div_(127.5).sub_(1).contiguous(memory_format=torch.channels_last)
    with torch.autocast("cuda", torch.bfloat16):
        y, latent = net(x)
        loss = F.mse_loss(y.float(), x) + 0.25 * latent
    opt.zero_grad(set_to_none=True)
    loss.backward()
    opt.step()
