import copy, math
import torch, torch.nn as nn, torch.nn.functional as F
from tick import steps

CH, TXT, B = (192, 384, 768), 768, 12


def timestep_embedding(t, dim):
    f = torch.exp(-math.log(10000) * torch.arange(dim // 2, device=t.device) / (dim // 2))
    a = t[:, None].float() * f[None]
    return torch.cat([a.cos(), a.sin()], -1)


class Res(nn.Module):
    def __init__(self, i, o, emb):
        super().__init__()
        self.n1, self.c1 = nn.GroupNorm(32, i), nn.Conv2d(i, o, 3, padding=1)
        self.emb, self.n2, self.c2 = nn.Linear(emb, o), nn.GroupNorm(32, o), nn.Conv2d(o, o, 3, padding=1)
        self.skip = nn.Conv2d(i, o, 1) if i != o else nn.Identity()

    def forward(self, x, e):
        h = self.c1(F.silu(self.n1(x))) + self.emb(F.silu(e))[:, :, None, None]
        return self.skip(x) + self.c2(F.silu(self.n2(h)))


class Cross(nn.Module):
    def __init__(self, d, h=8):
        super().__init__()
        self.h, self.norm = h, nn.GroupNorm(32, d)
        self.l1, self.l2, self.l3 = nn.LayerNorm(d), nn.LayerNorm(d), nn.LayerNorm(d)
        self.qkv, self.o1 = nn.Linear(d, 3 * d, bias=False), nn.Linear(d, d)
        self.q, self.kv, self.o2 = nn.Linear(d, d, bias=False), nn.Linear(TXT, 2 * d, bias=False), nn.Linear(d, d)
        self.ff1, self.ff2 = nn.Linear(d, 8 * d), nn.Linear(4 * d, d)

    def attend(self, q, k, v):
        q, k, v = (y.unflatten(-1, (self.h, -1)).transpose(1, 2) for y in (q, k, v))
        return F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2)

    def forward(self, x, c):
        b, d, hh, ww = x.shape
        y = self.norm(x).flatten(2).transpose(1, 2)
        y = y + self.o1(self.attend(*self.qkv(self.l1(y)).chunk(3, -1)))
        y = y + self.o2(self.attend(self.q(self.l2(y)), *self.kv(c).chunk(2, -1)))
        a, g = self.ff1(self.l3(y)).chunk(2, -1)
        y = y + self.ff2(a * F.gelu(g))
        return x + y.transpose(1, 2).reshape(b, d, hh, ww)


class Encoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.time = nn.Sequential(nn.Linear(CH[0], 768), nn.SiLU(), nn.Linear(768, 768))
        self.conv_in = nn.Conv2d(4, CH[0], 3, padding=1)
        self.res = nn.ModuleList(Res(CH[max(i - 1, 0)], c, 768) for i, c in enumerate(CH))
        self.att = nn.ModuleList(Cross(c) for c in CH)
        self.down = nn.ModuleList(nn.Conv2d(c, c, 3, stride=2, padding=1) for c in CH[:-1])
        self.mid1, self.mida, self.mid2 = Res(CH[-1], CH[-1], 768), Cross(CH[-1]), Res(CH[-1], CH[-1], 768)

    def forward(self, x, t, c, hint=None):
        e = self.time(timestep_embedding(t, CH[0]))
        h = self.conv_in(x) if hint is None else self.conv_in(x) + hint
        skips = []
        for i, (r, a) in enumerate(zip(self.res, self.att)):
            h = a(r(h, e), c)
            skips.append(h)
            if i < len(self.down):
                h = self.down[i](h)
        return self.mid2(self.mida(self.mid1(h, e), c), e), skips, e


class UNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.enc, r = Encoder(), CH[::-1]
        self.up = nn.ModuleList(Res((r[max(i - 1, 0)]) + c, c, 768) for i, c in enumerate(r))
        self.upa = nn.ModuleList(Cross(c) for c in r)
        self.norm, self.conv_out = nn.GroupNorm(32, CH[0]), nn.Conv2d(CH[0], 4, 3, padding=1)

    def forward(self, x, t, c, control):
        with torch.no_grad():
            h, skips, e = self.enc(x, t, c)
        h = h + control.pop()
        for i, (r, a) in enumerate(zip(self.up, self.upa)):
            h = a(r(torch.cat([h, skips.pop() + control.pop()], 1), e), c)
            if i < 2:
                h = F.interpolate(h, scale_factor=2.0, mode="nearest")
        return self.conv_out(F.silu(self.norm(h)))


def zero(m):
    for p in m.parameters():
        nn.init.zeros_(p)
    return m


class ControlNet(nn.Module):
    def __init__(self, unet):
        super().__init__()
        self.enc = copy.deepcopy(unet.enc)
        layers, c = [nn.Conv2d(3, 16, 3, padding=1), nn.SiLU()], 16
        for o in (32, 96, 256):
            layers += [nn.Conv2d(c, o, 3, padding=1, stride=2), nn.SiLU()]
            c = o
        self.hint = nn.Sequential(*layers, zero(nn.Conv2d(c, CH[0], 3, padding=1)))
        self.zeros = nn.ModuleList(zero(nn.Conv2d(c, c, 1)) for c in (*CH, CH[-1]))

    def forward(self, x, t, c, picture):
        h, skips, _ = self.enc(x, t, c, self.hint(picture))
        return [z(s) for z, s in zip(self.zeros, [*skips, h])]


unet = UNet().cuda()
control = ControlNet(unet).cuda().train()
unet.requires_grad_(False).eval().half()
net = torch.compile(control)
opt = torch.optim.AdamW(control.parameters(), lr=1e-5, weight_decay=1e-2)
scaler = torch.amp.GradScaler("cuda")
alphas = torch.cumprod(1 - torch.linspace(0.00085**0.5, 0.012**0.5, 1000, device="cuda") ** 2, 0)
for i in steps(count=6):
    latents, noise = torch.randn(2, B, 4, 64, 64, device="cuda")
    text = torch.randn(B, 77, TXT, device="cuda", dtype=torch.float16)
    picture = torch.rand(B, 3, 512, 512, device="cuda")
    t = torch.randint(0, 1000, (B,), device="cuda")
    a = alphas[t][:, None, None, None]
    noisy = a.sqrt() * latents + (1 - a).sqrt() * noise
    with torch.autocast("cuda", dtype=torch.float16):
        out = unet(noisy, t, text, list(net(noisy, t, text, picture)))
        loss = F.mse_loss(out.float(), noise)
    scaler.scale(loss).backward()
    scaler.unscale_(opt)
    nn.utils.clip_grad_norm_(control.parameters(), 1.0)
    scaler.step(opt)
    scaler.update()
    opt.zero_grad(set_to_none=True)
    running = loss.detach().item()
