"""MoCo: momentum encoder, queue with a pointer, shuffled batch, cosine lr."""

import argparse, time, copy, math
import torch, torch.nn as nn, torch.nn.functional as F

p = argparse.ArgumentParser()
p.add_argument("--batch", type=int, default=32)
p.add_argument("--queue", type=int, default=1024)
p.add_argument("--width", type=int, default=32)
p.add_argument("--size", type=int, default=32)
p.add_argument("--steps", type=int, default=14)
a = p.parse_args()
dev = "cuda" if torch.cuda.is_available() else "cpu"


def enc():
    w = a.width
    return nn.Sequential(
        nn.Conv2d(3, w, 3, 2, 1),
        nn.BatchNorm2d(w),
        nn.ReLU(),
        nn.Conv2d(w, 2 * w, 3, 2, 1, groups=4),
        nn.BatchNorm2d(2 * w),
        nn.ReLU(),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(2 * w, 128),
    )


class MoCo(nn.Module):
    def __init__(self):
        super().__init__()
        self.q = enc()
        self.k = copy.deepcopy(self.q).requires_grad_(False)
        self.register_buffer("queue", F.normalize(torch.randn(128, a.queue), dim=0))
        self.register_buffer("ptr", torch.zeros(1, dtype=torch.long))

    def forward(self, x1, x2):
        q = F.normalize(self.q(x1), dim=1)
        with torch.no_grad():
            for pq, pk in zip(self.q.parameters(), self.k.parameters()):
                pk.mul_(0.999).add_(pq, alpha=0.001)
            idx = torch.randperm(x2.shape[0], device=x2.device)
            back = torch.argsort(idx)
            k = F.normalize(self.k(x2[idx]), dim=1)[back]
        pos = (q * k).sum(1, keepdim=True)
        neg = q @ self.queue.clone()
        logits = torch.cat([pos, neg], 1) / 0.07
        ptr = int(self.ptr)
        self.queue[:, ptr : ptr + k.shape[0]] = k.t()
        self.ptr[0] = (ptr + k.shape[0]) % a.queue
        return F.cross_entropy(logits, torch.zeros(len(q), dtype=torch.long, device=q.device))


m = MoCo().to(dev)
c = torch.compile(m)
opt = torch.optim.SGD(m.q.parameters(), 0.03, momentum=0.9, weight_decay=1e-4)
sch = torch.optim.lr_scheduler.CosineAnnealingLR(opt, 100)
for i in range(a.steps):
    x = torch.randn(a.batch, 3, a.size, a.size, device=dev)
    x2 = x.flip(-1) + 0.1 * torch.randn_like(x)
    t = time.perf_counter()
    loss = c(x, x2)
    opt.zero_grad()
    loss.backward()
    opt.step()
    sch.step()
    print(f"step {i} loss {loss.item():.4f} {1e3 * (time.perf_counter() - t):.2f} ms", flush=True)
