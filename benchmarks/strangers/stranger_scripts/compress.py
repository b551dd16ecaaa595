"""Learned image compression: GDN, hyperprior with factorized entropy bottleneck, masked context model, rate-distortion, SWA."""

import math, torch, torch.nn as nn, torch.nn.functional as F
from tick import steps

N, M = 128, 192


class GDN(nn.Module):
    def __init__(s, c, inverse=False):
        super().__init__()
        s.beta, s.gamma, s.inv = nn.Parameter(torch.ones(c)), nn.Parameter(0.1 * torch.eye(c)), inverse

    def forward(s, x):
        n = F.conv2d(x * x, s.gamma.abs()[:, :, None, None], s.beta.abs() + 1e-6)
        return x * (torch.sqrt(n) if s.inv else torch.rsqrt(n))


class Bottleneck(nn.Module):
    def __init__(s, c, f=(3, 3, 3)):
        super().__init__()
        dims = (1, *f, 1)
        s.m = nn.ParameterList(
            torch.full((c, b, a), math.log(math.expm1(1 / 10**0.25 / b))) for a, b in zip(dims, dims[1:])
        )
        s.b = nn.ParameterList(torch.rand(c, b, 1) - 0.5 for b in dims[1:])
        s.f = nn.ParameterList(torch.zeros(c, b, 1) for b in dims[1:-1])

    def logits(s, x):
        for k in range(len(s.m)):
            x = F.softplus(s.m[k]) @ x + s.b[k]
            if k < len(s.f):
                x = x + torch.tanh(s.f[k]) * torch.tanh(x)
        return x

    def forward(s, x):
        x = x + torch.empty_like(x).uniform_(-0.5, 0.5)
        v = x.permute(1, 0, 2, 3).reshape(x.size(1), 1, -1)
        lo, up = s.logits(v - 0.5), s.logits(v + 0.5)
        sg = -torch.sign(lo + up).detach()
        return x, (torch.sigmoid(sg * up) - torch.sigmoid(sg * lo)).abs().clamp(min=1e-9)


class Masked(nn.Conv2d):
    def __init__(s, *a, **k):
        super().__init__(*a, **k)
        m = torch.ones_like(s.weight)
        m[:, :, 2, 2:] = 0
        m[:, :, 3:] = 0
        s.register_buffer("mask", m)

    def forward(s, x):
        return F.conv2d(x, s.weight * s.mask, s.bias, padding=2)


conv = lambda i, o, k=5, st=2: nn.Conv2d(i, o, k, st, k // 2)
deconv = lambda i, o: nn.ConvTranspose2d(i, o, 5, 2, 2, output_padding=1)


class Codec(nn.Module):
    def __init__(s):
        super().__init__()
        s.ga = nn.Sequential(conv(3, N), GDN(N), conv(N, N), GDN(N), conv(N, N), GDN(N), conv(N, M))
        s.gs = nn.Sequential(
            deconv(M, N), GDN(N, True), deconv(N, N), GDN(N, True), deconv(N, N), GDN(N, True), deconv(N, 3)
        )
        s.ha = nn.Sequential(conv(M, N, 3, 1), nn.LeakyReLU(), conv(N, N), nn.LeakyReLU(), conv(N, N))
        s.hs = nn.Sequential(
            deconv(N, M), nn.LeakyReLU(), deconv(M, M * 3 // 2), nn.LeakyReLU(), conv(M * 3 // 2, 2 * M, 3, 1)
        )
        s.ctx, s.eb = Masked(M, 2 * M, 5), Bottleneck(N)
        s.ep = nn.Sequential(
            nn.Conv2d(4 * M, 640, 1), nn.LeakyReLU(), nn.Conv2d(640, 512, 1), nn.LeakyReLU(), nn.Conv2d(512, 2 * M, 1)
        )

    def forward(s, x):
        y = s.ga(x)
        z, pz = s.eb(s.ha(y))
        yh = y + torch.rand_like(y) - 0.5
        mu, sc = s.ep(torch.cat([s.hs(z), s.ctx(yh)], 1)).chunk(2, 1)
        v = (yh - mu).abs()
        cdf = lambda t: 0.5 * torch.erfc(-t / 2**0.5)
        sc = sc.clamp(min=0.11)
        py = (cdf((0.5 - v) / sc) - cdf((-0.5 - v) / sc)).clamp(min=1e-9)
        return s.gs(yh), (py.log().sum() + pz.log().sum()) / -math.log(2)


net = Codec().cuda()
run = torch.compile(net)
main = torch.optim.Adam(net.parameters(), 1e-4)
swa = torch.optim.swa_utils.AveragedModel(net)
for i in steps(count=8):
    x = torch.rand(16, 3, 256, 256, device="cuda")
    xh, bits = run(x)
    bpp = bits / (16 * 256 * 256)
    loss = 0.0130 * 255**2 * F.mse_loss(xh, x) + bpp
    main.zero_grad()
    loss.backward()
    nn.utils.clip_grad_norm_(net.parameters(), 1.0)
    main.step()
    swa.update_parameters(net)
