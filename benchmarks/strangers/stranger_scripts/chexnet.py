# DenseNet-121 on chest films, 14 findings, several of them at once
import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, Dataset

from tick import steps

FINDINGS, SIDE, BATCH = 14, 224, 64


class Films(Dataset):
    """Grey films of 256 x 256, cropped and mirrored on the host."""

    def __init__(self, n=512):
        rng = np.random.default_rng(7)
        self.films = rng.integers(0, 256, (n, 256, 256), dtype=np.uint8)
        self.labels = (rng.random((n, FINDINGS)) < 0.07).astype(np.float32)

    def __len__(self):
        return 100000

    def __getitem__(self, i):
        i %= len(self.films)
        top, left = np.random.randint(0, 256 - SIDE + 1, 2)
        film = self.films[i, top : top + SIDE, left : left + SIDE]
        if np.random.rand() < 0.5:
            film = film[:, ::-1]
        return torch.from_numpy(np.ascontiguousarray(film)).unsqueeze(0), torch.from_numpy(self.labels[i])


class DenseLayer(nn.Module):
    def __init__(self, cin, growth=32, bottleneck=4):
        super().__init__()
        self.norm1, self.conv1 = nn.BatchNorm2d(cin), nn.Conv2d(cin, bottleneck * growth, 1, bias=False)
        self.norm2 = nn.BatchNorm2d(bottleneck * growth)
        self.conv2 = nn.Conv2d(bottleneck * growth, growth, 3, padding=1, bias=False)

    def forward(self, features):
        x = self.conv1(F.relu(self.norm1(torch.cat(features, 1)), inplace=True))
        return self.conv2(F.relu(self.norm2(x), inplace=True))


class DenseBlock(nn.Module):
    def __init__(self, n, cin, growth=32):
        super().__init__()
        self.layers = nn.ModuleList(DenseLayer(cin + i * growth) for i in range(n))

    def forward(self, x):
        features = [x]
        for layer in self.layers:
            features.append(layer(features))
        return torch.cat(features, 1)


class DenseNet121(nn.Module):
    def __init__(self):
        super().__init__()
        layers = [nn.Conv2d(3, 64, 7, 2, 3, bias=False), nn.BatchNorm2d(64), nn.ReLU(True), nn.MaxPool2d(3, 2, 1)]
        c, depths = 64, (6, 12, 24, 16)
        for i, n in enumerate(depths):
            layers.append(DenseBlock(n, c))
            c += 32 * n
            if i < len(depths) - 1:
                layers += [nn.BatchNorm2d(c), nn.ReLU(True), nn.Conv2d(c, c // 2, 1, bias=False), nn.AvgPool2d(2, 2)]
                c //= 2
        self.features = nn.Sequential(*layers, nn.BatchNorm2d(c), nn.ReLU(True))
        self.classifier = nn.Linear(c, FINDINGS)
        for m in self.modules():
            if isinstance(m, nn.Conv2d):
                nn.init.kaiming_normal_(m.weight)

    def forward(self, x):
        return self.classifier(F.adaptive_avg_pool2d(self.features(x), 1).flatten(1))


def prepare(films):
    x = films.cuda(non_blocking=True).float().div_(255)
    mean = torch.tensor([0.485, 0.456, 0.406], device=x.device).view(1, 3, 1, 1)
    std = torch.tensor([0.229, 0.224, 0.225], device=x.device).view(1, 3, 1, 1)
    return ((x.expand(-1, 3, -1, -1) - mean) / std).contiguous(memory_format=torch.channels_last)


def auroc(scores, labels):
    order = scores.argsort(0)
    rank = torch.empty_like(scores).scatter_(0, order, torch.arange(1.0, len(scores) + 1)[:, None].expand_as(scores))
    pos = labels.sum(0)
    area = ((rank * labels).sum(0) - pos * (pos + 1) / 2) / (pos * (len(scores) - pos)).clamp(min=1)
    return area[pos > 0].mean()


torch.backends.cudnn.benchmark = True
loader = DataLoader(Films(), batch_size=BATCH, shuffle=True, num_workers=0, pin_memory=True, drop_last=True)
model = DenseNet121().cuda().to(memory_format=torch.channels_last)
optimizer = torch.optim.Adam(model.parameters(), lr=1e-4, weight_decay=1e-5)
scaler = torch.amp.GradScaler("cuda")
criterion = nn.BCEWithLogitsLoss(pos_weight=torch.full((FINDINGS,), 10.0).cuda())
source, scores, truth = iter(loader), [], []
for it in steps():
    films, labels = next(source)
    x, y = prepare(films), labels.cuda(non_blocking=True)
    with torch.autocast("cuda", dtype=torch.float16):
        logits = model(x)
        loss = criterion(logits, y)
    optimizer.zero_grad(set_to_none=True)
    scaler.scale(loss).backward()
    scaler.step(optimizer)
    scaler.update()
    scores.append(logits.detach().float().sigmoid().cpu())
    truth.append(labels)
print("loss", round(loss.item(), 4), "auroc", round(auroc(torch.cat(scores), torch.cat(truth)).item(), 4))
