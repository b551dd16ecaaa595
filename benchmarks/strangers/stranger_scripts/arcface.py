import math
import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, TensorDataset
from tick import steps

torch.backends.cudnn.benchmark = True
NUM_CLASSES, BATCH = 80000, 128


class IBasicBlock(nn.Module):
    def __init__(self, inplanes, planes, stride):
        super().__init__()
        self.bn1 = nn.BatchNorm2d(inplanes, eps=1e-5)
        self.conv1 = nn.Conv2d(inplanes, planes, 3, 1, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(planes, eps=1e-5)
        self.prelu = nn.PReLU(planes)
        self.conv2 = nn.Conv2d(planes, planes, 3, stride, 1, bias=False)
        self.bn3 = nn.BatchNorm2d(planes, eps=1e-5)
        self.downsample = None
        if stride != 1 or inplanes != planes:
            conv = nn.Conv2d(inplanes, planes, 1, stride, bias=False)
            self.downsample = nn.Sequential(conv, nn.BatchNorm2d(planes, eps=1e-5))

    def forward(self, x):
        identity = x if self.downsample is None else self.downsample(x)
        out = self.prelu(self.bn2(self.conv1(self.bn1(x))))
        return self.bn3(self.conv2(out)) + identity


class IResNet(nn.Module):
    def __init__(self, layers=(3, 4, 14, 3), num_features=512):
        super().__init__()
        self.conv1 = nn.Conv2d(3, 64, 3, 1, 1, bias=False)
        self.bn1, self.prelu = nn.BatchNorm2d(64, eps=1e-5), nn.PReLU(64)
        blocks, inplanes = [], 64
        for planes, n in zip((64, 128, 256, 512), layers):
            for j in range(n):
                blocks.append(IBasicBlock(inplanes, planes, 2 if j == 0 else 1))
                inplanes = planes
        self.layers = nn.Sequential(*blocks)
        self.bn2, self.dropout = nn.BatchNorm2d(512, eps=1e-5), nn.Dropout(0.4)
        self.fc = nn.Linear(512 * 7 * 7, num_features)
        self.features = nn.BatchNorm1d(num_features, eps=1e-5)

    def forward(self, x):
        with torch.autocast("cuda", dtype=torch.float16):
            x = self.layers(self.prelu(self.bn1(self.conv1(x))))
            x = self.dropout(self.bn2(x).flatten(1))
        return self.features(self.fc(x.float()))


class ArcFace(nn.Module):
    def __init__(self, s=64.0, m=0.5):
        super().__init__()
        self.s, self.cos_m, self.sin_m = s, math.cos(m), math.sin(m)
        self.theta, self.sinmm = math.cos(math.pi - m), math.sin(math.pi - m) * m
        self.weight = nn.Parameter(torch.randn(NUM_CLASSES, 512) * 0.01)

    def forward(self, embeddings, labels):
        logits = F.linear(F.normalize(embeddings), F.normalize(self.weight)).clamp(-1, 1)
        target = logits.gather(1, labels[:, None])
        sin = (1.0 - target.pow(2)).clamp(min=0).sqrt()
        margin = torch.where(target > self.theta, target * self.cos_m - sin * self.sin_m, target - self.sinmm)
        return F.cross_entropy(logits.scatter(1, labels[:, None], margin) * self.s, labels)


def forever(loader):
    while True:
        yield from loader


images = torch.randint(0, 256, (8192, 3, 112, 112), dtype=torch.uint8)
dataset = TensorDataset(images, torch.randint(0, NUM_CLASSES, (8192,)))
loader = DataLoader(dataset, BATCH, shuffle=True, num_workers=6, pin_memory=True, persistent_workers=True)
backbone = IResNet().cuda().train()
head = torch.compile(ArcFace().cuda())
params = [{"params": backbone.parameters()}, {"params": head.parameters()}]
opt = torch.optim.SGD(params, lr=0.02, momentum=0.9, weight_decay=5e-4)
scaler = torch.amp.GradScaler("cuda", growth_interval=100)
batches = forever(loader)
for step in steps():
    img, label = next(batches)
    img = img.cuda(non_blocking=True).float().div_(127.5).sub_(1)
    loss = head(backbone(img), label.cuda(non_blocking=True))
    scaler.scale(loss).backward()
    scaler.unscale_(opt)
    torch.nn.utils.clip_grad_norm_(backbone.parameters(), 5)
    scaler.step(opt)
    scaler.update()
    opt.zero_grad()
