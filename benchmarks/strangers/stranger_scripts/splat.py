"""2D Gaussian splatting: depth sort, per-tile top-k, alpha compositing with cumprod, SSIM + L1, Adam per attribute."""

import torch
import torch.nn.functional as F
from tick import steps

N, S, TILE, K = 100_000, 256, 16, 128
dev = "cuda"
P = {
    "xyz": torch.rand(N, 3, device=dev) * 2 - 1,
    "scale": torch.rand(N, 3, device=dev) - 5,
    "quat": torch.randn(N, 4, device=dev),
    "opacity": torch.zeros(N, device=dev),
    "rgb": torch.rand(N, 3, device=dev),
}
P = {k: torch.nn.Parameter(v) for k, v in P.items()}
lrs = dict(xyz=1.6e-4, scale=5e-3, quat=1e-3, opacity=5e-2, rgb=2.5e-3)
opt = torch.optim.Adam([{"params": [v], "lr": lrs[k], "name": k} for k, v in P.items()], eps=1e-15)
n = S // TILE
ty, tx = torch.meshgrid(torch.arange(n, device=dev), torch.arange(n, device=dev), indexing="ij")
centers = torch.stack([tx, ty], -1).view(-1, 2) * TILE + TILE / 2
py, px = torch.meshgrid(torch.arange(TILE, device=dev), torch.arange(TILE, device=dev), indexing="ij")
pix = torch.stack([px, py], -1).view(-1, 2).float() - TILE / 2 + 0.5
window = torch.outer(*[torch.exp(-((torch.arange(11.0) - 5) ** 2) / 4.5)] * 2).to(dev)
window = (window / window.sum()).expand(3, 1, 11, 11).contiguous()


@torch.compile
def project(xyz, scale, quat, cam):
    q = F.normalize(quat, dim=-1)
    w, x, y, z = q.unbind(-1)
    R = torch.stack(
        [
            1 - 2 * (y * y + z * z),
            2 * (x * y - w * z),
            2 * (x * z + w * y),
            2 * (x * y + w * z),
            1 - 2 * (x * x + z * z),
            2 * (y * z - w * x),
            2 * (x * z - w * y),
            2 * (y * z + w * x),
            1 - 2 * (x * x + y * y),
        ],
        -1,
    ).view(-1, 3, 3)
    M = R * scale.exp()[:, None]
    cov = M @ M.mT
    p = xyz @ cam[:3, :3].T + cam[:3, 3]
    d = p[:, 2].clamp(min=0.1)
    f = S * 0.8
    uv = p[:, :2] / d[:, None] * f + S / 2
    zero = torch.zeros_like(d)
    J = torch.stack([f / d, zero, -f * p[:, 0] / d**2, zero, f / d, -f * p[:, 1] / d**2], -1).view(-1, 2, 3)
    T = J @ cam[:3, :3]
    c2 = T @ cov @ T.mT + 0.3 * torch.eye(2, device=xyz.device)
    det = (c2[:, 0, 0] * c2[:, 1, 1] - c2[:, 0, 1] ** 2).clamp(min=1e-6)
    conic = torch.stack([c2[:, 1, 1], -c2[:, 0, 1], c2[:, 0, 0]], -1) / det[:, None]
    return uv, conic, d


@torch.compile
def composite(uv, conic, op, rgb):
    dx = pix[None, :, None] - uv[:, None]
    power = (
        -0.5 * (conic[:, None, :, 0] * dx[..., 0] ** 2 + conic[:, None, :, 2] * dx[..., 1] ** 2)
        - conic[:, None, :, 1] * dx[..., 0] * dx[..., 1]
    )
    a = (op.sigmoid()[:, None] * power.clamp(max=0).exp()).clamp(max=0.99)
    trans = torch.cumprod(torch.cat([torch.ones_like(a[..., :1]), 1 - a], -1), -1)[..., :-1]
    return (a * trans) @ rgb


def ssim(a, b):
    f = lambda t: F.conv2d(t, window, padding=5, groups=3)
    ma, mb = f(a), f(b)
    va, vb, cab = f(a * a) - ma**2, f(b * b) - mb**2, f(a * b) - ma * mb
    return (((2 * ma * mb + 1e-4) * (2 * cab + 9e-4)) / ((ma**2 + mb**2 + 1e-4) * (va + vb + 9e-4))).mean()


target = torch.rand(8, 1, 3, S, S, device=dev)
for i in steps():
    cam = torch.eye(4, device=dev)
    cam[2, 3] = 4.0
    uv, conic, depth = project(P["xyz"], P["scale"], P["quat"], cam)
    order = torch.argsort(depth.detach())
    with torch.no_grad():
        dist = torch.cdist(centers.float(), uv[order])
        near = dist.topk(K, largest=False).indices.sort(-1).values
        sel = order[near]
    img = composite(uv[sel] - centers[:, None], conic[sel], P["opacity"][sel], P["rgb"][sel])
    img = img.view(n, n, TILE, TILE, 3).permute(4, 0, 2, 1, 3).reshape(1, 3, S, S)
    gt = target[i % 8]
    loss = 0.8 * F.l1_loss(img, gt) + 0.2 * (1 - ssim(img, gt))
    loss.backward()
    with torch.no_grad():
        grads = P["xyz"].grad.norm(dim=-1)
        if i and i % 500 == 0:
            P["opacity"].clamp_(max=-2.0)
    opt.step()
    opt.zero_grad(set_to_none=True)
