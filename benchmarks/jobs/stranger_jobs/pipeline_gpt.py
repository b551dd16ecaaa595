"""A GPT in two stages of a pipeline, one forward and one backward in turn, bfloat16 weights, eager."""

import os

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.distributed.pipelining import PipelineStage, Schedule1F1B
from tock import steps

VOCAB, WIDTH, HEADS, DEPTH, CONTEXT = 50304, 2048, 16, 16, 1024
BATCH, MICRO_BATCHES = 16, 4


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.ln_1, self.ln_2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.c_attn, self.c_proj = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.mlp = nn.Sequential(nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Linear(4 * WIDTH, WIDTH))

    def forward(self, x):
        B, T, C = x.shape
        q, k, v = self.c_attn(self.ln_1(x)).split(C, dim=2)
        q, k, v = (t.view(B, T, HEADS, C // HEADS).transpose(1, 2) for t in (q, k, v))
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.c_proj(y.transpose(1, 2).contiguous().view(B, T, C))
        return x + self.mlp(self.ln_2(x))


class GPT(nn.Module):
    def __init__(self, layers, first, last):
        super().__init__()
        self.wte = nn.Embedding(VOCAB, WIDTH) if first else None
        self.wpe = nn.Embedding(CONTEXT, WIDTH) if first else None
        self.h = nn.ModuleList(Block() for _ in layers)
        self.ln_f = nn.LayerNorm(WIDTH) if last else None
        self.lm_head = nn.Linear(WIDTH, VOCAB, bias=False) if last else None

    def forward(self, x):
        if self.wte is not None:
            x = self.wte(x) + self.wpe(torch.arange(x.shape[1], device=x.device))
        for block in self.h:
            x = block(x)
        return x if self.lm_head is None else self.lm_head(self.ln_f(x))


def loss_fn(logits, targets):
    return F.cross_entropy(logits.view(-1, VOCAB).float(), targets.view(-1))


def main():
    rank, world_size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
    torch.cuda.set_device(device)
    dist.init_process_group("nccl", device_id=device)
    torch.manual_seed(rank)

    per_stage = DEPTH // world_size
    layers = range(rank * per_stage, (rank + 1) * per_stage)
    module = GPT(layers, first=rank == 0, last=rank == world_size - 1).to(device, torch.bfloat16)
    stage = PipelineStage(module, rank, world_size, device)
    schedule = Schedule1F1B(stage, n_microbatches=MICRO_BATCHES, loss_fn=loss_fn)
    optimizer = torch.optim.AdamW(module.parameters(), lr=2e-4, betas=(0.9, 0.95), fused=True)

    for _ in steps():
        tokens = torch.randint(0, VOCAB, (BATCH, CONTEXT + 1), device=device)
        x, y = tokens[:, :-1].contiguous(), tokens[:, 1:].contiguous()
        optimizer.zero_grad(set_to_none=True)
        if rank == 0:
            schedule.step(x)
        else:
            losses = []
            schedule.step(target=y, losses=losses)
            loss = torch.stack(losses).mean().detach()
        optimizer.step()


if __name__ == "__main__":
    main()
