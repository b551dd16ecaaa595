import torch
import torch.nn as nn
import torch.nn.functional as F
from tick import steps

# six cameras -> frustum features -> voxels of 200 x 200 x 16 -> 3-D residual network -> 18 classes (Occ3D)
DEVICE = "cuda"
BATCH, CAMERAS, HEIGHT, WIDTH = 2, 6, 256, 704
STRIDE, CHANNELS, CLASSES = 16, 32, 18
GRID = (200, 200, 16)
LOWER, VOXEL = (-40.0, -40.0, -1.0), (0.4, 0.4, 0.4)
DEPTH = (1.0, 45.0, 0.5)


class Bottleneck(nn.Module):
    def __init__(self, cin, mid, stride):
        super().__init__()
        self.conv1, self.bn1 = nn.Conv2d(cin, mid, 1, bias=False), nn.BatchNorm2d(mid)
        self.conv2, self.bn2 = nn.Conv2d(mid, mid, 3, stride, 1, bias=False), nn.BatchNorm2d(mid)
        self.conv3, self.bn3 = nn.Conv2d(mid, mid * 4, 1, bias=False), nn.BatchNorm2d(mid * 4)
        self.relu = nn.ReLU(inplace=True)
        self.down = None
        if stride != 1 or cin != mid * 4:
            self.down = nn.Sequential(nn.Conv2d(cin, mid * 4, 1, stride, bias=False), nn.BatchNorm2d(mid * 4))

    def forward(self, x):
        y = self.relu(self.bn1(self.conv1(x)))
        y = self.relu(self.bn2(self.conv2(y)))
        y = self.bn3(self.conv3(y))
        return self.relu(y + (x if self.down is None else self.down(x)))


class ResNet50(nn.Module):
    def __init__(self):
        super().__init__()
        self.stem = nn.Sequential(
            nn.Conv2d(3, 64, 7, 2, 3, bias=False),
            nn.BatchNorm2d(64),
            nn.ReLU(inplace=True),
            nn.MaxPool2d(3, 2, 1),
        )
        self.stages = nn.ModuleList()
        c = 64
        for mid, count, stride in ((64, 3, 1), (128, 4, 2), (256, 6, 2), (512, 3, 2)):
            blocks = []
            for i in range(count):
                blocks.append(Bottleneck(c, mid, stride if i == 0 else 1))
                c = mid * 4
            self.stages.append(nn.Sequential(*blocks))

    def forward(self, x):
        x, out = self.stem(x), []
        for stage in self.stages:
            x = stage(x)
            out.append(x)
        return out[2], out[3]


class Neck(nn.Module):
    def __init__(self):
        super().__init__()
        self.lat4, self.lat5 = nn.Conv2d(1024, 256, 1), nn.Conv2d(2048, 256, 1)
        self.out = nn.Conv2d(256, 256, 3, padding=1)

    def forward(self, c4, c5):
        up = F.interpolate(self.lat5(c5), size=c4.shape[-2:], mode="nearest")
        return self.out(self.lat4(c4) + up)


class Lift(nn.Module):
    """Predicts depths, and splats outer products into voxels."""

    def __init__(self):
        super().__init__()
        self.bins = torch.arange(*DEPTH)
        self.net = nn.Conv2d(256, len(self.bins) + CHANNELS, 1)
        h, w = HEIGHT // STRIDE, WIDTH // STRIDE
        d = self.bins.view(-1, 1, 1).expand(-1, h, w)
        u = torch.linspace(0, WIDTH - 1, w).view(1, 1, w).expand_as(d)
        v = torch.linspace(0, HEIGHT - 1, h).view(1, h, 1).expand_as(d)
        self.register_buffer("frustum", torch.stack([u * d, v * d, d], -1))
        self.register_buffer("lower", torch.tensor(LOWER))
        self.register_buffer("voxel", torch.tensor(VOXEL))
        self.register_buffer("grid", torch.tensor(GRID))

    def geometry(self, rots, trans, intrins):
        combine = rots @ torch.inverse(intrins)
        points = self.frustum[None, None].unsqueeze(-1)
        points = combine[:, :, None, None, None] @ points
        return points.squeeze(-1) + trans[:, :, None, None, None]

    def forward(self, feat, rots, trans, intrins):
        bn, _, h, w = feat.shape
        b = bn // CAMERAS
        y = self.net(feat)
        depth = y[:, : len(self.bins)].float().softmax(1)
        context = y[:, len(self.bins) :].float()
        volume = depth.unsqueeze(1) * context.unsqueeze(2)
        volume = volume.view(b, CAMERAS, CHANNELS, len(self.bins), h, w).permute(0, 1, 3, 4, 5, 2)
        with torch.autocast(feat.device.type, enabled=False):
            points = self.geometry(rots, trans, intrins)
        where = ((points - self.lower) / self.voxel).long()
        kept = ((where >= 0) & (where < self.grid)).all(-1)
        batch_ix = torch.arange(b, device=feat.device).view(b, 1, 1, 1, 1).expand_as(kept)
        flat = ((batch_ix * GRID[0] + where[..., 0]) * GRID[1] + where[..., 1]) * GRID[2] + where[..., 2]
        out = torch.zeros(b * GRID[0] * GRID[1] * GRID[2], CHANNELS, device=feat.device)
        out = out.index_add(0, flat[kept], volume[kept])
        return out.view(b, *GRID, CHANNELS).permute(0, 4, 1, 2, 3), depth


class Basic3d(nn.Module):
    def __init__(self, cin, cout, stride=1):
        super().__init__()
        self.a = nn.Sequential(nn.Conv3d(cin, cout, 3, stride, 1, bias=False), nn.BatchNorm3d(cout), nn.ReLU(True))
        self.b = nn.Sequential(nn.Conv3d(cout, cout, 3, 1, 1, bias=False), nn.BatchNorm3d(cout))
        self.skip = nn.Identity()
        if stride != 1 or cin != cout:
            self.skip = nn.Sequential(nn.Conv3d(cin, cout, 3, stride, 1, bias=False), nn.BatchNorm3d(cout))

    def forward(self, x):
        return F.relu(self.b(self.a(x)) + self.skip(x), inplace=True)


class VoxelNet(nn.Module):
    def __init__(self, c=CHANNELS):
        super().__init__()
        self.one = Basic3d(c, c)
        self.two = nn.Sequential(Basic3d(c, 2 * c, 2), Basic3d(2 * c, 2 * c))
        self.three = nn.Sequential(Basic3d(2 * c, 4 * c, 2), Basic3d(4 * c, 4 * c))
        self.lateral_two, self.lateral_three = nn.Conv3d(2 * c, c, 1), nn.Conv3d(4 * c, c, 1)
        self.fuse = nn.Sequential(nn.Conv3d(3 * c, c, 1, bias=False), nn.BatchNorm3d(c), nn.ReLU(inplace=True))
        self.final = nn.Conv3d(c, c, 3, padding=1)
        self.predicter = nn.Sequential(nn.Linear(c, 2 * c), nn.Softplus(), nn.Linear(2 * c, CLASSES))

    def forward(self, x):
        a = self.one(x)
        b = self.two(a)
        c = self.three(b)
        size = a.shape[2:]
        b = F.interpolate(self.lateral_two(b), size=size, mode="trilinear", align_corners=True)
        c = F.interpolate(self.lateral_three(c), size=size, mode="trilinear", align_corners=True)
        y = F.relu(self.final(self.fuse(torch.cat([a, b, c], 1))))
        return self.predicter(y.permute(0, 2, 3, 4, 1))


class Occupancy(nn.Module):
    def __init__(self):
        super().__init__()
        self.backbone, self.neck, self.lift, self.voxels = ResNet50(), Neck(), Lift(), VoxelNet()

    def forward(self, pictures, rots, trans, intrins):
        feat = self.neck(*self.backbone(pictures.flatten(0, 1).contiguous(memory_format=torch.channels_last)))
        volume, depth = self.lift(feat, rots, trans, intrins)
        return self.voxels(volume), depth


def cameras():
    yaw = torch.arange(CAMERAS, device=DEVICE) * (2 * torch.pi / CAMERAS)
    yaw = yaw + 0.02 * torch.randn(BATCH, CAMERAS, device=DEVICE)
    zero = torch.zeros_like(yaw)
    rows = [yaw.sin(), zero, yaw.cos(), -yaw.cos(), zero, yaw.sin(), zero, zero - 1, zero]
    rots = torch.stack(rows, -1).view(BATCH, CAMERAS, 3, 3)
    trans = torch.stack([yaw.cos(), yaw.sin(), zero + 1.5], -1)
    intrins = torch.tensor([[560.0, 0, WIDTH / 2], [0, 560.0, HEIGHT / 2], [0, 0, 1]], device=DEVICE)
    return rots, trans, intrins.expand(BATCH, CAMERAS, 3, 3)


model = Occupancy().to(DEVICE)
model.backbone.to(memory_format=torch.channels_last)
model.neck.to(memory_format=torch.channels_last)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, weight_decay=1e-2)
scaler = torch.amp.GradScaler(DEVICE, init_scale=512.0)
class_weights = torch.rand(CLASSES, device=DEVICE) + 0.5
pool = torch.randn(4, BATCH, CAMERAS, 3, HEIGHT, WIDTH)
for it in steps():
    pictures = pool[it % 4].to(DEVICE)
    labels = torch.randint(CLASSES, (BATCH, *GRID), device=DEVICE)
    visible = torch.rand(BATCH, *GRID, device=DEVICE) < 0.35
    gt_depth = torch.randint(len(model.lift.bins), (BATCH * CAMERAS, HEIGHT // STRIDE, WIDTH // STRIDE), device=DEVICE)
    with torch.autocast(DEVICE, dtype=torch.float16):
        occ, depth = model(pictures, *cameras())
        loss_occ = F.cross_entropy(occ[visible].float(), labels[visible], weight=class_weights)
        loss_depth = F.nll_loss(depth.clamp(min=1e-6).log(), gt_depth)
        loss = loss_occ + 0.05 * loss_depth
    optimizer.zero_grad(set_to_none=True)
    scaler.scale(loss).backward()
    scaler.unscale_(optimizer)
    norm = torch.nn.utils.clip_grad_norm_(model.parameters(), 5.0)
    scaler.step(optimizer)
    scaler.update()
