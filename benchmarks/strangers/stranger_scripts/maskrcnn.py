import torch
import torch.nn as nn
import torch.nn.functional as F
from tick import steps

B, H, W, CLASSES, GT, PROPOSALS, ROIS, A = 2, 800, 1216, 81, 16, 2000, 256, 15


class Bottleneck(nn.Module):
    def __init__(self, i, m, stride):
        super().__init__()
        o = 4 * m
        self.c1, self.b1 = nn.Conv2d(i, m, 1, bias=False), nn.BatchNorm2d(m)
        self.c2, self.b2 = nn.Conv2d(m, m, 3, stride, 1, bias=False), nn.BatchNorm2d(m)
        self.c3, self.b3 = nn.Conv2d(m, o, 1, bias=False), nn.BatchNorm2d(o)
        self.down = nn.Identity()
        if i != o:
            self.down = nn.Sequential(nn.Conv2d(i, o, 1, stride, bias=False), nn.BatchNorm2d(o))

    def forward(self, x):
        y = F.relu(self.b2(self.c2(F.relu(self.b1(self.c1(x))))))
        return F.relu(self.b3(self.c3(y)) + self.down(x))


def stage(i, m, n, stride):
    return nn.Sequential(*[Bottleneck(i if k == 0 else 4 * m, m, stride if k == 0 else 1) for k in range(n)])


def iou(a, b):
    lt = torch.max(a[..., :, None, :2], b[..., None, :, :2])
    rb = torch.min(a[..., :, None, 2:], b[..., None, :, 2:])
    inter = (rb - lt).clamp(min=0).prod(-1)
    area_a, area_b = ((t[..., 2:] - t[..., :2]).prod(-1) for t in (a, b))
    return inter / (area_a[..., :, None] + area_b[..., None, :] - inter + 1e-6)


def decode(anchor, delta):
    wh = anchor[..., 2:] - anchor[..., :2]
    centre = anchor[..., :2] + wh / 2 + delta[..., :2] * wh
    wh = wh * delta[..., 2:].clamp(max=4.0).exp()
    return torch.cat([centre - wh / 2, centre + wh / 2], -1).clamp(min=0).minimum(limit)


def roi_align(feat, rois, size=14):
    t = (torch.arange(size, device=rois.device) + 0.5) / size
    x1, y1, x2, y2 = rois.unsqueeze(-1).unbind(2)
    xs, ys = (x1 + (x2 - x1) * t) / W * 2 - 1, (y1 + (y2 - y1) * t) / H * 2 - 1
    grid = torch.stack(torch.broadcast_tensors(xs[:, :, None, :], ys[:, :, :, None]), -1)
    out = F.grid_sample(feat, grid.flatten(1, 2), align_corners=False)
    return out.unflatten(2, (ROIS, size)).transpose(1, 2).flatten(0, 1)


stem = nn.Sequential(nn.Conv2d(3, 64, 7, 2, 3, bias=False), nn.BatchNorm2d(64), nn.ReLU(), nn.MaxPool2d(3, 2, 1))
backbone = nn.Sequential(stem, stage(64, 64, 3, 1), stage(256, 128, 3, 2), stage(512, 256, 4, 2)).cuda()
res5 = stage(1024, 512, 3, 2).cuda()
rpn = nn.Sequential(nn.Conv2d(1024, 1024, 3, padding=1), nn.ReLU(), nn.Conv2d(1024, A * 5, 1)).cuda()
predictor = nn.Linear(2048, CLASSES * 5).cuda()
mask_head = nn.Sequential(nn.ConvTranspose2d(2048, 256, 2, 2), nn.ReLU(), nn.Conv2d(256, CLASSES, 1)).cuda()
for m in [*backbone.modules(), *res5.modules()]:
    if isinstance(m, nn.BatchNorm2d):
        m.eval().requires_grad_(False)
for p in stem.parameters():
    p.requires_grad = False
params = [p for m in (backbone, res5, rpn, predictor, mask_head) for p in m.parameters() if p.requires_grad]
opt = torch.optim.SGD(params, lr=0.005, momentum=0.9, weight_decay=1e-4)
extract = torch.compile(backbone)
limit = torch.tensor([W, H, W, H], device="cuda")
y, x = torch.meshgrid(torch.arange(H // 16) + 0.5, torch.arange(W // 16) + 0.5, indexing="ij")
centres = torch.stack([x, y], -1).view(-1, 1, 2) * 16
sides = torch.tensor([[s * r**-0.5, s * r**0.5] for s in (32, 64, 128, 256, 512) for r in (0.5, 1.0, 2.0)])
anchors = torch.cat([centres - sides / 2, centres + sides / 2], -1).view(-1, 4).cuda()
n = torch.arange(B, device="cuda")[:, None]
for i in steps():
    images = torch.rand(B, 3, H, W, device="cuda")
    corner = torch.rand(B, GT, 2, device="cuda") * limit[:2] * 0.6
    gt_boxes = torch.cat([corner, corner + 32 + 250 * torch.rand(B, GT, 2, device="cuda")], -1)
    gt_labels = torch.randint(1, CLASSES, (B, GT), device="cuda")
    gt_masks = (torch.rand(B, GT, 14, 14, device="cuda") > 0.5).float()
    feat = extract(images)
    out = rpn(feat).permute(0, 2, 3, 1).reshape(B, -1, 5)
    score, delta = out[..., 0], out[..., 1:]
    overlap, match = iou(anchors.expand(B, -1, -1), gt_boxes).max(-1)
    pos = overlap.topk(128, 1)[1]
    picked = torch.cat([pos, torch.randint(0, len(anchors), (B, 128), device="cuda")], 1)
    rpn_cls = F.binary_cross_entropy_with_logits(score.gather(1, picked), (overlap.gather(1, picked) > 0.5).float())
    rpn_box = F.smooth_l1_loss(decode(anchors[pos], delta[n, pos]), gt_boxes[n, match[n, pos]]) / W
    with torch.no_grad():
        s, top = score.topk(PROPOSALS, 1)
        rois = decode(anchors[top], delta[n, top])
        m = iou(rois, rois).triu(1)
        decay = ((1 - m) / (1 - m.max(1)[0][:, :, None] + 1e-6)).min(1)[0]
        keep = (s.sigmoid() * decay).topk(ROIS - GT, 1)[1]
        rois = torch.cat([gt_boxes, rois[n, keep]], 1)
        overlap, match = iou(rois, gt_boxes).max(-1)
        labels = torch.where(overlap > 0.5, gt_labels.gather(1, match), 0).flatten()
    feats = res5(roi_align(feat, rois))
    pred = predictor(feats.mean((2, 3))).view(-1, CLASSES, 5)
    fg = torch.nonzero(labels > 0).squeeze(1)
    b, g = fg // ROIS, match.flatten()[fg]
    cls = F.cross_entropy(pred[..., 0], labels)
    box = F.smooth_l1_loss(decode(rois.flatten(0, 1)[fg], pred[fg, labels[fg], 1:]), gt_boxes[b, g]) / W
    logits = mask_head(feats[fg])[torch.arange(len(fg)), labels[fg]]
    mask = F.binary_cross_entropy_with_logits(logits, gt_masks[b, g])
    losses = {"rpn_cls": rpn_cls, "rpn_box": rpn_box, "cls": cls, "box": box, "mask": mask}
    opt.zero_grad()
    sum(losses.values()).backward()
    torch.nn.utils.clip_grad_norm_(params, 10.0)
    opt.step()
    log = {k: v.item() for k, v in losses.items()}
