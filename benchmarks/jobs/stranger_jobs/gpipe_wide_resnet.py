"""Wide ResNet-101-2 in two stages: GPipe of torch.distributed.pipelining, images in eight micro-batches, autocast."""

import os

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.distributed.pipelining import PipelineStage, ScheduleGPipe
from tock import steps

DEPTHS = (3, 4, 23, 3)
BASE = 64
WIDEN = 2
CLASSES = 1000
IMAGE = 224
BATCH = 128
CHUNKS = 8
FIRST_STAGE = 15  # bottlenecks behind the stem; the others are the second stage's


def conv_bn(cin, cout, k, stride=1):
    return [nn.Conv2d(cin, cout, k, stride, k // 2, bias=False), nn.BatchNorm2d(cout)]


class Bottleneck(nn.Module):
    def __init__(self, cin, planes, stride):
        super().__init__()
        width, cout = planes * WIDEN, planes * 4
        self.body = nn.Sequential(
            *conv_bn(cin, width, 1),
            nn.ReLU(inplace=True),
            *conv_bn(width, width, 3, stride),
            nn.ReLU(inplace=True),
            *conv_bn(width, cout, 1),
        )
        self.shortcut = nn.Sequential(*conv_bn(cin, cout, 1, stride)) if stride != 1 or cin != cout else nn.Identity()
        nn.init.zeros_(self.body[-1].weight)

    def forward(self, x):
        return F.relu(self.body(x) + self.shortcut(x), inplace=True)


def all_layers():
    stem = [*conv_bn(3, BASE, 7, 2), nn.ReLU(inplace=True), nn.MaxPool2d(3, 2, 1)]
    blocks, cin = [], BASE
    for i, depth in enumerate(DEPTHS):
        planes = BASE * 2**i
        for j in range(depth):
            blocks.append(Bottleneck(cin, planes, 2 if i > 0 and j == 0 else 1))
            cin = planes * 4
    head = [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(cin, CLASSES)]
    return stem, blocks, head


class Stage(nn.Module):
    """Activations go between the stages as rows, one a sample: channels_last ones are not contiguous."""

    def __init__(self, layers, first):
        super().__init__()
        self.layers = nn.Sequential(*layers)
        self.first = first

    def forward(self, x):
        if not self.first:
            x = x.view(-1, BASE * 16, IMAGE // 16, IMAGE // 16)
        x = x.contiguous(memory_format=torch.channels_last)
        with torch.autocast("cuda", dtype=torch.bfloat16):
            return self.layers(x).flatten(1)


def loss_fn(output, target):
    return F.cross_entropy(output.float(), target, label_smoothing=0.1)


if __name__ == "__main__":
    rank = int(os.environ["RANK"])
    world_size = int(os.environ["WORLD_SIZE"])
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
    torch.cuda.set_device(device)
    dist.init_process_group("nccl", device_id=device)
    torch.backends.cudnn.benchmark = True
    assert world_size == 2, "two stages"

    torch.manual_seed(42)
    stem, blocks, head = all_layers()
    mine = stem + blocks[:FIRST_STAGE] if rank == 0 else blocks[FIRST_STAGE:] + head
    module = Stage(mine, first=rank == 0).to(device, memory_format=torch.channels_last).train()

    stage = PipelineStage(module, stage_index=rank, num_stages=world_size, device=device)
    schedule = ScheduleGPipe(stage, n_microbatches=CHUNKS, loss_fn=loss_fn)
    optimizer = torch.optim.SGD(module.parameters(), lr=0.1, momentum=0.9, weight_decay=1e-4, nesterov=True)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, step_size=1000, gamma=0.1)

    for i in steps():
        optimizer.zero_grad(set_to_none=True)
        if rank == 0:
            images = torch.randn(BATCH, 3, IMAGE, IMAGE, device=device)
            schedule.step(images)
        else:
            labels = torch.randint(0, CLASSES, (BATCH,), device=device)
            losses = []
            schedule.step(target=labels, losses=losses)
            if i % 10 == 0:
                print(f"step {i} loss {torch.stack(losses).mean().item():.4f}")
        optimizer.step()
        scheduler.step()
