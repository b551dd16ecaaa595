# Face recognition on a million identities: the classifier is split by identity over the ranks (as in insightface's
# partial FC), the backbone is an IResNet under DDP with fp16-compressed gradients.
import os

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import fp16_compress_hook
from torch.nn.functional import linear, normalize
from tock import steps

LAYERS = (3, 13, 30, 3)
PLANES = (64, 128, 256, 512)
IDENTITIES = 1_000_000
EMBEDDING = 512
BATCH = 128
SAMPLE_RATE = 0.3

dist.init_process_group(backend="nccl")
rank, world_size = dist.get_rank(), dist.get_world_size()
local_rank = int(os.environ["LOCAL_RANK"])
torch.cuda.set_device(local_rank)
torch.backends.cudnn.benchmark = True


def conv3x3(cin, cout, stride=1):
    return nn.Conv2d(cin, cout, kernel_size=3, stride=stride, padding=1, bias=False)


class IBasicBlock(nn.Module):
    def __init__(self, inplanes, planes, stride=1):
        super().__init__()
        self.bn1 = nn.BatchNorm2d(inplanes, eps=1e-05)
        self.conv1 = conv3x3(inplanes, planes)
        self.bn2 = nn.BatchNorm2d(planes, eps=1e-05)
        self.prelu = nn.PReLU(planes)
        self.conv2 = conv3x3(planes, planes, stride)
        self.bn3 = nn.BatchNorm2d(planes, eps=1e-05)
        self.downsample = None
        if stride != 1 or inplanes != planes:
            self.downsample = nn.Sequential(
                nn.Conv2d(inplanes, planes, 1, stride, bias=False), nn.BatchNorm2d(planes, eps=1e-05)
            )

    def forward(self, x):
        identity = x if self.downsample is None else self.downsample(x)
        out = self.prelu(self.bn2(self.conv1(self.bn1(x))))
        out = self.bn3(self.conv2(out))
        out += identity
        return out


class IResNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv1, self.bn1, self.prelu = conv3x3(3, 64), nn.BatchNorm2d(64, eps=1e-05), nn.PReLU(64)
        inplanes, stages = 64, []
        for planes, blocks in zip(PLANES, LAYERS):
            stages.append(IBasicBlock(inplanes, planes, stride=2))
            stages.extend(IBasicBlock(planes, planes) for _ in range(blocks - 1))
            inplanes = planes
        self.layers = nn.Sequential(*stages)
        self.bn2 = nn.BatchNorm2d(inplanes, eps=1e-05)
        self.fc = nn.Linear(inplanes * 7 * 7, EMBEDDING)
        self.features = nn.BatchNorm1d(EMBEDDING, eps=1e-05)
        nn.init.constant_(self.features.weight, 1.0)
        self.features.weight.requires_grad = False

    def forward(self, x):
        with torch.autocast("cuda", dtype=torch.float16):
            x = self.prelu(self.bn1(self.conv1(x)))
            x = torch.flatten(self.bn2(self.layers(x)), 1)
        return self.features(self.fc(x.float()))


class AllGather(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        out = [torch.empty_like(x) for _ in range(world_size)]
        dist.all_gather(out, x.contiguous())
        return tuple(out)

    @staticmethod
    def backward(ctx, *grads):
        ours = grads[rank]
        for src in range(world_size):
            dist.reduce(ours if src == rank else grads[src].contiguous(), dst=src)
        return ours * world_size


class DistCrossEntropy(torch.autograd.Function):
    @staticmethod
    def forward(ctx, logits, labels):
        top = logits.max(dim=1, keepdim=True).values
        dist.all_reduce(top, dist.ReduceOp.MAX)
        logits.sub_(top).exp_()
        total = logits.sum(dim=1, keepdim=True)
        dist.all_reduce(total, dist.ReduceOp.SUM)
        logits.div_(total)
        mine = labels >= 0
        chosen = torch.zeros_like(total)
        picked = logits.gather(1, labels.clamp(min=0).unsqueeze(1))
        chosen = torch.where(mine.unsqueeze(1), picked, chosen)
        dist.all_reduce(chosen, dist.ReduceOp.SUM)
        ctx.save_for_backward(logits, labels)
        return chosen.clamp_min_(1e-30).log_().mean() * -1

    @staticmethod
    def backward(ctx, grad):
        logits, labels = ctx.saved_tensors
        mine = (labels >= 0).to(logits.dtype).unsqueeze(1)
        logits.scatter_add_(1, labels.clamp(min=0).unsqueeze(1), -mine)
        return logits.div_(logits.size(0)).mul_(grad), None


class PartialFC(nn.Module):
    """Holds IDENTITIES / world_size centres; each step uses the positives and a random part of the negatives."""

    def __init__(self, s=64.0, m=0.5):
        super().__init__()
        self.s, self.m = s, m
        self.num_local = IDENTITIES // world_size
        self.start = self.num_local * rank
        self.num_sample = int(SAMPLE_RATE * self.num_local)
        self.weight = nn.Parameter(torch.normal(0, 0.01, (self.num_local, EMBEDDING)))

    @torch.no_grad()
    def sample(self, labels):
        here = (labels >= self.start) & (labels < self.start + self.num_local)
        local = torch.where(here, labels - self.start, -1)
        chance = torch.rand(self.num_local + 1, device=labels.device)
        chance[torch.where(here, local, self.num_local)] = 2.0
        index = torch.topk(chance[:-1], k=self.num_sample).indices.sort().values
        return index, torch.where(here, torch.searchsorted(index, local), -1)

    def forward(self, embeddings, labels):
        all_labels = [torch.zeros_like(labels) for _ in range(world_size)]
        dist.all_gather(all_labels, labels)
        features = torch.cat(AllGather.apply(embeddings))
        index, target = self.sample(torch.cat(all_labels))
        with torch.autocast("cuda", dtype=torch.float16):
            logits = linear(normalize(features), normalize(self.weight[index]))
        logits = logits.float().clamp(-1, 1)
        at = target.clamp(min=0).unsqueeze(1)
        cosine = logits.gather(1, at)
        with_margin = torch.cos(torch.acos(cosine.clamp(-1 + 1e-6, 1 - 1e-6)) + self.m)
        logits = logits.scatter(1, at, torch.where(target.unsqueeze(1) >= 0, with_margin, cosine))
        return DistCrossEntropy.apply(logits * self.s, target)


torch.manual_seed(2048)
backbone = IResNet().cuda()
backbone = nn.parallel.DistributedDataParallel(
    backbone, broadcast_buffers=False, device_ids=[local_rank], bucket_cap_mb=16
)
backbone.register_comm_hook(None, fp16_compress_hook)
backbone._set_static_graph()
backbone.train()
torch.manual_seed(2048 + rank)
head = PartialFC().train().cuda()
opt = torch.optim.SGD(
    [{"params": [p for p in backbone.parameters() if p.requires_grad]}, {"params": head.parameters()}],
    lr=0.02,
    momentum=0.9,
    weight_decay=5e-4,
)
scaler = torch.amp.GradScaler("cuda", growth_interval=100)
scheduler = torch.optim.lr_scheduler.PolynomialLR(opt, total_iters=1000, power=2)

for _ in steps():
    img = torch.randint(0, 256, (BATCH, 3, 112, 112), dtype=torch.uint8, device="cuda")
    img = img.float().div_(127.5).sub_(1.0)
    labels = torch.randint(0, IDENTITIES, (BATCH,), device="cuda")
    loss = head(backbone(img), labels)
    scaler.scale(loss).backward()
    scaler.unscale_(opt)
    torch.nn.utils.clip_grad_norm_(backbone.parameters(), 5)
    scaler.step(opt)
    scaler.update()
    opt.zero_grad()
    scheduler.step()
