import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.nn.utils.parametrizations import spectral_norm
from tick import steps

torch.backends.cudnn.benchmark = True


class DenseBlock(nn.Module):
    def __init__(self, nf=64, gc=32):
        super().__init__()
        self.convs = nn.ModuleList(nn.Conv2d(nf + i * gc, gc if i < 4 else nf, 3, 1, 1) for i in range(5))
        for c in self.convs:
            nn.init.kaiming_normal_(c.weight)
            c.weight.data *= 0.1

    def forward(self, x):
        feats = [x]
        for c in self.convs[:-1]:
            feats.append(F.leaky_relu(c(torch.cat(feats, 1)), 0.2))
        return x + 0.2 * self.convs[-1](torch.cat(feats, 1))


class RRDB(nn.Module):
    def __init__(self):
        super().__init__()
        self.rdb1, self.rdb2, self.rdb3 = DenseBlock(), DenseBlock(), DenseBlock()

    def forward(self, x):
        return x + 0.2 * self.rdb3(self.rdb2(self.rdb1(x)))


class RRDBNet(nn.Module):
    def __init__(self, nf=64, nb=8):
        super().__init__()
        self.first = nn.Conv2d(3, nf, 3, 1, 1)
        self.body = nn.ModuleList(RRDB() for _ in range(nb))
        self.after, self.up1, self.up2, self.hr = (nn.Conv2d(nf, nf, 3, 1, 1) for _ in range(4))
        self.last = nn.Conv2d(nf, 3, 3, 1, 1)

    def forward(self, x):
        f = y = self.first(x)
        for block in self.body:
            y = block(y)
        f = f + self.after(y)
        for up in (self.up1, self.up2):
            f = F.leaky_relu(up(F.interpolate(f, scale_factor=2, mode="nearest")), 0.2)
        return self.last(F.leaky_relu(self.hr(f), 0.2))


class UNetD(nn.Module):
    def __init__(self, nf=64):
        super().__init__()
        sn = lambda i, o, k=3, s=1, p=1: spectral_norm(nn.Conv2d(i, o, k, s, p, bias=False))
        self.c0 = nn.Conv2d(3, nf, 3, 1, 1)
        self.downs = nn.ModuleList([sn(nf, nf * 2, 4, 2), sn(nf * 2, nf * 4, 4, 2), sn(nf * 4, nf * 8, 4, 2)])
        self.ups = nn.ModuleList([sn(nf * 8, nf * 4), sn(nf * 4, nf * 2), sn(nf * 2, nf)])
        self.c7, self.c8, self.c9 = sn(nf, nf), sn(nf, nf), nn.Conv2d(nf, 1, 3, 1, 1)

    def forward(self, x):
        skips = [F.leaky_relu(self.c0(x), 0.2)]
        for d in self.downs:
            skips.append(F.leaky_relu(d(skips[-1]), 0.2))
        y = skips.pop()
        for u in self.ups:
            y = F.interpolate(y, scale_factor=2, mode="bilinear", align_corners=False)
            y = F.leaky_relu(u(y), 0.2) + skips.pop()
        return self.c9(F.leaky_relu(self.c8(F.leaky_relu(self.c7(y), 0.2)), 0.2))


class Perceptual(nn.Module):
    weights = {2: 0.1, 7: 0.1, 16: 1.0, 25: 1.0, 34: 1.0}

    def __init__(self):
        super().__init__()
        layers, c, self.feats = [], 3, {}
        for v in [64, 64, "M", 128, 128, "M", 256, 256, 256, 256, "M", 512, 512, 512, 512, "M", 512, 512, 512, 512]:
            layers += [nn.MaxPool2d(2)] if v == "M" else [nn.Conv2d(c, v, 3, padding=1), nn.ReLU()]
            c = c if v == "M" else v
        self.vgg = nn.Sequential(*layers[:-1]).requires_grad_(False)
        for k in self.weights:
            self.vgg[k].register_forward_hook(lambda m, a, out, k=k: self.feats.__setitem__(k, out))

    def forward(self, x):
        self.vgg(x)
        return dict(self.feats)


g, d, vgg = RRDBNet().cuda(), UNetD().cuda(), Perceptual().cuda().eval()
for block in g.body:
    block.compile()
opt_g = torch.optim.Adam(g.parameters(), lr=1e-4, betas=(0.9, 0.99))
opt_d = torch.optim.Adam(d.parameters(), lr=1e-4, betas=(0.9, 0.99))
ema = {k: v.detach().clone() for k, v in g.named_parameters()}
real, fake = torch.ones(1, device="cuda"), torch.zeros(1, device="cuda")
bce = lambda x, y: F.binary_cross_entropy_with_logits(x, y.expand_as(x))
for i in steps():
    gt = torch.rand(12, 3, 192, 192, device="cuda")
    lq = F.interpolate(gt, scale_factor=0.25, mode="bicubic", antialias=True)
    d.requires_grad_(False)
    opt_g.zero_grad()
    sr = g(lq)
    a, b = vgg(sr), vgg(gt)
    percep = sum(w * F.l1_loss(a[k], b[k].detach()) for k, w in vgg.weights.items())
    loss = F.l1_loss(sr, gt) + percep + 0.1 * bce(d(sr), real)
    loss.backward()
    opt_g.step()
    d.requires_grad_(True)
    opt_d.zero_grad()
    bce(d(gt), real).backward()
    bce(d(sr.detach()), fake).backward()
    opt_d.step()
    for k, v in g.named_parameters():
        ema[k].mul_(0.999).add_(v.data, alpha=0.001)
