# Code model pre-training with fill-in-the-middle. Plain DDP, the whole decoder compiled, gradient accumulation.
# torchrun --standalone --nproc_per_node=2 code_lm_accum.py
import math
import os
from contextlib import nullcontext
from dataclasses import dataclass

import numpy as np
import torch
import torch.distributed as dist
import torch.nn as nn
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel as DDP

from tock import steps

# -----------------------------------------------------------------------------
micro_batch_size = 4
gradient_accumulation_steps = 2
learning_rate, min_lr, warmup_iters, lr_decay_iters = 4e-4, 4e-5, 100, 5000
weight_decay, beta1, beta2, grad_clip = 0.1, 0.9, 0.95, 1.0
z_loss = 1e-4
log_interval = 10
# -----------------------------------------------------------------------------


@dataclass
class Config:
    block_size: int = 2048
    vocab_size: int = 49152
    n_layer: int = 16
    n_head: int = 16
    n_kv_head: int = 4
    n_embd: int = 2048
    n_inner: int = 5632


class Attention(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.n_head, self.n_kv_head, self.hd = c.n_head, c.n_kv_head, c.n_embd // c.n_head
        self.c_attn = nn.Linear(c.n_embd, (c.n_head + 2 * c.n_kv_head) * self.hd, bias=False)
        self.c_proj = nn.Linear(c.n_embd, c.n_embd, bias=False)
        self.q_norm, self.k_norm = nn.RMSNorm(self.hd), nn.RMSNorm(self.hd)

    def forward(self, x, rope):
        B, T, C = x.size()
        q, k, v = self.c_attn(x).view(B, T, -1, self.hd).split([self.n_head, self.n_kv_head, self.n_kv_head], dim=2)
        q, k = rotate(self.q_norm(q), rope), rotate(self.k_norm(k), rope)
        q, k, v = q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
        return self.c_proj(y.transpose(1, 2).contiguous().view(B, T, C))


def rotate(x, rope):
    cos, sin = rope
    even, odd = x.float().unflatten(-1, (-1, 2)).unbind(-1)
    return torch.stack((even * cos - odd * sin, even * sin + odd * cos), dim=-1).flatten(-2).to(torch.bfloat16)


class Block(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.ln_1, self.ln_2 = nn.RMSNorm(c.n_embd), nn.RMSNorm(c.n_embd)
        self.attn = Attention(c)
        self.w_gate = nn.Linear(c.n_embd, c.n_inner, bias=False)
        self.w_in = nn.Linear(c.n_embd, c.n_inner, bias=False)
        self.w_out = nn.Linear(c.n_inner, c.n_embd, bias=False)

    def forward(self, x, rope):
        x = x + self.attn(self.ln_1(x), rope)
        h = self.ln_2(x)
        return x + self.w_out(F.silu(self.w_gate(h)) * self.w_in(h))


class CodeLM(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.wte = nn.Embedding(c.vocab_size, c.n_embd)
        self.h = nn.ModuleList([Block(c) for _ in range(c.n_layer)])
        self.ln_f = nn.RMSNorm(c.n_embd)
        self.lm_head = nn.Linear(c.n_embd, c.vocab_size, bias=False)
        self.lm_head.weight = self.wte.weight
        hd = c.n_embd // c.n_head
        theta = torch.outer(torch.arange(c.block_size), 1.0 / 100000 ** (torch.arange(0, hd, 2) / hd))
        self.register_buffer("cos", theta.cos()[:, None], persistent=False)
        self.register_buffer("sin", theta.sin()[:, None], persistent=False)
        for name, p in self.named_parameters():
            if p.dim() > 1:
                std = 0.02 / math.sqrt(2 * c.n_layer) if name.endswith(("c_proj.weight", "w_out.weight")) else 0.02
                nn.init.normal_(p, std=std)

    def forward(self, idx, targets):
        x = self.wte(idx)
        for block in self.h:
            x = block(x, (self.cos, self.sin))
        logits = self.lm_head(self.ln_f(x)).float()
        lse = logits.logsumexp(dim=-1)
        ce = F.cross_entropy(logits.view(-1, logits.size(-1)), targets.reshape(-1), ignore_index=-1)
        return ce + z_loss * (lse * lse).mean(), ce.detach()


config = Config()
ddp_local_rank = int(os.environ["LOCAL_RANK"])
device = f"cuda:{ddp_local_rank}"
torch.cuda.set_device(device)
dist.init_process_group(backend="nccl")
ddp_rank = dist.get_rank()
torch.manual_seed(1337)
torch.set_float32_matmul_precision("high")
rng = np.random.default_rng(1337 + ddp_rank)
corpus = rng.integers(0, config.vocab_size - 4, size=1 << 20, dtype=np.uint16)
FIM_PRE, FIM_MID, FIM_SUF = (config.vocab_size - i for i in (3, 2, 1))


def get_batch():
    T = config.block_size
    rows = []
    for _ in range(micro_batch_size):
        i = rng.integers(len(corpus) - T - 1)
        doc = corpus[i : i + T + 1].astype(np.int64)
        if rng.random() < 0.5:  # prefix, suffix, middle
            a, b = sorted(rng.integers(1, T - 3, size=2))
            doc = doc[: T - 2]
            doc = np.concatenate(([FIM_PRE], doc[:a], [FIM_SUF], doc[b:], [FIM_MID], doc[a:b]))
        rows.append(doc)
    data = torch.from_numpy(np.stack(rows)).pin_memory()
    data = data.to(device, non_blocking=True)
    return data[:, :-1], data[:, 1:]


def get_lr(it):
    if it < warmup_iters:
        return learning_rate * (it + 1) / (warmup_iters + 1)
    ratio = min(1.0, (it - warmup_iters) / (lr_decay_iters - warmup_iters))
    return min_lr + 0.5 * (1.0 + math.cos(math.pi * ratio)) * (learning_rate - min_lr)


model = CodeLM(config).to(device)
decay = [p for p in model.parameters() if p.dim() >= 2]
rest = [p for p in model.parameters() if p.dim() < 2]
groups = [{"params": decay, "weight_decay": weight_decay}, {"params": rest, "weight_decay": 0.0}]
optimizer = torch.optim.AdamW(groups, lr=learning_rate, betas=(beta1, beta2), fused=True)
model = torch.compile(model)
model = DDP(model, device_ids=[ddp_local_rank], bucket_cap_mb=400, gradient_as_bucket_view=True)

X, Y = get_batch()
for iter_num in steps():
    for group in optimizer.param_groups:
        group["lr"] = get_lr(iter_num)
    for micro_step in range(gradient_accumulation_steps):
        last = micro_step == gradient_accumulation_steps - 1
        with nullcontext() if last else model.no_sync():
            with torch.autocast("cuda", dtype=torch.bfloat16):
                loss, ce = model(X, Y)
            X, Y = get_batch()
            (loss / gradient_accumulation_steps).backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), grad_clip)
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)
    if iter_num % log_interval == 0:
        dist.all_reduce(ce, op=dist.ReduceOp.AVG)
        if ddp_rank == 0:
            print(f"iter {iter_num}: loss {ce.item():.4f}")
