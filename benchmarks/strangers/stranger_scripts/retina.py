"""RetinaNet from scratch: workers, a prefetcher on a stream of its own, focal loss as an autograd Function, fp16 scaler, eager."""

import math, sys
import numpy as np
import torch, torch.nn as nn, torch.nn.functional as F
from torch.amp import custom_bwd, custom_fwd
from torch.utils.data import DataLoader, Dataset
from tick import steps

B, SIZE, CLASSES, BOXES, ANCHORS = 16, 512, 80, 20, 9
torch.backends.cudnn.benchmark = True


class Coco(Dataset):
    def __len__(self):
        return 100_000

    def __getitem__(self, i):
        rng = np.random.default_rng(i)
        corner = rng.random((BOXES, 2), dtype=np.float32) * 300
        boxes = np.concatenate([corner, corner + 30 + 150 * rng.random((BOXES, 2), dtype=np.float32)], 1)
        picture = np.full((3, SIZE, SIZE), i % 256, dtype=np.uint8)
        return torch.from_numpy(picture), torch.from_numpy(boxes), torch.from_numpy(rng.integers(0, CLASSES, BOXES))


class Prefetcher:
    def __init__(self, loader):
        self.loader, self.stream = loader, torch.cuda.Stream()
        self.mean = torch.tensor([123.7, 116.3, 103.5], device="cuda").view(1, 3, 1, 1)
        self.std = torch.tensor([58.4, 57.1, 57.4], device="cuda").view(1, 3, 1, 1)
        self.batches = iter(loader)
        self.preload()

    def preload(self):
        try:
            batch = next(self.batches)
        except StopIteration:
            self.batches = iter(self.loader)
            batch = next(self.batches)
        with torch.cuda.stream(self.stream):
            x, *rest = (z.cuda(non_blocking=True) for z in batch)
            x = x.float().sub_(self.mean).div_(self.std).to(memory_format=torch.channels_last)
            self.batch = [x, *rest]

    def __next__(self):
        torch.cuda.current_stream().wait_stream(self.stream)
        batch = self.batch
        for z in batch:
            z.record_stream(torch.cuda.current_stream())
        self.preload()
        return batch


class Focal(torch.autograd.Function):
    @staticmethod
    @custom_fwd(device_type="cuda", cast_inputs=torch.float32)
    def forward(ctx, x, y, weight):
        p = x.sigmoid()
        pt = torch.where(y, p, 1 - p)
        at = torch.where(y, 0.25, 0.75) * weight
        ctx.save_for_backward(p, pt, at, y)
        return (at * (1 - pt).square() * -pt.clamp_min(1e-8).log()).sum()

    @staticmethod
    @custom_bwd(device_type="cuda")
    def backward(ctx, grad):
        p, pt, at, y = ctx.saved_tensors
        slope = at * (1 - pt).square() * (2 * pt * pt.clamp_min(1e-8).log() + pt - 1)
        return grad * torch.where(y, slope, -slope), None, None


class Bottleneck(nn.Module):
    def __init__(s, i, c, stride):
        super().__init__()
        s.f = nn.Sequential(
            nn.Conv2d(i, c, 1, bias=False),
            nn.BatchNorm2d(c),
            nn.ReLU(True),
            nn.Conv2d(c, c, 3, stride, 1, bias=False),
            nn.BatchNorm2d(c),
            nn.ReLU(True),
            nn.Conv2d(c, 4 * c, 1, bias=False),
            nn.BatchNorm2d(4 * c),
        )
        s.skip = nn.Identity()
        if stride != 1 or i != 4 * c:
            s.skip = nn.Sequential(nn.Conv2d(i, 4 * c, 1, stride, bias=False), nn.BatchNorm2d(4 * c))

    def forward(s, x):
        return F.relu(s.f(x) + s.skip(x), inplace=True)


class Head(nn.Sequential):
    def __init__(s, out, bias=0.0):
        layers = []
        for _ in range(4):
            layers += [nn.Conv2d(256, 256, 3, padding=1), nn.ReLU(True)]
        super().__init__(*layers, nn.Conv2d(256, ANCHORS * out, 3, padding=1))
        s.out = out
        nn.init.constant_(s[-1].bias, bias)

    def forward(s, x):
        return super().forward(x).permute(0, 2, 3, 1).reshape(x.size(0), -1, s.out)


class Retina(nn.Module):
    def __init__(s):
        super().__init__()
        s.stem = nn.Sequential(
            nn.Conv2d(3, 64, 7, 2, 3, bias=False), nn.BatchNorm2d(64), nn.ReLU(True), nn.MaxPool2d(3, 2, 1)
        )
        s.stages, i = nn.ModuleList(), 64
        for c, n in ((64, 3), (128, 4), (256, 6), (512, 3)):
            blocks = [Bottleneck(i if j == 0 else 4 * c, c, 2 if j == 0 and c > 64 else 1) for j in range(n)]
            s.stages.append(nn.Sequential(*blocks))
            i = 4 * c
        s.inner = nn.ModuleList(nn.Conv2d(c, 256, 1) for c in (512, 1024, 2048))
        s.outer = nn.ModuleList(nn.Conv2d(256, 256, 3, padding=1) for _ in range(3))
        s.p6, s.p7 = nn.Conv2d(2048, 256, 3, 2, 1), nn.Conv2d(256, 256, 3, 2, 1)
        s.classes, s.boxes = Head(CLASSES, -math.log(99)), Head(4)

    def forward(s, x):
        x, levels = s.stem(x), []
        for stage in s.stages:
            x = stage(x)
            levels.append(x)
        c3, c4, c5 = (f(z) for f, z in zip(s.inner, levels[1:]))
        c4 = c4 + F.interpolate(c5, scale_factor=2)
        c3 = c3 + F.interpolate(c4, scale_factor=2)
        p6 = s.p6(levels[3])
        pyramid = [f(z) for f, z in zip(s.outer, (c3, c4, c5))] + [p6, s.p7(F.relu(p6))]
        return torch.cat([s.classes(p) for p in pyramid], 1), torch.cat([s.boxes(p) for p in pyramid], 1)


def anchors():
    out = []
    for stride in (8, 16, 32, 64, 128):
        n = math.ceil(SIZE / stride)
        size = 4 * stride * 2 ** (torch.arange(3) / 3)
        ratio = torch.tensor([0.5, 1.0, 2.0]).sqrt()
        w, h = (size[:, None] / ratio).flatten(), (size[:, None] * ratio).flatten()
        at = (torch.arange(n) + 0.5) * stride
        y, x = (z.reshape(-1, 1) for z in torch.meshgrid(at, at, indexing="ij"))
        out.append(torch.stack([x - w / 2, y - h / 2, x + w / 2, y + h / 2], -1).flatten(0, 1))
    return torch.cat(out).cuda()


def overlap(a, b):
    """(A, 4) anchors and (B, N, 4) boxes: (B, A, N)."""
    corner = torch.max(a[None, :, None, :2], b[:, None, :, :2])
    inter = (torch.min(a[None, :, None, 2:], b[:, None, :, 2:]) - corner).clamp(min=0).prod(-1)
    area = lambda z: (z[..., 2:] - z[..., :2]).prod(-1)
    return inter / (area(a)[None, :, None] + area(b)[:, None] - inter)


model = Retina().cuda().to(memory_format=torch.channels_last)
opt = torch.optim.SGD(model.parameters(), 0.01, 0.9, weight_decay=1e-4)
scaler = torch.amp.GradScaler("cuda", init_scale=1024)
default = anchors()
wh, middle = default[:, 2:] - default[:, :2], (default[:, 2:] + default[:, :2]) / 2
feed = Prefetcher(DataLoader(Coco(), B, num_workers=4, pin_memory=True, persistent_workers=True, drop_last=True))
lost = 0.0
for i in steps(count=4):
    x, boxes, kinds = next(feed)
    with torch.no_grad():
        best, which = overlap(default, boxes).max(-1)
        positive, ignored = best >= 0.5, (best >= 0.4) & (best < 0.5)
        mine = boxes.gather(1, which[..., None].expand(-1, -1, 4))
        target = F.one_hot(kinds.gather(1, which), CLASSES).bool() & positive[..., None]
        shift = ((mine[..., :2] + mine[..., 2:]) / 2 - middle) / wh
        goal = torch.cat([shift, ((mine[..., 2:] - mine[..., :2]) / wh).log()], -1)
        many = positive.sum().clamp(min=1)
    with torch.autocast("cuda", torch.float16):
        scores, deltas = model(x)
        focal = Focal.apply(scores, target, (~ignored)[..., None].float()) / many
    close = F.smooth_l1_loss(deltas.float(), goal, beta=0.11, reduction="none").sum(-1)
    loss = focal + (close * positive).sum() / many
    opt.zero_grad(set_to_none=True)
    scaler.scale(loss).backward()
    scaler.unscale_(opt)
    torch.nn.utils.clip_grad_norm_(model.parameters(), 10.0)
    scaler.step(opt)
    scaler.update()
    if i % 20 == 0:
        lost = loss.item()
        print(f"step {i} loss {lost:.3f} scale {scaler.get_scale():.0f}", file=sys.stderr)
        if not math.isfinite(lost):
            scaler.update(512.0)
