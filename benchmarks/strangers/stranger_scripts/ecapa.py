import argparse
import math

import torch
from torch import nn
from torch.nn import functional as F

from tick import steps

parser = argparse.ArgumentParser(description="ECAPA-TDNN on VoxCeleb2-like utterances")
parser.add_argument("--channels", type=int, default=1024)
parser.add_argument("--batch-size", type=int, default=128)
parser.add_argument("--seconds", type=float, default=3.0)
parser.add_argument("--speakers", type=int, default=5994)
parser.add_argument("--margin", type=float, default=0.2)
parser.add_argument("--scale", type=float, default=30.0)
parser.add_argument("--lr", type=float, default=1e-3)
parser.add_argument("--device", default="cuda")
args = parser.parse_args()


class MelFrontend(nn.Module):
    def __init__(self, rate=16000, n_fft=512, win=400, hop=160, n_mels=80):
        super().__init__()
        self.n_fft, self.win, self.hop = n_fft, win, hop
        self.register_buffer("window", torch.hamming_window(win))
        self.register_buffer("bank", self.mel_bank(rate, n_fft, n_mels))

    @staticmethod
    def mel_bank(rate, n_fft, n_mels, low=20.0, high=7600.0):
        def to_mel(f):
            return 2595 * math.log10(1 + f / 700)

        mels = torch.linspace(to_mel(low), to_mel(high), n_mels + 2)
        hz = 700 * (10 ** (mels / 2595) - 1)
        freqs = torch.linspace(0, rate / 2, n_fft // 2 + 1)
        up = (freqs[None] - hz[:-2, None]) / (hz[1:-1] - hz[:-2])[:, None]
        down = (hz[2:, None] - freqs[None]) / (hz[2:] - hz[1:-1])[:, None]
        return torch.minimum(up, down).clamp(min=0)

    @torch.no_grad()
    def forward(self, wav):
        wav = torch.cat([wav[:, :1], wav[:, 1:] - 0.97 * wav[:, :-1]], 1)
        spec = torch.stft(wav, self.n_fft, self.hop, self.win, self.window, return_complex=True).abs().square()
        mel = (self.bank @ spec + 1e-6).log()
        return mel - mel.mean(-1, keepdim=True)


def spec_augment(x, time=10, freq=8):
    b, f, t = x.shape
    for size, dim in ((time, t), (freq, f)):
        length = torch.randint(0, size, (b, 1), device=x.device)
        start = (torch.rand(b, 1, device=x.device) * (dim - length)).long()
        pos = torch.arange(dim, device=x.device)[None]
        hit = (pos >= start) & (pos < start + length)
        x = x.masked_fill(hit[:, None, :] if dim == t else hit[:, :, None], 0.0)
    return x


class SE(nn.Module):
    def __init__(self, c, bottleneck=128):
        super().__init__()
        self.net = nn.Sequential(
            nn.AdaptiveAvgPool1d(1),
            nn.Conv1d(c, bottleneck, 1),
            nn.ReLU(),
            nn.BatchNorm1d(bottleneck),
            nn.Conv1d(bottleneck, c, 1),
            nn.Sigmoid(),
        )

    def forward(self, x):
        return x * self.net(x)


class Bottle2neck(nn.Module):
    def __init__(self, c, kernel_size=3, dilation=2, scale=8):
        super().__init__()
        self.width, self.n = c // scale, scale - 1
        self.conv1, self.bn1 = nn.Conv1d(c, c, 1), nn.BatchNorm1d(c)
        pad = kernel_size // 2 * dilation
        self.convs = nn.ModuleList(
            nn.Conv1d(self.width, self.width, kernel_size, dilation=dilation, padding=pad) for _ in range(self.n)
        )
        self.bns = nn.ModuleList(nn.BatchNorm1d(self.width) for _ in range(self.n))
        self.conv3, self.bn3 = nn.Conv1d(c, c, 1), nn.BatchNorm1d(c)
        self.se = SE(c)

    def forward(self, x):
        out = self.bn1(F.relu(self.conv1(x)))
        parts = torch.split(out, self.width, 1)
        sp, done = None, []
        for i in range(self.n):
            sp = parts[i] if sp is None else sp + parts[i]
            sp = self.bns[i](F.relu(self.convs[i](sp)))
            done.append(sp)
        done.append(parts[self.n])
        out = self.bn3(F.relu(self.conv3(torch.cat(done, 1))))
        return self.se(out) + x


class ECAPA(nn.Module):
    def __init__(self, c, mels=80, emb=192):
        super().__init__()
        self.conv1, self.bn1 = nn.Conv1d(mels, c, 5, padding=2), nn.BatchNorm1d(c)
        self.layer1, self.layer2, self.layer3 = (Bottle2neck(c, dilation=d) for d in (2, 3, 4))
        self.layer4 = nn.Conv1d(3 * c, 1536, 1)
        self.attention = nn.Sequential(
            nn.Conv1d(4608, 256, 1), nn.ReLU(), nn.BatchNorm1d(256), nn.Tanh(), nn.Conv1d(256, 1536, 1), nn.Softmax(2)
        )
        self.bn5, self.fc6, self.bn6 = nn.BatchNorm1d(3072), nn.Linear(3072, emb), nn.BatchNorm1d(emb)

    def forward(self, x):
        x = self.bn1(F.relu(self.conv1(x)))
        x1 = self.layer1(x)
        x2 = self.layer2(x + x1)
        x3 = self.layer3(x + x1 + x2)
        x = F.relu(self.layer4(torch.cat((x1, x2, x3), 1)))
        t = x.size(-1)
        std = torch.sqrt(torch.var(x, 2, keepdim=True).clamp(min=1e-4))
        context = torch.cat((x, x.mean(2, keepdim=True).repeat(1, 1, t), std.repeat(1, 1, t)), 1)
        w = self.attention(context)
        mu = torch.sum(x * w, 2)
        sg = torch.sqrt((torch.sum(x**2 * w, 2) - mu**2).clamp(min=1e-4))
        return self.bn6(self.fc6(self.bn5(torch.cat((mu, sg), 1))))


class AAMSoftmax(nn.Module):
    def __init__(self, classes, emb=192):
        super().__init__()
        self.weight = nn.Parameter(torch.empty(classes, emb))
        nn.init.xavier_normal_(self.weight)
        m = args.margin
        self.cos_m, self.sin_m = math.cos(m), math.sin(m)
        self.th, self.mm = math.cos(math.pi - m), math.sin(math.pi - m) * m

    def forward(self, x, label):
        cosine = F.linear(F.normalize(x), F.normalize(self.weight)).float()
        sine = torch.sqrt((1.0 - cosine * cosine).clamp(0, 1))
        phi = cosine * self.cos_m - sine * self.sin_m
        phi = torch.where(cosine > self.th, phi, cosine - self.mm)
        one_hot = torch.zeros_like(cosine).scatter_(1, label.view(-1, 1), 1)
        out = (one_hot * phi + (1.0 - one_hot) * cosine) * args.scale
        correct = out.argmax(1).eq(label).float().mean()
        return F.cross_entropy(out, label), correct


def main():
    frontend = MelFrontend().to(args.device)
    encoder = ECAPA(args.channels).to(args.device)
    head = AAMSoftmax(args.speakers).to(args.device)
    compiled = torch.compile(encoder)
    params = list(encoder.parameters()) + list(head.parameters())
    optimizer = torch.optim.Adam(params, lr=args.lr, weight_decay=2e-5)
    scheduler = torch.optim.lr_scheduler.CyclicLR(
        optimizer, 1e-8, args.lr, step_size_up=1000, mode="triangular2", cycle_momentum=False
    )
    scaler = torch.amp.GradScaler(args.device)
    wav = torch.randn(1000, int(args.seconds * 16000), pin_memory=torch.cuda.is_available())
    for _ in steps():
        index = torch.randint(0, len(wav) - args.batch_size, ()).item()
        x = wav[index : index + args.batch_size].to(args.device, non_blocking=True)
        label = torch.randint(0, args.speakers, (args.batch_size,), device=args.device)
        feats = spec_augment(frontend(x))
        with torch.autocast(args.device, dtype=torch.float16):
            emb = compiled(feats)
            loss, acc = head(emb, label)
        optimizer.zero_grad(set_to_none=True)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        scheduler.step()
        acc.item()


if __name__ == "__main__":
    main()
