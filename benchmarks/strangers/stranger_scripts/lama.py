import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.nn.utils.parametrizations import spectral_norm
from tick import steps

BATCH, SIZE, NGF, BLOCKS = 10, 256, 64, 9


class FourierUnit(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.conv = nn.Conv2d(2 * c, 2 * c, 1, bias=False)
        self.bn = nn.BatchNorm2d(2 * c)

    def forward(self, x):
        b, c, h, w = x.shape
        f = torch.fft.rfft2(x, norm="ortho")
        f = torch.stack((f.real, f.imag), 2).flatten(1, 2)
        f = F.relu(self.bn(self.conv(f)))
        f = f.view(b, c, 2, h, w // 2 + 1)
        return torch.fft.irfft2(torch.complex(f[:, :, 0], f[:, :, 1]), s=(h, w), norm="ortho")


class SpectralTransform(nn.Module):
    def __init__(self, c_in, c_out):
        super().__init__()
        half = c_out // 2
        self.conv1 = nn.Sequential(nn.Conv2d(c_in, half, 1, bias=False), nn.BatchNorm2d(half), nn.ReLU(True))
        self.fu = FourierUnit(half)
        self.conv2 = nn.Conv2d(half, c_out, 1, bias=False)

    def forward(self, x):
        x = self.conv1(x)
        return self.conv2(x + self.fu(x))


class FFC(nn.Module):
    """A convolution of a local part and a global one, followed by norm and ReLU."""

    def __init__(self, c, ratio=0.75):
        super().__init__()
        g = int(c * ratio)
        l = c - g
        kw = dict(padding=1, padding_mode="reflect", bias=False)
        self.l2l, self.l2g = nn.Conv2d(l, l, 3, **kw), nn.Conv2d(l, g, 3, **kw)
        self.g2l, self.g2g = nn.Conv2d(g, l, 3, **kw), SpectralTransform(g, g)
        self.bn_l, self.bn_g = nn.BatchNorm2d(l), nn.BatchNorm2d(g)

    def forward(self, l, g):
        return F.relu(self.bn_l(self.l2l(l) + self.g2l(g))), F.relu(self.bn_g(self.l2g(l) + self.g2g(g)))


class FFCResBlock(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.conv1, self.conv2 = FFC(c), FFC(c)

    def forward(self, pair):
        l, g = self.conv2(*self.conv1(*pair))
        return pair[0] + l, pair[1] + g


def cbr(a, b, **kw):
    return nn.Sequential(nn.Conv2d(a, b, bias=False, **kw), nn.BatchNorm2d(b), nn.ReLU(True))


class Generator(nn.Module):
    def __init__(self):
        super().__init__()
        c = NGF
        self.down = nn.Sequential(
            nn.ReflectionPad2d(3),
            cbr(4, c, kernel_size=7),
            cbr(c, 2 * c, kernel_size=3, stride=2, padding=1),
            cbr(2 * c, 4 * c, kernel_size=3, stride=2, padding=1),
            cbr(4 * c, 8 * c, kernel_size=3, stride=2, padding=1),
        )
        self.middle = nn.Sequential(*[FFCResBlock(8 * c) for _ in range(BLOCKS)])
        up = []
        for m in (8, 4, 2):
            up += [
                nn.ConvTranspose2d(m * c, m * c // 2, 3, stride=2, padding=1, output_padding=1),
                nn.BatchNorm2d(m * c // 2),
                nn.ReLU(True),
            ]
        self.up = nn.Sequential(*up, nn.ReflectionPad2d(3), nn.Conv2d(c, 3, 7), nn.Sigmoid())

    def forward(self, x):
        x = self.down(x)
        local = x.shape[1] // 4
        x = torch.cat(self.middle((x[:, :local], x[:, local:])), 1)
        return self.up(x)


class Discriminator(nn.Module):
    def __init__(self, ndf=64, n=4):
        super().__init__()
        widths = [3] + [min(ndf * 2**i, 512) for i in range(n)]
        layers = [
            nn.Sequential(spectral_norm(nn.Conv2d(a, b, 4, stride=2, padding=2)), nn.LeakyReLU(0.2))
            for a, b in zip(widths, widths[1:])
        ]
        layers.append(nn.Sequential(spectral_norm(nn.Conv2d(512, 512, 4, padding=2)), nn.LeakyReLU(0.2)))
        layers.append(spectral_norm(nn.Conv2d(512, 1, 4, padding=2)))
        self.layers = nn.ModuleList(layers)

    def forward(self, x):
        feats = []
        for layer in self.layers:
            x = layer(x)
            feats.append(x)
        return feats[-1], feats[:-1]


class DilatedBottleneck(nn.Module):
    def __init__(self, c_in, width, stride, dilation):
        super().__init__()
        self.body = nn.Sequential(
            cbr(c_in, width, kernel_size=1),
            cbr(width, width, kernel_size=3, stride=stride, padding=dilation, dilation=dilation),
            nn.Conv2d(width, 4 * width, 1, bias=False),
            nn.BatchNorm2d(4 * width),
        )
        self.skip = nn.Identity()
        if c_in != 4 * width:
            self.skip = nn.Sequential(
                nn.Conv2d(c_in, 4 * width, 1, stride=stride, bias=False), nn.BatchNorm2d(4 * width)
            )

    def forward(self, x):
        return F.relu(self.body(x) + self.skip(x))


class ResNetPL(nn.Module):
    """A frozen ResNet-50 of dilated last stages: distance of its features."""

    def __init__(self):
        super().__init__()
        self.stem = nn.Sequential(
            cbr(3, 64, kernel_size=3, stride=2, padding=1),
            cbr(64, 64, kernel_size=3, padding=1),
            cbr(64, 128, kernel_size=3, padding=1),
            nn.MaxPool2d(3, 2, 1),
        )
        stages, c = [], 128
        for width, n, stride, dilation in ((64, 3, 1, 1), (128, 4, 2, 1), (256, 6, 1, 2), (512, 3, 1, 4)):
            blocks = []
            for i in range(n):
                blocks.append(DilatedBottleneck(c, width, stride if i == 0 else 1, dilation))
                c = 4 * width
            stages.append(nn.Sequential(*blocks))
        self.stages = nn.ModuleList(stages)
        self.register_buffer("mean", torch.tensor([0.485, 0.456, 0.406]).view(1, 3, 1, 1))
        self.register_buffer("std", torch.tensor([0.229, 0.224, 0.225]).view(1, 3, 1, 1))
        self.eval().requires_grad_(False)

    def features(self, x):
        x, out = self.stem((x - self.mean) / self.std), []
        for stage in self.stages:
            x = stage(x)
            out.append(x)
        return out

    def forward(self, pred, target):
        with torch.no_grad():
            wanted = self.features(target)
        return torch.stack([F.mse_loss(a, b) for a, b in zip(self.features(pred), wanted)]).sum()


def random_masks(n):
    mask = torch.zeros(n, 1, SIZE, SIZE, device="cuda")
    for m in mask:
        for _ in range(4):
            h, w = torch.randint(SIZE // 8, SIZE // 2, (2,)).tolist()
            y, x = torch.randint(0, SIZE // 2, (2,)).tolist()
            m[:, y : y + h, x : x + w] = 1
    return mask


G, D, pl = Generator().cuda(), Discriminator().cuda(), ResNetPL().cuda()
opt_g = torch.optim.Adam(G.parameters(), lr=1e-3)
opt_d = torch.optim.Adam(D.parameters(), lr=1e-4)
metrics = []
for i in steps():
    img, mask = torch.rand(BATCH, 3, SIZE, SIZE, device="cuda"), random_masks(BATCH)
    pred = G(torch.cat([img * (1 - mask), mask], 1))
    inpainted = mask * pred + (1 - mask) * img

    D.requires_grad_(False)
    opt_g.zero_grad()
    fake, fake_feats = D(pred)
    _, real_feats = D(img)
    l1 = ((pred - img).abs() * (1 - mask)).mean()
    adv = F.softplus(-fake).mean()
    fm = torch.stack([F.mse_loss(a, b) for a, b in zip(fake_feats, real_feats)]).mean()
    perceptual = pl(pred, img)
    loss_g = 10 * l1 + 10 * adv + 100 * fm + 30 * perceptual
    loss_g.backward()
    opt_g.step()

    D.requires_grad_(True)
    opt_d.zero_grad()
    real = img.clone().requires_grad_(True)
    real_score, _ = D(real)
    fake_score, _ = D(inpainted.detach())
    (grad,) = torch.autograd.grad(real_score.sum(), real, create_graph=True)
    penalty = grad.flatten(1).norm(2, dim=1).pow(2).mean()
    small = F.interpolate(mask, size=fake_score.shape[-2:], mode="nearest")
    on_fake = F.softplus(fake_score) * small + F.softplus(-fake_score) * (1 - small)
    loss_d = F.softplus(-real_score).mean() + on_fake.mean() + 0.001 * penalty
    loss_d.backward()
    opt_d.step()
    metrics.append((loss_g.item(), loss_d.item(), l1.item()))
