import torch, torch.nn as nn, torch.nn.functional as F
from tick import steps


class SE(nn.Module):
    def __init__(s, c):
        super().__init__()
        s.f = nn.Sequential(
            nn.AdaptiveAvgPool2d(1), nn.Conv2d(c, c // 16, 1), nn.ReLU(True), nn.Conv2d(c // 16, c, 1), nn.Sigmoid()
        )

    def forward(s, x):
        return x * s.f(x)


class Bottleneck(nn.Module):
    def __init__(s, i, m, stride):
        super().__init__()
        o = m * 4
        s.body = nn.Sequential(
            nn.Conv2d(i, m, 1, bias=False),
            nn.BatchNorm2d(m),
            nn.ReLU(True),
            nn.Conv2d(m, m, 3, stride, 1, bias=False),
            nn.BatchNorm2d(m),
            nn.ReLU(True),
            nn.Conv2d(m, o, 1, bias=False),
            nn.BatchNorm2d(o),
            SE(o),
        )
        s.short = (
            nn.Identity()
            if i == o and stride == 1
            else nn.Sequential(
                nn.AvgPool2d(stride) if stride > 1 else nn.Identity(), nn.Conv2d(i, o, 1, bias=False), nn.BatchNorm2d(o)
            )
        )

    def forward(s, x):
        return F.relu(s.body(x) + s.short(x))


def resnet(n=1000):
    layers = [nn.Conv2d(3, 64, 7, 2, 3, bias=False), nn.BatchNorm2d(64), nn.ReLU(True), nn.MaxPool2d(3, 2, 1)]
    i = 64
    for m, d, st in ((64, 2, 1), (128, 3, 2), (256, 4, 2), (512, 2, 2)):
        for k in range(d):
            layers.append(Bottleneck(i, m, st if k == 0 else 1))
            i = m * 4
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Dropout(0.2), nn.Linear(i, n))


model = resnet().cuda().to(memory_format=torch.channels_last)
ema = [p.detach().clone() for p in model.parameters()]
net = torch.compile(model)
opt = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9, nesterov=True, weight_decay=5e-5)
scaler = torch.amp.GradScaler("cuda")
crit = nn.CrossEntropyLoss(label_smoothing=0.1)
pool = torch.randint(0, 255, (256, 3, 256, 256), dtype=torch.uint8).cuda()
mean = torch.tensor([123.7, 116.3, 103.5], device="cuda").view(1, 3, 1, 1)
for i in steps():
    y = torch.randint(0, 1000, (128,), device="cuda")
    x = pool[torch.randint(0, 256, (128,), device="cuda")].float()
    dy, dx = torch.randint(0, 32, (2,)).tolist()
    x = x[:, :, dy : dy + 224, dx : dx + 224]
    if torch.rand(()) < 0.5:
        x = x.flip(3)
    x = ((x - mean) / 58.0).contiguous(memory_format=torch.channels_last)
    with torch.autocast("cuda", dtype=torch.float16):
        loss = crit(net(x), y)
    opt.zero_grad(set_to_none=True)
    scaler.scale(loss).backward()
    scaler.step(opt)
    scaler.update()
    with torch.no_grad():
        torch._foreach_mul_(ema, 0.9999)
        torch._foreach_add_(ema, list(model.parameters()), alpha=1e-4)
