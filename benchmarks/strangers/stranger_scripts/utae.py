"""U-TAE (Garnot & Landrieu 2021): semantic segmentation of satellite image time series, PASTIS shapes."""

import copy
import logging

import numpy as np
import torch
import torch.nn as nn
from torch.utils.data import DataLoader, Dataset

from tick import steps

logging.basicConfig(level=logging.INFO, format="%(asctime)s %(message)s")
logger = logging.getLogger("utae")

FRAMES = 46
SIZE = 128
BATCH = 4
CLASSES = 20
WIDTHS_DOWN = [64, 64, 64, 128]
WIDTHS_UP = [32, 32, 64, 128]
DEVICE = "cuda"


class FakePastis(Dataset):
    def __init__(self, n=12):
        rng = np.random.default_rng(1)
        self.x = torch.from_numpy(rng.standard_normal((n, FRAMES, 10, SIZE, SIZE), dtype=np.float32)).to(DEVICE)
        self.y = torch.from_numpy(rng.integers(0, CLASSES, (n, SIZE, SIZE))).to(DEVICE)
        self.days = torch.from_numpy(np.sort(rng.integers(0, 365, (n, FRAMES)), axis=1)).to(DEVICE)

    def __len__(self):
        return 10_000

    def __getitem__(self, i):
        i = i % len(self.x)
        return self.x[i], self.days[i], self.y[i]


def conv_layer(cin, cout, norm, k=3, s=1, p=1, transpose=False):
    cls = nn.ConvTranspose2d if transpose else nn.Conv2d
    extra = {} if transpose else {"padding_mode": "reflect"}
    n = nn.GroupNorm(4, cout) if norm == "group" else nn.BatchNorm2d(cout)
    return nn.Sequential(cls(cin, cout, k, s, p, **extra), n, nn.ReLU())


class ConvBlock(nn.Module):
    def __init__(self, widths, norm):
        super().__init__()
        self.conv = nn.Sequential(*[conv_layer(a, b, norm) for a, b in zip(widths[:-1], widths[1:])])

    def forward(self, x):
        return self.conv(x)


class DownConvBlock(nn.Module):
    def __init__(self, cin, cout, norm="group"):
        super().__init__()
        self.down = conv_layer(cin, cin, norm, 4, 2, 1)
        self.conv1, self.conv2 = conv_layer(cin, cout, norm), conv_layer(cout, cout, norm)

    def forward(self, x):
        out = self.conv1(self.down(x))
        return out + self.conv2(out)


class UpConvBlock(nn.Module):
    def __init__(self, cin, cout, cskip):
        super().__init__()
        self.skip_conv = nn.Sequential(nn.Conv2d(cskip, cskip, 1), nn.BatchNorm2d(cskip), nn.ReLU())
        self.up = conv_layer(cin, cout, "batch", 4, 2, 1, transpose=True)
        self.conv1, self.conv2 = conv_layer(cout + cskip, cout, "batch"), conv_layer(cout, cout, "batch")

    def forward(self, x, skip):
        out = torch.cat([self.up(x), self.skip_conv(skip)], dim=1)
        out = self.conv1(out)
        return out + self.conv2(out)


class LTAE2d(nn.Module):
    def __init__(self, channels, heads=16, d_k=4, d_model=256, out=128):
        super().__init__()
        self.heads, self.d_k, self.d_model = heads, d_k, d_model
        self.inconv = nn.Conv1d(channels, d_model, 1)
        self.in_norm, self.out_norm = nn.GroupNorm(heads, channels), nn.GroupNorm(heads, out)
        self.query = nn.Parameter(torch.zeros(heads, d_k).normal_(0, np.sqrt(2.0 / d_k)))
        self.fc_k = nn.Linear(d_model, heads * d_k)
        self.mlp = nn.Sequential(nn.Linear(d_model, out), nn.BatchNorm1d(out), nn.ReLU())
        self.att_drop, self.drop = nn.Dropout(0.1), nn.Dropout(0.2)
        half = d_model // heads
        self.register_buffer("denom", 1000 ** (2 * (torch.arange(half) // 2).float() / half))

    def positions(self, days):
        table = days[..., None] / self.denom
        table = torch.stack([table[..., 0::2].sin(), table[..., 1::2].cos()], -1).flatten(-2)
        return table.repeat(1, 1, self.heads)

    def forward(self, x, days):
        b, t, c, h, w = x.shape
        out = x.permute(0, 3, 4, 1, 2).contiguous().view(b * h * w, t, c)
        out = self.in_norm(out.permute(0, 2, 1))
        out = self.inconv(out).permute(0, 2, 1)
        pos = self.positions(days)[:, None].expand(b, h * w, t, self.d_model).reshape(b * h * w, t, -1)
        out = out + pos
        k = self.fc_k(out).view(-1, t, self.heads, self.d_k).permute(2, 0, 1, 3)
        attn = torch.einsum("hd,hntd->hnt", self.query, k) / np.sqrt(self.d_k)
        attn = self.att_drop(attn.softmax(-1))
        v = torch.stack(out.split(self.d_model // self.heads, dim=-1))
        out = torch.matmul(attn.unsqueeze(2), v).squeeze(2)
        out = out.permute(1, 0, 2).reshape(b * h * w, -1)
        out = self.out_norm(self.drop(self.mlp(out)))
        return out.view(b, h, w, -1).permute(0, 3, 1, 2), attn.view(self.heads, b, h, w, t).permute(0, 1, 4, 2, 3)


class TemporalAggregator(nn.Module):
    def forward(self, x, attn):
        heads, b, t, h, w = attn.shape
        attn = attn.reshape(heads * b, t, h, w)
        if x.shape[-2] > h:
            attn = nn.functional.interpolate(attn, size=x.shape[-2:], mode="bilinear", align_corners=False)
        else:
            attn = nn.functional.avg_pool2d(attn, kernel_size=h // x.shape[-2])
        attn = attn.view(heads, b, t, *x.shape[-2:])
        groups = torch.stack(x.chunk(heads, dim=2))
        return torch.cat(list((attn.unsqueeze(3) * groups).sum(dim=2)), dim=1)


class UTAE(nn.Module):
    def __init__(self):
        super().__init__()
        d, u = WIDTHS_DOWN, WIDTHS_UP
        self.in_conv = ConvBlock([10, d[0], d[0]], "group")
        self.down = nn.ModuleList(DownConvBlock(d[i], d[i + 1]) for i in range(3))
        self.up = nn.ModuleList(UpConvBlock(u[i], u[i - 1], d[i - 1]) for i in range(3, 0, -1))
        self.temporal, self.aggregate = LTAE2d(d[-1], out=u[-1]), TemporalAggregator()
        self.out_conv = ConvBlock([u[0], 32, CLASSES], "batch")

    @staticmethod
    def shared(block, x):
        b, t = x.shape[:2]
        return block(x.flatten(0, 1)).unflatten(0, (b, t))

    def forward(self, x, days):
        maps = [self.shared(self.in_conv, x)]
        for block in self.down:
            maps.append(self.shared(block, maps[-1]))
        out, attn = self.temporal(maps[-1], days)
        for block, skip in zip(self.up, reversed(maps[:-1])):
            out = block(out, self.aggregate(skip, attn))
        return self.out_conv(out)


class ConfusionMatrix:
    def __init__(self):
        self.matrix = torch.zeros(CLASSES, CLASSES, dtype=torch.long, device=DEVICE)

    def add(self, pred, target):
        self.matrix += torch.bincount(target.flatten() * CLASSES + pred.flatten(), minlength=CLASSES**2).view(
            CLASSES, CLASSES
        )

    def miou(self):
        m = self.matrix.float()
        return (m.diag() / (m.sum(0) + m.sum(1) - m.diag()).clamp(min=1)).mean().item()


def endless(loader):
    while True:
        yield from loader


def main():
    torch.backends.cuda.matmul.allow_tf32 = True
    model = UTAE().to(DEVICE)
    average = copy.deepcopy(model).eval().requires_grad_(False)
    weights = torch.ones(CLASSES, device=DEVICE)
    weights[-1] = 0
    criterion = nn.CrossEntropyLoss(weight=weights)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3, foreach=True)
    batches = endless(DataLoader(FakePastis(), batch_size=BATCH, shuffle=True, drop_last=True))
    confusion = ConfusionMatrix()
    for i in steps():
        x, days, y = next(batches)
        optimizer.zero_grad()
        out = model(x, days)
        loss = criterion(out, y)
        loss.backward()
        optimizer.step()
        with torch.no_grad():
            confusion.add(out.argmax(dim=1), y)
            for a, p in zip(average.parameters(), model.parameters()):
                a.mul_(0.999).add_(p, alpha=0.001)
        if (i + 1) % 20 == 0:
            logger.info("step %d loss %.4f miou %.4f", i + 1, loss.item(), confusion.miou())


if __name__ == "__main__":
    main()
