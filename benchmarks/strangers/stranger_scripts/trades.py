import torch
import torch.nn as nn
import torch.nn.functional as F
import torch.optim as optim
from tick import steps

torch.backends.cuda.matmul.allow_tf32 = True
EPS, STEP, ITERS, BETA, BATCH = 8 / 255, 2 / 255, 10, 6.0, 256


class PreActBlock(nn.Module):
    def __init__(self, i, o, stride):
        super().__init__()
        self.bn1, self.conv1 = nn.BatchNorm2d(i), nn.Conv2d(i, o, 3, stride, 1, bias=False)
        self.bn2, self.conv2 = nn.BatchNorm2d(o), nn.Conv2d(o, o, 3, 1, 1, bias=False)
        self.shortcut = nn.Conv2d(i, o, 1, stride, bias=False) if stride != 1 or i != o else None

    def forward(self, x):
        out = F.relu(self.bn1(x))
        short = x if self.shortcut is None else self.shortcut(out)
        out = self.conv1(out)
        return self.conv2(F.relu(self.bn2(out))) + short


class PreActResNet18(nn.Module):
    def __init__(self, classes=10):
        super().__init__()
        self.register_buffer("mean", torch.tensor([0.4914, 0.4822, 0.4465]).view(1, 3, 1, 1))
        self.register_buffer("std", torch.tensor([0.2471, 0.2435, 0.2616]).view(1, 3, 1, 1))
        self.conv1 = nn.Conv2d(3, 64, 3, 1, 1, bias=False)
        blocks, c = [], 64
        for o, s in [(64, 1), (64, 1), (128, 2), (128, 1), (256, 2), (256, 1), (512, 2), (512, 1)]:
            blocks.append(PreActBlock(c, o, s))
            c = o
        self.layers, self.bn, self.linear = nn.Sequential(*blocks), nn.BatchNorm2d(512), nn.Linear(512, classes)

    def forward(self, x):
        out = self.layers(self.conv1((x - self.mean) / self.std))
        return self.linear(F.adaptive_avg_pool2d(F.relu(self.bn(out)), 1).flatten(1))


def trades_loss(model, x_natural, y, optimizer):
    criterion_kl = nn.KLDivLoss(reduction="sum")
    model.eval()
    with torch.no_grad():
        p_natural = F.softmax(model(x_natural), dim=1)
    x_adv = x_natural.detach() + 0.001 * torch.randn_like(x_natural)
    for _ in range(ITERS):
        x_adv.requires_grad_()
        with torch.enable_grad():
            loss_kl = criterion_kl(F.log_softmax(model(x_adv), dim=1), p_natural)
        grad = torch.autograd.grad(loss_kl, [x_adv])[0]
        x_adv = x_adv.detach() + STEP * torch.sign(grad.detach())
        x_adv = torch.min(torch.max(x_adv, x_natural - EPS), x_natural + EPS)
        x_adv = torch.clamp(x_adv, 0.0, 1.0)
    model.train()
    optimizer.zero_grad()
    logits = model(x_natural)
    loss_natural = F.cross_entropy(logits, y)
    loss_robust = criterion_kl(F.log_softmax(model(x_adv.detach()), dim=1), F.softmax(logits, dim=1)) / len(y)
    return loss_natural + BETA * loss_robust


def random_crop_flip(x):
    x = F.pad(x, (4, 4, 4, 4))
    dx, dy = torch.randint(0, 9, (2,)).tolist()
    x = x[:, :, dx : dx + 32, dy : dy + 32]
    return x.flip(3) if torch.rand(()) < 0.5 else x


images, labels = torch.rand(10000, 3, 32, 32), torch.randint(0, 10, (10000,))
model = PreActResNet18().cuda()
model = torch.compile(model)
optimizer = optim.SGD(model.parameters(), lr=0.1, momentum=0.9, weight_decay=5e-4)
scheduler = optim.lr_scheduler.MultiStepLR(optimizer, [75, 90])
perm = torch.randperm(len(images))
for i in steps(count=6):
    idx = perm[i * BATCH % 9000 : i * BATCH % 9000 + BATCH]
    data, target = random_crop_flip(images[idx]).cuda(), labels[idx].cuda()
    loss = trades_loss(model, data, target, optimizer)
    loss.backward()
    optimizer.step()
    if i % 50 == 0:
        loss.item()
