import torch, torch.nn as nn, numpy as np

torch.set_default_device("cuda")
H = W = 100
focal = 138.0
L_embed = 6
N_samples = 64


def posenc(x):
    return torch.cat([x] + [fn(2.0**i * x) for i in range(L_embed) for fn in (torch.sin, torch.cos)], -1)


model = nn.Sequential(
    nn.Linear(3 + 6 * L_embed, 256),
    nn.ReLU(),
    *[m for _ in range(6) for m in (nn.Linear(256, 256), nn.ReLU())],
    nn.Linear(256, 4),
)


def get_rays(c2w):
    i, j = torch.meshgrid(torch.arange(W, dtype=torch.float32), torch.arange(H, dtype=torch.float32), indexing="xy")
    d = torch.stack([(i - W * 0.5) / focal, -(j - H * 0.5) / focal, -torch.ones_like(i)], -1)
    return c2w[:3, -1].expand(H, W, 3), torch.sum(d[..., None, :] * c2w[:3, :3], -1)


def render(rays_o, rays_d):
    z = torch.linspace(2.0, 6.0, N_samples)
    z = z + torch.rand(*rays_o.shape[:-1], N_samples) * 4.0 / N_samples
    pts = rays_o[..., None, :] + rays_d[..., None, :] * z[..., :, None]
    raw = torch.cat([model(c) for c in posenc(pts.reshape(-1, 3)).split(1024 * 64)], 0).reshape(*pts.shape[:-1], 4)
    sigma, rgb = torch.relu(raw[..., 3]), torch.sigmoid(raw[..., :3])
    dists = torch.cat([z[..., 1:] - z[..., :-1], torch.full_like(z[..., :1], 1e10)], -1)
    alpha = 1.0 - torch.exp(-sigma * dists)
    weights = alpha * torch.cumprod(torch.cat([torch.ones_like(alpha[..., :1]), 1 - alpha[..., :-1] + 1e-10], -1), -1)
    return torch.sum(weights[..., None] * rgb, -2)


opt = torch.optim.Adam(model.parameters(), lr=5e-4)
images, poses = np.random.rand(20, H, W, 3).astype(np.float32), np.tile(np.eye(4, dtype=np.float32), (20, 1, 1))
for i in range(300):
    k = np.random.randint(20)
    rgb = render(*get_rays(torch.tensor(poses[k])))
    loss = torch.mean((rgb - torch.tensor(images[k])) ** 2)
    opt.zero_grad()
    loss.backward()
    opt.step()
    if i % 10 == 0:
        print(i, loss.item(), -10 * torch.log10(loss).item())
