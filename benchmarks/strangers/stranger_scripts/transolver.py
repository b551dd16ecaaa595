"""Transolver on a car surface: physics attention over learned slices of an irregular mesh."""

import torch
import torch.nn as nn
from torch.utils.data import DataLoader, Dataset

from tick import steps

device = "cuda"
POINTS, SURFACE, CARS = 32186, 3586, 16
WIDTH, LAYERS, HEADS, SLICES = 256, 8, 8, 32


class PhysicsAttention(nn.Module):
    def __init__(self, dim, heads, dim_head, slices, dropout=0.0):
        super().__init__()
        inner = dim_head * heads
        self.heads, self.dim_head, self.scale = heads, dim_head, dim_head**-0.5
        self.softmax, self.dropout = nn.Softmax(dim=-1), nn.Dropout(dropout)
        self.temperature = nn.Parameter(torch.ones([1, heads, 1, 1]) * 0.5)
        self.in_project_x, self.in_project_fx = nn.Linear(dim, inner), nn.Linear(dim, inner)
        self.in_project_slice = nn.Linear(dim_head, slices)
        nn.init.orthogonal_(self.in_project_slice.weight)
        self.to_q = nn.Linear(dim_head, dim_head, bias=False)
        self.to_k = nn.Linear(dim_head, dim_head, bias=False)
        self.to_v = nn.Linear(dim_head, dim_head, bias=False)
        self.to_out = nn.Sequential(nn.Linear(inner, dim), nn.Dropout(dropout))

    def forward(self, x):
        B, N, C = x.shape
        fx_mid = self.in_project_fx(x).reshape(B, N, self.heads, self.dim_head).permute(0, 2, 1, 3).contiguous()
        x_mid = self.in_project_x(x).reshape(B, N, self.heads, self.dim_head).permute(0, 2, 1, 3).contiguous()
        weights = self.softmax(self.in_project_slice(x_mid) / self.temperature)
        norm = weights.sum(2)
        token = torch.einsum("bhnc,bhng->bhgc", fx_mid, weights)
        token = token / (norm + 1e-5)[:, :, :, None]
        q, k, v = self.to_q(token), self.to_k(token), self.to_v(token)
        attn = self.dropout(self.softmax(torch.matmul(q, k.transpose(-1, -2)) * self.scale))
        out = torch.einsum("bhgc,bhng->bhnc", torch.matmul(attn, v), weights)
        return self.to_out(out.permute(0, 2, 1, 3).reshape(B, N, -1))


class MLP(nn.Module):
    def __init__(self, n_in, n_hidden, n_out):
        super().__init__()
        self.pre, self.post = nn.Sequential(nn.Linear(n_in, n_hidden), nn.GELU()), nn.Linear(n_hidden, n_out)

    def forward(self, x):
        return self.post(self.pre(x))


class Block(nn.Module):
    def __init__(self, dim, heads, slices, mlp_ratio=2, out=None):
        super().__init__()
        self.ln_1, self.ln_2 = nn.LayerNorm(dim), nn.LayerNorm(dim)
        self.attn = PhysicsAttention(dim, heads, dim // heads, slices)
        self.mlp = MLP(dim, dim * mlp_ratio, dim)
        self.last = nn.Sequential(nn.LayerNorm(dim), nn.Linear(dim, out)) if out else nn.Identity()

    def forward(self, fx):
        fx = self.attn(self.ln_1(fx)) + fx
        fx = self.mlp(self.ln_2(fx)) + fx
        return self.last(fx)


class Transolver(nn.Module):
    def __init__(self, space=7, out=4):
        super().__init__()
        self.preprocess = MLP(space, WIDTH * 2, WIDTH)
        self.placeholder = nn.Parameter(torch.rand(WIDTH) / WIDTH)
        self.blocks = nn.ModuleList(
            Block(WIDTH, HEADS, SLICES, out=out if i == LAYERS - 1 else None) for i in range(LAYERS)
        )
        self.apply(self.init)

    @staticmethod
    def init(m):
        if isinstance(m, nn.Linear) and m.out_features != SLICES:
            nn.init.trunc_normal_(m.weight, std=0.02)

    def forward(self, x):
        fx = self.preprocess(x) + self.placeholder
        for block in self.blocks:
            fx = block(fx)
        return fx


class Cars(Dataset):
    def __init__(self):
        g = torch.Generator().manual_seed(3)
        self.x = torch.randn(CARS, POINTS, 7, generator=g)
        self.y = torch.randn(CARS, POINTS, 4, generator=g)
        self.surf = torch.zeros(CARS, POINTS, dtype=torch.bool)
        for row in self.surf:
            row[torch.randperm(POINTS, generator=g)[:SURFACE]] = True

    def __len__(self):
        return CARS

    def __getitem__(self, i):
        return self.x[i], self.y[i], self.surf[i]


def forever(loader):
    while True:
        yield from loader


torch.set_float32_matmul_precision("high")
loader = DataLoader(Cars(), batch_size=1, shuffle=True, num_workers=0, pin_memory=device == "cuda")
model = Transolver().to(device)
net = torch.compile(model, mode="reduce-overhead")
criterion = nn.MSELoss(reduction="none")
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
scheduler = torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=1e-3, total_steps=1000, final_div_factor=1000.0)
it = forever(loader)
pressures, velocities = [], []

for _ in steps():
    x, y, surf = (t.to(device, non_blocking=True) for t in next(it))
    optimizer.zero_grad()
    out = net(x)
    press = criterion(out[surf][:, -1], y[surf][:, -1]).mean()
    velo = criterion(out[..., :-1], y[..., :-1]).mean()
    (velo + 0.5 * press).backward()
    optimizer.step()
    scheduler.step()
    pressures.append(press.item())
    velocities.append(velo.item())

print(sum(pressures) / len(pressures), sum(velocities) / len(velocities))
