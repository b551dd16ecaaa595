"""MLP-Mixer L/16 with Lion. Gradients are averaged by a ring written by hand: buckets, chunks, batch_isend_irecv."""

import os

import torch
import torch.distributed as dist
import torch.nn as nn
from tock import steps

IMG, PATCH, DIM, DEPTH = 224, 16, 1024, 24
TOKEN_HIDDEN, CHANNEL_HIDDEN = 512, 4096
NUM_CLASSES, BATCH = 21843, 112
BUCKET_BYTES = 100 * 1024 * 1024


class Mlp(nn.Sequential):
    def __init__(self, dim, hidden):
        super().__init__(nn.Linear(dim, hidden), nn.GELU(), nn.Linear(hidden, dim))


class MixerBlock(nn.Module):
    def __init__(self, tokens):
        super().__init__()
        self.norm1 = nn.LayerNorm(DIM)
        self.token_mix = Mlp(tokens, TOKEN_HIDDEN)
        self.norm2 = nn.LayerNorm(DIM)
        self.channel_mix = Mlp(DIM, CHANNEL_HIDDEN)

    def forward(self, x):
        x = x + self.token_mix(self.norm1(x).transpose(1, 2)).transpose(1, 2)
        x = x + self.channel_mix(self.norm2(x))
        return x


class Mixer(nn.Module):
    def __init__(self):
        super().__init__()
        self.patchify = nn.Conv2d(3, DIM, PATCH, PATCH)
        self.blocks = nn.Sequential(*[MixerBlock((IMG // PATCH) ** 2) for _ in range(DEPTH)])
        self.norm = nn.LayerNorm(DIM)
        self.fc = nn.Linear(DIM, NUM_CLASSES)

    def forward(self, x):
        x = self.patchify(x).flatten(2).transpose(1, 2)
        return self.fc(self.norm(self.blocks(x)).mean(dim=1))


class RingReducer:
    """Call `average()` after backward."""

    def __init__(self, params, bucket_bytes):
        self.rank, self.world = dist.get_rank(), dist.get_world_size()
        self.right, self.left = (self.rank + 1) % self.world, (self.rank - 1) % self.world
        self.buckets, bucket, size = [], [], 0
        for p in reversed(list(params)):
            bucket.append(p)
            size += p.numel() * p.element_size()
            if size >= bucket_bytes:
                self.buckets.append(bucket)
                bucket, size = [], 0
        if bucket:
            self.buckets.append(bucket)
        self.flats = []
        for bucket in self.buckets:
            numel = sum(p.numel() for p in bucket)
            numel += -numel % self.world
            self.flats.append(torch.zeros(numel, device=bucket[0].device))
        self.inbox = torch.empty(max(f.numel() for f in self.flats) // self.world, device=self.flats[0].device)

    def exchange(self, outgoing, incoming):
        # all send to the right and receive from the left
        ops = [
            dist.P2POp(dist.isend, outgoing, self.right),
            dist.P2POp(dist.irecv, incoming, self.left),
        ]
        for work in dist.batch_isend_irecv(ops):
            work.wait()

    def ring(self, flat):
        chunks = list(flat.chunk(self.world))
        inbox = self.inbox[: chunks[0].numel()]
        for i in range(self.world - 1):
            give, take = (self.rank - i) % self.world, (self.rank - i - 1) % self.world
            self.exchange(chunks[give], inbox)
            chunks[take].add_(inbox)
        chunks[(self.rank + 1) % self.world].div_(self.world)
        for i in range(self.world - 1):
            give, take = (self.rank + 1 - i) % self.world, (self.rank - i) % self.world
            self.exchange(chunks[give], chunks[take])

    @torch.no_grad()
    def average(self):
        for bucket, flat in zip(self.buckets, self.flats):
            views, start = [], 0
            for p in bucket:
                views.append(flat[start : start + p.numel()].view_as(p))
                start += p.numel()
            grads = [p.grad for p in bucket]
            torch._foreach_copy_(views, grads)
            self.ring(flat)
            torch._foreach_copy_(grads, views)


class Lion(torch.optim.Optimizer):
    def __init__(self, params, lr=1e-4, betas=(0.9, 0.99), weight_decay=0.1):
        super().__init__(params, dict(lr=lr, betas=betas, weight_decay=weight_decay))

    @torch.no_grad()
    def step(self, closure=None):
        for group in self.param_groups:
            params = [p for p in group["params"] if p.grad is not None]
            grads = [p.grad for p in params]
            for p in params:
                if "m" not in self.state[p]:
                    self.state[p]["m"] = torch.zeros_like(p)
            moments = [self.state[p]["m"] for p in params]
            b1, b2 = group["betas"]
            updates = torch._foreach_mul(moments, b1)
            torch._foreach_add_(updates, grads, alpha=1 - b1)
            torch._foreach_sign_(updates)
            torch._foreach_mul_(params, 1 - group["lr"] * group["weight_decay"])
            torch._foreach_add_(params, updates, alpha=-group["lr"])
            torch._foreach_lerp_(moments, grads, 1 - b2)


dist.init_process_group("nccl")
torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
device = torch.device("cuda")
torch.manual_seed(0)
model = Mixer().to(device)
for p in model.parameters():
    dist.broadcast(p.data, src=0)
reducer = RingReducer(model.parameters(), BUCKET_BYTES)
optimizer = Lion(model.parameters(), lr=3e-5)
criterion = nn.BCEWithLogitsLoss()

torch.manual_seed(dist.get_rank())
for _ in steps():
    x = torch.randn(BATCH, 3, IMG, IMG, device=device)
    y = (torch.rand(BATCH, NUM_CLASSES, device=device) < 1e-3).float()
    with torch.autocast("cuda", dtype=torch.bfloat16):
        loss = criterion(model(x), y)
    optimizer.zero_grad()
    loss.backward()
    reducer.average()
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
