import math, torch, torch.nn as nn, torch.nn.functional as F
from tick import steps

torch.set_float32_matmul_precision("high")
torch.backends.cudnn.allow_tf32 = True


class Res(nn.Module):
    def __init__(self, i, o, t=512):
        super().__init__()
        self.n1, self.c1 = nn.GroupNorm(32, i), nn.Conv2d(i, o, 3, padding=1)
        self.t = nn.Linear(t, o)
        self.n2, self.c2 = nn.GroupNorm(32, o), nn.Conv2d(o, o, 3, padding=1)
        self.s = nn.Conv2d(i, o, 1) if i != o else nn.Identity()

    def forward(self, x, t):
        h = self.c1(F.silu(self.n1(x))) + self.t(F.silu(t))[:, :, None, None]
        return self.c2(F.dropout(F.silu(self.n2(h)), 0.1, self.training)) + self.s(x)


class Att(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.n, self.qkv, self.o = nn.GroupNorm(32, c), nn.Conv2d(c, 3 * c, 1), nn.Conv2d(c, c, 1)

    def forward(self, x):
        b, c, h, w = x.shape
        q, k, v = self.qkv(self.n(x)).view(b, 3, 4, c // 4, h * w).transpose(-1, -2).unbind(1)
        return x + self.o(F.scaled_dot_product_attention(q, k, v).transpose(-1, -2).reshape(b, c, h, w))


class UNet(nn.Module):
    def __init__(self, c=128, mult=(1, 2, 2)):
        super().__init__()
        self.te = nn.Sequential(nn.Linear(128, 512), nn.SiLU(), nn.Linear(512, 512))
        self.inp = nn.Conv2d(3, c, 3, padding=1)
        self.down, chans, ch = nn.ModuleList(), [c], c
        for lvl, m in enumerate(mult):
            for _ in range(2):
                self.down.append(nn.ModuleList([Res(ch, c * m), Att(c * m) if lvl else nn.Identity()]))
                ch = c * m
                chans.append(ch)
            if lvl < len(mult) - 1:
                self.down.append(nn.Conv2d(ch, ch, 3, 2, 1))
                chans.append(ch)
        self.m1, self.ma, self.m2 = Res(ch, ch), Att(ch), Res(ch, ch)
        self.up = nn.ModuleList()
        for lvl, m in reversed(list(enumerate(mult))):
            for _ in range(3):
                self.up.append(nn.ModuleList([Res(ch + chans.pop(), c * m), Att(c * m) if lvl else nn.Identity()]))
                ch = c * m
            if lvl:
                self.up.append(nn.Conv2d(ch, ch, 3, padding=1))
        self.out = nn.Sequential(nn.GroupNorm(32, ch), nn.SiLU(), nn.Conv2d(ch, 3, 3, padding=1))

    def forward(self, x, t):
        f = torch.exp(-math.log(10000) * torch.arange(64, device=x.device) / 64)
        a = t[:, None].float() * f
        t = self.te(torch.cat([a.sin(), a.cos()], 1))
        h = self.inp(x)
        hs = [h]
        for d in self.down:
            h = d(h) if isinstance(d, nn.Conv2d) else d[1](d[0](h, t))
            hs.append(h)
        h = self.m2(self.ma(self.m1(h, t)), t)
        for u in self.up:
            if isinstance(u, nn.Conv2d):
                h = u(F.interpolate(h, scale_factor=2, mode="nearest"))
            else:
                h = u[1](u[0](torch.cat([h, hs.pop()], 1), t))
        return self.out(h)


net = UNet().cuda()
f = torch.compile(net)
opt = torch.optim.Adam(net.parameters(), 2e-4)
ac = torch.cumprod(1 - torch.linspace(1e-4, 0.02, 1000), 0).cuda()
for i in steps():
    x = torch.randn(32, 3, 64, 64, device="cuda")
    t = torch.randint(0, 1000, (32,), device="cuda")
    e = torch.randn_like(x)
    a = ac[t].view(-1, 1, 1, 1)
    loss = F.mse_loss(f(a.sqrt() * x + (1 - a).sqrt() * e, t), e)
    opt.zero_grad()
    loss.backward()
    torch.nn.utils.clip_grad_norm_(net.parameters(), 1.0)
    opt.step()
