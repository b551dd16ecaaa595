import torch
import torch.nn as nn
import torch.nn.functional as F
from tick import steps

FEATURES, CLASSES, B, SIZE = (32, 64, 128, 256, 512, 512), 4, 12, 512


class Conv(nn.Module):
    def __init__(self, i, o, stride=1):
        super().__init__()
        self.conv = nn.Conv2d(i, o, 3, stride, 1)
        self.norm = nn.InstanceNorm2d(o, affine=True)
        self.act = nn.LeakyReLU(0.01, inplace=True)

    def forward(self, x):
        return self.act(self.norm(self.conv(x)))


class PlainConvUNet(nn.Module):
    def __init__(self):
        super().__init__()
        f = FEATURES
        self.stages = nn.ModuleList(
            nn.Sequential(Conv(1 if i == 0 else f[i - 1], c, 1 if i == 0 else 2), Conv(c, c)) for i, c in enumerate(f)
        )
        self.ups, self.decs, self.heads = nn.ModuleList(), nn.ModuleList(), nn.ModuleList()
        for i in range(len(f) - 2, -1, -1):
            self.ups.append(nn.ConvTranspose2d(f[i + 1], f[i], 2, 2))
            self.decs.append(nn.Sequential(Conv(2 * f[i], f[i]), Conv(f[i], f[i])))
            self.heads.append(nn.Conv2d(f[i], CLASSES, 1))

    def forward(self, x):
        skips = []
        for stage in self.stages:
            x = stage(x)
            skips.append(x)
        outs = []
        for n, (up, dec, head) in enumerate(zip(self.ups, self.decs, self.heads)):
            x = dec(torch.cat([up(x), skips[-2 - n]], 1))
            outs.append(head(x))
        return outs[::-1]


class SoftDice(nn.Module):
    def forward(self, logits, target):
        p = torch.softmax(logits, 1)[:, 1:]
        with torch.no_grad():
            onehot = torch.zeros(logits.shape, device=logits.device, dtype=torch.bool)
            onehot = onehot.scatter_(1, target.long(), 1)[:, 1:]
            total = onehot.sum((0, 2, 3))
        inter = (p * onehot).sum((0, 2, 3))
        return -((2 * inter + 1e-5) / torch.clip(p.sum((0, 2, 3)) + total + 1e-5, 1e-8)).mean()


dice = SoftDice()
weights = [1 / 2**i for i in range(len(FEATURES) - 1)]
weights[-1] = 0.0
weights = [w / sum(weights) for w in weights]


def criterion(outs, targets):
    loss = 0.0
    for w, o, y in zip(weights, outs, targets):
        if w > 0:
            loss = loss + w * (dice(o, y) + F.cross_entropy(o, y[:, 0].long()))
    return loss


network = torch.compile(PlainConvUNet().cuda())
optimizer = torch.optim.SGD(network.parameters(), 1e-2, momentum=0.99, nesterov=True, weight_decay=3e-5)
scheduler = torch.optim.lr_scheduler.PolynomialLR(optimizer, 1000, 0.9)
scaler = torch.amp.GradScaler("cuda")
history = []
cases = [
    (torch.randn(B, 1, SIZE, SIZE).pin_memory(), torch.randint(0, CLASSES, (B, 1, SIZE, SIZE)).short().pin_memory())
    for _ in range(4)
]
for i in steps(count=6):
    data, seg = (t.cuda(non_blocking=True) for t in cases[i % 4])
    targets = [seg[:, :, :: 2**k, :: 2**k] for k in range(len(weights))]
    optimizer.zero_grad(set_to_none=True)
    with torch.autocast("cuda"):
        output = network(data)
        loss = criterion(output, targets)
    scaler.scale(loss).backward()
    scaler.unscale_(optimizer)
    torch.nn.utils.clip_grad_norm_(network.parameters(), 12)
    scaler.step(optimizer)
    scaler.update()
    history.append(loss.detach().cpu().numpy())
    if i % 20 == 19:
        scheduler.step()
