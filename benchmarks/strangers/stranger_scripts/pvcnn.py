"""PVCNN on S3DIS blocks; classes are told by the distance to prototypes."""

import torch
import torch.nn as nn
import torch.nn.functional as F
from tick import steps

POINTS, BATCH, CLASSES, PROTOTYPES, FEATURES = 4096, 8, 13, 10, 64
BLOCKS = ((64, 1, 32), (64, 2, 16), (128, 1, 16), (1024, 1, None))


class SharedMLP(nn.Sequential):
    def __init__(self, cin, cout):
        super().__init__(nn.Conv1d(cin, cout, 1), nn.BatchNorm1d(cout), nn.ReLU())


def voxelize(features, coords, r):
    """Mean of the features of the points of each cell; features (b, c, n), coords (b, 3, n) in [0, r - 1]."""
    b, c, n = features.shape
    cell = coords.round().long()
    index = (cell[:, 0] * r + cell[:, 1]) * r + cell[:, 2]
    index = index + torch.arange(b, device=index.device)[:, None] * r**3
    flat = features.float().transpose(1, 2).reshape(b * n, c)
    total = torch.zeros(b * r**3, c, device=flat.device).index_add(0, index.flatten(), flat)
    count = torch.zeros(b * r**3, device=flat.device).index_add(0, index.flatten(), torch.ones_like(flat[:, 0]))
    mean = total / count.clamp(min=1)[:, None]
    return mean.view(b, r, r, r, c).permute(0, 4, 1, 2, 3)


def devoxelize(grid, coords, r):
    b, c = grid.shape[:2]
    flat = grid.permute(0, 2, 3, 4, 1).reshape(b, r**3, c)
    low = coords.floor().clamp(0, r - 2)
    frac = coords - low
    low = low.long()
    out = 0
    for dx in (0, 1):
        for dy in (0, 1):
            for dz in (0, 1):
                wx = frac[:, 0] if dx else 1 - frac[:, 0]
                wy = frac[:, 1] if dy else 1 - frac[:, 1]
                wz = frac[:, 2] if dz else 1 - frac[:, 2]
                index = ((low[:, 0] + dx) * r + low[:, 1] + dy) * r + low[:, 2] + dz
                corner = flat.gather(1, index[..., None].expand(-1, -1, c))
                out = out + corner * (wx * wy * wz)[..., None]
    return out.transpose(1, 2)


class PVConv(nn.Module):
    def __init__(self, cin, cout, resolution):
        super().__init__()
        self.r = resolution
        self.voxel = nn.Sequential(
            nn.Conv3d(cin, cout, 3, padding=1),
            nn.BatchNorm3d(cout, eps=1e-4),
            nn.LeakyReLU(0.1),
            nn.Conv3d(cout, cout, 3, padding=1),
            nn.BatchNorm3d(cout, eps=1e-4),
            nn.LeakyReLU(0.1),
        ).to(memory_format=torch.channels_last_3d)
        self.point = SharedMLP(cin, cout)

    def forward(self, features, coords):
        scaled = coords - coords.mean(2, keepdim=True)
        scaled = scaled / (scaled.norm(dim=1, keepdim=True).amax(2, keepdim=True) * 2) + 0.5
        scaled = (scaled * self.r).clamp(0, self.r - 1)
        grid = voxelize(features, scaled, self.r).contiguous(memory_format=torch.channels_last_3d)
        grid = self.voxel(grid)
        return devoxelize(grid, scaled, self.r) + self.point(features)


class PVCNN(nn.Module):
    def __init__(self, cin=9):
        super().__init__()
        self.layers, width = nn.ModuleList(), cin
        concat = 0
        for cout, repeat, r in BLOCKS:
            for _ in range(repeat):
                self.layers.append(SharedMLP(width, cout) if r is None else PVConv(width, cout, r))
                width = cout
                concat += cout
        self.cloud = nn.Sequential(
            nn.Linear(width, 256), nn.BatchNorm1d(256), nn.ReLU(), nn.Linear(256, 128), nn.BatchNorm1d(128), nn.ReLU()
        )
        self.classifier = nn.Sequential(
            SharedMLP(concat + 128, 512),
            nn.Dropout(0.3),
            SharedMLP(512, 256),
            nn.Dropout(0.3),
            nn.Conv1d(256, FEATURES, 1),
        )

    def forward(self, x):
        coords, features, kept = x[:, :3], x, []
        for layer in self.layers:
            features = layer(features, coords) if isinstance(layer, PVConv) else layer(features)
            kept.append(features)
        cloud = self.cloud(features.amax(-1))
        kept.append(cloud[:, :, None].expand(-1, -1, x.shape[-1]))
        return self.classifier(torch.cat(kept, 1))


class PrototypeLoss(nn.Module):
    def __init__(self, temperature=0.1):
        super().__init__()
        self.centres = nn.Parameter(F.normalize(torch.randn(CLASSES * PROTOTYPES, FEATURES), dim=-1))
        self.temperature = temperature

    def forward(self, features, labels):
        points = F.normalize(features.float(), dim=1).transpose(1, 2).flatten(0, 1)
        distance = torch.cdist(points, F.normalize(self.centres, dim=-1))
        logits = (-distance / self.temperature).view(-1, CLASSES, PROTOTYPES).logsumexp(-1)
        own = logits.gather(1, labels.view(-1, 1)).squeeze(1)
        loss = (torch.logsumexp(logits, -1) - own).mean()
        return loss, (logits.argmax(-1) == labels.flatten()).float().mean()


device = "cuda"
net = PVCNN().to(device)
criterion = PrototypeLoss().to(device)
forward = torch.compile(net)
optimizer = torch.optim.Adam([*net.parameters(), *criterion.parameters()], lr=1e-3, weight_decay=1e-5)
scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=50)
rooms = torch.rand(64, 9, POINTS, device=device)
classes = torch.randint(0, CLASSES, (64, POINTS), device=device)
for step in steps():
    pick = torch.randint(0, 64, (BATCH,), device=device)
    angle = torch.rand(BATCH, device=device) * 6.2832
    c, s, one, zero = angle.cos(), angle.sin(), torch.ones_like(angle), torch.zeros_like(angle)
    turn = torch.stack([c, -s, zero, s, c, zero, zero, zero, one], -1).view(-1, 3, 3)
    blocks = rooms[pick]
    blocks = torch.cat([turn @ blocks[:, :3], blocks[:, 3:]], 1)
    optimizer.zero_grad()
    with torch.autocast(device, dtype=torch.bfloat16):
        features = forward(blocks)
    loss, accuracy = criterion(features, classes[pick])
    loss.backward()
    optimizer.step()
    if step % 10 == 9:
        scheduler.step()
        print(step, round(loss.item(), 4), round(accuracy.item(), 4))
