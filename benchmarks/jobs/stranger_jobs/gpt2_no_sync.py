"""GPT-2 medium of transformers: DDP, two micro-batches of which only the last one synchronizes, clipped gradients."""

import math
import os
from contextlib import nullcontext

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP
from tock import steps
from transformers import GPT2Config, GPT2LMHeadModel

micro_batch_size = 6
block_size = 1024
gradient_accumulation_steps = 2
learning_rate, min_lr = 3e-4, 3e-5
warmup_iters, lr_decay_iters = 200, 60000
weight_decay = 0.1
grad_clip = 1.0

dist.init_process_group(backend="nccl")
rank, local_rank = int(os.environ["RANK"]), int(os.environ["LOCAL_RANK"])
device = f"cuda:{local_rank}"
torch.cuda.set_device(device)
torch.manual_seed(1337 + rank)
torch.set_float32_matmul_precision("high")
ctx = torch.amp.autocast(device_type="cuda", dtype=torch.bfloat16)

config = GPT2Config(
    vocab_size=50304,
    n_positions=block_size,
    n_embd=1024,
    n_layer=24,
    n_head=16,
    resid_pdrop=0.0,
    embd_pdrop=0.0,
    attn_pdrop=0.0,
    use_cache=False,
)
model = GPT2LMHeadModel(config).to(device)

decay = [p for p in model.parameters() if p.dim() >= 2]
other = [p for p in model.parameters() if p.dim() < 2]
optimizer = torch.optim.AdamW(
    [{"params": decay, "weight_decay": weight_decay}, {"params": other, "weight_decay": 0.0}],
    lr=learning_rate,
    betas=(0.9, 0.95),
    fused=True,
)
model = DDP(model, device_ids=[local_rank])


def get_batch():
    data = torch.randint(0, 50257, (micro_batch_size, block_size + 1)).pin_memory()
    data = data.to(device, non_blocking=True)
    return data[:, :-1], data[:, 1:]


def get_lr(it):
    if it < warmup_iters:
        return learning_rate * (it + 1) / (warmup_iters + 1)
    ratio = (it - warmup_iters) / (lr_decay_iters - warmup_iters)
    return min_lr + 0.5 * (1.0 + math.cos(math.pi * ratio)) * (learning_rate - min_lr)


model.train()
X, Y = get_batch()
for iter_num in steps():
    for group in optimizer.param_groups:
        group["lr"] = get_lr(iter_num)
    for micro_step in range(gradient_accumulation_steps):
        last = micro_step == gradient_accumulation_steps - 1
        with nullcontext() if last else model.no_sync():
            with ctx:
                logits = model(input_ids=X).logits
                loss = torch.nn.functional.cross_entropy(logits.view(-1, logits.size(-1)), Y.reshape(-1))
                loss = loss / gradient_accumulation_steps
            X, Y = get_batch()
            loss.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), grad_clip)
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)
