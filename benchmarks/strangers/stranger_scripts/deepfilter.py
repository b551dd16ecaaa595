"""Full-band speech enhancement in two stages (gains over ERB bands, then deep filtering), after DeepFilterNet 2."""

import math

import torch
import torch.nn as nn
import torch.nn.functional as F
from tick import steps
from torch.utils.data import DataLoader, IterableDataset

RATE, FFT, HOP, BANDS, DF_BINS, ORDER = 48000, 960, 480, 32, 96, 5
SECONDS, BATCH, CHANNELS, HIDDEN, GROUPS = 3, 48, 64, 256, 8
BINS = FFT // 2 + 1


class Spectral:
    def __init__(self, device):
        n = torch.arange(FFT, device=device)
        self.window = torch.sin(math.pi / 2 * torch.sin(math.pi * (n + 0.5) / FFT) ** 2)

    def analyse(self, wave):
        frames = F.pad(wave, (HOP, HOP)).unfold(-1, FFT, HOP)
        return torch.fft.rfft(frames * self.window, norm="ortho")

    def synthesise(self, spec):
        frames = torch.fft.irfft(spec, n=FFT, norm="ortho") * self.window
        length = (spec.shape[1] - 1) * HOP + FFT
        wave = F.fold(frames.transpose(1, 2), (1, length), (1, FFT), stride=(1, HOP))
        return wave[:, 0, 0, HOP:-HOP]


def erb_matrix():
    edges = torch.linspace(0, 21.4 * math.log10(1 + 0.00437 * RATE / 2), BANDS + 1)
    edges = ((10 ** (edges / 21.4) - 1) / 0.00437 / RATE * FFT).round().long()
    for b in range(1, BANDS + 1):
        edges[b] = max(int(edges[b]), int(edges[b - 1]) + 2)
    edges[-1] = BINS
    bank = torch.zeros(BINS, BANDS)
    for b in range(BANDS):
        bank[edges[b] : edges[b + 1], b] = 1
    return bank


class GroupedLinear(nn.Module):
    def __init__(self, a, b):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(GROUPS, a // GROUPS, b // GROUPS) * (GROUPS / a) ** 0.5)

    def forward(self, x):
        return torch.einsum("btgi,gih->btgh", x.unflatten(-1, (GROUPS, -1)), self.weight).flatten(2)


class SqueezedGRU(nn.Module):
    def __init__(self, a, b, layers):
        super().__init__()
        self.into, self.gru = GroupedLinear(a, HIDDEN), nn.GRU(HIDDEN, HIDDEN, layers, batch_first=True)
        self.out = GroupedLinear(HIDDEN, b)

    def forward(self, x):
        y, _ = self.gru(F.relu(self.into(x)))
        return F.relu(self.out(y))


class ConvBlock(nn.Module):
    def __init__(self, a, b, kernel=(1, 3), stride=1, up=False):
        super().__init__()
        self.ahead = kernel[0] - 1
        groups = math.gcd(a, b)
        if up:
            self.conv = nn.ConvTranspose2d(a, b, kernel, (1, 2), (0, 1), (0, 1), groups=groups, bias=False)
        else:
            self.conv = nn.Conv2d(a, b, kernel, (1, stride), (0, kernel[1] // 2), groups=groups, bias=False)
        self.point, self.norm = nn.Conv2d(b, b, 1, bias=False), nn.BatchNorm2d(b)

    def forward(self, x):
        return F.relu(self.norm(self.point(self.conv(F.pad(x, (0, 0, self.ahead, 0))))))


class DeepFilter(nn.Module):
    def __init__(self):
        super().__init__()
        c = CHANNELS
        self.erb = nn.ModuleList(
            [ConvBlock(1, c, (3, 3)), ConvBlock(c, c, stride=2), ConvBlock(c, c, stride=2), ConvBlock(c, c)]
        )
        self.spec = nn.ModuleList([ConvBlock(2, c, (3, 3)), ConvBlock(c, c, stride=2)])
        self.spec_in = GroupedLinear(c * DF_BINS // 2, c * BANDS // 4)
        self.encoder = SqueezedGRU(c * BANDS // 4, c * BANDS // 4, 1)
        self.lsnr = nn.Linear(c * BANDS // 4, 1)
        self.erb_gru = SqueezedGRU(c * BANDS // 4, c * BANDS // 4, 2)
        self.paths = nn.ModuleList(nn.Conv2d(c, c, 1) for _ in range(4))
        self.ups = nn.ModuleList([ConvBlock(c, c), ConvBlock(c, c, up=True), ConvBlock(c, c, up=True)])
        self.gain = nn.Conv2d(c, 1, (1, 3), padding=(0, 1))
        self.df_gru = SqueezedGRU(c * BANDS // 4, HIDDEN, 2)
        self.df_path = ConvBlock(c, 2 * ORDER, (5, 1))
        self.coefs = nn.Linear(HIDDEN, DF_BINS * 2 * ORDER)

    def forward(self, erb, spec):
        skips, x = [], erb
        for block in self.erb:
            x = block(x)
            skips.append(x)
        first = self.spec[0](spec)
        y = self.spec[1](first)
        b, c, t, f = x.shape
        x = x.transpose(1, 2).flatten(2) + self.spec_in(y.transpose(1, 2).flatten(2))
        emb = self.encoder(x)
        lsnr = torch.sigmoid(self.lsnr(emb)) * 50 - 15
        h = self.erb_gru(emb).view(b, t, c, f).transpose(1, 2)
        for up, path, skip in zip(self.ups, self.paths, reversed(skips)):
            h = up(h + path(skip))
        gains = torch.sigmoid(self.gain(h + self.paths[3](skips[0])))
        coefs = None
        if lsnr.max() > -10:
            coefs = torch.tanh(self.coefs(self.df_gru(emb))).view(b, t, DF_BINS, 2 * ORDER)
            coefs = coefs + self.df_path(first).permute(0, 2, 3, 1)
        return gains, lsnr, coefs


def deep_filter(spec, coefs):
    low = torch.view_as_real(spec[..., :DF_BINS])
    taps = F.pad(low, (0, 0, 0, 0, ORDER - 3, 2)).unfold(1, ORDER, 1)
    taps = torch.view_as_complex(taps.transpose(-1, -2).contiguous())
    weights = torch.view_as_complex(coefs.unflatten(-1, (ORDER, 2)).contiguous())
    filtered = torch.einsum("btfo,btfo->btf", taps, weights)
    return torch.cat([filtered, spec[..., DF_BINS:]], -1)


class Mixtures(IterableDataset):
    def __init__(self, size=512):
        self.speech = torch.randn(size, SECONDS * RATE) * 0.05
        self.noise = torch.randn(size, SECONDS * RATE) * 0.05

    def __iter__(self):
        while True:
            a, b = torch.randint(0, len(self.speech), (2,)).tolist()
            yield self.speech[a], self.noise[b], float(torch.randint(-5, 40, ()))


class Losses:
    sizes = (240, 480, 960, 1920)

    def __init__(self, device):
        self.windows = {n: torch.hann_window(n, device=device) for n in self.sizes}

    def compress(self, spec, power):
        return spec.abs().clamp(min=1e-6) ** power

    def waveform(self, out, clean):
        loss = 0.0
        for n in self.sizes:
            a = torch.stft(out, n, n // 4, window=self.windows[n], return_complex=True)
            b = torch.stft(clean, n, n // 4, window=self.windows[n], return_complex=True)
            loss = loss + F.mse_loss(self.compress(a, 0.3), self.compress(b, 0.3))
        return loss

    def bands(self, gains, target, lsnr):
        weight = torch.where(lsnr < 0, 2.0, 1.0)[:, None]
        return (weight * (gains.clamp(min=1e-4) ** 0.6 - target**0.6) ** 2).mean()


torch.backends.cuda.matmul.allow_tf32 = True
torch.backends.cudnn.benchmark = True
device = torch.device("cuda")
net = DeepFilter().to(device)
model = torch.compile(net)
spectral, losses = Spectral(device), Losses(device)
bank = erb_matrix().to(device)
mean_bank = bank / bank.sum(0)
optimizer = torch.optim.AdamW(net.parameters(), lr=1e-3, weight_decay=0.05, amsgrad=True)
warm = torch.optim.lr_scheduler.LinearLR(optimizer, 0.1, total_iters=1500)
cosine = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 100000, eta_min=1e-6)
scheduler = torch.optim.lr_scheduler.SequentialLR(optimizer, [warm, cosine], milestones=[1500])
loader = iter(DataLoader(Mixtures(), batch_size=BATCH, num_workers=0))

for i in steps():
    clean, noise, snr = (x.to(device) for x in next(loader))
    noise = noise * 10 ** (-snr.float() / 20)[:, None]
    clean_spec, noise_spec = spectral.analyse(clean), spectral.analyse(noise)
    noisy = clean_spec + noise_spec

    power = lambda s: torch.view_as_real(s).square().sum(-1) @ mean_bank
    clean_bands, noisy_bands = power(clean_spec), power(noisy)
    feat_erb = 10 * torch.log10(noisy_bands + 1e-10)
    feat_erb = ((feat_erb - feat_erb.mean((1, 2), keepdim=True)) / 40).unsqueeze(1)
    low = noisy[..., :DF_BINS]
    feat_spec = torch.view_as_real(low / (low.abs().mean((1, 2), keepdim=True) + 1e-6)).permute(0, 3, 1, 2)

    gains, lsnr, coefs = model(feat_erb, feat_spec.contiguous())
    enhanced = noisy * (gains[:, 0] @ bank.t())
    if coefs is not None:
        enhanced = deep_filter(enhanced, coefs)
    out = spectral.synthesise(enhanced)

    ideal = (clean_bands / (noisy_bands + 1e-10)).clamp(0, 1).sqrt()
    true_lsnr = 10 * torch.log10((clean_bands.sum(-1) + 1e-10) / (power(noise_spec).sum(-1) + 1e-10))
    true_lsnr = true_lsnr.clamp(-15, 35).unsqueeze(-1)
    loss = losses.waveform(out, clean[..., : out.shape[-1]])
    loss = loss + losses.bands(gains, ideal[:, None], true_lsnr) + 1e-3 * F.mse_loss(lsnr, true_lsnr)

    optimizer.zero_grad(set_to_none=True)
    loss.backward()
    nn.utils.clip_grad_norm_(net.parameters(), 1.0, error_if_nonfinite=False)
    optimizer.step()
    scheduler.step()
    if i % 10 == 0:
        print(f"[{i:4d}] loss {loss.item():.4f} lr {scheduler.get_last_lr()[0]:.2e}")
