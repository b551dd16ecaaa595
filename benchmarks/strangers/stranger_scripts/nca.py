"""Growing neural cellular automata (Mordvintsev et al., Distill 2020) with a sample pool."""

import numpy as np
import torch
import torch.nn.functional as F
from tick import steps

CHANNELS = 16
HIDDEN = 128
TARGET_SIZE = 40
PADDING = 16
BATCH = 8
POOL = 1024
ROLLOUT = 64
FIRE_RATE = 0.5
DEVICE = torch.device("cuda")

torch.set_float32_matmul_precision("high")


def perception_kernel():
    identity = np.outer([0, 1, 0], [0, 1, 0])
    dx = np.outer([1, 2, 1], [-1, 0, 1]) / 8.0
    stack = np.stack([identity, dx, dx.T]).astype(np.float32)
    return torch.from_numpy(stack)[:, None].repeat(CHANNELS, 1, 1, 1).to(DEVICE)


class CellularAutomaton(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.fc0 = torch.nn.Conv2d(3 * CHANNELS, HIDDEN, 1)
        self.fc1 = torch.nn.Conv2d(HIDDEN, CHANNELS, 1, bias=False)
        torch.nn.init.zeros_(self.fc1.weight)
        self.register_buffer("kernel", perception_kernel())

    @staticmethod
    def alive(x):
        return F.max_pool2d(x[:, 3:4], 3, stride=1, padding=1) > 0.1

    def forward(self, x):
        before = self.alive(x)
        y = F.conv2d(x, self.kernel, padding=1, groups=CHANNELS)
        dx = self.fc1(F.relu(self.fc0(y)))
        fire = torch.rand(x.shape[0], 1, x.shape[2], x.shape[3], device=x.device) <= FIRE_RATE
        x = x + dx * fire
        return x * (before & self.alive(x))


def make_seed(n):
    size = TARGET_SIZE + 2 * PADDING
    x = torch.zeros(n, CHANNELS, size, size, device=DEVICE)
    x[:, 3:, size // 2, size // 2] = 1.0
    return x


def damage(x, n):
    size = x.shape[-1]
    line = torch.linspace(-1, 1, size, device=x.device)
    center = torch.rand(n, 2, device=x.device) - 0.5
    radius = torch.rand(n, 1, 1, device=x.device) * 0.3 + 0.1
    dx = (line[None, None, :] - center[:, 0, None, None]) / radius
    dy = (line[None, :, None] - center[:, 1, None, None]) / radius
    hole = (dx * dx + dy * dy < 1.0).float()
    x[-n:] *= 1.0 - hole[:, None]
    return x


def pixel_loss(x, target):
    return (x[:, :4] - target).pow(2).mean(dim=(1, 2, 3))


target = F.pad(torch.rand(1, 4, TARGET_SIZE, TARGET_SIZE, device=DEVICE), [PADDING] * 4)
ca = CellularAutomaton().to(DEVICE)
update = torch.compile(ca)
optimizer = torch.optim.Adam(ca.parameters(), lr=2e-3)
scheduler = torch.optim.lr_scheduler.MultiStepLR(optimizer, [2000], gamma=0.1)
pool = make_seed(POOL)
log = []

for step in steps():
    index = torch.randperm(POOL, device=DEVICE)[:BATCH]
    x = pool[index]
    rank = pixel_loss(x, target).argsort(descending=True)
    x = x[rank]
    x[:1] = make_seed(1)
    x = damage(x, 3)
    for _ in range(ROLLOUT):
        x = update(x)
    loss = pixel_loss(x, target).mean()
    optimizer.zero_grad()
    loss.backward()
    with torch.no_grad():
        for p in ca.parameters():
            p.grad /= p.grad.norm() + 1e-8
    optimizer.step()
    scheduler.step()
    pool[index[rank]] = x.detach()
    log.append(loss.item())
