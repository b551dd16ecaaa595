"""One picture to a tri-plane radiance field, in the manner of LRM (small)."""

import copy
import math

import torch
import torch.nn.functional as F
from torch import nn
from tick import steps

dev = "cuda"
hp = dict(scenes=4, views=3, res=64, samples=48, low=32, plane_dim=32, width=512, depth=12, heads=8, size=224)
enc = dict(width=768, depth=12, heads=12, patch=16)


class ViTLayer(nn.Module):
    def __init__(self, d, heads):
        super().__init__()
        self.n1, self.n2 = nn.LayerNorm(d, eps=1e-6), nn.LayerNorm(d, eps=1e-6)
        self.qkv, self.proj = nn.Linear(d, 3 * d), nn.Linear(d, d)
        self.mlp = nn.Sequential(nn.Linear(d, 4 * d), nn.GELU(), nn.Linear(4 * d, d))
        self.heads = heads

    def forward(self, x):
        b, n, d = x.shape
        q, k, v = self.qkv(self.n1(x)).reshape(b, n, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        x = x + self.proj(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(b, n, d))
        return x + self.mlp(self.n2(x))


class Encoder(nn.Module):
    def __init__(self):
        super().__init__()
        d = enc["width"]
        self.patch = nn.Conv2d(3, d, enc["patch"], enc["patch"])
        self.cls = nn.Parameter(torch.zeros(1, 1, d))
        self.pos = nn.Parameter(torch.randn(1, (hp["size"] // enc["patch"]) ** 2 + 1, d) * 0.02)
        self.layers = nn.Sequential(*[ViTLayer(d, enc["heads"]) for _ in range(enc["depth"])])
        self.norm = nn.LayerNorm(d)

    def forward(self, x):
        x = self.patch(x).flatten(2).transpose(1, 2)
        x = torch.cat([self.cls.expand(len(x), -1, -1), x], 1) + self.pos
        return self.norm(self.layers(x))


class ModLN(nn.Module):
    def __init__(self, d, mod):
        super().__init__()
        self.norm = nn.LayerNorm(d, elementwise_affine=False)
        self.mlp = nn.Sequential(nn.SiLU(), nn.Linear(mod, 2 * d))

    def forward(self, x, mod):
        shift, scale = self.mlp(mod).unsqueeze(1).chunk(2, -1)
        return self.norm(x) * (1 + scale) + shift


class CondBlock(nn.Module):
    def __init__(self, d, heads, cond, mod):
        super().__init__()
        self.n1, self.n2, self.n3 = ModLN(d, mod), ModLN(d, mod), ModLN(d, mod)
        self.cross = nn.MultiheadAttention(d, heads, kdim=cond, vdim=cond, bias=False, batch_first=True)
        self.self_qkv, self.self_out = nn.Linear(d, 3 * d, bias=False), nn.Linear(d, d, bias=False)
        self.mlp = nn.Sequential(nn.Linear(d, 4 * d), nn.GELU(), nn.Linear(4 * d, d))
        self.heads = heads

    def forward(self, x, cond, mod):
        x = x + self.cross(self.n1(x, mod), cond, cond, need_weights=False)[0]
        b, n, d = x.shape
        q, k, v = self.self_qkv(self.n2(x, mod)).view(b, n, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        x = x + self.self_out(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(b, n, d))
        return x + self.mlp(self.n3(x, mod))


class TriplaneTransformer(nn.Module):
    def __init__(self):
        super().__init__()
        d, mod = hp["width"], hp["width"]
        self.camera = nn.Sequential(nn.Linear(16, mod), nn.SiLU(), nn.Linear(mod, mod))
        self.queries = nn.Parameter(torch.randn(1, 3 * hp["low"] ** 2, d) / math.sqrt(d))
        self.blocks = nn.ModuleList([CondBlock(d, hp["heads"], enc["width"], mod) for _ in range(hp["depth"])])
        self.norm = nn.LayerNorm(d)
        self.up = nn.ConvTranspose2d(d, hp["plane_dim"], 2, 2)

    def forward(self, cond, camera):
        mod = self.camera(camera)
        x = self.queries.expand(len(cond), -1, -1)
        for block in self.blocks:
            x = block(x, cond, mod)
        low = hp["low"]
        x = self.norm(x).view(-1, 3, low, low, hp["width"]).permute(0, 1, 4, 2, 3).flatten(0, 1)
        return self.up(x).unflatten(0, (-1, 3))


class Decoder(nn.Module):
    def __init__(self, hidden=64, layers=4):
        super().__init__()
        net, c = [], 3 * hp["plane_dim"]
        for _ in range(layers):
            net += [nn.Linear(c, hidden), nn.ReLU()]
            c = hidden
        self.net = nn.Sequential(*net, nn.Linear(c, 4))

    def forward(self, planes, xyz):
        b, m, _ = xyz.shape
        coords = torch.stack([xyz[..., [0, 1]], xyz[..., [0, 2]], xyz[..., [2, 1]]], 1)
        feat = F.grid_sample(planes.flatten(0, 1).float(), coords.flatten(0, 1)[:, None], align_corners=False)
        feat = feat.view(b, 3, hp["plane_dim"], m).permute(0, 3, 1, 2).reshape(b, m, -1)
        sigma, rgb = self.net(feat).split([1, 3], -1)
        return sigma, torch.sigmoid(rgb) * 1.002 - 0.001


def rays(pose, res):
    axis = (torch.arange(res, device=dev) + 0.5) / res * 2 - 1
    y, x = torch.meshgrid(axis, axis, indexing="ij")
    local = torch.stack([x * 0.4, y * 0.4, torch.ones_like(x)], -1).view(-1, 3)
    direction = F.normalize(torch.einsum("bvij,nj->bvni", pose[..., :3, :3], local), dim=-1)
    return pose[..., None, :3, 3].expand_as(direction), direction


def render(decoder, planes, pose):
    origin, direction = rays(pose, hp["res"])
    b, v, n, _ = origin.shape
    t = torch.linspace(0.8, 3.0, hp["samples"], device=dev)
    t = t + torch.rand(b, v, n, hp["samples"], device=dev) * (2.2 / hp["samples"])
    xyz = origin[..., None, :] + t[..., None] * direction[..., None, :]
    sigma, rgb = decoder(planes, xyz.view(b, -1, 3))
    sigma = F.softplus(sigma.float().view(b, v, n, -1) - 1)
    rgb = rgb.float().view(b, v, n, -1, 3)
    inside = (xyz.abs() < 1).all(-1)
    delta = torch.cat([t[..., 1:] - t[..., :-1], torch.full_like(t[..., :1], 1e-2)], -1)
    alpha = (1 - torch.exp(-sigma * delta)) * inside
    through = torch.cumprod(torch.cat([torch.ones_like(alpha[..., :1]), 1 - alpha + 1e-10], -1), -1)[..., :-1]
    weights = alpha * through
    color = (weights[..., None] * rgb).sum(-2) + (1 - weights.sum(-1, keepdim=True))
    return color.view(b * v, hp["res"], hp["res"], 3).permute(0, 3, 1, 2), weights.sum(-1)


def vgg():
    layers, c = [], 3
    for item in (64, 64, "M", 128, 128, "M", 256, 256, 256, "M", 512, 512, 512):
        if item == "M":
            layers.append(nn.MaxPool2d(2))
        else:
            layers += [nn.Conv2d(c, item, 3, padding=1), nn.ReLU()]
            c = item
    return nn.Sequential(*layers)


def perceptual(net, a, b):
    total = 0.0
    for layer in net:
        a, b = layer(a), layer(b)
        if isinstance(layer, nn.MaxPool2d):
            total = total + (F.normalize(a, dim=1) - F.normalize(b, dim=1)).pow(2).sum(1).mean()
    return total


def random_pose(*shape):
    position = F.normalize(torch.randn(*shape, 3, device=dev), dim=-1) * 1.9
    forward = -F.normalize(position, dim=-1)
    up = torch.tensor([0.0, 0.0, 1.0], device=dev).expand_as(forward)
    right = F.normalize(torch.linalg.cross(forward, up), dim=-1)
    down = torch.linalg.cross(forward, right)
    pose = torch.zeros(*shape, 4, 4, device=dev)
    pose[..., :3, :] = torch.stack([right, down, forward, position], -1)
    pose[..., 3, 3] = 1
    return pose


encoder = Encoder().to(dev).eval().requires_grad_(False)
lpips = vgg().to(dev).eval().requires_grad_(False)
former, decoder = TriplaneTransformer().to(dev), Decoder().to(dev)
ema = copy.deepcopy(nn.ModuleList([former, decoder])).requires_grad_(False)
weights = [*former.parameters(), *decoder.parameters()]
fast = torch.compile(former, mode="reduce-overhead")
opt = torch.optim.AdamW(weights, 4e-4, betas=(0.9, 0.95), weight_decay=0.05, fused=True)
sched = torch.optim.lr_scheduler.LambdaLR(opt, lambda s: min((s + 1) / 300, 0.5 * (1 + math.cos(math.pi * s / 30000))))

for it in steps():
    source = torch.rand(hp["scenes"], 3, hp["size"], hp["size"], device=dev)
    target = torch.rand(hp["scenes"] * hp["views"], 3, hp["res"], hp["res"], device=dev)
    camera = random_pose(hp["scenes"]).flatten(1)
    with torch.autocast(dev, dtype=torch.bfloat16):
        with torch.no_grad():
            cond = encoder(source)
        planes = fast(cond, camera)
        picture, opacity = render(decoder, planes, random_pose(hp["scenes"], hp["views"]))
        loss = F.mse_loss(picture, target) + 2.0 * perceptual(lpips, picture * 2 - 1, target * 2 - 1)
    p = planes.float()
    tv = (p[..., 1:, :] - p[..., :-1, :]).pow(2).mean() + (p[..., 1:] - p[..., :-1]).pow(2).mean()
    loss = loss + 5e-4 * tv + 1e-3 * opacity.mean()
    opt.zero_grad(set_to_none=True)
    loss.backward()
    nn.utils.clip_grad_norm_(weights, 1.0)
    opt.step()
    sched.step()
    with torch.no_grad():
        torch._foreach_lerp_(list(ema.parameters()), weights, 1e-3)
