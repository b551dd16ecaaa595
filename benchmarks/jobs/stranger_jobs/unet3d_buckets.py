# 3-D segmentation of MR volumes (four modalities) with a residual-free nnU-Net: patches of 128^3, deep supervision.
# Data parallel without DDP: whenever backward has filled a bucket its gradients are flattened and an asynchronous
# all-reduce starts; the waits come after backward, and SGD with Nesterov momentum is a loop of our own.
import os

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from tock import steps

PATCH = 128
BATCH = 2
MODALITIES, CLASSES = 4, 4
FEATURES = [32, 64, 128, 256, 320, 320]
BUCKET_MB = 16
BASE_LR, MOMENTUM, DECAY, TOTAL = 1e-2, 0.99, 3e-5, 250_000


class ConvBlock(nn.Sequential):
    def __init__(self, cin, cout, stride=1):
        super().__init__(
            nn.Conv3d(cin, cout, 3, stride, 1),
            nn.InstanceNorm3d(cout, affine=True),
            nn.LeakyReLU(0.01, inplace=True),
            nn.Conv3d(cout, cout, 3, 1, 1),
            nn.InstanceNorm3d(cout, affine=True),
            nn.LeakyReLU(0.01, inplace=True),
        )


class PlainUNet(nn.Module):
    def __init__(self):
        super().__init__()
        ins = [MODALITIES, *FEATURES[:-1]]
        self.down = nn.ModuleList(ConvBlock(a, b, 1 if i == 0 else 2) for i, (a, b) in enumerate(zip(ins, FEATURES)))
        self.up, self.merge, self.heads = nn.ModuleList(), nn.ModuleList(), nn.ModuleList()
        for low, high in zip(FEATURES[::-1], FEATURES[-2::-1]):
            self.up.append(nn.ConvTranspose3d(low, high, 2, 2))
            self.merge.append(ConvBlock(2 * high, high))
            self.heads.append(nn.Conv3d(high, CLASSES, 1))

    def forward(self, x):
        skips = []
        for block in self.down:
            x = block(x)
            skips.append(x)
        skips.pop()
        outs = []
        for up, merge, head in zip(self.up, self.merge, self.heads):
            x = merge(torch.cat((up(x), skips.pop()), dim=1))
            outs.append(head(x))
        # the two coarsest outputs are not supervised at this patch size
        return outs[:1:-1]


def dice_ce(logits, target):
    logits = logits.float()
    ce = F.cross_entropy(logits, target)
    prob = logits.softmax(1)
    hot = torch.zeros_like(prob).scatter_(1, target[:, None], 1.0)
    axes = (0, 2, 3, 4)
    inter, total = (prob * hot).sum(axes), prob.sum(axes) + hot.sum(axes)
    return ce - ((2 * inter + 1e-5) / (total + 1e-5))[1:].mean()


def deep_supervision(outs, target):
    loss, weight_sum = 0.0, 0.0
    for i, out in enumerate(outs):
        t = target[:, :: 2**i, :: 2**i, :: 2**i]
        loss = loss + 0.5**i * dice_ce(out, t)
        weight_sum += 0.5**i
    return loss / weight_sum


class Bucket:
    def __init__(self, params):
        self.params, self.missing, self.work, self.flat = params, len(params), None, None

    def ready(self, _):
        self.missing -= 1
        if self.missing == 0:
            self.flat = torch.cat([p.grad.view(-1) for p in self.params])
            self.work = dist.all_reduce(self.flat, async_op=True)

    def finish(self, world):
        self.work.wait()
        self.flat.div_(world)
        at = 0
        for p in self.params:
            p.grad.copy_(self.flat[at : at + p.numel()].view_as(p))
            at += p.numel()
        self.missing, self.work, self.flat = len(self.params), None, None


def make_buckets(params, limit):
    buckets, group, size = [], [], 0
    for p in reversed(params):
        group.append(p)
        size += p.numel() * p.element_size()
        if size >= limit:
            buckets.append(Bucket(group))
            group, size = [], 0
    if group:
        buckets.append(Bucket(group))
    for b in buckets:
        for p in b.params:
            p.register_post_accumulate_grad_hook(b.ready)
    return buckets


@torch.no_grad()
def sgd(params, momenta, lr):
    for p, m in zip(params, momenta):
        g = p.grad.add(p, alpha=DECAY)
        m.mul_(MOMENTUM).add_(g)
        p.add_(g.add_(m, alpha=MOMENTUM), alpha=-lr)
        p.grad = None


dist.init_process_group("nccl")
rank, world = dist.get_rank(), dist.get_world_size()
device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
torch.cuda.set_device(device)
torch.backends.cudnn.benchmark = True

net = PlainUNet().to(device)
# the two coarsest heads get no gradient; nothing of them is kept
for head in net.heads[:2]:
    head.requires_grad_(False)
for tensor in net.state_dict().values():
    dist.broadcast(tensor, 0)
params = [p for p in net.parameters() if p.requires_grad]
momenta = [torch.zeros_like(p) for p in params]
buckets = make_buckets(params, BUCKET_MB * 2**20)
running = torch.zeros(2, device=device)

torch.manual_seed(31 + rank)
for it in steps():
    volume = torch.randn(BATCH, MODALITIES, PATCH, PATCH, PATCH, device=device)
    label = torch.randint(0, CLASSES, (BATCH, PATCH, PATCH, PATCH), device=device)
    with torch.autocast("cuda", dtype=torch.bfloat16):
        outs = net(volume)
    loss = deep_supervision(outs, label)
    loss.backward()
    for b in buckets:
        b.finish(world)
    nn.utils.clip_grad_norm_(params, 12.0)
    sgd(params, momenta, BASE_LR * (1 - it / TOTAL) ** 0.9)
    running[0] += loss.detach()
    running[1] += 1
    if it % 20 == 19:
        dist.all_reduce(running)
        if rank == 0:
            print(f"iteration {it}: loss {(running[0] / running[1]).item():.4f}")
        running.zero_()
