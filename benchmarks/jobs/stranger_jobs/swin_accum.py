"""Swin-T of timm, compiled: DDP, two micro-batches of which the last synchronizes, autocast, averaged weights."""

import contextlib
import os

import timm
import torch
import torch.distributed as dist
from timm.loss import LabelSmoothingCrossEntropy
from timm.optim import param_groups_weight_decay
from timm.utils import ModelEmaV3
from torch.nn.parallel import DistributedDataParallel as DDP
from tock import steps

BATCH_SIZE = 192
ACCUMULATE = 2
IMAGE_SIZE = 224


def main():
    dist.init_process_group("nccl")
    local_rank = int(os.environ["LOCAL_RANK"])
    device = torch.device("cuda", local_rank)
    torch.cuda.set_device(device)
    torch.manual_seed(42)
    torch.backends.cudnn.benchmark = True
    torch.set_float32_matmul_precision("high")

    model = timm.create_model("swin_tiny_patch4_window7_224", pretrained=False, drop_path_rate=0.2).to(device)
    ema = ModelEmaV3(model, decay=0.9998)
    groups = param_groups_weight_decay(model, weight_decay=0.05, no_weight_decay_list=model.no_weight_decay())
    optimizer = torch.optim.AdamW(groups, lr=1e-3, fused=True)
    criterion = LabelSmoothingCrossEntropy(0.1)

    model = torch.compile(DDP(model, device_ids=[local_rank], broadcast_buffers=False))
    torch.manual_seed(42 + dist.get_rank())

    model.train()
    for step in steps():
        optimizer.zero_grad(set_to_none=True)
        for micro in range(ACCUMULATE):
            images = torch.randn(BATCH_SIZE, 3, IMAGE_SIZE, IMAGE_SIZE, device=device)
            labels = torch.randint(0, 1000, (BATCH_SIZE,), device=device)
            last = micro == ACCUMULATE - 1
            with contextlib.nullcontext() if last else model.no_sync():
                with torch.autocast("cuda", dtype=torch.bfloat16):
                    loss = criterion(model(images), labels) / ACCUMULATE
                loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 5.0)
        optimizer.step()
        ema.update(model.module, step=step)


if __name__ == "__main__":
    main()
