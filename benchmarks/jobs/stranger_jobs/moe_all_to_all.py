"""A mixture of experts, half of them on each rank: tokens go and come back by all_to_all_single, counts from the router."""

import os

import torch
import torch.distributed as dist
import torch.distributed.nn.functional as dist_fn
import torch.nn as nn
import torch.nn.functional as F
from tock import steps

DIM, FFN, HEADS, LAYERS, EXPERTS, TOP_K, VOCAB = 2048, 5632, 16, 4, 8, 2, 32000
BATCH, SEQ = 4, 2048


class Expert(nn.Module):
    def __init__(self):
        super().__init__()
        self.gate_up, self.down = nn.Linear(DIM, 2 * FFN, bias=False), nn.Linear(FFN, DIM, bias=False)

    def forward(self, x):
        gate, up = self.gate_up(x).chunk(2, -1)
        return self.down(F.silu(gate) * up)


class MoE(nn.Module):
    def __init__(self, ep_size):
        super().__init__()
        self.ep_size, self.local = ep_size, EXPERTS // ep_size
        self.router = nn.Linear(DIM, EXPERTS, bias=False)
        self.experts = nn.ModuleList(Expert() for _ in range(self.local))

    def exchange(self, x, out_splits, in_splits):
        output = x.new_empty(sum(out_splits), x.shape[1])
        return dist_fn.all_to_all_single(output, x, out_splits, in_splits)

    def forward(self, x):
        shape, x = x.shape, x.flatten(0, 1)
        scores = self.router(x).float().softmax(-1)
        weights, chosen = scores.topk(TOP_K, -1)
        weights = weights / weights.sum(-1, keepdim=True)
        order = chosen.flatten().argsort(stable=True)
        counts = torch.bincount(chosen.flatten(), minlength=EXPERTS)
        received = torch.empty_like(counts)
        dist.all_to_all_single(received, counts)
        in_splits = counts.view(self.ep_size, -1).sum(1).tolist()
        per_source = received.view(self.ep_size, self.local).tolist()
        out_splits = [sum(row) for row in per_source]

        tokens = self.exchange(x[order // TOP_K], out_splits, in_splits)
        chunks = tokens.split([n for row in per_source for n in row])
        done = []
        for e, expert in enumerate(self.experts):
            mine = [chunks[r * self.local + e] for r in range(self.ep_size)]
            done.append(expert(torch.cat(mine)).split([len(m) for m in mine]))
        tokens = torch.cat([done[e][r] for r in range(self.ep_size) for e in range(self.local)])
        tokens = self.exchange(tokens, in_splits, out_splits)

        tokens = tokens * weights.flatten()[order].unsqueeze(1).to(tokens.dtype)
        out = torch.zeros_like(x).index_add(0, order // TOP_K, tokens)
        load = counts.float() / counts.sum()
        return out.view(shape), EXPERTS * (load * scores.mean(0)).sum()


class Block(nn.Module):
    def __init__(self, ep_size):
        super().__init__()
        self.norm1, self.norm2 = nn.RMSNorm(DIM), nn.RMSNorm(DIM)
        self.qkv, self.proj = nn.Linear(DIM, 3 * DIM, bias=False), nn.Linear(DIM, DIM, bias=False)
        self.moe = MoE(ep_size)

    def forward(self, x):
        qkv = self.qkv(self.norm1(x)).unflatten(-1, (3, HEADS, -1)).permute(2, 0, 3, 1, 4)
        y = F.scaled_dot_product_attention(*qkv, is_causal=True)
        x = x + self.proj(y.transpose(1, 2).flatten(2))
        y, aux = self.moe(self.norm2(x))
        return x + y, aux


class Model(nn.Module):
    def __init__(self, ep_size):
        super().__init__()
        self.embed, self.head = nn.Embedding(VOCAB, DIM), nn.Linear(DIM, VOCAB, bias=False)
        self.blocks, self.norm = nn.ModuleList(Block(ep_size) for _ in range(LAYERS)), nn.RMSNorm(DIM)

    def forward(self, tokens):
        x, aux = self.embed(tokens), 0.0
        for block in self.blocks:
            x, balance = block(x)
            aux = aux + balance
        return self.head(self.norm(x)), aux


torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
dist.init_process_group("nccl")
torch.manual_seed(dist.get_rank())
model = Model(dist.get_world_size()).to("cuda", torch.bfloat16)
dense = [p for n, p in model.named_parameters() if ".experts." not in n]
for p in dense:
    dist.broadcast(p.data, 0)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)

for _ in steps():
    tokens = torch.randint(0, VOCAB, (BATCH, SEQ + 1), device="cuda")
    logits, aux = model(tokens[:, :-1])
    loss = F.cross_entropy(logits.flatten(0, 1).float(), tokens[:, 1:].flatten()) + 0.01 * aux
    loss.backward()
    for p in dense:
        dist.all_reduce(p.grad, op=dist.ReduceOp.AVG)
    optimizer.step()
    optimizer.zero_grad()
