"""HyenaDNA-like pretraining on nucleotides: implicit long filters, FFT convolutions of 32k points, compiled, autocast."""

import math
from dataclasses import dataclass
import torch, torch.nn as nn, torch.nn.functional as F
from tick import steps


@dataclass
class Config:
    length: int = 16384
    batch: int = 8
    width: int = 256
    layers: int = 6
    filter_width: int = 64
    bands: int = 16
    vocabulary: int = 12


cfg = Config()


class Sine(nn.Module):
    def __init__(s, d):
        super().__init__()
        s.w = nn.Parameter(10 * torch.ones(1, d))

    def forward(s, x):
        return torch.sin(s.w * x)


class Filter(nn.Module):
    def __init__(s, d, order=2):
        super().__init__()
        t = torch.linspace(0, 1, cfg.length)[:, None]
        w = 2 * math.pi * torch.arange(cfg.length)[:, None] / cfg.length
        z = torch.linspace(1e-4, cfg.bands - 1, cfg.bands)[None] * w
        s.register_buffer("z", torch.cat([t, z.cos(), -z.sin()], 1))
        s.register_buffer("t", t)
        f, act = cfg.filter_width, Sine(cfg.filter_width)
        s.net = nn.Sequential(
            nn.Linear(2 * cfg.bands + 1, f), act, nn.Linear(f, f), act, nn.Linear(f, f), act, nn.Linear(f, d * order)
        )
        s.deltas = nn.Parameter(torch.linspace(math.log(0.01) / 1.5, math.log(0.01) / 0.3, d * order).abs())

    def forward(s):
        h = s.net(s.z) * (torch.exp(-s.t * s.deltas.abs()) + 0.05)
        return (h / h.norm(dim=0, keepdim=True)).t()


def fft_conv(u, k, bias):
    n = 2 * u.shape[-1]
    y = torch.fft.irfft(torch.fft.rfft(u.float(), n=n) * torch.fft.rfft(k.float(), n=n) / n, n=n, norm="forward")
    return (y[..., : u.shape[-1]] + u * bias[:, None]).to(u.dtype)


class Hyena(nn.Module):
    def __init__(s, d):
        super().__init__()
        s.into, s.out = nn.Linear(d, 3 * d), nn.Linear(d, d)
        s.short = nn.Conv1d(3 * d, 3 * d, 3, padding=2, groups=3 * d)
        s.filter, s.bias = Filter(d), nn.Parameter(torch.randn(2, d))

    def forward(s, x):
        x1, x2, v = s.short(s.into(x).transpose(1, 2))[..., : x.shape[1]].chunk(3, 1)
        k1, k2 = s.filter().chunk(2)
        v = fft_conv(v * x1, k1, s.bias[0])
        v = fft_conv(v * x2, k2, s.bias[1])
        return s.out(v.transpose(1, 2))


class Block(nn.Module):
    def __init__(s, d):
        super().__init__()
        s.n1, s.n2, s.mix = nn.LayerNorm(d), nn.LayerNorm(d), Hyena(d)
        s.mlp = nn.Sequential(nn.Linear(d, 4 * d), nn.GELU(approximate="tanh"), nn.Linear(4 * d, d))

    def forward(s, x):
        x = x + s.mix(s.n1(x))
        return x + s.mlp(s.n2(x))


class Net(nn.Module):
    def __init__(s):
        super().__init__()
        s.e = nn.Embedding(cfg.vocabulary, cfg.width)
        s.blocks = nn.Sequential(*(Block(cfg.width) for _ in range(cfg.layers)))
        s.n, s.head = nn.LayerNorm(cfg.width), nn.Linear(cfg.width, cfg.vocabulary)

    def forward(s, ids):
        return s.head(s.n(s.blocks(s.e(ids))))


net = Net().cuda()
compiled = torch.compile(net)
slow = [p for n, p in net.named_parameters() if "filter" in n]
rest = [p for n, p in net.named_parameters() if "filter" not in n]
opt = torch.optim.AdamW([{"params": rest, "weight_decay": 0.1}, {"params": slow, "weight_decay": 0.0}], 6e-4)
genome = torch.randint(7, 11, (4_000_000,), device="cuda")
for i in steps(count=6):
    begin = torch.randint(0, genome.numel() - cfg.length - 1, (cfg.batch,), device="cuda")
    window = genome[begin[:, None] + torch.arange(cfg.length + 1, device="cuda")]
    with torch.autocast("cuda", torch.bfloat16):
        logits = compiled(window[:, :-1])
    loss = F.cross_entropy(logits.float().flatten(0, 1), window[:, 1:].flatten())
    opt.zero_grad()
    loss.backward()
    opt.step()
