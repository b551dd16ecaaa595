import copy, math
import timm, torch, torch.nn as nn, torch.nn.functional as F
from tick import steps

CLASSES, LABELLED, MU, SIZE, THRESHOLD = 100, 64, 7, 96, 0.95


def weak(x):
    b, _, h, w = x.shape
    flip = torch.rand(b, 1, 1, 1, device=x.device) < 0.5
    x = torch.where(flip, x.flip(3), x)
    x = F.pad(x, (12, 12, 12, 12), mode="reflect")
    dy = torch.randint(0, 25, (b, 1), device=x.device) + torch.arange(h, device=x.device)
    dx = torch.randint(0, 25, (b, 1), device=x.device) + torch.arange(w, device=x.device)
    rows = torch.arange(b, device=x.device)[:, None, None]
    return x.permute(0, 2, 3, 1)[rows, dy[:, :, None], dx[:, None, :]].permute(0, 3, 1, 2)


def strong(x):
    b, _, h, w = x.shape
    r = lambda low, high: torch.empty(b, device=x.device).uniform_(low, high)
    angle, scale, shear = r(-0.5, 0.5), r(0.8, 1.2), r(-0.3, 0.3)
    theta = torch.stack(
        [
            torch.stack([scale * angle.cos(), -angle.sin() + shear, r(-0.3, 0.3)], 1),
            torch.stack([angle.sin(), scale * angle.cos(), r(-0.3, 0.3)], 1),
        ],
        1,
    )
    x = F.grid_sample(
        x, F.affine_grid(theta, x.shape, align_corners=False), padding_mode="reflection", align_corners=False
    )
    x = x * r(0.5, 1.5).view(b, 1, 1, 1)
    mean = x.mean((1, 2, 3), keepdim=True)
    x = (x - mean) * r(0.5, 1.5).view(b, 1, 1, 1) + mean
    grey = (x * x.new_tensor([0.299, 0.587, 0.114]).view(1, 3, 1, 1)).sum(1, keepdim=True)
    x = torch.lerp(grey.expand_as(x), x, r(0, 1.5).view(b, 1, 1, 1)).clamp(0, 1)
    levels = 2 ** torch.randint(4, 9, (b, 1, 1, 1), device=x.device)
    x = torch.where(torch.rand(b, 1, 1, 1, device=x.device) < 0.3, (x * levels).floor() / levels, x)
    cy, cx = torch.randint(0, h, (b, 1, 1), device=x.device), torch.randint(0, w, (b, 1, 1), device=x.device)
    ys, xs = torch.arange(h, device=x.device)[:, None], torch.arange(w, device=x.device)
    hole = ((ys - cy).abs() < h // 4) & ((xs - cx).abs() < w // 4)
    return x.masked_fill(hole[:, None], 0.5)


mean = torch.tensor([0.44, 0.44, 0.4], device="cuda").view(1, 3, 1, 1)
std = torch.tensor([0.26, 0.25, 0.27], device="cuda").view(1, 3, 1, 1)
model = timm.create_model("resnet26d", num_classes=CLASSES).cuda().to(memory_format=torch.channels_last)
ema = copy.deepcopy(model).requires_grad_(False)
net = torch.compile(model)
decay = [p for p in model.parameters() if p.ndim > 1]
rest = [p for p in model.parameters() if p.ndim <= 1]
opt = torch.optim.SGD(
    [{"params": decay, "weight_decay": 1e-3}, {"params": rest, "weight_decay": 0}], lr=0.03, momentum=0.9, nesterov=True
)
sched = torch.optim.lr_scheduler.LambdaLR(opt, lambda k: math.cos(7 * math.pi * k / (16 * 10000)))
scaler = torch.amp.GradScaler("cuda")
pool = torch.randint(0, 256, (20000, 3, SIZE, SIZE), dtype=torch.uint8, device="cuda")
labels = torch.randint(0, CLASSES, (20000,), device="cuda")
used = []
for i in steps():
    picked = torch.randint(0, 4000, (LABELLED,), device="cuda")
    x, y = pool[picked].float() / 255, labels[picked]
    u = pool[torch.randint(0, 20000, (MU * LABELLED,), device="cuda")].float() / 255
    batch = torch.cat([weak(x), weak(u), strong(weak(u))])
    batch = ((batch - mean) / std).to(memory_format=torch.channels_last)
    with torch.autocast("cuda", dtype=torch.float16):
        logits = net(batch)
    logits = logits.float()
    lx, lw, ls = logits.split([LABELLED, MU * LABELLED, MU * LABELLED])
    confidence, pseudo = lw.detach().softmax(-1).max(-1)
    mask = (confidence >= THRESHOLD).float()
    loss = F.cross_entropy(lx, y) + (F.cross_entropy(ls, pseudo, reduction="none") * mask).mean()
    opt.zero_grad(set_to_none=True)
    scaler.scale(loss).backward()
    scaler.step(opt)
    scaler.update()
    sched.step()
    with torch.no_grad():
        for a, b in zip(ema.state_dict().values(), model.state_dict().values()):
            if a.is_floating_point():
                a.mul_(0.999).add_(b, alpha=0.001)
            else:
                a.copy_(b)
    used.append(mask.mean().item())
