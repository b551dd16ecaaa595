"""Point-cloud completion: farthest point sampling, kNN edge convolutions, Sinkhorn divergence, Chamfer distance."""

import torch, torch.nn as nn, torch.nn.functional as F
from tick import steps

B, N, S, K = 16, 2048, 256, 16


@torch.no_grad()
def fps(x, n):
    b = torch.arange(x.size(0), device=x.device)
    far = torch.zeros(x.size(0), dtype=torch.long, device=x.device)
    dist = torch.full(x.shape[:2], 1e10, device=x.device)
    idx = torch.empty(x.size(0), n, dtype=torch.long, device=x.device)
    for k in range(n):
        idx[:, k] = far
        dist = torch.minimum(dist, (x - x[b, far][:, None]).square().sum(-1))
        far = dist.argmax(1)
    return idx


def knn(x, y, k):
    return torch.cdist(x, y).topk(k, largest=False).indices


def take(x, i):
    return torch.gather(x[:, None].expand(-1, i.size(1), -1, -1), 2, i[..., None].expand(-1, -1, -1, x.size(-1)))


class Edge(nn.Module):
    def __init__(s, i, o):
        super().__init__()
        s.f = nn.Sequential(
            nn.Conv2d(2 * i, o, 1, bias=False),
            nn.BatchNorm2d(o),
            nn.LeakyReLU(0.2),
            nn.Conv2d(o, o, 1, bias=False),
            nn.BatchNorm2d(o),
            nn.LeakyReLU(0.2),
        )

    def forward(s, x, idx):
        n = take(x, idx)
        return s.f(torch.cat([n - x[:, :, None], x[:, :, None].expand_as(n)], -1).permute(0, 3, 1, 2)).amax(-1).mT


class Net(nn.Module):
    def __init__(s):
        super().__init__()
        s.e1, s.e2, s.e3 = Edge(3, 64), Edge(64, 128), Edge(128, 256)
        s.g = nn.Sequential(nn.Linear(256, 1024), nn.ReLU())
        s.fold = nn.Sequential(nn.Linear(1024 + 2, 512), nn.ReLU(), nn.Linear(512, 512), nn.ReLU(), nn.Linear(512, 3))

    def forward(s, x):
        f = s.e2(s.e1(x, knn(x, x, K)), knn(x, x, K))
        i = fps(x, S)
        xs, fs = x.gather(1, i[..., None].expand(-1, -1, 3)), f.gather(1, i[..., None].expand(-1, -1, 128))
        h = s.g(s.e3(fs, knn(xs, xs, K))).amax(1)
        u = torch.rand(x.size(0), N, 2, device=x.device)
        return s.fold(torch.cat([h[:, None].expand(-1, N, -1), u], -1))


@torch.compile
def sinkhorn(x, y, eps=0.05, it=10):
    c = (x.square().sum(-1)[:, :, None] + y.square().sum(-1)[:, None] - 2 * x @ y.mT).clamp(min=0)
    f, g = torch.zeros_like(c[:, :, 0]), torch.zeros_like(c[:, 0])
    for _ in range(it):
        f = -eps * torch.logsumexp((g[:, None] - c) / eps, 2)
        g = -eps * torch.logsumexp((f[:, :, None] - c) / eps, 1)
    p = torch.exp((f[:, :, None] + g[:, None] - c) / eps).detach()
    return (p * c).sum((1, 2)).mean() / N


net = Net().cuda()
opt = torch.optim.ASGD(net.parameters(), 1e-3)
for i in steps(count=5):
    x = torch.randn(B, N, 3, device="cuda")
    y = F.normalize(x + 0.1 * torch.randn_like(x), dim=-1)
    p = net(y)
    d = torch.cdist(p, y)
    loss = sinkhorn(p, y) + 0.1 * (d.amin(1).mean() + d.amin(2).mean())
    opt.zero_grad()
    loss.backward()
    opt.step()
