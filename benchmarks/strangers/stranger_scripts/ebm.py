"""Implicit generation with an energy model (Du & Mordatch) on CIFAR-sized pictures.

Negatives are drawn by Langevin dynamics from a buffer of old samples. Chain, loss and update are one CUDA graph.
"""

import torch, torch.nn as nn, torch.nn.functional as F
from tick import steps

torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = True
torch.backends.cudnn.benchmark = True
BATCH, WIDTH, CHAIN, STEP, NOISE, BUFFER, LR = 128, 128, 20, 10.0, 0.005, 10000, 1e-4


class Residual(nn.Module):
    def __init__(self, a, b, down):
        super().__init__()
        self.c1, self.c2 = nn.Conv2d(a, b, 3, padding=1), nn.Conv2d(b, b, 3, padding=1)
        self.skip = nn.Conv2d(a, b, 1) if a != b else nn.Identity()
        self.gain, self.bias = nn.Parameter(torch.ones(b, 1, 1)), nn.Parameter(torch.zeros(b, 1, 1))
        self.down = down

    def forward(self, x):
        y = self.c1(F.silu(x)) * self.gain + self.bias
        x = self.skip(x) + self.c2(F.silu(y))
        return F.avg_pool2d(x, 2) if self.down else x


class Energy(nn.Module):
    def __init__(self, w=WIDTH):
        super().__init__()
        self.stem = nn.Conv2d(3, w, 3, padding=1)
        self.body = nn.Sequential(
            Residual(w, w, True), Residual(w, w, False), Residual(w, w, False),
            Residual(w, 2 * w, True), Residual(2 * w, 2 * w, False), Residual(2 * w, 2 * w, False),
            Residual(2 * w, 2 * w, True), Residual(2 * w, 2 * w, False), Residual(2 * w, 2 * w, False),
        )  # fmt: skip
        self.head = nn.Linear(2 * w, 1)

    def forward(self, x):
        return self.head(F.silu(self.body(self.stem(x))).sum((2, 3)))[:, 0]


net = Energy().to("cuda", memory_format=torch.channels_last)
params = list(net.parameters())
velocity = [torch.zeros_like(p) for p in params]
lr = torch.zeros((), device="cuda")

data = torch.rand(5000, 3, 32, 32, device="cuda").to(memory_format=torch.channels_last)
buffer = torch.rand(BUFFER, 3, 32, 32, device="cuda").to(memory_format=torch.channels_last)
real = torch.zeros(BATCH, 3, 32, 32, device="cuda").to(memory_format=torch.channels_last)
start = torch.zeros_like(real)


def langevin(x):
    for _ in range(CHAIN):
        x = x.detach().requires_grad_()
        (g,) = torch.autograd.grad(net(x).sum(), x)
        x = (x - STEP * g.clamp(-0.01, 0.01) + NOISE * torch.randn_like(x)).clamp(0, 1)
    return x.detach()


def whole_step():
    fake = langevin(start)
    e_real, e_fake = net(real + 0.003 * torch.randn_like(real)), net(fake)
    loss = (e_real - e_fake).mean() + (e_real.square() + e_fake.square()).mean()
    grads = torch.autograd.grad(loss, params)
    with torch.no_grad():
        norm = torch.linalg.vector_norm(torch.stack(torch._foreach_norm(grads)))
        grads = torch._foreach_mul(grads, (1.0 / (norm + 1e-6)).clamp(max=1.0))
        torch._foreach_mul_(velocity, 0.9)
        torch._foreach_add_(velocity, grads)
        torch._foreach_sub_(params, torch._foreach_mul(velocity, lr))
    return fake, loss.detach()


side = torch.cuda.Stream()
side.wait_stream(torch.cuda.current_stream())
with torch.cuda.stream(side):
    for _ in range(3):
        whole_step()
torch.cuda.current_stream().wait_stream(side)
graph = torch.cuda.CUDAGraph()
with torch.cuda.graph(graph):
    sample, loss = whole_step()

for i in steps():
    lr.fill_(LR * min(1.0, (i + 1) / 200))
    rows = torch.randint(0, BUFFER, (BATCH,), device="cuda")
    fresh = torch.rand(BATCH, 1, 1, 1, device="cuda") < 0.05
    start.copy_(torch.where(fresh, torch.rand_like(start), buffer[rows]))
    real.copy_(data[torch.randint(0, len(data), (BATCH,), device="cuda")])
    graph.replay()
    buffer[rows] = sample
    if i % 50 == 0:
        print("step", i, "loss", float(loss))
