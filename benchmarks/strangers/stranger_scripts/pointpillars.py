import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, Dataset
from tick import steps

VOXEL = 0.16
X0, Y0, NX, NY = 0.0, -39.68, 432, 496
ANCHORS, CLASSES = 6, 3


class Lidar(Dataset):
    def __len__(self):
        return 100000

    def __getitem__(self, idx):
        n = int(torch.randint(17000, 19000, (1,)))
        r, a = 5 + 60 * torch.rand(n) ** 2, (torch.rand(n) - 0.5) * 1.5
        points = torch.stack([r * a.cos(), r * a.sin(), torch.randn(n) - 1, torch.rand(n)], 1)
        labels = torch.zeros(NY // 2 * (NX // 2) * ANCHORS, dtype=torch.long)
        pos = torch.randint(0, len(labels), (60,))
        labels[pos] = torch.randint(1, CLASSES + 1, (60,))
        return points, labels, pos, torch.randn(60, 7)


def collate(batch):
    points = torch.cat([F.pad(b[0], (1, 0), value=i) for i, b in enumerate(batch)])
    return points, *(torch.stack([b[k] for b in batch]) for k in (1, 2, 3))


class PillarVFE(nn.Module):
    def __init__(self, out=64):
        super().__init__()
        self.linear = nn.Linear(9, out, bias=False)
        self.norm = nn.BatchNorm1d(out, eps=1e-3, momentum=0.01)

    def forward(self, points, inverse, coords):
        xyz = points[:, 1:4]
        count = torch.zeros(len(coords), 1, device=xyz.device).index_add_(0, inverse, torch.ones_like(xyz[:, :1]))
        mean = torch.zeros(len(coords), 3, device=xyz.device).index_add_(0, inverse, xyz) / count
        centre = coords[inverse, 1:].flip(1) * VOXEL + VOXEL / 2 + xyz.new_tensor([X0, Y0])
        feats = torch.cat([points[:, 1:], xyz - mean[inverse], xyz[:, :2] - centre], 1)
        x = F.relu(self.norm(self.linear(feats)))
        out = torch.zeros(len(coords), x.size(1), device=x.device, dtype=x.dtype)
        return out.scatter_reduce(0, inverse[:, None].expand_as(x), x, "amax", include_self=True)


def block(i, o, n, stride):
    layers = []
    for k in range(n):
        layers += [nn.Conv2d(i if k == 0 else o, o, 3, stride if k == 0 else 1, 1, bias=False)]
        layers += [nn.BatchNorm2d(o, eps=1e-3, momentum=0.01), nn.ReLU()]
    return nn.Sequential(*layers)


def up(i, s):
    return nn.Sequential(nn.ConvTranspose2d(i, 128, s, s, bias=False), nn.BatchNorm2d(128, eps=1e-3), nn.ReLU())


class Backbone(nn.Module):
    def __init__(self):
        super().__init__()
        self.blocks = nn.ModuleList([block(64, 64, 4, 2), block(64, 128, 6, 2), block(128, 256, 6, 2)])
        self.ups = nn.ModuleList([up(64, 1), up(128, 2), up(256, 4)])
        self.cls, self.box = nn.Conv2d(384, ANCHORS * CLASSES, 1), nn.Conv2d(384, ANCHORS * 7, 1)

    def forward(self, x):
        outs = []
        for b, u in zip(self.blocks, self.ups):
            x = b(x)
            outs.append(u(x))
        x = torch.cat(outs, 1)
        cls = self.cls(x).permute(0, 2, 3, 1).reshape(x.size(0), -1, CLASSES)
        return cls, self.box(x).permute(0, 2, 3, 1).reshape(x.size(0), -1, 7)


def focal(logits, target, alpha=0.25, gamma=2.0):
    p = logits.sigmoid()
    ce = F.binary_cross_entropy_with_logits(logits, target, reduction="none")
    pt = p * target + (1 - p) * (1 - target)
    return (alpha * target + (1 - alpha) * (1 - target)) * (1 - pt) ** gamma * ce


vfe, backbone = PillarVFE().cuda(), Backbone().cuda()
params = [*vfe.parameters(), *backbone.parameters()]
vfe_c, backbone_c = torch.compile(vfe, dynamic=True), torch.compile(backbone)
opt = torch.optim.AdamW(params, lr=3e-3, weight_decay=0.01)
scaler = torch.amp.GradScaler("cuda")
loader = iter(DataLoader(Lidar(), batch_size=12, num_workers=8, collate_fn=collate, pin_memory=True))
for i in steps():
    points, labels, pos, boxes = (t.cuda(non_blocking=True) for t in next(loader))
    xy = ((points[:, 1:3] - points.new_tensor([X0, Y0])) / VOXEL).floor().long()
    keep = (xy[:, 0] >= 0) & (xy[:, 0] < NX) & (xy[:, 1] >= 0) & (xy[:, 1] < NY)
    points, xy = points[keep], xy[keep]
    key = (points[:, 0].long() * NY + xy[:, 1]) * NX + xy[:, 0]
    uniq, inverse = torch.unique(key, return_inverse=True)
    coords = torch.stack([uniq // (NX * NY), uniq // NX % NY, uniq % NX], 1)
    pillars = vfe_c(points, inverse, coords)
    canvas = torch.zeros(12, NY, NX, 64, device="cuda")
    canvas[coords[:, 0], coords[:, 1], coords[:, 2]] = pillars
    with torch.autocast("cuda", dtype=torch.float16):
        cls, box = backbone_c(canvas.permute(0, 3, 1, 2).contiguous())
    target = F.one_hot(labels, CLASSES + 1)[..., 1:].float()
    cls_loss = focal(cls.float(), target).sum() / (labels > 0).sum().clamp(min=1)
    picked = box.float().gather(1, pos[..., None].expand(-1, -1, 7))
    loss = cls_loss + 2.0 * F.smooth_l1_loss(picked, boxes, beta=1 / 9)
    opt.zero_grad()
    scaler.scale(loss).backward()
    scaler.unscale_(opt)
    torch.nn.utils.clip_grad_norm_(params, 10)
    scaler.step(opt)
    scaler.update()
