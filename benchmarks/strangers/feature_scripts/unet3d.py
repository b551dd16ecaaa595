"""Volumetric UNet: Conv3d, grouped and dilated, ConvTranspose3d, InstanceNorm3d, dice loss, trilinear upsample."""

import argparse, time
import torch, torch.nn as nn, torch.nn.functional as F

p = argparse.ArgumentParser()
p.add_argument("--batch", type=int, default=1)
p.add_argument("--ch", type=int, default=8)
p.add_argument("--size", type=int, default=32)
p.add_argument("--steps", type=int, default=12)
a = p.parse_args()
dev = "cuda" if torch.cuda.is_available() else "cpu"


def cb(i, o, **k):
    return nn.Sequential(
        nn.Conv3d(i, o, 3, **{"padding": 1, **k}), nn.InstanceNorm3d(o, affine=True), nn.LeakyReLU(0.01, inplace=True)
    )


class U(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.a = cb(1, c)
        self.b = cb(c, 2 * c, stride=2)
        self.c = cb(2 * c, 4 * c, stride=2)
        self.m = cb(4 * c, 4 * c, groups=4, dilation=2, padding=2)
        self.u1 = nn.ConvTranspose3d(4 * c, 2 * c, 2, 2)
        self.d1 = cb(4 * c, 2 * c)
        self.d2 = cb(3 * c, c)
        self.o = nn.Conv3d(c, 3, 1)

    def forward(self, x):
        a_ = self.a(x)
        b = self.b(a_)
        h = self.m(self.c(b))
        h = self.d1(torch.cat([self.u1(h), b], 1))
        h = F.interpolate(h, scale_factor=2, mode="trilinear")
        return self.o(self.d2(torch.cat([h, a_], 1)))


m = U(a.ch).to(dev)
c = torch.compile(m)
opt = torch.optim.SGD(m.parameters(), 0.01, momentum=0.99, nesterov=True)
for i in range(a.steps):
    x = torch.randn(a.batch, 1, *[a.size] * 3, device=dev)
    y = torch.randint(3, (a.batch, *[a.size] * 3), device=dev)
    t = time.perf_counter()
    out = c(x)
    pr = out.softmax(1)
    oh = F.one_hot(y, 3).movedim(-1, 1).float()
    dice = 1 - (2 * (pr * oh).sum((2, 3, 4)) / ((pr + oh).sum((2, 3, 4)) + 1e-5)).mean()
    loss = F.cross_entropy(out, y) + dice
    opt.zero_grad()
    loss.backward()
    opt.step()
    print(f"step {i} loss {loss.item():.4f} {1e3 * (time.perf_counter() - t):.2f} ms", flush=True)
