"""Fits a signed distance field to posed photographs, after NeuS."""

import math

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.nn.utils.parametrizations import weight_norm
from tick import steps

torch.backends.cuda.matmul.allow_tf32 = True
DEVICE = "cuda"
RAYS, COARSE, FINE, ROUNDS = 512, 64, 64, 4
VIEWS, HEIGHT, WIDTH = 49, 1200, 1600
WIDE = 256


def encode(x, octaves):
    freq = 2.0 ** torch.arange(octaves, device=x.device)
    y = (x[..., None, :] * freq[:, None]).flatten(-2)
    return torch.cat([x, y.sin(), y.cos()], dim=-1)


class SDFNetwork(nn.Module):
    def __init__(self, octaves=6, depth=8, skip=4):
        super().__init__()
        self.octaves, self.skip = octaves, skip
        first = 3 + 6 * octaves
        sizes = [first] + [WIDE] * depth + [WIDE + 1]
        self.layers = nn.ModuleList()
        for i in range(len(sizes) - 1):
            out = sizes[i + 1] - first if i + 1 == skip else sizes[i + 1]
            layer = nn.Linear(sizes[i], out)
            if i == len(sizes) - 2:
                nn.init.normal_(layer.weight, math.sqrt(math.pi / sizes[i]), 1e-4)
                nn.init.constant_(layer.bias, -0.5)
            else:
                nn.init.normal_(layer.weight, 0.0, math.sqrt(2 / out))
                nn.init.zeros_(layer.bias)
            self.layers.append(weight_norm(layer))

    def forward(self, points):
        inputs = encode(points, self.octaves)
        x = inputs
        for i, layer in enumerate(self.layers):
            if i == self.skip:
                x = torch.cat([x, inputs], -1) / math.sqrt(2)
            x = layer(x)
            if i < len(self.layers) - 1:
                x = F.softplus(x, beta=100)
        return x

    def sdf(self, points):
        return self(points)[..., 0]

    def with_gradient(self, points):
        points.requires_grad_(True)
        out = self(points)
        sdf = out[..., :1]
        (grad,) = torch.autograd.grad(sdf, points, torch.ones_like(sdf), create_graph=True)
        return sdf[..., 0], out[..., 1:], grad


class ColorNetwork(nn.Module):
    def __init__(self, octaves=4, depth=4):
        super().__init__()
        self.octaves = octaves
        sizes = [6 + 3 + 6 * octaves + WIDE] + [WIDE] * depth
        self.hidden = nn.ModuleList(weight_norm(nn.Linear(a, b)) for a, b in zip(sizes, sizes[1:]))
        self.rgb = weight_norm(nn.Linear(WIDE, 3))

    def forward(self, points, normals, dirs, features):
        x = torch.cat([points, encode(dirs, self.octaves), normals, features], -1)
        for layer in self.hidden:
            x = F.relu(layer(x))
        return self.rgb(x).sigmoid()


class Variance(nn.Module):
    def __init__(self, start=0.3):
        super().__init__()
        self.value = nn.Parameter(torch.tensor(start))

    def forward(self):
        return (self.value * 10.0).exp().clamp(1e-6, 1e6)


def sample_pdf(bins, weights, n):
    pdf = (weights + 1e-5) / (weights + 1e-5).sum(-1, keepdim=True)
    cdf = F.pad(pdf.cumsum(-1), (1, 0))
    u = torch.linspace(0.5 / n, 1 - 0.5 / n, n, device=bins.device).expand(len(bins), n).contiguous()
    at = torch.searchsorted(cdf, u, right=True)
    below, above = (at - 1).clamp(min=0), at.clamp(max=cdf.shape[-1] - 1)
    cdf0, cdf1 = cdf.gather(1, below), cdf.gather(1, above)
    bin0, bin1 = bins.gather(1, below), bins.gather(1, above)
    span = torch.where(cdf1 - cdf0 < 1e-5, torch.ones_like(cdf0), cdf1 - cdf0)
    return bin0 + (u - cdf0) / span * (bin1 - bin0)


@torch.no_grad()
def importance(field, origins, dirs, z):
    sdf = field.sdf(origins[:, None] + dirs[:, None] * z[..., None])
    for r in range(ROUNDS):
        mid = (sdf[:, 1:] + sdf[:, :-1]) / 2
        slope = (sdf[:, 1:] - sdf[:, :-1]) / (z[:, 1:] - z[:, :-1] + 1e-5)
        before = F.pad(slope[:, :-1], (1, 0))
        slope = torch.minimum(slope, before).clamp(-1e3, 0.0)
        half = (z[:, 1:] - z[:, :-1]) * 0.5
        s = 64 * 2**r
        prev, after = torch.sigmoid((mid - slope * half) * s), torch.sigmoid((mid + slope * half) * s)
        alpha = (prev - after + 1e-5) / (prev + 1e-5)
        through = F.pad((1 - alpha + 1e-7).cumprod(-1)[:, :-1], (1, 0), value=1.0)
        new = sample_pdf(z, alpha * through, FINE // ROUNDS)
        z, order = torch.cat([z, new], -1).sort(-1)
        if r < ROUNDS - 1:
            more = field.sdf(origins[:, None] + dirs[:, None] * new[..., None])
            sdf = torch.cat([sdf, more], -1).gather(1, order)
    return z


def render(field, color, variance, origins, dirs, near, far, anneal):
    z = near + (far - near) * torch.linspace(0, 1, COARSE, device=origins.device)
    z = z + (torch.rand(len(origins), 1, device=origins.device) - 0.5) * 2.0 / COARSE
    z = importance(field, origins, dirs, z)
    dists = torch.cat([z[:, 1:] - z[:, :-1], torch.full_like(z[:, :1], 2.0 / COARSE)], -1)
    points = (origins[:, None] + dirs[:, None] * (z + dists / 2)[..., None]).reshape(-1, 3)
    along = dirs[:, None].expand(-1, z.shape[1], -1).reshape(-1, 3)
    sdf, features, grad = field.with_gradient(points)
    rgb = color(points, grad, along, features).view(*z.shape, 3)
    inv_s = variance()
    cos = (along * grad).sum(-1)
    cos = -(F.relu(-cos * 0.5 + 0.5) * (1 - anneal) + F.relu(-cos) * anneal)
    step = cos * dists.flatten() * 0.5
    prev, after = torch.sigmoid((sdf - step) * inv_s), torch.sigmoid((sdf + step) * inv_s)
    alpha = ((prev - after + 1e-5) / (prev + 1e-5)).clamp(0, 1).view(z.shape)
    through = torch.cat([torch.ones_like(alpha[:, :1]), 1 - alpha + 1e-7], -1).cumprod(-1)[:, :-1]
    weights = alpha * through
    inside = (points.detach().norm(dim=-1) < 1.2).float()
    eikonal = (inside * (grad.norm(dim=-1) - 1) ** 2).sum() / (inside.sum() + 1e-5)
    return (weights[..., None] * rgb).sum(1), weights.sum(-1), eikonal


def look_at(n):
    eye = F.normalize(torch.randn(n, 3, device=DEVICE), dim=-1) * 3
    back = F.normalize(eye, dim=-1)
    right = F.normalize(torch.linalg.cross(torch.tensor([[0.0, 1, 0]], device=DEVICE).expand(n, 3), back), dim=-1)
    return torch.stack([right, torch.linalg.cross(back, right), back], -1), eye


images = torch.randint(0, 256, (VIEWS, HEIGHT, WIDTH, 3), dtype=torch.uint8, device=DEVICE)
masks = torch.rand(VIEWS, HEIGHT, WIDTH, device=DEVICE) > 0.5
rotations, eyes = look_at(VIEWS)
field, color, variance = SDFNetwork().to(DEVICE), ColorNetwork().to(DEVICE), Variance().to(DEVICE)
optimizer = torch.optim.Adam(
    [
        {"params": field.parameters(), "lr": 5e-4},
        {"params": color.parameters(), "lr": 5e-4},
        {"params": variance.parameters(), "lr": 1e-3},
    ]
)
scheduler = torch.optim.lr_scheduler.SequentialLR(
    optimizer,
    [
        torch.optim.lr_scheduler.LinearLR(optimizer, 1e-3, total_iters=5000),
        torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 295000, eta_min=2.5e-5),
    ],
    milestones=[5000],
)
view_order = torch.randperm(VIEWS).tolist()

for i in steps():
    view = view_order[i % VIEWS]
    ys = torch.randint(0, HEIGHT, (RAYS,), device=DEVICE)
    xs = torch.randint(0, WIDTH, (RAYS,), device=DEVICE)
    target = images[view, ys, xs].float() / 255
    mask = masks[view, ys, xs].float()
    local = torch.stack([(xs - WIDTH / 2) / WIDTH, -(ys - HEIGHT / 2) / WIDTH, -torch.ones_like(xs)], -1)
    dirs = F.normalize(local @ rotations[view].T, dim=-1)
    origins = eyes[view].expand(RAYS, 3)
    middle = -(origins * dirs).sum(-1, keepdim=True)
    rgb, opacity, eikonal = render(field, color, variance, origins, dirs, middle - 1, middle + 1, min(1.0, i / 50000))
    color_loss = F.l1_loss(rgb * mask[:, None], target * mask[:, None], reduction="sum") / (mask.sum() + 1e-5)
    mask_loss = F.binary_cross_entropy(opacity.clamp(1e-3, 1 - 1e-3), mask)
    loss = color_loss + 0.1 * eikonal + 0.1 * mask_loss
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    scheduler.step()
