import torch, torch.nn as nn, torch.nn.functional as F
from torch.utils.data import DataLoader, Dataset
from tick import steps

torch.backends.cudnn.benchmark = True
CH, Z, CODES, B = 96, 256, 1024, 12


class Pictures(Dataset):
    def __len__(self):
        return 4096

    def __getitem__(self, i):
        return torch.randint(0, 256, (3, 128, 128), dtype=torch.uint8)


class Res(nn.Module):
    def __init__(self, i, o):
        super().__init__()
        self.n1, self.c1 = nn.GroupNorm(32, i, eps=1e-6), nn.Conv2d(i, o, 3, padding=1)
        self.n2, self.c2 = nn.GroupNorm(32, o, eps=1e-6), nn.Conv2d(o, o, 3, padding=1)
        self.nin = nn.Conv2d(i, o, 1) if i != o else None

    def forward(self, x):
        h = self.n1(x)
        h = self.c1(h * torch.sigmoid(h))
        h = self.n2(h)
        h = self.c2(h * torch.sigmoid(h))
        return h + (x if self.nin is None else self.nin(x))


class Attn(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.norm, self.q, self.k, self.v, self.o = nn.GroupNorm(32, c), *(nn.Conv2d(c, c, 1) for _ in range(4))

    def forward(self, x):
        b, c, h, w = x.shape
        y = self.norm(x)
        q, k, v = (f(y).reshape(b, c, h * w) for f in (self.q, self.k, self.v))
        a = F.softmax(torch.bmm(q.permute(0, 2, 1), k) * c**-0.5, 2)
        return x + self.o(torch.bmm(v, a.permute(0, 2, 1)).reshape(b, c, h, w))


class Quantize(torch.autograd.Function):
    @staticmethod
    def forward(ctx, z, codebook):
        flat = z.permute(0, 2, 3, 1).reshape(-1, Z)
        d = flat.pow(2).sum(1, keepdim=True) + codebook.pow(2).sum(1) - 2 * flat @ codebook.t()
        idx = d.argmin(1)
        ctx.mark_non_differentiable(idx)
        b, _, h, w = z.shape
        return codebook[idx].view(b, h, w, Z).permute(0, 3, 1, 2).contiguous(), idx

    @staticmethod
    def backward(ctx, g, _):
        return g, None


class VQGAN(nn.Module):
    def __init__(self):
        super().__init__()
        down, up, c = [nn.Conv2d(3, CH, 3, padding=1)], [], CH
        for o in (CH, 2 * CH, 4 * CH):
            down += [Res(c, o), Res(o, o), nn.Conv2d(o, o, 3, stride=2, padding=1)]
            c = o
        down += [Res(c, c), Attn(c), Res(c, c), nn.GroupNorm(32, c), nn.SiLU(), nn.Conv2d(c, Z, 3, padding=1)]
        up += [nn.Conv2d(Z, c, 3, padding=1), Res(c, c), Attn(c), Res(c, c)]
        for o in (4 * CH, 2 * CH, CH):
            up += [Res(c, o), Res(o, o), nn.Upsample(scale_factor=2.0), nn.Conv2d(o, o, 3, padding=1)]
            c = o
        self.encoder, self.decoder = nn.Sequential(*down), nn.Sequential(*up, nn.GroupNorm(32, c), nn.SiLU())
        self.conv_out, self.codebook = nn.Conv2d(c, 3, 3, padding=1), nn.Embedding(CODES, Z)
        self.codebook.weight.data.uniform_(-1 / CODES, 1 / CODES)

    def forward(self, x):
        z = self.encoder(x)
        zq, idx = Quantize.apply(z, self.codebook.weight.detach())
        e = self.codebook(idx).view(z.size(0), z.size(2), z.size(3), Z).permute(0, 3, 1, 2)
        vq = F.mse_loss(e, z.detach()) + 0.25 * F.mse_loss(z, e.detach())
        return self.conv_out(self.decoder(zq)), vq


class Perceptual(nn.Module):
    def __init__(self):
        super().__init__()
        layers, c = [], 3
        for n, o in ((2, 64), (2, 128), (3, 256), (3, 512)):
            for _ in range(n):
                layers += [nn.Conv2d(c, o, 3, padding=1), nn.ReLU()]
                c = o
            layers[-1].register_forward_hook(lambda m, a, out: self.taps.append(out))
            layers.append(nn.MaxPool2d(2))
        self.vgg, self.taps = nn.Sequential(*layers), []
        self.lin = nn.ModuleList(nn.Conv2d(c, 1, 1, bias=False) for c in (64, 128, 256, 512))
        self.register_buffer("shift", torch.tensor([-0.030, -0.088, -0.188])[None, :, None, None])
        self.requires_grad_(False)

    def features(self, x):
        self.taps = []
        self.vgg((x - self.shift) / 0.45)
        return [t / (t.pow(2).sum(1, keepdim=True).sqrt() + 1e-10) for t in self.taps]

    def forward(self, x, y):
        pairs = zip(self.lin, self.features(x), self.features(y))
        return sum(l((a - b) ** 2).mean((2, 3), keepdim=True) for l, a, b in pairs)


def patch_gan():
    layers, c = [nn.Conv2d(3, 64, 4, 2, 1), nn.LeakyReLU(0.2, True)], 64
    for o, s in ((128, 2), (256, 2), (512, 1)):
        layers += [nn.Conv2d(c, o, 4, s, 1, bias=False), nn.BatchNorm2d(o), nn.LeakyReLU(0.2, True)]
        c = o
    return nn.Sequential(*layers, nn.Conv2d(c, 1, 4, 1, 1))


model, disc, lpips = VQGAN().cuda(), patch_gan().cuda(), Perceptual().cuda().eval()
opt_g = torch.optim.Adam(model.parameters(), lr=4.5e-6 * B, betas=(0.5, 0.9))
opt_d = torch.optim.Adam(disc.parameters(), lr=4.5e-6 * B, betas=(0.5, 0.9))
loader = DataLoader(Pictures(), batch_size=B, shuffle=True, num_workers=2, pin_memory=True, drop_last=True)
batches = iter(loader)
for i in steps(count=5):
    x = next(batches).cuda(non_blocking=True).float() / 127.5 - 1
    rec, vq = model(x)
    nll = ((x - rec).abs() + lpips(x, rec)).mean()
    g_loss = -disc(rec).mean()
    w_nll = torch.autograd.grad(nll, model.conv_out.weight, retain_graph=True)[0]
    w_gan = torch.autograd.grad(g_loss, model.conv_out.weight, retain_graph=True)[0]
    weight = torch.clamp(w_nll.norm() / (w_gan.norm() + 1e-4), 0.0, 1e4).detach()
    opt_g.zero_grad()
    (nll + 0.8 * weight * g_loss + vq).backward()
    opt_g.step()
    d_loss = 0.5 * (F.relu(1 - disc(x)).mean() + F.relu(1 + disc(rec.detach())).mean())
    opt_d.zero_grad()
    d_loss.backward()
    opt_d.step()
    if i % 10 == 0:
        print(f"{i} nll {nll.item():.3f} disc {d_loss.item():.3f}")
