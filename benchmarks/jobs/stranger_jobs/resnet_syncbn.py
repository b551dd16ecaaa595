"""ResNet-50 on ImageNet sizes: DDP, SyncBatchNorm, channels_last, autocast to bfloat16, batches from pinned memory."""

import os

import timm
import torch
import torch.distributed as dist
import torch.nn as nn
from torch.nn.parallel import DistributedDataParallel as DDP
from tock import steps

BATCH, CLASSES, EPOCHS = 192, 1000, 90


class Prefetcher:
    def __init__(self, device, pool=2):
        self.device = device
        self.pool = [
            (
                torch.randint(0, 256, (BATCH, 3, 224, 224), dtype=torch.uint8)
                .contiguous(memory_format=torch.channels_last)
                .pin_memory(),
                torch.randint(0, CLASSES, (BATCH,)).pin_memory(),
            )
            for _ in range(pool)
        ]
        self.mean = torch.tensor([123.675, 116.28, 103.53], device=device).view(1, 3, 1, 1)
        self.std = torch.tensor([58.395, 57.12, 57.375], device=device).view(1, 3, 1, 1)

    def get(self, i):
        images, labels = self.pool[i % len(self.pool)]
        images = images.to(self.device, non_blocking=True)
        labels = labels.to(self.device, non_blocking=True)
        return images.float().sub_(self.mean).div_(self.std), labels


def param_groups(model, weight_decay):
    decay, no_decay = [], []
    for p in model.parameters():
        (no_decay if p.ndim <= 1 else decay).append(p)
    return [{"params": decay, "weight_decay": weight_decay}, {"params": no_decay, "weight_decay": 0.0}]


def main():
    local_rank = int(os.environ["LOCAL_RANK"])
    torch.cuda.set_device(local_rank)
    device = torch.device("cuda", local_rank)
    dist.init_process_group("nccl", device_id=device)
    torch.backends.cudnn.benchmark = True
    torch.manual_seed(42 + dist.get_rank())

    model = timm.create_model("resnet50", num_classes=CLASSES, zero_init_last=True)
    model = nn.SyncBatchNorm.convert_sync_batchnorm(model)
    model = model.to(device, memory_format=torch.channels_last)
    model = DDP(model, device_ids=[local_rank], gradient_as_bucket_view=True)

    criterion = nn.CrossEntropyLoss(label_smoothing=0.1).to(device)
    lr = 0.1 * BATCH * dist.get_world_size() / 256
    optimizer = torch.optim.SGD(param_groups(model, 5e-5), lr, momentum=0.9, nesterov=True)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=EPOCHS * 3336)

    loader = Prefetcher(device)
    model.train()
    for i in steps():
        images, labels = loader.get(i)
        with torch.autocast("cuda", dtype=torch.bfloat16):
            loss = criterion(model(images), labels)
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()
        scheduler.step()


if __name__ == "__main__":
    main()
