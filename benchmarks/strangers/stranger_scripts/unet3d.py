"""nnU-Net-like segmentation of CT volumes: instance norm, deep supervision, Dice + CE, fp16 scaler."""

import torch
import torch.nn as nn
import torch.nn.functional as F
from tick import steps

torch.backends.cudnn.benchmark = True
CLASSES = 4


class Double(nn.Sequential):
    def __init__(self, i, o, stride=1):
        super().__init__(
            nn.Conv3d(i, o, 3, stride, 1),
            nn.InstanceNorm3d(o, affine=True),
            nn.LeakyReLU(0.01, inplace=True),
            nn.Conv3d(o, o, 3, 1, 1),
            nn.InstanceNorm3d(o, affine=True),
            nn.LeakyReLU(0.01, inplace=True),
        )


class UNet3d(nn.Module):
    def __init__(self, ch=(32, 64, 128, 256, 320)):
        super().__init__()
        self.down = nn.ModuleList([Double(1, ch[0])] + [Double(a, b, 2) for a, b in zip(ch, ch[1:])])
        self.up = nn.ModuleList(nn.ConvTranspose3d(b, a, 2, 2, bias=False) for a, b in zip(ch, ch[1:]))
        self.dec = nn.ModuleList(Double(2 * a, a) for a in ch[:-1])
        self.heads = nn.ModuleList(nn.Conv3d(a, CLASSES, 1) for a in ch[:3])

    def forward(self, x):
        skips = []
        for d in self.down:
            x = d(x)
            skips.append(x)
        outs = []
        for j in reversed(range(len(self.up))):
            x = self.dec[j](torch.cat((self.up[j](x), skips[j]), 1))
            if j < 3:
                outs.append(self.heads[j](x))
        return outs[::-1]


def dice_ce(logits, target):
    ce = F.cross_entropy(logits, target, weight=cw)
    p = logits.float().softmax(1)
    onehot = torch.zeros_like(p).scatter_(1, target[:, None], 1)
    axes = (0, 2, 3, 4)
    inter, denom = (p * onehot).sum(axes), p.sum(axes) + onehot.sum(axes)
    return ce + 1 - ((2 * inter + 1e-5) / (denom + 1e-5))[1:].mean()


cw = torch.tensor([0.2, 1.0, 2.0, 2.0], device="cuda")
net = UNet3d().cuda().to(memory_format=torch.channels_last_3d)
opt = torch.optim.SGD(net.parameters(), 1e-2, momentum=0.99, weight_decay=3e-5, nesterov=True)
scaler = torch.amp.GradScaler("cuda")
for i in steps(count=5):
    x = torch.randn(2, 1, 128, 128, 96, device="cuda").to(memory_format=torch.channels_last_3d)
    y = torch.randint(0, CLASSES, (2, 128, 128, 96), device="cuda")
    opt.zero_grad(set_to_none=False)
    with torch.autocast("cuda", dtype=torch.float16):
        outs = net(x)
        loss = 0
        for k, o in enumerate(outs):
            t = F.interpolate(y[:, None].float(), o.shape[2:], mode="nearest")[:, 0].long() if k else y
            loss = loss + 0.5**k * dice_ce(o, t)
    scaler.scale(loss).backward()
    scaler.unscale_(opt)
    nn.utils.clip_grad_norm_(net.parameters(), 12)
    scaler.step(opt)
    scaler.update()
