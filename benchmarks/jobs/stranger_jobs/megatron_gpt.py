import os

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from tock import steps

SEQ, DIM, HEADS, LAYERS, VOCAB, BATCH = 2048, 4096, 32, 6, 50304, 4


def shard(rows, cols):
    return nn.Parameter(0.02 * torch.randn(rows, cols))


class CopyToTensorParallel(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x.view_as(x)

    @staticmethod
    def backward(ctx, grad):
        grad = grad.contiguous()
        dist.all_reduce(grad)
        return grad


class ReduceFromTensorParallel(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        x = x.clone()
        dist.all_reduce(x)
        return x

    @staticmethod
    def backward(ctx, grad):
        return grad


class VocabParallelCrossEntropy(torch.autograd.Function):
    @staticmethod
    def forward(ctx, logits, target, start):
        logits, local = logits.float(), target.unsqueeze(-1) - start
        biggest = logits.amax(dim=-1, keepdim=True)
        dist.all_reduce(biggest, op=dist.ReduceOp.MAX)
        probs = (logits - biggest).exp_()
        total = probs.sum(dim=-1, keepdim=True)
        dist.all_reduce(total)
        inside = (local >= 0) & (local < logits.size(-1))
        local = local.masked_fill(~inside, 0)
        predicted = (logits.gather(-1, local) - biggest).masked_fill(~inside, 0.0)
        dist.all_reduce(predicted)
        ctx.save_for_backward(probs.div_(total), local, inside)
        return total.log() - predicted

    @staticmethod
    def backward(ctx, grad):
        probs, local, inside = ctx.saved_tensors
        return probs.scatter_add_(-1, local, -inside.float()).mul_(grad).bfloat16(), None, None


copy_to_tp, reduce_from_tp = CopyToTensorParallel.apply, ReduceFromTensorParallel.apply


class Layer(nn.Module):
    def __init__(self, tp):
        super().__init__()
        self.heads = HEADS // tp
        self.ln1, self.ln2 = nn.LayerNorm(DIM), nn.LayerNorm(DIM)
        self.qkv, self.proj = shard(3 * DIM // tp, DIM), shard(DIM, DIM // tp)
        self.up, self.down = shard(4 * DIM // tp, DIM), shard(DIM, 4 * DIM // tp)

    def forward(self, x):
        q, k, v = F.linear(copy_to_tp(self.ln1(x)), self.qkv).unflatten(-1, (3, self.heads, -1)).unbind(2)
        y = F.scaled_dot_product_attention(*(t.transpose(1, 2) for t in (q, k, v)), is_causal=True)
        x = x + reduce_from_tp(F.linear(y.transpose(1, 2).flatten(2), self.proj))
        h = F.gelu(F.linear(copy_to_tp(self.ln2(x)), self.up), approximate="tanh")
        return x + reduce_from_tp(F.linear(h, self.down))


class GPT(nn.Module):
    def __init__(self, rank, tp):
        super().__init__()
        self.start, self.rows = rank * VOCAB // tp, VOCAB // tp
        self.tok, self.pos, self.head = shard(self.rows, DIM), shard(SEQ, DIM), shard(self.rows, DIM)
        self.layers, self.norm = nn.ModuleList(Layer(tp) for _ in range(LAYERS)), nn.LayerNorm(DIM)

    def forward(self, ids, labels):
        outside = (ids < self.start) | (ids >= self.start + self.rows)
        x = F.embedding((ids - self.start).masked_fill(outside, 0), self.tok)
        x = reduce_from_tp(x.masked_fill(outside.unsqueeze(-1), 0.0)) + self.pos
        for layer in self.layers:
            x = layer(x)
        logits = F.linear(copy_to_tp(self.norm(x)), self.head)
        return VocabParallelCrossEntropy.apply(logits, labels, self.start).mean()


torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
dist.init_process_group("nccl")
torch.manual_seed(dist.get_rank())
model = GPT(dist.get_rank(), dist.get_world_size()).to("cuda", torch.bfloat16)
dist.broadcast(model.pos.data, src=0)
for layer in model.layers:
    layer.compile()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, betas=(0.9, 0.95), fused=True)
torch.manual_seed(1234)
for _ in steps():
    tokens = torch.randint(0, VOCAB, (BATCH, SEQ + 1), device="cuda")
    loss = model(tokens[:, :-1], tokens[:, 1:])
    optimizer.zero_grad(set_to_none=True)
    loss.backward()
    optimizer.step()
