import torch, torch.nn as nn, torch.nn.functional as F
from tick import steps


def cbr(i, o, k=3, d=1, s=1):
    return nn.Sequential(nn.Conv2d(i, o, k, s, d * (k // 2), d, bias=False), nn.BatchNorm2d(o), nn.ReLU(inplace=True))


class Net(nn.Module):
    def __init__(s):
        super().__init__()
        s.low = nn.Sequential(cbr(3, 64, s=2), cbr(64, 128, s=2), cbr(128, 128))
        s.high = nn.Sequential(cbr(128, 256, s=2), cbr(256, 256), cbr(256, 512, d=2), cbr(512, 512, d=2))
        s.aspp = nn.ModuleList([cbr(512, 256, 1), cbr(512, 256, d=6), cbr(512, 256, d=12), cbr(512, 256, d=18)])
        s.pool = nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Conv2d(512, 256, 1), nn.ReLU())
        s.mix, s.red, s.cls = (
            cbr(1280, 256, 1),
            cbr(128, 48, 1),
            nn.Sequential(cbr(304, 256), nn.Dropout(0.1), nn.Conv2d(256, 21, 1)),
        )

    def forward(s, x):
        l = s.low(x)
        h = s.high(l)
        p = s.pool(h).expand(-1, -1, *h.shape[2:])
        h = s.mix(torch.cat([a(h) for a in s.aspp] + [p], 1))
        h = F.interpolate(h, size=l.shape[2:], mode="bilinear", align_corners=False)
        return F.interpolate(s.cls(torch.cat([h, s.red(l)], 1)), size=x.shape[2:], mode="bilinear", align_corners=False)


net = Net().cuda().to(memory_format=torch.channels_last)
run = torch.compile(net, mode="reduce-overhead")
opt = torch.optim.SGD(net.parameters(), 0.01, 0.9, weight_decay=5e-4)
for i in steps():
    x = torch.randn(16, 3, 256, 256, device="cuda").to(memory_format=torch.channels_last)
    y = torch.randint(0, 22, (16, 256, 256), device="cuda")
    y[y == 21] = 255
    with torch.autocast("cuda", torch.bfloat16):
        loss = F.cross_entropy(run(x), y, ignore_index=255)
    opt.zero_grad()
    loss.backward()
    opt.step()
