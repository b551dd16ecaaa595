import itertools
import math
import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.nn.utils.parametrizations import weight_norm
from tick import steps

torch.set_float32_matmul_precision("high")


class Config:
    batch, segment, rate, mels, hop = 16, 8192, 24000, 100, 256
    channels = 512
    up_rates, up_kernels = (8, 8, 2, 2), (16, 16, 4, 4)
    kernels, dilations = (3, 7, 11), (1, 3, 5)
    periods = (2, 3, 5, 7, 11)
    resolutions = ((1024, 120, 600), (2048, 240, 1200), (512, 50, 240))


def kaiser_sinc(cutoff, half_width, size):
    a = 2.285 * (size // 2 - 1) * math.pi * 4 * half_width + 7.95
    beta = 0.1102 * (a - 8.7) if a > 50 else 0.5842 * (a - 21) ** 0.4 + 0.07886 * (a - 21)
    window = torch.kaiser_window(size, beta=beta, periodic=False)
    time = torch.arange(-(size // 2), size // 2) + 0.5
    kernel = 2 * cutoff * window * torch.sinc(2 * cutoff * time)
    return (kernel / kernel.sum()).view(1, 1, size)


class SnakeBeta(nn.Module):
    def __init__(self, channels):
        super().__init__()
        self.alpha, self.beta = nn.Parameter(torch.zeros(channels)), nn.Parameter(torch.zeros(channels))

    def forward(self, x):
        alpha, beta = self.alpha.exp()[None, :, None], self.beta.exp()[None, :, None]
        return x + (1.0 / (beta + 1e-9)) * torch.sin(x * alpha).pow(2)


class AntiAliased(nn.Module):
    """Up by two, the activation, and down again."""

    def __init__(self, channels, size=12):
        super().__init__()
        self.act, self.size = SnakeBeta(channels), size
        self.register_buffer("filter", kaiser_sinc(0.25, 0.3, size))

    def forward(self, x):
        c = x.shape[1]
        pad = self.size // 2 - 1
        left = pad * 2 + (self.size - 2) // 2
        right = pad * 2 + (self.size - 2 + 1) // 2
        x = F.pad(x, (pad, pad), mode="replicate")
        x = 2 * F.conv_transpose1d(x, self.filter.expand(c, -1, -1), stride=2, groups=c)
        x = self.act(x[..., left:-right])
        x = F.pad(x, (self.size // 2 - 1, self.size // 2), mode="replicate")
        return F.conv1d(x, self.filter.expand(c, -1, -1), stride=2, groups=c)


class AMPBlock(nn.Module):
    def __init__(self, channels, kernel, dilations):
        super().__init__()
        self.convs1 = nn.ModuleList(
            weight_norm(nn.Conv1d(channels, channels, kernel, dilation=d, padding=(kernel - 1) * d // 2))
            for d in dilations
        )
        self.convs2 = nn.ModuleList(
            weight_norm(nn.Conv1d(channels, channels, kernel, padding=kernel // 2)) for _ in dilations
        )
        self.acts = nn.ModuleList(AntiAliased(channels) for _ in range(2 * len(dilations)))

    def forward(self, x):
        for c1, c2, a1, a2 in zip(self.convs1, self.convs2, self.acts[::2], self.acts[1::2]):
            x = x + c2(a2(c1(a1(x))))
        return x


class BigVGAN(nn.Module):
    def __init__(self, h):
        super().__init__()
        self.pre = weight_norm(nn.Conv1d(h.mels, h.channels, 7, padding=3))
        self.ups, self.blocks = nn.ModuleList(), nn.ModuleList()
        c = h.channels
        for rate, kernel in zip(h.up_rates, h.up_kernels):
            self.ups.append(weight_norm(nn.ConvTranspose1d(c, c // 2, kernel, rate, padding=(kernel - rate) // 2)))
            c //= 2
            self.blocks.append(nn.ModuleList(AMPBlock(c, k, h.dilations) for k in h.kernels))
        self.act, self.post = AntiAliased(c), weight_norm(nn.Conv1d(c, 1, 7, padding=3))

    def forward(self, x):
        x = self.pre(x)
        for up, blocks in zip(self.ups, self.blocks):
            x = up(x)
            x = sum(block(x) for block in blocks) / len(blocks)
        return torch.tanh(self.post(self.act(x)))


class PeriodDiscriminator(nn.Module):
    def __init__(self, period):
        super().__init__()
        self.period = period
        widths = (1, 32, 128, 512, 1024)
        self.convs = nn.ModuleList(
            weight_norm(nn.Conv2d(a, b, (5, 1), (3, 1), padding=(2, 0))) for a, b in itertools.pairwise(widths)
        )
        self.convs.append(weight_norm(nn.Conv2d(1024, 1024, (5, 1), padding=(2, 0))))
        self.post = weight_norm(nn.Conv2d(1024, 1, (3, 1), padding=(1, 0)))

    def forward(self, x):
        b, c, t = x.shape
        if t % self.period:
            x = F.pad(x, (0, self.period - t % self.period), "reflect")
        x = x.view(b, c, -1, self.period)
        features = []
        for conv in self.convs:
            x = F.leaky_relu(conv(x), 0.1)
            features.append(x)
        x = self.post(x)
        features.append(x)
        return x.flatten(1), features


class ResolutionDiscriminator(nn.Module):
    def __init__(self, resolution):
        super().__init__()
        self.n_fft, self.hop, self.win = resolution
        self.register_buffer("window", torch.hann_window(self.win))
        self.convs = nn.ModuleList(
            [weight_norm(nn.Conv2d(1, 32, (3, 9), padding=(1, 4)))]
            + [weight_norm(nn.Conv2d(32, 32, (3, 9), (1, 2), padding=(1, 4))) for _ in range(3)]
            + [weight_norm(nn.Conv2d(32, 32, 3, padding=1))]
        )
        self.post = weight_norm(nn.Conv2d(32, 1, 3, padding=1))

    def forward(self, x):
        pad = (self.n_fft - self.hop) // 2
        x = F.pad(x, (pad, pad), mode="reflect").squeeze(1)
        x = torch.stft(x, self.n_fft, self.hop, self.win, self.window, center=False, return_complex=True)
        x = torch.linalg.norm(torch.view_as_real(x), dim=-1).unsqueeze(1)
        features = []
        for conv in self.convs:
            x = F.leaky_relu(conv(x), 0.1)
            features.append(x)
        x = self.post(x)
        features.append(x)
        return x.flatten(1), features


class Discriminators(nn.ModuleList):
    def forward(self, x):
        return [d(x) for d in self]


class MelLoss(nn.Module):
    def __init__(self, rate, sizes=(32, 64, 128, 256, 512, 1024, 2048), mels=(5, 10, 20, 40, 80, 160, 320)):
        super().__init__()
        self.sizes = sizes
        for size, n in zip(sizes, mels):
            self.register_buffer(f"bank{size}", mel_bank(rate, size, n))
            self.register_buffer(f"window{size}", torch.hann_window(size))

    def forward(self, fake, real):
        loss = 0
        for size in self.sizes:
            bank, window = getattr(self, f"bank{size}"), getattr(self, f"window{size}")
            a, b = (log_mel(x.squeeze(1), size, size // 4, window, bank) for x in (fake, real))
            loss = loss + F.l1_loss(a, b)
        return loss


def mel_bank(rate, n_fft, n):
    top = 2595 * math.log10(1 + rate / 2 / 700)
    hz = 700 * (10 ** (torch.linspace(0, top, n + 2) / 2595) - 1)
    freqs = torch.linspace(0, rate / 2, n_fft // 2 + 1)
    lower = (freqs - hz[:-2, None]) / (hz[1:-1] - hz[:-2])[:, None]
    upper = (hz[2:, None] - freqs) / (hz[2:] - hz[1:-1])[:, None]
    return torch.minimum(lower, upper).clamp(min=0)


def log_mel(x, n_fft, hop, window, bank):
    spec = torch.stft(x, n_fft, hop, n_fft, window, return_complex=True).abs()
    return torch.log10((bank @ spec).clamp(min=1e-5))


h = Config()
device = torch.device("cuda")
generator = BigVGAN(h).to(device)
critics = Discriminators(
    [PeriodDiscriminator(p) for p in h.periods] + [ResolutionDiscriminator(r) for r in h.resolutions]
).to(device)
mel_loss = MelLoss(h.rate).to(device)
bank, window = mel_bank(h.rate, 1024, h.mels).to(device), torch.hann_window(1024, device=device)
optim_g = torch.optim.AdamW(generator.parameters(), 1e-4, betas=(0.8, 0.99))
optim_d = torch.optim.AdamW(critics.parameters(), 1e-4, betas=(0.8, 0.99))
sched_g = torch.optim.lr_scheduler.ExponentialLR(optim_g, 0.9999996)
sched_d = torch.optim.lr_scheduler.ExponentialLR(optim_d, 0.9999996)
for step in steps():
    y = torch.rand(h.batch, 1, h.segment, device=device) * 2 - 1
    mel = log_mel(y.squeeze(1), 1024, h.hop, window, bank)[..., :-1]
    fake = generator(mel)

    optim_d.zero_grad()
    loss_d = 0
    for (real_score, _), (fake_score, _) in zip(critics(y), critics(fake.detach())):
        loss_d = loss_d + (1 - real_score).pow(2).mean() + fake_score.pow(2).mean()
    loss_d.backward()
    torch.nn.utils.clip_grad_norm_(critics.parameters(), 500)
    optim_d.step()

    optim_g.zero_grad()
    loss_g = 15 * mel_loss(fake, y)
    with torch.no_grad():
        real_out = critics(y)
    for (score, feats), (_, targets) in zip(critics(fake), real_out):
        loss_g = loss_g + (1 - score).pow(2).mean()
        loss_g = loss_g + 2 * sum((a - b).abs().mean() for a, b in zip(targets, feats))
    loss_g.backward()
    torch.nn.utils.clip_grad_norm_(generator.parameters(), 500)
    optim_g.step()
    sched_g.step()
    sched_d.step()
