"""A compiled ViT-B/16 of timm: DDP with a static graph, gradients as views of buckets, compressed to bfloat16 on the wire."""

import os

import timm
import torch
import torch.distributed as dist
from timm.data import Mixup
from timm.loss import SoftTargetCrossEntropy
from timm.optim import param_groups_weight_decay
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks
from torch.nn.parallel import DistributedDataParallel
from tock import steps

BATCH_SIZE = 192
NUM_CLASSES = 1000


def setup():
    local_rank = int(os.environ["LOCAL_RANK"])
    torch.cuda.set_device(local_rank)
    dist.init_process_group("nccl")
    torch.manual_seed(dist.get_rank())
    torch.backends.cuda.matmul.allow_tf32 = True
    torch.backends.cudnn.allow_tf32 = True
    return local_rank, torch.device(f"cuda:{local_rank}")


def build(local_rank, device):
    model = timm.create_model("vit_base_patch16_224", num_classes=NUM_CLASSES, drop_path_rate=0.0)
    model.to(device)
    groups = param_groups_weight_decay(model, weight_decay=0.05, no_weight_decay_list=model.no_weight_decay())
    optimizer = torch.optim.AdamW(groups, lr=1e-3, betas=(0.9, 0.999), fused=True)
    ddp = DistributedDataParallel(
        torch.compile(model),
        device_ids=[local_rank],
        bucket_cap_mb=50,
        static_graph=True,
        gradient_as_bucket_view=True,
        broadcast_buffers=False,
    )
    ddp.register_comm_hook(state=None, hook=default_hooks.bf16_compress_hook)
    return ddp, optimizer


def main():
    local_rank, device = setup()
    model, optimizer = build(local_rank, device)
    mixup = Mixup(mixup_alpha=0.8, cutmix_alpha=0.0, label_smoothing=0.1, num_classes=NUM_CLASSES)
    criterion = SoftTargetCrossEntropy()
    model.train()
    for _ in steps():
        images = torch.randn(BATCH_SIZE, 3, 224, 224, device=device)
        labels = torch.randint(0, NUM_CLASSES, (BATCH_SIZE,), device=device)
        images, targets = mixup(images, labels)
        with torch.autocast(device_type="cuda", dtype=torch.bfloat16):
            output = model(images)
        loss = criterion(output.float(), targets)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


if __name__ == "__main__":
    main()
