import random
import torch, torch.nn as nn
from tick import steps

torch.set_float32_matmul_precision("high")
DIM, HEADS, BATCH, ITERS = 256, 4, 16, 20


def MLP(channels):
    layers = []
    for i in range(1, len(channels)):
        layers.append(nn.Linear(channels[i - 1], channels[i]))
        if i < len(channels) - 1:
            layers += [nn.LayerNorm(channels[i]), nn.ReLU()]
    return nn.Sequential(*layers)


class MultiHeadedAttention(nn.Module):
    def __init__(self):
        super().__init__()
        self.merge = nn.Linear(DIM, DIM)
        self.proj = nn.ModuleList(nn.Linear(DIM, DIM) for _ in range(3))

    def forward(self, query, key, value):
        q, k, v = [l(x).unflatten(-1, (HEADS, -1)) for l, x in zip(self.proj, (query, key, value))]
        scores = torch.einsum("bnhd,bmhd->bhnm", q, k) / (DIM // HEADS) ** 0.5
        x = torch.einsum("bhnm,bmhd->bnhd", scores.softmax(-1), v)
        return self.merge(x.flatten(2))


class AttentionalPropagation(nn.Module):
    def __init__(self):
        super().__init__()
        self.attn, self.mlp = MultiHeadedAttention(), MLP([2 * DIM, 2 * DIM, DIM])

    def forward(self, x, source):
        return self.mlp(torch.cat([x, self.attn(x, source, source)], dim=-1))


@torch.compile(dynamic=True)
def log_optimal_transport(scores, alpha):
    b, m, n = scores.shape
    bins0, bins1 = alpha.expand(b, m, 1), alpha.expand(b, 1, n)
    Z = torch.cat([torch.cat([scores, bins0], -1), torch.cat([bins1, alpha.expand(b, 1, 1)], -1)], 1)
    norm = -scores.new_tensor(float(m + n)).log()
    log_mu = torch.cat([norm.expand(m), norm[None] + scores.new_tensor(float(n)).log()])[None].expand(b, -1)
    log_nu = torch.cat([norm.expand(n), norm[None] + scores.new_tensor(float(m)).log()])[None].expand(b, -1)
    u, v = torch.zeros_like(log_mu), torch.zeros_like(log_nu)
    for _ in range(ITERS):
        u = log_mu - torch.logsumexp(Z + v.unsqueeze(1), dim=2)
        v = log_nu - torch.logsumexp(Z + u.unsqueeze(2), dim=1)
    return Z + u.unsqueeze(2) + v.unsqueeze(1) - norm


class SuperGlue(nn.Module):
    def __init__(self, layers=18):
        super().__init__()
        self.kenc = MLP([3, 32, 64, 128, 256, DIM])
        self.layers = nn.ModuleList(AttentionalPropagation() for _ in range(layers))
        self.final_proj = nn.Linear(DIM, DIM)
        self.bin_score = nn.Parameter(torch.tensor(1.0))

    def forward(self, kpts0, kpts1, desc0, desc1):
        desc0, desc1 = desc0 + self.kenc(kpts0), desc1 + self.kenc(kpts1)
        for i, layer in enumerate(self.layers):
            src0, src1 = (desc1, desc0) if i % 2 else (desc0, desc1)
            delta0, delta1 = layer(desc0, src0), layer(desc1, src1)
            desc0, desc1 = desc0 + delta0, desc1 + delta1
        scores = torch.einsum("bnd,bmd->bnm", self.final_proj(desc0), self.final_proj(desc1)) / DIM**0.5
        return log_optimal_transport(scores, self.bin_score)


model = SuperGlue().cuda()
for layer in model.layers:
    layer.compile(dynamic=True)
optimizer = torch.optim.Adam(model.parameters(), lr=1e-4)
scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.9999)
for i in steps():
    m, n = random.randint(960, 1024), random.randint(960, 1024)
    kpts0, kpts1 = torch.rand(BATCH, m, 3, device="cuda"), torch.rand(BATCH, n, 3, device="cuda")
    desc0, desc1 = torch.randn(BATCH, m, DIM, device="cuda"), torch.randn(BATCH, n, DIM, device="cuda")
    matches = torch.stack([torch.randperm(n, device="cuda")[:512] for _ in range(BATCH)])
    scores = model(kpts0, kpts1, desc0, desc1)
    positive = scores[:, :512, :-1].gather(2, matches.unsqueeze(2))
    loss = -positive.mean() - 0.5 * scores[:, 512:-1, -1].mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    scheduler.step()
