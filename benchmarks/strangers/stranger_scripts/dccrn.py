import argparse
import math

import torch
import torch.nn as nn
import torch.nn.functional as F

from tick import steps

parser = argparse.ArgumentParser()
parser.add_argument("--batch", type=int, default=16)
parser.add_argument("--seconds", type=float, default=2.0)
parser.add_argument("--sr", type=int, default=16000)
parser.add_argument("--n_fft", type=int, default=512)
parser.add_argument("--win", type=int, default=400)
parser.add_argument("--hop", type=int, default=100)
parser.add_argument("--kernels", type=int, nargs="+", default=[32, 64, 128, 256, 256, 256])
parser.add_argument("--rnn", type=int, default=256)
parser.add_argument("--lr", type=float, default=1e-3)
args = parser.parse_args()
torch.backends.cuda.matmul.allow_tf32 = True
torch.backends.cudnn.allow_tf32 = True


class ComplexConv(nn.Module):
    """Channels hold the real half, then the imaginary half."""

    def __init__(self, cin, cout, conv, **kw):
        super().__init__()
        self.real = conv(cin // 2, cout // 2, **kw)
        self.imag = conv(cin // 2, cout // 2, **kw)
        for c in (self.real, self.imag):
            nn.init.normal_(c.weight, std=0.05)
            nn.init.zeros_(c.bias)

    def forward(self, x):
        b = x.shape[0]
        halves = torch.cat(x.chunk(2, 1), 0)
        rr, ri = self.real(halves).split(b)
        ir, ii = self.imag(halves).split(b)
        return torch.cat([rr - ii, ri + ir], 1)


class ComplexLSTM(nn.Module):
    def __init__(self, size, hidden, out=None):
        super().__init__()
        self.real, self.imag = nn.LSTM(size, hidden), nn.LSTM(size, hidden)
        self.proj_r = nn.Linear(hidden, out) if out else nn.Identity()
        self.proj_i = nn.Linear(hidden, out) if out else nn.Identity()

    def forward(self, r, i):
        both = torch.cat([r, i], 1)
        n = r.shape[1]
        rr, ri = self.real(both)[0].split(n, 1)
        ir, ii = self.imag(both)[0].split(n, 1)
        return self.proj_r(rr - ii), self.proj_i(ri + ir)


class Encoder(nn.Module):
    def __init__(self, cin, cout):
        super().__init__()
        self.conv = ComplexConv(cin, cout, nn.Conv2d, kernel_size=(5, 2), stride=(2, 1), padding=(2, 0))
        self.bn, self.act = nn.BatchNorm2d(cout), nn.PReLU()

    def forward(self, x):
        return self.act(self.bn(self.conv(F.pad(x, (1, 0)))))


class Decoder(nn.Module):
    def __init__(self, cin, cout, last):
        super().__init__()
        self.conv = ComplexConv(
            cin, cout, nn.ConvTranspose2d, kernel_size=(5, 2), stride=(2, 1), padding=(2, 0), output_padding=(1, 0)
        )
        self.post = nn.Identity() if last else nn.Sequential(nn.BatchNorm2d(cout), nn.PReLU())

    def forward(self, x, skip):
        xr, xi = x.chunk(2, 1)
        sr, si = skip.chunk(2, 1)
        return self.post(self.conv(torch.cat([xr, sr, xi, si], 1)))[..., 1:]


class DCCRN(nn.Module):
    def __init__(self):
        super().__init__()
        ch = [2, *args.kernels]
        self.enc = nn.ModuleList(Encoder(a, b) for a, b in zip(ch, ch[1:]))
        self.dec = nn.ModuleList(Decoder(2 * ch[i + 1], ch[i], i == 0) for i in reversed(range(len(ch) - 1)))
        self.freqs = args.n_fft // 2 // 2 ** len(args.kernels)
        flat = self.freqs * ch[-1] // 2
        self.rnn1 = ComplexLSTM(flat, args.rnn // 2)
        self.rnn2 = ComplexLSTM(args.rnn // 2, args.rnn // 2, flat)
        self.register_buffer("window", torch.hann_window(args.win))

    def forward(self, wav):
        spec = torch.stft(wav, args.n_fft, args.hop, args.win, self.window, return_complex=True)
        x = torch.stack([spec.real, spec.imag], 1)[:, :, 1:]
        skips = []
        for e in self.enc:
            x = e(x)
            skips.append(x)
        b, c, f, t = x.shape
        r, i = x.permute(3, 0, 1, 2).chunk(2, 2)
        r, i = self.rnn2(*self.rnn1(r.flatten(2), i.flatten(2)))
        x = torch.cat([r.view(t, b, c // 2, f), i.view(t, b, c // 2, f)], 2).permute(1, 2, 3, 0)
        for d in self.dec:
            x = d(x, skips.pop())
        mask = F.pad(x, (0, 0, 1, 0))
        mag = torch.sqrt(mask[:, 0] ** 2 + mask[:, 1] ** 2 + 1e-8)
        phase = torch.atan2(mask[:, 1] / (mag + 1e-8), mask[:, 0] / (mag + 1e-8))
        out = torch.polar(torch.tanh(mag) * (spec.abs() + 1e-8), spec.angle() + phase)
        return torch.istft(out, args.n_fft, args.hop, args.win, self.window, length=wav.shape[-1])


@torch.compile
def si_snr(est, ref):
    est, ref = est - est.mean(-1, keepdim=True), ref - ref.mean(-1, keepdim=True)
    proj = (est * ref).sum(-1, keepdim=True) / (ref.pow(2).sum(-1, keepdim=True) + 1e-8) * ref
    noise = est - proj
    return 10 * torch.log10(proj.pow(2).sum(-1) / (noise.pow(2).sum(-1) + 1e-8) + 1e-8)


def mix(clean, noise, low=-5, high=15):
    snr = torch.empty(len(clean), 1, device=clean.device).uniform_(low, high)
    gain = clean.norm(dim=-1, keepdim=True) / noise.norm(dim=-1, keepdim=True) * 10 ** (-snr / 20)
    return clean + gain * noise


n = int(args.seconds * args.sr)
t = torch.arange(n, device="cuda") / args.sr
pitch = torch.empty(64, 1, device="cuda").uniform_(80, 300)
bank = sum(torch.sin(2 * math.pi * k * pitch * t) / k for k in range(1, 6)) * 0.1
net = DCCRN().to("cuda")
optimizer = torch.optim.Adam(net.parameters(), lr=args.lr)
plateau = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, factor=0.5, patience=1)
running = 0.0
for step in steps():
    clean = bank[torch.randint(0, 64, (args.batch,), device="cuda")]
    noisy = mix(clean, torch.randn_like(clean))
    loss = -si_snr(net(noisy), clean).mean()
    optimizer.zero_grad()
    loss.backward()
    norm = nn.utils.clip_grad_norm_(net.parameters(), 5.0)
    optimizer.step()
    running = 0.95 * running + 0.05 * loss.item()
plateau.step(running)
print("si-snr", -running)
