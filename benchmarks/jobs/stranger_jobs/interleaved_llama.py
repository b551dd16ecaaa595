"""A Llama of our own in four stages, two on each rank, interleaved: one forward and one backward in turn, bfloat16."""

import os

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.distributed.pipelining import PipelineStage, ScheduleInterleaved1F1B
from tock import steps

VOCAB, DIM, HEADS, HIDDEN, LAYERS = 32000, 2560, 20, 6912, 12
SEQ, BATCH, MICRO_BATCHES, STAGES_PER_RANK = 1024, 16, 4, 2


def rotate(x, cos, sin):
    a, b = x.chunk(2, dim=-1)
    return x * cos + torch.cat((-b, a), dim=-1) * sin


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.attention_norm, self.ffn_norm = nn.RMSNorm(DIM, eps=1e-5), nn.RMSNorm(DIM, eps=1e-5)
        self.wqkv, self.wo = nn.Linear(DIM, 3 * DIM, bias=False), nn.Linear(DIM, DIM, bias=False)
        self.w13, self.w2 = nn.Linear(DIM, 2 * HIDDEN, bias=False), nn.Linear(HIDDEN, DIM, bias=False)

    def forward(self, x, cos, sin):
        B, T, _ = x.shape
        qkv = self.wqkv(self.attention_norm(x)).view(B, T, 3, HEADS, DIM // HEADS)
        q, k, v = qkv.permute(2, 0, 3, 1, 4).unbind(0)
        q, k = rotate(q, cos, sin), rotate(k, cos, sin)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.wo(y.transpose(1, 2).reshape(B, T, DIM))
        gate, up = self.w13(self.ffn_norm(x)).chunk(2, dim=-1)
        return x + self.w2(F.silu(gate) * up)


class Chunk(nn.Module):
    def __init__(self, index, count):
        super().__init__()
        self.embed = nn.Embedding(VOCAB, DIM) if index == 0 else nn.Identity()
        self.blocks = nn.ModuleList(Block() for _ in range(LAYERS // count))
        last = index == count - 1
        self.head = nn.Sequential(nn.RMSNorm(DIM), nn.Linear(DIM, VOCAB, bias=False)) if last else nn.Identity()
        head_dim = DIM // HEADS
        angles = torch.outer(torch.arange(SEQ), 10000.0 ** (-torch.arange(0, head_dim, 2) / head_dim)).repeat(1, 2)
        self.register_buffer("cos", angles.cos(), persistent=False)
        self.register_buffer("sin", angles.sin(), persistent=False)

    def forward(self, x):
        x = self.embed(x)
        for block in self.blocks:
            x = block(x, self.cos, self.sin)
        return self.head(x)


def loss_fn(logits, labels):
    return F.cross_entropy(logits.flatten(0, 1).float(), labels.flatten())


def main():
    rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    device = torch.device(f"cuda:{os.environ['LOCAL_RANK']}")
    torch.cuda.set_device(device)
    dist.init_process_group("nccl", device_id=device)
    torch.manual_seed(rank)

    count = world * STAGES_PER_RANK
    indices = range(rank, count, world)
    chunks = nn.ModuleList(Chunk(i, count) for i in indices).to(device, torch.bfloat16)
    stages = [PipelineStage(chunk, i, count, device) for chunk, i in zip(chunks, indices)]
    schedule = ScheduleInterleaved1F1B(stages, n_microbatches=MICRO_BATCHES, loss_fn=loss_fn)
    optimizer = torch.optim.AdamW(chunks.parameters(), lr=3e-4, betas=(0.9, 0.95), weight_decay=0.1, fused=True)

    for _ in steps():
        tokens = torch.randint(0, VOCAB, (BATCH, SEQ + 1), device=device)
        inputs, labels = tokens[:, :-1].contiguous(), tokens[:, 1:].contiguous()
        if rank == 0:
            schedule.step(inputs)
        else:
            losses = []
            schedule.step(target=labels, losses=losses)
        torch.nn.utils.clip_grad_norm_(chunks.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()


if __name__ == "__main__":
    main()
