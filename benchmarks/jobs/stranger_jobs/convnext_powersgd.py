import os

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.distributed.algorithms.ddp_comm_hooks import powerSGD_hook as powerSGD
from torch.nn.parallel import DistributedDataParallel as DDP
from tock import steps

DEPTHS, DIMS, DROP_PATH, CLASSES, BATCH = (3, 3, 27, 3), (192, 384, 768, 1536), 0.3, 1000, 80


class LayerNorm2d(nn.LayerNorm):
    def forward(self, x):
        return super().forward(x.permute(0, 2, 3, 1)).permute(0, 3, 1, 2)


def drop_path(x, p, training):
    if p == 0.0 or not training:
        return x
    keep = 1 - p
    return x * x.new_empty(x.size(0), 1, 1, 1).bernoulli_(keep).div_(keep)


class Block(nn.Module):
    def __init__(self, dim, p):
        super().__init__()
        self.p = p
        self.dwconv = nn.Conv2d(dim, dim, 7, padding=3, groups=dim)
        self.norm = nn.LayerNorm(dim, eps=1e-6)
        self.fc1, self.fc2 = nn.Linear(dim, 4 * dim), nn.Linear(4 * dim, dim)
        self.gamma = nn.Parameter(1e-6 * torch.ones(dim))

    def forward(self, x):
        h = self.norm(self.dwconv(x).permute(0, 2, 3, 1))
        h = self.gamma * self.fc2(F.gelu(self.fc1(h)))
        return x + drop_path(h.permute(0, 3, 1, 2), self.p, self.training)


class ConvNeXt(nn.Module):
    def __init__(self):
        super().__init__()
        rates = torch.linspace(0, DROP_PATH, sum(DEPTHS)).tolist()
        stages = [nn.Conv2d(3, DIMS[0], 4, stride=4), LayerNorm2d(DIMS[0], eps=1e-6)]
        for i, (depth, dim) in enumerate(zip(DEPTHS, DIMS)):
            if i > 0:
                stages += [LayerNorm2d(DIMS[i - 1], eps=1e-6), nn.Conv2d(DIMS[i - 1], dim, 2, stride=2)]
            stages += [Block(dim, rates.pop(0)) for _ in range(depth)]
        self.features = nn.Sequential(*stages)
        self.norm, self.head = nn.LayerNorm(DIMS[-1], eps=1e-6), nn.Linear(DIMS[-1], CLASSES)

    def forward(self, x):
        return self.head(self.norm(self.features(x).mean(dim=(2, 3))))


def main():
    local_rank = int(os.environ["LOCAL_RANK"])
    torch.cuda.set_device(local_rank)
    dist.init_process_group("nccl")
    torch.backends.cuda.matmul.allow_tf32 = True
    torch.manual_seed(0)
    model = ConvNeXt().cuda().to(memory_format=torch.channels_last)
    model = DDP(model, device_ids=[local_rank], bucket_cap_mb=100, gradient_as_bucket_view=True)
    state = powerSGD.PowerSGDState(
        process_group=None,
        matrix_approximation_rank=4,
        start_powerSGD_iter=10,
        use_error_feedback=True,
        warm_start=True,
    )
    model.register_comm_hook(state, powerSGD.powerSGD_hook)
    decay = [p for p in model.parameters() if p.ndim > 1]
    no_decay = [p for p in model.parameters() if p.ndim <= 1]
    groups = [{"params": decay, "weight_decay": 0.05}, {"params": no_decay, "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW(groups, lr=4e-3 * BATCH * 2 / 4096, fused=True)
    criterion = nn.CrossEntropyLoss(label_smoothing=0.1)
    torch.manual_seed(1 + dist.get_rank())
    for _ in steps():
        images = torch.randn(BATCH, 3, 224, 224, device="cuda").to(memory_format=torch.channels_last)
        labels = torch.randint(0, CLASSES, (BATCH,), device="cuda")
        with torch.autocast("cuda", dtype=torch.bfloat16):
            loss = criterion(model(images), labels)
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()


if __name__ == "__main__":
    main()
