"""SlowFast 8x8 R50 on Kinetics-like clips.

First a short search for the learning rate, then training with SGD written out by hand.
"""

import argparse
import logging
import math

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, Dataset

from tick import steps

parser = argparse.ArgumentParser()
parser.add_argument("--batch-size", type=int, default=8)
parser.add_argument("--crop", type=int, default=224)
parser.add_argument("--frames", type=int, default=32)
parser.add_argument("--alpha", type=int, default=4)
parser.add_argument("--classes", type=int, default=400)
parser.add_argument("--momentum", type=float, default=0.9)
parser.add_argument("--weight-decay", type=float, default=1e-4)
parser.add_argument("--finder-steps", type=int, default=16)
args = parser.parse_args()
logging.basicConfig(level=logging.INFO, format="%(asctime)s %(message)s")
log = logging.getLogger("slowfast")
torch.backends.cudnn.benchmark = True


class Clips(Dataset):
    def __init__(self, n=96, size=256):
        rng = np.random.default_rng(0)
        self.film = rng.integers(0, 255, (200, size, size, 3), dtype=np.uint8)
        self.labels = rng.integers(0, args.classes, n)
        self.rng = rng

    def __len__(self):
        return len(self.labels)

    def __getitem__(self, i):
        t = self.rng.integers(0, len(self.film) - args.frames)
        y, x = self.rng.integers(0, self.film.shape[1] - args.crop, 2)
        clip = self.film[t : t + args.frames, y : y + args.crop, x : x + args.crop]
        return torch.from_numpy(np.ascontiguousarray(clip)), int(self.labels[i])


class Bottleneck(nn.Module):
    def __init__(self, cin, mid, stride, head_kernel):
        super().__init__()
        cout = mid * 4
        self.a = nn.Conv3d(cin, mid, (head_kernel, 1, 1), padding=(head_kernel // 2, 0, 0), bias=False)
        self.b = nn.Conv3d(mid, mid, (1, 3, 3), (1, stride, stride), (0, 1, 1), bias=False)
        self.c = nn.Conv3d(mid, cout, 1, bias=False)
        self.na, self.nb, self.nc = nn.BatchNorm3d(mid), nn.BatchNorm3d(mid), nn.BatchNorm3d(cout)
        self.short = None
        if cin != cout:
            self.short = nn.Sequential(nn.Conv3d(cin, cout, 1, (1, stride, stride), bias=False), nn.BatchNorm3d(cout))
        nn.init.zeros_(self.nc.weight)

    def forward(self, x):
        y = F.relu(self.na(self.a(x)), inplace=True)
        y = F.relu(self.nb(self.b(y)), inplace=True)
        y = self.nc(self.c(y))
        return F.relu(y + (x if self.short is None else self.short(x)), inplace=True)


def stage(cin, mid, n, stride, kernel):
    blocks = [Bottleneck(cin, mid, stride, kernel)]
    blocks += [Bottleneck(mid * 4, mid, 1, kernel) for _ in range(n - 1)]
    return nn.Sequential(*blocks)


def stem(cout, kernel):
    return nn.Sequential(
        nn.Conv3d(3, cout, (kernel, 7, 7), (1, 2, 2), (kernel // 2, 3, 3), bias=False),
        nn.BatchNorm3d(cout),
        nn.ReLU(inplace=True),
        nn.MaxPool3d((1, 3, 3), (1, 2, 2), (0, 1, 1)),
    )


class Lateral(nn.Module):
    def __init__(self, c, alpha):
        super().__init__()
        self.conv = nn.Conv3d(c, 2 * c, (7, 1, 1), (alpha, 1, 1), (3, 0, 0), bias=False)
        self.norm = nn.BatchNorm3d(2 * c)

    def forward(self, fast):
        return F.relu(self.norm(self.conv(fast)), inplace=True)


class SlowFast(nn.Module):
    def __init__(self, alpha, classes):
        super().__init__()
        self.alpha = alpha
        self.slow_stem, self.fast_stem = stem(64, 1), stem(8, 5)
        self.slow, self.fast = nn.ModuleList(), nn.ModuleList()
        self.lateral = nn.ModuleList([Lateral(8, alpha)])
        s, f = 64 + 16, 8
        for i, (n, kernel) in enumerate(zip((3, 4, 6, 3), (1, 1, 3, 3))):
            self.slow.append(stage(s, 64 << i, n, 1 if i == 0 else 2, kernel))
            self.fast.append(stage(f, 8 << i, n, 1 if i == 0 else 2, 3))
            f = (8 << i) * 4
            s = (64 << i) * 4 + 2 * f
            if i < 3:
                self.lateral.append(Lateral(f, alpha))
        self.drop, self.fc = nn.Dropout(0.5), nn.Linear(2048 + 256, classes)

    def forward(self, clip):
        slow, fast = self.slow_stem(clip[:, :, :: self.alpha]), self.fast_stem(clip)
        for i in range(4):
            slow = torch.cat([slow, self.lateral[i](fast)], 1)
            slow, fast = self.slow[i](slow), self.fast[i](fast)
        pooled = torch.cat([slow.mean((2, 3, 4)), fast.mean((2, 3, 4))], 1)
        return self.fc(self.drop(pooled))


class Trainer:
    def __init__(self):
        self.device = torch.device("cuda")
        self.model = SlowFast(args.alpha, args.classes).to(self.device, memory_format=torch.channels_last_3d)
        self.mean = torch.tensor([114.75, 114.75, 114.75], device=self.device)
        self.loader = DataLoader(Clips(), args.batch_size, shuffle=True, num_workers=0, drop_last=True, pin_memory=True)
        self.batches = self.forever()
        self.reset()

    def reset(self):
        self.buf = {p: torch.zeros_like(p) for p in self.model.parameters()}

    def forever(self):
        while True:
            yield from self.loader

    def grads(self):
        clip, label = next(self.batches)
        clip = clip.to(self.device, non_blocking=True)
        mirrored = torch.rand(len(clip), 1, 1, 1, 1, device=self.device) < 0.5
        clip = torch.where(mirrored, clip.flip(3), clip)
        clip = ((clip.float() - self.mean) / 57.375).permute(0, 4, 1, 2, 3)
        label = label.to(self.device, non_blocking=True)
        with torch.autocast("cuda", dtype=torch.bfloat16):
            loss = F.cross_entropy(self.model(clip), label, label_smoothing=0.1)
        loss.backward()
        return loss.detach()

    def sgd(self, lr):
        for p, buf in self.buf.items():
            g = p.grad.data
            if p.ndim > 1:
                g = g.add(p.data, alpha=args.weight_decay)
            buf.mul_(args.momentum).add_(g)
            p.data.add_(buf, alpha=-lr)
            p.grad = None

    def find_lr(self, low=1e-4, high=1.0):
        kept = {k: v.clone() for k, v in self.model.state_dict().items()}
        best, found = math.inf, low
        for i in range(args.finder_steps):
            lr = low * (high / low) ** (i / (args.finder_steps - 1))
            loss = self.grads().item()
            self.sgd(lr)
            if loss < best:
                best, found = loss, lr
            if loss > 3 * best:
                break
        self.model.load_state_dict(kept)
        self.reset()
        return found / 10

    def fit(self):
        lr = self.find_lr()
        log.info("learning rate %.2e", lr)
        for i in steps():
            loss = self.grads()
            self.sgd(lr * 0.5 * (1 + math.cos(math.pi * i / 10000)))
            if i % 10 == 0:
                log.info("iter %d loss %.3f", i, loss.item())


Trainer().fit()
