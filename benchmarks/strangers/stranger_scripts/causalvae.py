"""Causal 3-D video VAE (4x temporal, 8x spatial), first stage without discriminator."""

import copy

import torch
from torch import nn
from torch.nn import functional as F

from tick import steps

BASE, MULT, Z, BLOCKS = 96, (1, 2, 4, 4), 16, 2
BATCH, FRAMES, SIZE = 1, 9, 128


class CausalConv3d(nn.Conv3d):
    def __init__(self, cin, cout, kernel=3, stride=1):
        kt, kh, kw = (kernel,) * 3 if isinstance(kernel, int) else kernel
        super().__init__(cin, cout, (kt, kh, kw), stride, padding=(0, kh // 2, kw // 2))
        self.ahead = kt - 1

    def forward(self, x):
        if self.ahead:
            x = torch.cat([x[:, :, :1].expand(-1, -1, self.ahead, -1, -1), x], dim=2)
        return super().forward(x)


class ChannelNorm(nn.Module):
    def __init__(self, c, dims=3):
        super().__init__()
        self.gamma = nn.Parameter(torch.ones(c, *[1] * dims))
        self.scale = c**0.5

    def forward(self, x):
        return F.normalize(x, dim=1) * self.scale * self.gamma


class ResBlock(nn.Module):
    def __init__(self, cin, cout):
        super().__init__()
        self.body = nn.Sequential(
            ChannelNorm(cin),
            nn.SiLU(),
            CausalConv3d(cin, cout),
            ChannelNorm(cout),
            nn.SiLU(),
            nn.Dropout(0.0),
            CausalConv3d(cout, cout),
        )
        self.skip = CausalConv3d(cin, cout, 1) if cin != cout else nn.Identity()

    def forward(self, x):
        return self.skip(x) + self.body(x)


class FrameAttention(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.norm = ChannelNorm(c, 2)
        self.qkv, self.out = nn.Conv2d(c, 3 * c, 1), nn.Conv2d(c, c, 1)
        nn.init.zeros_(self.out.weight)

    def forward(self, x):
        b, c, t, h, w = x.shape
        y = x.transpose(1, 2).reshape(b * t, c, h, w)
        q, k, v = self.qkv(self.norm(y)).reshape(b * t, 1, 3 * c, h * w).transpose(2, 3).contiguous().chunk(3, -1)
        y = F.scaled_dot_product_attention(q, k, v).squeeze(1).transpose(1, 2).reshape(b * t, c, h, w)
        return x + self.out(y).view(b, t, c, h, w).transpose(1, 2)


def per_frame(x, f):
    b, c, t, h, w = x.shape
    y = f(x.transpose(1, 2).flatten(0, 1))
    return y.view(b, t, *y.shape[1:]).transpose(1, 2)


class Down(nn.Module):
    def __init__(self, c, temporal):
        super().__init__()
        self.space = nn.Sequential(nn.ZeroPad2d((0, 1, 0, 1)), nn.Conv2d(c, c, 3, 2))
        self.time = CausalConv3d(c, c, (3, 1, 1), (2, 1, 1)) if temporal else None

    def forward(self, x):
        x = per_frame(x, self.space)
        return x if self.time is None else self.time(x)


class Up(nn.Module):
    def __init__(self, c, temporal):
        super().__init__()
        self.space = nn.Sequential(nn.Upsample(scale_factor=2.0, mode="nearest-exact"), nn.Conv2d(c, c, 3, padding=1))
        self.time = CausalConv3d(c, 2 * c, (3, 1, 1)) if temporal else None

    def forward(self, x):
        if self.time is not None:
            b, c, t, h, w = x.shape
            y = self.time(x).view(b, 2, c, t, h, w)
            x = torch.stack((y[:, 0], y[:, 1]), 3).reshape(b, c, 2 * t, h, w)[:, :, 1:]
        return per_frame(x, self.space)


def middle(c):
    return [ResBlock(c, c), FrameAttention(c), ResBlock(c, c)]


def build_encoder():
    dims = [BASE * m for m in MULT]
    layers, c = [CausalConv3d(3, dims[0])], dims[0]
    for i, d in enumerate(dims):
        for _ in range(BLOCKS):
            layers.append(ResBlock(c, d))
            c = d
        if i < len(dims) - 1:
            layers.append(Down(c, temporal=i > 0))
    layers += [*middle(c), ChannelNorm(c), nn.SiLU(), CausalConv3d(c, 2 * Z), CausalConv3d(2 * Z, 2 * Z, 1)]
    return nn.Sequential(*layers)


def build_decoder():
    dims = [BASE * m for m in MULT[::-1]]
    c = dims[0]
    layers = [CausalConv3d(Z, Z, 1), CausalConv3d(Z, c), *middle(c)]
    for i, d in enumerate(dims):
        for _ in range(BLOCKS + 1):
            layers.append(ResBlock(c, d))
            c = d
        if i < len(dims) - 1:
            layers.append(Up(c, temporal=i < 2))
    layers += [ChannelNorm(c), nn.SiLU(), CausalConv3d(c, 3)]
    return nn.Sequential(*layers)


class VideoVAE(nn.Module):
    def __init__(self):
        super().__init__()
        self.encoder, self.decoder = build_encoder(), build_decoder()

    def forward(self, x):
        mean, logvar = self.encoder(x).float().chunk(2, 1)
        logvar = logvar.clamp(-30, 20)
        z = mean + torch.exp(0.5 * logvar) * torch.randn_like(mean)
        kl = 0.5 * (mean.pow(2) + logvar.exp() - 1 - logvar).sum(1).mean()
        return self.decoder(z), kl


def temporal_gradient(x):
    return x[:, :, 1:] - x[:, :, :-1]


torch.backends.cuda.matmul.allow_tf32 = True
torch.backends.cudnn.allow_tf32 = True
torch.backends.cudnn.benchmark = True
vae = VideoVAE().cuda()
ema = copy.deepcopy(vae).requires_grad_(False)
opt = torch.optim.AdamW(vae.parameters(), lr=1e-4, betas=(0.5, 0.9), weight_decay=0.0)
sched = torch.optim.lr_scheduler.LambdaLR(opt, lambda s: min(1.0, (s + 1) / 1000))
live, slow = list(vae.parameters()), list(ema.parameters())

clips = torch.randint(0, 256, (8, 3, FRAMES, SIZE, SIZE), dtype=torch.uint8, device="cuda")
for step in steps():
    pick = torch.randint(0, len(clips), (BATCH,), device="cuda")
    video = clips[pick].float().div_(127.5).sub_(1)
    with torch.autocast("cuda", dtype=torch.bfloat16):
        recon, kl = vae(video)
    recon = recon.float()
    l1 = (recon - video).abs().mean()
    motion = F.mse_loss(temporal_gradient(recon), temporal_gradient(video))
    loss = l1 + 0.5 * motion + 1e-6 * kl
    opt.zero_grad(set_to_none=True)
    loss.backward()
    nn.utils.clip_grad_norm_(live, 1.0, foreach=True)
    opt.step()
    sched.step()
    torch._foreach_lerp_(slow, live, 1 - 0.999)
    if step % 20 == 0:
        print(f"{step}: l1 {l1.item():.4f} kl {kl.item():.3f}")
