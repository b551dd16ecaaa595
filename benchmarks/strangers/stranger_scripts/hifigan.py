"""HiFi-GAN vocoder: weight-normed transposed convolutions, discriminators of periods and scales, mel loss by STFT, eager TF32."""

import itertools
import torch, torch.nn as nn, torch.nn.functional as F
from torch.nn.utils.parametrizations import spectral_norm, weight_norm
from tick import steps

torch.backends.cuda.matmul.allow_tf32 = True
torch.backends.cudnn.benchmark = True
B, SEGMENT, MELS, HOP = 16, 8192, 80, 256


class ResBlock(nn.Module):
    def __init__(s, c, k):
        super().__init__()
        s.one = nn.ModuleList(weight_norm(nn.Conv1d(c, c, k, dilation=d, padding=d * (k // 2))) for d in (1, 3, 5))
        s.two = nn.ModuleList(weight_norm(nn.Conv1d(c, c, k, padding=k // 2)) for _ in range(3))

    def forward(s, x):
        for a, b in zip(s.one, s.two):
            x = x + b(F.leaky_relu(a(F.leaky_relu(x, 0.1)), 0.1))
        return x


class Generator(nn.Module):
    def __init__(s, c=256):
        super().__init__()
        s.pre, s.ups, s.blocks = weight_norm(nn.Conv1d(MELS, c, 7, padding=3)), nn.ModuleList(), nn.ModuleList()
        for r, k in ((8, 16), (8, 16), (2, 4), (2, 4)):
            s.ups.append(weight_norm(nn.ConvTranspose1d(c, c // 2, k, r, (k - r) // 2)))
            c //= 2
            s.blocks.append(nn.ModuleList(ResBlock(c, k) for k in (3, 7, 11)))
        s.post = weight_norm(nn.Conv1d(c, 1, 7, padding=3))

    def forward(s, x):
        x = s.pre(x)
        for up, blocks in zip(s.ups, s.blocks):
            x = up(F.leaky_relu(x, 0.1))
            x = sum(b(x) for b in blocks) / len(blocks)
        return torch.tanh(s.post(F.leaky_relu(x)))


class Period(nn.Module):
    def __init__(s, p):
        super().__init__()
        c = (1, 32, 128, 512, 1024)
        s.p, s.post = p, weight_norm(nn.Conv2d(1024, 1, (3, 1), 1, (1, 0)))
        s.convs = nn.ModuleList(weight_norm(nn.Conv2d(a, b, (5, 1), (3, 1), (2, 0))) for a, b in itertools.pairwise(c))
        s.convs.append(weight_norm(nn.Conv2d(1024, 1024, (5, 1), 1, (2, 0))))

    def forward(s, x):
        if x.size(-1) % s.p:
            x = F.pad(x, (0, s.p - x.size(-1) % s.p), "reflect")
        x, maps = x.unflatten(-1, (-1, s.p)), []
        for c in s.convs:
            x = F.leaky_relu(c(x), 0.1)
            maps.append(x)
        maps.append(s.post(x))
        return maps


class Scale(nn.Module):
    def __init__(s, norm):
        super().__init__()
        rows = ((1, 64, 15, 1, 1), (64, 64, 41, 2, 4), (64, 128, 41, 2, 16), (128, 256, 41, 4, 16))
        rows += ((256, 512, 41, 4, 16), (512, 512, 5, 1, 1))
        s.convs = nn.ModuleList(norm(nn.Conv1d(a, b, k, r, k // 2, groups=g)) for a, b, k, r, g in rows)
        s.post = norm(nn.Conv1d(512, 1, 3, padding=1))

    def forward(s, x):
        maps = []
        for c in s.convs:
            x = F.leaky_relu(c(x), 0.1)
            maps.append(x)
        return [*maps, s.post(x)]


class Discriminators(nn.Module):
    def __init__(s):
        super().__init__()
        s.periods = nn.ModuleList(Period(p) for p in (2, 3, 5, 7, 11))
        s.scales = nn.ModuleList(Scale(n) for n in (spectral_norm, weight_norm, weight_norm))

    def forward(s, x):
        out = [p(x) for p in s.periods]
        for i, d in enumerate(s.scales):
            out.append(d(x))
            x = F.avg_pool1d(x, 4, 2, 2)
        return out


window, bank = torch.hann_window(1024).cuda(), torch.rand(MELS, 513).softmax(-1).cuda()


def mel(y):
    y = F.pad(y, (384, 384), "reflect").squeeze(1)
    spec = torch.stft(y, 1024, HOP, 1024, window, center=False, return_complex=True)
    return (bank @ torch.view_as_real(spec).pow(2).sum(-1).add(1e-9).sqrt()).clamp(min=1e-5).log()


G, D = Generator().cuda(), Discriminators().cuda()
og = torch.optim.AdamW(G.parameters(), 2e-4, (0.8, 0.99))
od = torch.optim.AdamW(D.parameters(), 2e-4, (0.8, 0.99))
sg, sd = (torch.optim.lr_scheduler.ExponentialLR(o, 0.999) for o in (og, od))
for i in steps(count=4):
    real = torch.rand(B, 1, SEGMENT, device="cuda") * 2 - 1
    shape = mel(real)
    made = G(shape)
    od.zero_grad()
    ld = sum((1 - r[-1]).square().mean() + f[-1].square().mean() for r, f in zip(D(real), D(made.detach())))
    ld.backward()
    od.step()
    og.zero_grad()
    with torch.no_grad():
        wanted = D(real)
    got = D(made)
    match = sum((a - b).abs().mean() for r, f in zip(wanted, got) for a, b in zip(r[:-1], f[:-1]))
    fool = sum((1 - f[-1]).square().mean() for f in got)
    lg = fool + 2 * match + 45 * F.l1_loss(mel(made), shape)
    lg.backward()
    og.step()
    if i % 1000 == 999:
        sg.step(), sd.step()
