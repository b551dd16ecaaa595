"""Latent diffusion with magnitude-preserving layers (the S configuration, 64x64x4 latents)."""

import argparse
import math

import numpy as np
import torch
from tick import steps


def normalize(x, dim=None, eps=1e-4):
    if dim is None:
        dim = list(range(1, x.ndim))
    norm = torch.linalg.vector_norm(x, dim=dim, keepdim=True, dtype=torch.float32)
    norm = torch.add(eps, norm, alpha=math.sqrt(norm.numel() / x.numel()))
    return x / norm.to(x.dtype)


def resample(x, mode="keep"):
    if mode == "keep":
        return x
    c = x.shape[1]
    f = torch.ones(1, 1, 2, 2, dtype=x.dtype, device=x.device).tile([c, 1, 1, 1])
    if mode == "down":
        return torch.nn.functional.conv2d(x, f / 4, groups=c, stride=2)
    return torch.nn.functional.conv_transpose2d(x, f, groups=c, stride=2)


def mp_silu(x):
    return torch.nn.functional.silu(x) / 0.596


def mp_sum(a, b, t=0.5):
    return a.lerp(b, t) / np.sqrt((1 - t) ** 2 + t**2)


def mp_cat(a, b, dim=1, t=0.5):
    na, nb = a.shape[dim], b.shape[dim]
    scale = np.sqrt((na + nb) / ((1 - t) ** 2 + t**2))
    wa = scale / np.sqrt(na) * (1 - t)
    wb = scale / np.sqrt(nb) * t
    return torch.cat([wa * a, wb * b], dim=dim)


class MPFourier(torch.nn.Module):
    def __init__(self, num_channels):
        super().__init__()
        self.register_buffer("freqs", 2 * np.pi * torch.randn(num_channels))
        self.register_buffer("phases", 2 * np.pi * torch.rand(num_channels))

    def forward(self, x):
        y = x.to(torch.float32).ger(self.freqs.to(torch.float32)) + self.phases.to(torch.float32)
        return (y.cos() * np.sqrt(2)).to(x.dtype)


class MPConv(torch.nn.Module):
    def __init__(self, in_channels, out_channels, kernel=()):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.randn(out_channels, in_channels, *kernel))

    def forward(self, x, gain=1):
        w = self.weight.to(torch.float32)
        if self.training:
            with torch.no_grad():
                self.weight.copy_(normalize(w))
        w = normalize(w)
        w = w * (gain / math.sqrt(w[0].numel()))
        w = w.to(x.dtype)
        if w.ndim == 2:
            return x @ w.t()
        return torch.nn.functional.conv2d(x, w, padding=(w.shape[-1] // 2,))


class Block(torch.nn.Module):
    def __init__(self, cin, cout, cemb, flavor="enc", mode="keep", attention=False, head=64, dropout=0.0):
        super().__init__()
        self.flavor, self.mode, self.dropout = flavor, mode, dropout
        self.heads = cout // head if attention else 0
        self.emb_gain = torch.nn.Parameter(torch.zeros([]))
        self.conv_res0 = MPConv(cout if flavor == "enc" else cin, cout, [3, 3])
        self.emb_linear = MPConv(cemb, cout)
        self.conv_res1 = MPConv(cout, cout, [3, 3])
        self.conv_skip = MPConv(cin, cout, [1, 1]) if cin != cout else None
        self.attn_qkv = MPConv(cout, cout * 3, [1, 1]) if self.heads else None
        self.attn_proj = MPConv(cout, cout, [1, 1]) if self.heads else None

    def forward(self, x, emb):
        x = resample(x, self.mode)
        if self.flavor == "enc":
            if self.conv_skip is not None:
                x = self.conv_skip(x)
            x = normalize(x, dim=1)
        y = self.conv_res0(mp_silu(x))
        c = self.emb_linear(emb, gain=self.emb_gain) + 1
        y = mp_silu(y * c.unsqueeze(2).unsqueeze(3).to(y.dtype))
        if self.training and self.dropout:
            y = torch.nn.functional.dropout(y, p=self.dropout)
        y = self.conv_res1(y)
        if self.flavor == "dec" and self.conv_skip is not None:
            x = self.conv_skip(x)
        x = mp_sum(x, y, t=0.3)
        if self.heads:
            y = self.attn_qkv(x)
            y = y.reshape(y.shape[0], self.heads, -1, 3, y.shape[2] * y.shape[3])
            q, k, v = normalize(y, dim=2).unbind(3)
            w = torch.einsum("nhcq,nhck->nhqk", q, k / math.sqrt(q.shape[2])).softmax(dim=3)
            y = torch.einsum("nhqk,nhck->nhcq", w, v)
            x = mp_sum(x, self.attn_proj(y.reshape(*x.shape)), t=0.3)
        return x.clip_(-256, 256)


class UNet(torch.nn.Module):
    def __init__(self, resolution, img_channels, label_dim, channels, mult, num_blocks, attn_resolutions):
        super().__init__()
        cblock = [channels * m for m in mult]
        cemb = max(cblock)
        self.out_gain = torch.nn.Parameter(torch.zeros([]))
        self.emb_fourier = MPFourier(cblock[0])
        self.emb_noise = MPConv(cblock[0], cemb)
        self.emb_label = MPConv(label_dim, cemb)
        self.enc, self.dec = torch.nn.ModuleDict(), torch.nn.ModuleDict()
        cout = img_channels + 1
        skips = []
        for level, ch in enumerate(cblock):
            res = resolution >> level
            if level == 0:
                self.enc[f"{res}_conv"] = MPConv(cout, ch, [3, 3])
                cout = ch
            else:
                self.enc[f"{res}_down"] = Block(cout, cout, cemb, mode="down")
            skips.append(cout)
            for idx in range(num_blocks):
                self.enc[f"{res}_block{idx}"] = Block(cout, ch, cemb, attention=res in attn_resolutions)
                cout = ch
                skips.append(cout)
        for level, ch in reversed(list(enumerate(cblock))):
            res = resolution >> level
            if level == len(cblock) - 1:
                self.dec[f"{res}_in0"] = Block(cout, cout, cemb, flavor="dec", attention=True)
                self.dec[f"{res}_in1"] = Block(cout, cout, cemb, flavor="dec")
            else:
                self.dec[f"{res}_up"] = Block(cout, cout, cemb, flavor="dec", mode="up")
            for idx in range(num_blocks + 1):
                cin = cout + skips.pop()
                self.dec[f"{res}_block{idx}"] = Block(cin, ch, cemb, flavor="dec", attention=res in attn_resolutions)
                cout = ch
        self.out_conv = MPConv(cout, img_channels, [3, 3])

    def forward(self, x, noise_labels, class_labels):
        emb = self.emb_noise(self.emb_fourier(noise_labels))
        emb = mp_sum(emb, self.emb_label(class_labels * math.sqrt(class_labels.shape[1])))
        emb = mp_silu(emb)
        x = torch.cat([x, torch.ones_like(x[:, :1])], dim=1)
        skips = []
        for name, block in self.enc.items():
            x = block(x) if "conv" in name else block(x, emb)
            skips.append(x)
        for name, block in self.dec.items():
            if "block" in name:
                x = mp_cat(x, skips.pop())
            x = block(x, emb)
        return self.out_conv(x, gain=self.out_gain)


class Precond(torch.nn.Module):
    def __init__(self, sigma_data=0.5, logvar_channels=128, dtype=torch.float16, **unet):
        super().__init__()
        self.sigma_data, self.dtype = sigma_data, dtype
        self.unet = UNet(**unet)
        self.logvar_fourier = MPFourier(logvar_channels)
        self.logvar_linear = MPConv(logvar_channels, 1)

    def forward(self, x, sigma, labels):
        sigma = sigma.reshape(-1, 1, 1, 1)
        c_skip = self.sigma_data**2 / (sigma**2 + self.sigma_data**2)
        c_out = sigma * self.sigma_data / (sigma**2 + self.sigma_data**2).sqrt()
        c_in = 1 / (self.sigma_data**2 + sigma**2).sqrt()
        c_noise = sigma.flatten().log() / 4
        x_in = (c_in * x).to(self.dtype, memory_format=torch.channels_last)
        f_x = self.unet(x_in, c_noise, labels)
        logvar = self.logvar_linear(self.logvar_fourier(c_noise)).reshape(-1, 1, 1, 1)
        return c_skip * x + c_out * f_x.to(torch.float32), logvar


def power_function_beta(std, t_next, t_delta):
    tmp = std**-2
    exp = max(np.roots([1, 7, 16 - tmp, 12 - tmp]).real)
    return (1 - t_delta / t_next) ** (exp + 1)


parser = argparse.ArgumentParser()
parser.add_argument("--batch", type=int, default=32)
parser.add_argument("--channels", type=int, default=192)
parser.add_argument("--num-blocks", type=int, default=3)
parser.add_argument("--resolution", type=int, default=64)
parser.add_argument("--lr", type=float, default=0.0100)
parser.add_argument("--decay", type=float, default=70000)
parser.add_argument("--loss-scaling", type=float, default=100)
parser.add_argument("--ema-std", type=float, nargs="+", default=[0.05, 0.1])
args = parser.parse_args()

device = torch.device("cuda")
torch.backends.cudnn.benchmark = True
net = Precond(
    resolution=args.resolution,
    img_channels=4,
    label_dim=1000,
    channels=args.channels,
    mult=[1, 2, 3, 4],
    num_blocks=args.num_blocks,
    attn_resolutions=[16, 8],
).to(device)
net.train().requires_grad_(True)
params = list(net.parameters())
emas = [[p.detach().clone() for p in params] for _ in args.ema_std]
optimizer = torch.optim.Adam(params, lr=args.lr, betas=(0.9, 0.99))
latents = torch.randn(2048, 4, args.resolution, args.resolution, device=device) * 0.5
classes = torch.randint(0, 1000, (2048,), device=device)
cur_nimg = 50_000_000
for it in steps():
    for g in optimizer.param_groups:
        g["lr"] = args.lr / math.sqrt(max(cur_nimg / (args.decay * args.batch), 1))
    pick = torch.randint(0, 2048, (args.batch,), device=device)
    images = latents[pick]
    labels = torch.nn.functional.one_hot(classes[pick], 1000).float()
    optimizer.zero_grad(set_to_none=True)
    sigma = (torch.randn([args.batch, 1, 1, 1], device=device) * 1.0 - 0.4).exp()
    weight = (sigma**2 + 0.5**2) / (sigma * 0.5) ** 2
    denoised, logvar = net(images + torch.randn_like(images) * sigma, sigma, labels)
    loss = (weight / logvar.exp()) * ((denoised - images) ** 2) + logvar
    loss.sum().mul(args.loss_scaling / args.batch).backward()
    for p in params:
        if p.grad is not None:
            torch.nan_to_num(p.grad, nan=0, posinf=0, neginf=0, out=p.grad)
    optimizer.step()
    cur_nimg += args.batch
    with torch.no_grad():
        for std, ema in zip(args.ema_std, emas):
            beta = power_function_beta(std, cur_nimg, args.batch)
            torch._foreach_lerp_(ema, params, float(1 - beta))
