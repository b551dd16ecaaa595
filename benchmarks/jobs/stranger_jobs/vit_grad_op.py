"""ViT-L of timm under FullyShardedDataParallel (gradients and optimizer sharded), blocks checkpointed, bfloat16."""

import functools
import os

import timm
import torch
import torch.distributed as dist
import torch.nn as nn
from timm.models.vision_transformer import Block
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import (
    CheckpointImpl,
    apply_activation_checkpointing,
    checkpoint_wrapper,
)
from torch.distributed.fsdp import BackwardPrefetch, MixedPrecision, ShardingStrategy
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP
from torch.distributed.fsdp.wrap import transformer_auto_wrap_policy
from tock import steps

BATCH_SIZE = 128


def wrap(model, local_rank):
    model = FSDP(
        model,
        sharding_strategy=ShardingStrategy.SHARD_GRAD_OP,
        auto_wrap_policy=functools.partial(transformer_auto_wrap_policy, transformer_layer_cls={Block}),
        mixed_precision=MixedPrecision(
            param_dtype=torch.bfloat16, reduce_dtype=torch.bfloat16, buffer_dtype=torch.bfloat16
        ),
        backward_prefetch=BackwardPrefetch.BACKWARD_PRE,
        device_id=local_rank,
        limit_all_gathers=True,
        use_orig_params=True,
    )
    apply_activation_checkpointing(
        model,
        checkpoint_wrapper_fn=functools.partial(checkpoint_wrapper, checkpoint_impl=CheckpointImpl.NO_REENTRANT),
        check_fn=lambda module: isinstance(module, Block),
    )
    return model


def main():
    local_rank = int(os.environ["LOCAL_RANK"])
    torch.cuda.set_device(local_rank)
    dist.init_process_group("nccl")
    torch.manual_seed(0)

    model = timm.create_model("vit_large_patch16_224", num_classes=1000, drop_path_rate=0.1)
    model = wrap(model, local_rank)
    optimizer = torch.optim.AdamW(model.parameters(), lr=5e-4, betas=(0.9, 0.98), weight_decay=0.1)
    scheduler = torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=5e-4, total_steps=1000, pct_start=0.1)
    criterion = nn.CrossEntropyLoss(label_smoothing=0.1)

    torch.manual_seed(dist.get_rank())
    model.train()
    for _ in steps():
        images = torch.rand(BATCH_SIZE, 3, 224, 224, device=local_rank, dtype=torch.bfloat16)
        targets = torch.randint(0, 1000, (BATCH_SIZE,), device=local_rank)
        optimizer.zero_grad()
        loss = criterion(model(images), targets)
        loss.backward()
        model.clip_grad_norm_(1.0)
        optimizer.step()
        scheduler.step()


if __name__ == "__main__":
    main()
