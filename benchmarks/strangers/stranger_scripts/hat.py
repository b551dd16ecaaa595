import argparse
import copy

import torch
import torch.nn as nn
import torch.nn.functional as F
from tick import steps

parser = argparse.ArgumentParser()
parser.add_argument("--dim", type=int, default=180)
parser.add_argument("--groups", type=int, default=6)
parser.add_argument("--depth", type=int, default=6)
parser.add_argument("--heads", type=int, default=6)
parser.add_argument("--window", type=int, default=16)
parser.add_argument("--patch", type=int, default=64)
parser.add_argument("--batch", type=int, default=6)
parser.add_argument("--scale", type=int, default=4)
parser.add_argument("--lr", type=float, default=2e-4)
parser.add_argument("--ema", type=float, default=0.999)
opt = parser.parse_args([])


def window_partition(x, w):
    b, h, wd, c = x.shape
    x = x.view(b, h // w, w, wd // w, w, c)
    return x.permute(0, 1, 3, 2, 4, 5).reshape(-1, w * w, c)


def window_reverse(x, w, h, wd):
    c = x.shape[-1]
    x = x.view(-1, h // w, wd // w, w, w, c)
    return x.permute(0, 1, 3, 2, 4, 5).reshape(-1, h, wd, c)


def relative_index(wq, wk):
    q = torch.stack(torch.meshgrid(torch.arange(wq), torch.arange(wq), indexing="ij")).flatten(1)
    k = torch.stack(torch.meshgrid(torch.arange(wk), torch.arange(wk), indexing="ij")).flatten(1)
    rel = (k[:, None, :] - q[:, :, None]).permute(1, 2, 0) + wq - 1
    return rel[..., 0] * (wq + wk - 1) + rel[..., 1]


def shift_mask(size, w, shift):
    img, cnt = torch.zeros(1, size, size, 1), 0
    parts = (slice(0, -w), slice(-w, -shift), slice(-shift, None))
    for a in parts:
        for b in parts:
            img[:, a, b] = cnt
            cnt += 1
    m = window_partition(img, w).squeeze(-1)
    m = m[:, None] - m[:, :, None]
    return torch.where(m != 0, -100.0, 0.0)


class CAB(nn.Module):
    def __init__(self, c, compress=3, squeeze=30):
        super().__init__()
        self.body = nn.Sequential(nn.Conv2d(c, c // compress, 3, 1, 1), nn.GELU(), nn.Conv2d(c // compress, c, 3, 1, 1))
        self.attention = nn.Sequential(
            nn.AdaptiveAvgPool2d(1),
            nn.Conv2d(c, max(c // squeeze, 1), 1),
            nn.ReLU(inplace=True),
            nn.Conv2d(max(c // squeeze, 1), c, 1),
            nn.Sigmoid(),
        )

    def forward(self, x):
        x = self.body(x)
        return x * self.attention(x)


class Mlp(nn.Sequential):
    def __init__(self, c, hidden):
        super().__init__(nn.Linear(c, hidden), nn.GELU(), nn.Linear(hidden, c))


class HAB(nn.Module):
    def __init__(self, c, heads, window, size, shift):
        super().__init__()
        self.heads, self.window, self.shift = heads, window, shift
        self.norm1, self.norm2 = nn.LayerNorm(c), nn.LayerNorm(c)
        self.qkv, self.proj = nn.Linear(c, 3 * c), nn.Linear(c, c)
        self.table = nn.Parameter(torch.zeros((2 * window - 1) ** 2, heads))
        nn.init.trunc_normal_(self.table, std=0.02)
        self.register_buffer("index", relative_index(window, window))
        self.register_buffer("mask", shift_mask(size, window, shift) if shift else None)
        self.cab, self.mlp = CAB(c), Mlp(c, 2 * c)

    def attend(self, x):
        b, n, c = x.shape
        q, k, v = self.qkv(x).reshape(b, n, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        attn = (q * q.shape[-1] ** -0.5) @ k.transpose(-2, -1)
        attn = attn + self.table[self.index].permute(2, 0, 1).to(attn.dtype)
        if self.mask is not None:
            windows = self.mask.shape[0]
            attn = attn.view(b // windows, windows, self.heads, n, n) + self.mask[:, None].to(attn.dtype)
            attn = attn.view(-1, self.heads, n, n)
        attn = attn.softmax(-1)
        return self.proj((attn.to(v.dtype) @ v).transpose(1, 2).reshape(b, n, c))

    def forward(self, x):
        h, w = x.shape[1:3]
        y = self.norm1(x)
        conv = self.cab(y.permute(0, 3, 1, 2)).permute(0, 2, 3, 1)
        if self.shift:
            y = torch.roll(y, (-self.shift, -self.shift), (1, 2))
        y = window_reverse(self.attend(window_partition(y, self.window)), self.window, h, w)
        if self.shift:
            y = torch.roll(y, (self.shift, self.shift), (1, 2))
        x = x + y + conv * 0.01
        return x + self.mlp(self.norm2(x))


class OCAB(nn.Module):
    """Windows of queries that look at larger, overlapping windows of keys."""

    def __init__(self, c, heads, window, ratio=0.5):
        super().__init__()
        self.heads, self.window = heads, window
        self.over = int(window * ratio) + window
        self.norm1, self.norm2 = nn.LayerNorm(c), nn.LayerNorm(c)
        self.qkv, self.proj, self.mlp = nn.Linear(c, 3 * c), nn.Linear(c, c), Mlp(c, 2 * c)
        self.table = nn.Parameter(torch.zeros((window + self.over - 1) ** 2, heads))
        nn.init.trunc_normal_(self.table, std=0.02)
        self.register_buffer("index", relative_index(window, self.over))

    def forward(self, x):
        b, h, w, c = x.shape
        q, kv = self.qkv(self.norm1(x)).split([c, 2 * c], -1)
        q = window_partition(q, self.window)
        kv = F.unfold(
            kv.permute(0, 3, 1, 2),
            kernel_size=self.over,
            stride=self.window,
            padding=(self.over - self.window) // 2,
        )
        k, v = kv.view(b, 2, c, self.over**2, -1).permute(1, 0, 4, 3, 2).flatten(1, 2)
        q, k, v = (t.reshape(*t.shape[:2], self.heads, -1).transpose(1, 2) for t in (q, k, v))
        attn = (q * q.shape[-1] ** -0.5) @ k.transpose(-2, -1)
        attn = (attn + self.table[self.index].permute(2, 0, 1).to(attn.dtype)).softmax(-1)
        y = (attn.to(v.dtype) @ v).transpose(1, 2).reshape(-1, self.window**2, c)
        x = x + self.proj(window_reverse(y, self.window, h, w))
        return x + self.mlp(self.norm2(x))


class Group(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.blocks = nn.Sequential(
            *[HAB(c, opt.heads, opt.window, opt.patch, (i % 2) * opt.window // 2) for i in range(opt.depth)],
            OCAB(c, opt.heads, opt.window),
        )
        self.conv = nn.Conv2d(c, c, 3, 1, 1)

    def forward(self, x):
        return x + self.conv(self.blocks(x).permute(0, 3, 1, 2)).permute(0, 2, 3, 1)


class HAT(nn.Module):
    def __init__(self, c=opt.dim):
        super().__init__()
        self.first = nn.Conv2d(3, c, 3, 1, 1)
        self.embed_norm, self.norm = nn.LayerNorm(c), nn.LayerNorm(c)
        self.groups = nn.Sequential(*[Group(c) for _ in range(opt.groups)])
        self.after = nn.Conv2d(c, c, 3, 1, 1)
        self.before = nn.Sequential(nn.Conv2d(c, 64, 3, 1, 1), nn.LeakyReLU(inplace=True))
        up = []
        for _ in range(opt.scale // 2):
            up += [nn.Conv2d(64, 256, 3, 1, 1), nn.PixelShuffle(2)]
        self.up = nn.Sequential(*up, nn.Conv2d(64, 3, 3, 1, 1))

    def forward(self, x):
        x = self.first((x - 0.45).contiguous())
        y = self.norm(self.groups(self.embed_norm(x.permute(0, 2, 3, 1))))
        x = self.after(y.permute(0, 3, 1, 2)) + x
        return self.up(self.before(x)) + 0.45


net = HAT().cuda()
net_ema = copy.deepcopy(net).eval()
for p in net_ema.parameters():
    p.requires_grad = False
optim = torch.optim.Adam(net.parameters(), lr=opt.lr, betas=(0.9, 0.99))
sched = torch.optim.lr_scheduler.MultiStepLR(optim, [250000, 400000, 450000], gamma=0.5)
ema_params = dict(net_ema.named_parameters())
high = torch.rand(64, 3, opt.patch * opt.scale, opt.patch * opt.scale, device="cuda")
log = {}
for it in steps():
    gt = high[torch.randint(0, 64, (opt.batch,), device="cuda")]
    if it % 3 == 0:
        gt = gt.transpose(2, 3).contiguous()
    lq = F.interpolate(gt, scale_factor=1 / opt.scale, mode="bicubic", antialias=True)
    optim.zero_grad(set_to_none=True)
    with torch.autocast("cuda", dtype=torch.bfloat16):
        out = net(lq)
    loss = F.l1_loss(out.float(), gt)
    loss.backward()
    optim.step()
    sched.step()
    with torch.no_grad():
        for name, p in net.named_parameters():
            ema_params[name].mul_(opt.ema).add_(p.data, alpha=1 - opt.ema)
    if it % 10 == 0:
        log[it] = loss.item()
