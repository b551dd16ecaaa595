import math
import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, Dataset
from tick import steps

SEQ, PRED, VARS, D, FF, TOPK, BATCH = 192, 96, 21, 64, 64, 5, 128


class Series(Dataset):
    def __init__(self, n=40000):
        t = torch.arange(n)[:, None].float()
        waves = sum(torch.rand(VARS) * torch.sin(2 * math.pi * t / p) for p in (24, 48, 96, 144))
        self.data = waves + 0.3 * torch.randn(n, VARS)
        stamp = torch.stack(
            [
                t[:, 0] / 6 % 24 / 23 - 0.5,
                t[:, 0] // 144 % 7 / 6 - 0.5,
                t[:, 0] // 144 % 30 / 29 - 0.5,
                t[:, 0] // 144 % 365 / 364 - 0.5,
            ],
            1,
        )
        self.stamp = stamp

    def __len__(self):
        return len(self.data) - SEQ - PRED + 1

    def __getitem__(self, i):
        return (
            self.data[i : i + SEQ].numpy(),
            self.data[i + SEQ : i + SEQ + PRED].numpy(),
            self.stamp[i : i + SEQ].numpy(),
        )


class Inception(nn.Module):
    def __init__(self, i, o, n=6):
        super().__init__()
        self.kernels = nn.ModuleList(nn.Conv2d(i, o, 2 * k + 1, padding=k) for k in range(n))
        for m in self.kernels:
            nn.init.kaiming_normal_(m.weight, mode="fan_out", nonlinearity="relu")
            nn.init.constant_(m.bias, 0)

    def forward(self, x):
        return torch.stack([k(x) for k in self.kernels], dim=-1).mean(-1)


def fft_for_period(x, k):
    xf = torch.fft.rfft(x, dim=1)
    freq = abs(xf).mean(0).mean(-1)
    freq[0] = 0
    _, top = torch.topk(freq, k)
    top = top.detach().cpu().numpy()
    return x.shape[1] // top, abs(xf).mean(-1)[:, top]


class TimesBlock(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.Sequential(Inception(D, FF), nn.GELU(), Inception(FF, D))

    def forward(self, x):
        b, t, n = x.shape
        periods, weight = fft_for_period(x.float(), TOPK)
        res = []
        for period in periods:
            length = (t // period + (t % period != 0)) * period
            out = torch.cat([x, torch.zeros([b, length - t, n], device=x.device)], dim=1) if length != t else x
            out = out.reshape(b, length // period, period, n).permute(0, 3, 1, 2).contiguous()
            out = self.conv(out).permute(0, 2, 3, 1).reshape(b, -1, n)
            res.append(out[:, :t])
        weight = F.softmax(weight, dim=1)[:, None, None]
        return torch.sum(torch.stack(res, -1) * weight, -1) + x


class TimesNet(nn.Module):
    def __init__(self, layers=2):
        super().__init__()
        self.value = nn.Conv1d(VARS, D, 3, padding=1, padding_mode="circular", bias=False)
        self.temporal, self.drop = nn.Linear(4, D, bias=False), nn.Dropout(0.1)
        pos = torch.arange(SEQ)[:, None] * torch.exp(torch.arange(0, D, 2) * -(math.log(10000.0) / D))
        self.register_buffer("pe", torch.stack([pos.sin(), pos.cos()], -1).flatten(1)[None])
        self.predict, self.norm, self.proj = nn.Linear(SEQ, PRED + SEQ), nn.LayerNorm(D), nn.Linear(D, VARS)
        self.blocks = nn.ModuleList(TimesBlock() for _ in range(layers))

    def forward(self, x, mark):
        mean = x.mean(1, keepdim=True).detach()
        x = x - mean
        std = torch.sqrt(torch.var(x, dim=1, keepdim=True, unbiased=False) + 1e-5)
        x = x / std
        h = self.drop(self.value(x.transpose(1, 2)).transpose(1, 2) + self.temporal(mark) + self.pe)
        h = self.predict(h.transpose(1, 2)).transpose(1, 2)
        for block in self.blocks:
            h = self.norm(block(h))
        return (self.proj(h) * std + mean)[:, -PRED:]


model = TimesNet().cuda()
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
scaler = torch.amp.GradScaler("cuda")
criterion = nn.MSELoss()
loader = iter(DataLoader(Series(), BATCH, shuffle=True, num_workers=4, drop_last=True))
train_loss = []
for i in steps(count=8):
    batch_x, batch_y, mark = next(loader)
    optimizer.zero_grad()
    batch_x, batch_y, mark = batch_x.float().cuda(), batch_y.float().cuda(), mark.float().cuda()
    with torch.autocast("cuda", dtype=torch.float16):
        loss = criterion(model(batch_x, mark), batch_y)
    train_loss.append(loss.item())
    scaler.scale(loss).backward()
    scaler.step(optimizer)
    scaler.update()
