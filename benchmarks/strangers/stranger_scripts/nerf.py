import math, torch, torch.nn as nn, torch.nn.functional as F
from tick import steps

R = 2048


def enc(x, n):
    f = 2.0 ** torch.arange(n, device=x.device) * math.pi
    a = (x[..., None] * f).flatten(-2)
    return torch.cat([x, a.sin(), a.cos()], -1)


class Field(nn.Module):
    def __init__(self, w=256):
        super().__init__()
        self.l = nn.ModuleList([nn.Linear(63, w)] + [nn.Linear(w + (63 if i == 3 else 0), w) for i in range(7)])
        self.sigma, self.feat = nn.Linear(w, 1), nn.Linear(w, w)
        self.rgb = nn.Sequential(nn.Linear(w + 27, 128), nn.ReLU(), nn.Linear(128, 3), nn.Sigmoid())

    def forward(self, p, d):
        e = enc(p, 10)
        h = e
        for i, l in enumerate(self.l):
            h = F.relu(l(torch.cat([h, e], -1) if i == 4 else h))
        return self.rgb(torch.cat([self.feat(h), enc(d, 4)], -1)), F.softplus(self.sigma(h).squeeze(-1))


def render(field, o, d, z):
    pts = o[:, None] + d[:, None] * z[..., None]
    rgb, sig = field(pts, d[:, None].expand_as(pts))
    delta = torch.cat([z[:, 1:] - z[:, :-1], torch.full_like(z[:, :1], 1e3)], -1)
    alpha = 1 - torch.exp(-sig.float() * delta)
    trans = torch.cumprod(torch.cat([torch.ones_like(alpha[:, :1]), 1 - alpha + 1e-10], -1), -1)[:, :-1]
    w = alpha * trans
    return (w[..., None] * rgb.float()).sum(1), w


def resample(z, w, n):
    mid = (z[:, 1:] + z[:, :-1]) / 2
    pdf = w[:, 1:-1] + 1e-5
    cdf = torch.cat([torch.zeros_like(pdf[:, :1]), (pdf / pdf.sum(-1, keepdim=True)).cumsum(-1)], -1)
    u = torch.rand(z.size(0), n, device=z.device)
    k = torch.searchsorted(cdf.detach(), u, right=True).clamp(1, cdf.size(1) - 1)
    a, b = cdf.gather(1, k - 1), cdf.gather(1, k)
    lo, hi = mid.gather(1, k - 1), mid.gather(1, k)
    return (lo + (u - a) / (b - a).clamp_min(1e-5) * (hi - lo)).detach()


coarse, fine = Field().cuda(), Field().cuda()


def loss_fn(o, d, target):
    z = torch.linspace(2, 6, 64, device=o.device).expand(R, 64) + torch.rand(R, 64, device=o.device) * 0.06
    c, w = render(coarse, o, d, z)
    zf = torch.cat([z, resample(z, w.detach(), 128)], -1).sort(-1).values
    f, _ = render(fine, o, d, zf)
    return F.mse_loss(c, target) + F.mse_loss(f, target)


loss_c = torch.compile(loss_fn)
opt = torch.optim.Adam([*coarse.parameters(), *fine.parameters()], 5e-4)
scaler = torch.amp.GradScaler()
for i in steps():
    o, d, t = (
        torch.randn(R, 3, device="cuda"),
        F.normalize(torch.randn(R, 3, device="cuda"), dim=-1),
        torch.rand(R, 3, device="cuda"),
    )
    with torch.autocast("cuda", torch.float16):
        loss = loss_c(o, d, t)
    scaler.scale(loss).backward()
    scaler.step(opt)
    scaler.update()
    opt.zero_grad()
