"""Second-order MAML on mini-ImageNet shapes: the tasks of a meta-batch run side by side under vmap."""

import functools

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.func import functional_call, grad, vmap

from tick import steps

WAYS, SHOTS, QUERIES = 5, 5, 15
META_BATCH, INNER_STEPS, INNER_LR = 4, 5, 0.01
device = torch.device("cuda")
torch.set_float32_matmul_precision("high")
torch.backends.cudnn.benchmark = True


class Norm(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.weight, self.bias = nn.Parameter(torch.ones(c)), nn.Parameter(torch.zeros(c))

    def forward(self, x):
        var, mean = torch.var_mean(x, dim=(0, 2, 3), keepdim=True, correction=0)
        x = (x - mean) * torch.rsqrt(var + 1e-5)
        return x * self.weight[:, None, None] + self.bias[:, None, None]


def conv4(hidden=32):
    blocks = []
    for cin in (3, hidden, hidden, hidden):
        blocks.append(nn.Sequential(nn.Conv2d(cin, hidden, 3, padding=1), Norm(hidden), nn.ReLU(), nn.MaxPool2d(2)))
    return nn.Sequential(*blocks, nn.Flatten(), nn.Linear(hidden * 25, WAYS))


class MetaLearner:
    def __init__(self):
        self.net = conv4().to(device)
        self.params = dict(self.net.named_parameters())
        self.opt = torch.optim.Adam(self.params.values(), lr=1e-3, fused=True)

    def loss(self, params, x, y):
        logits = functional_call(self.net, params, (x,))
        return F.cross_entropy(logits, y), logits

    def task(self, params, xs, ys, xq, yq):
        fast = params
        for _ in range(INNER_STEPS):
            grads, _ = grad(self.loss, has_aux=True)(fast, xs, ys)
            fast = {k: p - INNER_LR * grads[k] for k, p in fast.items()}
        loss, logits = self.loss(fast, xq, yq)
        return loss, (logits.argmax(-1) == yq).float().mean()

    def step(self, batch):
        run = vmap(functools.partial(self.task, self.params))
        loss, accuracy = run(*batch)
        self.opt.zero_grad()
        loss.mean().backward()
        for p in self.params.values():
            p.grad.clamp_(-10, 10)
        self.opt.step()
        return loss.mean().item(), accuracy.mean().item()


class Tasks:
    def __init__(self, classes=64, per_class=60):
        self.images = torch.randint(0, 256, (classes, per_class, 3, 84, 84), dtype=torch.uint8, device=device)

    def draw(self):
        out = []
        for _ in range(META_BATCH):
            classes = torch.randperm(len(self.images))[:WAYS]
            picks = torch.randperm(self.images.shape[1])[: SHOTS + QUERIES]
            x = self.images[classes][:, picks].float().div_(127.5).sub_(1)
            y = torch.arange(WAYS, device=device)[:, None].expand(WAYS, SHOTS + QUERIES)
            parts = [a[:, s].flatten(0, 1) for s in (slice(SHOTS), slice(SHOTS, None)) for a in (x, y)]
            out.append(parts)
        return [torch.stack(column) for column in zip(*out)]


tasks, learner = Tasks(), MetaLearner()
smooth = None
for iteration in steps():
    loss, accuracy = learner.step(tasks.draw())
    smooth = accuracy if smooth is None else 0.95 * smooth + 0.05 * accuracy
