"""Masked prediction of speech units (in the manner of HuBERT). The encoder is traced and cut in four by
torch.distributed.pipelining.pipeline; each rank has two of the stages and runs all forwards of one before the other's
(looped breadth first)."""

import os

import torch
import torch.distributed as dist
import torch.nn.functional as F
from tock import steps
from torch import nn
from torch.distributed.pipelining import ScheduleLoopedBFS, SplitPoint, pipeline

WIDTH = 1280
HEADS = 20
LAYERS = 24
UNITS = 2000
FRAMES = 1024
BINS = 80
MICRO, N_MICRO = 4, 8
MASK_SHARE = 0.5


class SelfAttention(nn.Module):
    def __init__(self):
        super().__init__()
        self.query = nn.Linear(WIDTH, WIDTH)
        self.key = nn.Linear(WIDTH, WIDTH, bias=False)
        self.value = nn.Linear(WIDTH, WIDTH)
        self.out = nn.Linear(WIDTH, WIDTH)

    def heads(self, t):
        return t.view(t.shape[0], t.shape[1], HEADS, WIDTH // HEADS).transpose(1, 2)

    def forward(self, x):
        y = F.scaled_dot_product_attention(
            self.heads(self.query(x)), self.heads(self.key(x)), self.heads(self.value(x))
        )
        return self.out(y.transpose(1, 2).reshape(x.shape))


class EncoderLayer(nn.Module):
    def __init__(self):
        super().__init__()
        self.attn_ln = nn.LayerNorm(WIDTH)
        self.attn = SelfAttention()
        self.ffn_ln = nn.LayerNorm(WIDTH)
        self.fc1 = nn.Linear(WIDTH, 4 * WIDTH)
        self.fc2 = nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x):
        x = x + self.attn(self.attn_ln(x))
        return x + self.fc2(F.gelu(self.fc1(self.ffn_ln(x))))


class UnitEncoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv1 = nn.Conv1d(BINS, WIDTH, 3, padding=1)
        self.conv2 = nn.Conv1d(WIDTH, WIDTH, 3, stride=2, padding=1)
        self.mask_embedding = nn.Parameter(torch.rand(WIDTH))
        self.position = nn.Parameter(0.02 * torch.randn(FRAMES, WIDTH))
        self.layers = nn.ModuleList([EncoderLayer() for _ in range(LAYERS)])
        self.ln = nn.LayerNorm(WIDTH)
        self.proj = nn.Linear(WIDTH, UNITS)

    def forward(self, mel, mask):
        x = F.gelu(self.conv2(F.gelu(self.conv1(mel)))).transpose(1, 2).contiguous()
        x = torch.where(mask.unsqueeze(-1), self.mask_embedding, x) + self.position
        for layer in self.layers:
            x = layer(x)
        return self.proj(self.ln(x))


def unit_loss(logits, target):
    return F.cross_entropy(logits.float().flatten(0, 1), target.flatten(), ignore_index=-100)


def draw(device):
    n = MICRO * N_MICRO
    mel = torch.randn(n, BINS, 2 * FRAMES, device=device, dtype=torch.bfloat16)
    mask = torch.rand(n, FRAMES, device=device) < MASK_SHARE
    units = torch.randint(0, UNITS, (n, FRAMES), device=device)
    return mel, mask, units.masked_fill(~mask, -100)


def main():
    local = int(os.environ["LOCAL_RANK"])
    device = torch.device("cuda", local)
    torch.cuda.set_device(device)
    dist.init_process_group("nccl", device_id=device)
    rank, size = dist.get_rank(), dist.get_world_size()
    n_stages = 2 * size

    torch.manual_seed(5)
    encoder = UnitEncoder().to(torch.bfloat16)
    example = (
        torch.randn(MICRO, BINS, 2 * FRAMES, dtype=torch.bfloat16),
        torch.zeros(MICRO, FRAMES, dtype=torch.bool),
    )
    share = LAYERS // n_stages
    spec = {f"layers.{i * share}": SplitPoint.BEGINNING for i in range(1, n_stages)}
    pipe = pipeline(encoder, mb_args=example, split_spec=spec)
    assert pipe.num_stages == n_stages
    stages = [pipe.build_stage(i, device) for i in range(rank, n_stages, size)]
    del encoder
    schedule = ScheduleLoopedBFS(stages, N_MICRO, loss_fn=unit_loss)
    params = [p for s in stages for p in s.submod.parameters()]
    opt = torch.optim.AdamW(params, lr=5e-4, betas=(0.9, 0.98), eps=1e-6, weight_decay=0.01)

    torch.manual_seed(77)
    for step in steps():
        mel, mask, target = draw(device)
        losses = []
        if rank == 0:
            schedule.step(mel, mask)
        elif rank == size - 1:
            schedule.step(target=target, losses=losses)
        else:
            schedule.step()
        torch.nn.utils.clip_grad_norm_(params, 10.0)  # of what is here only
        opt.step()
        opt.zero_grad()
        if losses and step % 10 == 0:
            print(f"{step}: {torch.stack(losses).mean().item():.3f}")


main()
