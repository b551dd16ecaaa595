import torch, torch.nn as nn, torch.nn.functional as F
from tick import steps


class LN2d(nn.LayerNorm):
    def forward(self, x):
        return super().forward(x.permute(0, 2, 3, 1)).permute(0, 3, 1, 2)


class Block(nn.Module):
    def __init__(self, d, drop):
        super().__init__()
        self.dw = nn.Conv2d(d, d, 7, padding=3, groups=d)
        self.norm, self.up, self.down = nn.LayerNorm(d, 1e-6), nn.Linear(d, 4 * d), nn.Linear(4 * d, d)
        self.gamma, self.drop = nn.Parameter(1e-6 * torch.ones(d)), drop

    def forward(self, x):
        h = self.norm(self.dw(x).permute(0, 2, 3, 1))
        h = (self.gamma * self.down(F.gelu(self.up(h)))).permute(0, 3, 1, 2)
        if self.training and self.drop:
            keep = torch.rand(x.size(0), 1, 1, 1, device=x.device) > self.drop
            h = h * keep / (1 - self.drop)
        return x + h


dims, depths = (96, 192, 384, 768), (2, 2, 6, 2)
mods, prev = [nn.Conv2d(3, 96, 4, 4), LN2d(96, 1e-6)], 96
k = 0
for d, n in zip(dims, depths):
    if d != prev:
        mods += [LN2d(prev, 1e-6), nn.Conv2d(prev, d, 2, 2)]
    for _ in range(n):
        mods.append(Block(d, 0.1 * k / 11))
        k += 1
    prev = d
model = nn.Sequential(*mods, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.LayerNorm(768), nn.Linear(768, 1000)).cuda()
fast = torch.compile(model)
decay = [p for p in model.parameters() if p.ndim > 1]
opt = torch.optim.AdamW(
    [
        {"params": decay, "weight_decay": 0.05},
        {"params": [p for p in model.parameters() if p.ndim <= 1], "weight_decay": 0.0},
    ],
    lr=4e-3,
)
for i in steps():
    for g in opt.param_groups:
        g["lr"] = 4e-3 * min(1, i / 100)
    x = torch.randn(64, 3, 224, 224, device="cuda")
    y = F.one_hot(torch.randint(0, 1000, (64,), device="cuda"), 1000).float()
    lam = torch.distributions.Beta(0.8, 0.8).sample().item()
    x, y = lam * x + (1 - lam) * x.flip(0), lam * y + (1 - lam) * y.flip(0)
    with torch.autocast("cuda", torch.bfloat16):
        out = fast(x)
        loss = F.cross_entropy(out, y)
    loss.backward()
    opt.step()
    opt.zero_grad()
