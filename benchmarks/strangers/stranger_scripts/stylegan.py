"""StyleGAN2-like: modulated grouped convolutions, minibatch stddev, R1, WGAN-GP-like double backward, EMA generator."""

import copy, math
import torch
from torch import nn
import torch.nn.functional as F
from tick import steps

torch.backends.cudnn.benchmark = True
torch.backends.cudnn.allow_tf32 = True
Z, B, R = 512, 12, 128
CH = {4: 512, 8: 512, 16: 512, 32: 256, 64: 128, 128: 64}


class EqLinear(nn.Module):
    def __init__(self, i, o, bias=0.0, lr=1.0):
        super().__init__()
        self.w, self.b = nn.Parameter(torch.randn(o, i) / lr), nn.Parameter(torch.full((o,), bias))
        self.s, self.lr = lr / math.sqrt(i), lr

    def forward(self, x):
        return F.linear(x, self.w * self.s, self.b * self.lr)


class ModConv(nn.Module):
    def __init__(self, i, o, k=3, demod=True, up=False):
        super().__init__()
        self.w, self.style = nn.Parameter(torch.randn(1, o, i, k, k)), EqLinear(Z, i, 1.0)
        self.demod, self.up, self.k = demod, up, k
        self.bias, self.noise = nn.Parameter(torch.zeros(o)), nn.Parameter(torch.zeros(()))
        f = torch.tensor([1.0, 3.0, 3.0, 1.0])
        f = torch.outer(f, f)
        self.register_buffer("fir", (f / f.sum()).expand(o, 1, 4, 4).contiguous())

    def forward(self, x, s):
        b, c, h, w = x.shape
        wt = self.w * self.style(s)[:, None, :, None, None] / math.sqrt(c * self.k**2)
        if self.demod:
            wt = wt * (wt.pow(2).sum((2, 3, 4), keepdim=True) + 1e-8).rsqrt()
        o = wt.shape[1]
        x = x.reshape(1, b * c, h, w)
        if self.up:
            x = F.conv_transpose2d(x, wt.transpose(1, 2).reshape(b * c, o, self.k, self.k), stride=2, groups=b)
            x = F.conv2d(x.view(b, o, 2 * h + 1, 2 * w + 1), self.fir * 4, padding=1, groups=o)
        else:
            x = F.conv2d(x, wt.reshape(b * o, c, self.k, self.k), padding=self.k // 2, groups=b).view(b, o, h, w)
        if self.demod:
            x = (
                F.leaky_relu(
                    x + self.noise * torch.randn(b, 1, *x.shape[2:], device=x.device) + self.bias[:, None, None], 0.2
                )
                * 2**0.5
            )
        return x


class G(nn.Module):
    def __init__(self):
        super().__init__()
        self.map = nn.Sequential(*[m for _ in range(8) for m in (EqLinear(Z, Z, lr=0.01), nn.LeakyReLU(0.2))])
        self.const = nn.Parameter(torch.randn(1, 512, 4, 4))
        self.c0 = ModConv(512, 512)
        self.blocks, self.rgb, c = nn.ModuleList(), nn.ModuleList(), 512
        for r, o in list(CH.items())[1:]:
            self.blocks.append(nn.ModuleList([ModConv(c, o, up=True), ModConv(o, o)]))
            self.rgb.append(ModConv(o, 3, 1, demod=False))
            c = o

    def forward(self, z):
        w = self.map(z * (z.pow(2).mean(1, keepdim=True) + 1e-8).rsqrt())
        x, img = self.c0(self.const.expand(z.size(0), -1, -1, -1), w), None
        for (a, b), t in zip(self.blocks, self.rgb):
            x = b(a(x, w), w)
            y = t(x, w)
            img = y if img is None else y + F.interpolate(img, scale_factor=2, mode="bilinear", align_corners=False)
        return img


class DBlock(nn.Module):
    def __init__(self, i, o):
        super().__init__()
        self.a, self.b, self.s = (
            nn.Conv2d(i, i, 3, padding=1),
            nn.Conv2d(i, o, 3, padding=1),
            nn.Conv2d(i, o, 1, bias=False),
        )

    def forward(self, x):
        y = F.leaky_relu(self.b(F.leaky_relu(self.a(x), 0.2)), 0.2)
        return (F.avg_pool2d(y, 2) + F.avg_pool2d(self.s(x), 2)) / 2**0.5


class D(nn.Module):
    def __init__(self):
        super().__init__()
        cs = list(CH.values())[::-1]
        self.rgb = nn.Conv2d(3, cs[0], 1)
        self.blocks = nn.Sequential(*[DBlock(a, b) for a, b in zip(cs, cs[1:])])
        self.out = nn.Sequential(
            nn.Conv2d(513, 512, 3, padding=1),
            nn.LeakyReLU(0.2),
            nn.Flatten(),
            nn.Linear(8192, 512),
            nn.LeakyReLU(0.2),
            nn.Linear(512, 1),
        )

    def forward(self, x):
        x = self.blocks(F.leaky_relu(self.rgb(x), 0.2))
        b, c, h, w = x.shape
        s = x.view(4, -1, c, h, w).var(0, unbiased=False).add(1e-8).sqrt().mean((1, 2, 3))
        return self.out(torch.cat([x, s.repeat(4).view(-1, 1, 1, 1).expand(-1, 1, h, w)], 1))


g, d = G().cuda(), D().cuda()
avg = copy.deepcopy(g).eval().requires_grad_(False)
og = torch.optim.Adam(g.parameters(), 2e-3, (0.0, 0.99), foreach=True)
od = torch.optim.Adam(d.parameters(), 2e-3, (0.0, 0.99), foreach=True)
for i in steps(count=6):
    real = torch.rand(B, 3, R, R, device="cuda") * 2 - 1
    d.requires_grad_(True)
    with torch.no_grad():
        fake = g(torch.randn(B, Z, device="cuda"))
    alpha = torch.rand(B, 1, 1, 1, device="cuda")
    mix = torch.lerp(fake, real, alpha).requires_grad_()
    grad = torch.autograd.grad(d(mix).sum(), mix, create_graph=True)[0]
    gp = (grad.flatten(1).norm(2, dim=1) - 1).pow(2).mean()
    ld = d(fake).mean() - d(real).mean() + 10 * gp
    od.zero_grad(set_to_none=True)
    ld.backward()
    od.step()
    d.requires_grad_(False)
    lg = F.softplus(-d(g(torch.randn(B, Z, device="cuda")))).mean()
    og.zero_grad(set_to_none=True)
    lg.backward()
    og.step()
    with torch.no_grad():
        torch._foreach_lerp_(list(avg.parameters()), list(g.parameters()), 0.002)
