import copy, math
import torch, torch.nn as nn, torch.nn.functional as F
from torch.utils.data import DataLoader, Dataset
from tick import steps

NC, IMG, BATCH = 80, 640, 32


class Pictures(Dataset):
    cache = torch.randint(0, 256, (48, 3, IMG, IMG), dtype=torch.uint8)

    def __len__(s):
        return BATCH * 120

    def __getitem__(s, i):
        n = int(torch.randint(3, 20, ()))
        boxes = torch.zeros(20, 5)
        boxes[:n] = torch.cat(
            [torch.randint(0, NC, (n, 1)).float(), 0.2 + 0.6 * torch.rand(n, 2), 0.05 + 0.3 * torch.rand(n, 2)], 1
        )
        return s.cache[i % 48], boxes


class Conv(nn.Module):
    def __init__(s, i, o, k=1, st=1):
        super().__init__()
        s.conv, s.bn, s.act = (
            nn.Conv2d(i, o, k, st, k // 2, bias=False),
            nn.BatchNorm2d(o, eps=1e-3, momentum=0.03),
            nn.SiLU(inplace=True),
        )

    def forward(s, x):
        return s.act(s.bn(s.conv(x)))


class C2f(nn.Module):
    def __init__(s, i, o, n, short=True):
        super().__init__()
        s.short, s.cv1, s.cv2 = short, Conv(i, o), Conv((2 + n) * o // 2, o)
        s.m = nn.ModuleList(nn.Sequential(Conv(o // 2, o // 2, 3), Conv(o // 2, o // 2, 3)) for _ in range(n))

    def forward(s, x):
        y = list(s.cv1(x).chunk(2, 1))
        for m in s.m:
            y.append(y[-1] + m(y[-1]) if s.short else m(y[-1]))
        return s.cv2(torch.cat(y, 1))


class Yolo(nn.Module):
    def __init__(s, w=(32, 64, 128, 256, 512)):
        super().__init__()
        stage = lambda i, n: nn.Sequential(Conv(w[i - 1], w[i], 3, 2), C2f(w[i], w[i], n))
        s.p3, s.p4, s.p5 = nn.Sequential(Conv(3, w[0], 3, 2), stage(1, 1), stage(2, 2)), stage(3, 2), stage(4, 1)
        s.spp1, s.spp2, s.pool = Conv(w[4], w[4] // 2), Conv(w[4] * 2, w[4]), nn.MaxPool2d(5, 1, 2)
        s.up4, s.up3 = C2f(w[4] + w[3], w[3], 1, False), C2f(w[3] + w[2], w[2], 1, False)
        s.d3, s.d4 = Conv(w[2], w[2], 3, 2), Conv(w[3], w[3], 3, 2)
        s.o4, s.o5 = C2f(w[2] + w[3], w[3], 1, False), C2f(w[3] + w[4], w[4], 1, False)
        head = lambda c, o: nn.Sequential(Conv(c, 128, 3), Conv(128, 128, 3), nn.Conv2d(128, o, 1))
        s.box, s.cls = nn.ModuleList(head(c, 4) for c in w[2:]), nn.ModuleList(head(c, NC) for c in w[2:])

    def forward(s, x):
        p3 = s.p3(x)
        p4 = s.p4(p3)
        y = [s.spp1(s.p5(p4))]
        y.extend(s.pool(y[-1]) for _ in range(3))
        p5 = s.spp2(torch.cat(y, 1))
        u4 = s.up4(torch.cat([F.interpolate(p5, scale_factor=2.0), p4], 1))
        n3 = s.up3(torch.cat([F.interpolate(u4, scale_factor=2.0), p3], 1))
        n4 = s.o4(torch.cat([s.d3(n3), u4], 1))
        n5 = s.o5(torch.cat([s.d4(n4), p5], 1))
        return [torch.cat([b(f), c(f)], 1) for b, c, f in zip(s.box, s.cls, (n3, n4, n5))]


def ciou(a, b, eps=1e-7):
    w1, h1, w2, h2 = *(a[..., 2:] - a[..., :2]).unbind(-1), *(b[..., 2:] - b[..., :2]).unbind(-1)
    inter = (torch.minimum(a[..., 2:], b[..., 2:]) - torch.maximum(a[..., :2], b[..., :2])).clamp(0).prod(-1)
    iou = inter / (w1 * h1 + w2 * h2 - inter + eps)
    c = (torch.maximum(a[..., 2:], b[..., 2:]) - torch.minimum(a[..., :2], b[..., :2])).pow(2).sum(-1) + eps
    rho = (a[..., :2] + a[..., 2:] - b[..., :2] - b[..., 2:]).pow(2).sum(-1) / 4
    v = 4 / math.pi**2 * (torch.atan(w2 / (h2 + eps)) - torch.atan(w1 / (h1 + eps))).pow(2)
    return iou - rho / c - (v / (v - iou + 1 + eps)).detach() * v


@torch.no_grad()
def assign(scores, boxes, anchors, labels, gt, k=10):
    inside = torch.cat([anchors - gt[:, :, None, :2], gt[:, :, None, 2:] - anchors], -1).amin(-1) > 0
    iou = ciou(gt[:, :, None], boxes[:, None]).clamp(0) * inside
    metric = scores.transpose(1, 2).gather(1, labels[..., None].expand(-1, -1, scores.shape[1])).sqrt() * iou.pow(6)
    top = torch.zeros_like(metric).scatter_(-1, metric.topk(k, -1).indices, 1.0) * inside
    if (top.sum(1) > 1).any():
        best = F.one_hot(iou.argmax(1), gt.shape[1]).transpose(1, 2).to(top.dtype)
        top = torch.where((top.sum(1) > 1)[:, None], best, top)
    which, metric = top.argmax(1), metric * top
    norm = (metric * (iou * top).amax(-1, True) / (metric.amax(-1, True) + 1e-9)).amax(1)
    target = F.one_hot(labels.gather(1, which), NC) * norm[..., None]
    return target, gt.gather(1, which[..., None].expand(-1, -1, 4)), top.sum(1) > 0


def criterion(outs, t):
    dist, cls = torch.cat([o.flatten(2) for o in outs], 2).transpose(1, 2).float().split((4, NC), 2)
    grids = [
        torch.meshgrid(
            torch.arange(o.shape[2], device="cuda") + 0.5, torch.arange(o.shape[3], device="cuda") + 0.5, indexing="ij"
        )
        for o in outs
    ]
    pts = torch.cat([torch.stack([x, y], -1).view(-1, 2) * st for (y, x), st in zip(grids, (8, 16, 32))])
    scale = torch.cat([torch.full((o[0, 0].numel(), 1), st, device="cuda") for o, st in zip(outs, (8, 16, 32))])
    lt, rb = (F.softplus(dist) * scale).chunk(2, -1)
    boxes = torch.cat([pts - lt, pts + rb], -1)
    xy, wh = t[..., 1:3] * IMG, t[..., 3:] * IMG
    target, tbox, fg = assign(
        cls.detach().sigmoid(), boxes.detach(), pts, t[..., 0].long(), torch.cat([xy - wh / 2, xy + wh / 2], -1)
    )
    total = max(target.sum().item(), 1)
    lbox = ((1 - ciou(boxes[fg], tbox[fg])) * target.sum(-1)[fg]).sum() / total
    lcls = F.binary_cross_entropy_with_logits(cls, target, reduction="none").sum() / total
    return (7.5 * lbox + 0.5 * lcls) * len(t)


model = Yolo().cuda()
ema = copy.deepcopy(model).eval().requires_grad_(False)
opt = torch.optim.SGD([p for p in model.parameters() if p.ndim <= 1], lr=0.01, momentum=0.937, nesterov=True)
opt.add_param_group({"params": [p for p in model.parameters() if p.ndim > 1], "weight_decay": 5e-4})
scaler = torch.amp.GradScaler("cuda")
loader = iter(DataLoader(Pictures(), BATCH, shuffle=True, num_workers=6, pin_memory=True))
for i in steps():
    imgs, targets = next(loader)
    with torch.autocast("cuda", dtype=torch.float16):
        loss = criterion(model(imgs.cuda(non_blocking=True).float() / 255), targets.cuda(non_blocking=True))
    scaler.scale(loss).backward()
    scaler.unscale_(opt)
    nn.utils.clip_grad_norm_(model.parameters(), 10.0)
    scaler.step(opt)
    scaler.update()
    opt.zero_grad()
    d = 0.9999 * (1 - math.exp(-(i + 1) / 2000))
    msd = model.state_dict()
    for k, v in ema.state_dict().items():
        if v.dtype.is_floating_point:
            v.mul_(d).add_(msd[k].detach(), alpha=1 - d)
