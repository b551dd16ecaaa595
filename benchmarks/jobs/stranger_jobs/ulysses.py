"""Long context: each rank holds half of 32k tokens, heads for tokens by all-to-all around attention (Ulysses), DDP."""

import os

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel as DDP
from tock import steps

SEQ, DIM, HEADS, LAYERS, VOCAB = 32768, 2048, 16, 4, 32000


class SeqAllToAll(torch.autograd.Function):
    @staticmethod
    def forward(ctx, group, x, scatter, gather):
        ctx.group, ctx.scatter, ctx.gather = group, scatter, gather
        world = dist.get_world_size(group)
        inputs = [t.contiguous() for t in torch.tensor_split(x, world, scatter)]
        outputs = [torch.empty_like(t) for t in inputs]
        dist.all_to_all(outputs, inputs, group=group)
        return torch.cat(outputs, dim=gather).contiguous()

    @staticmethod
    def backward(ctx, grad):
        return None, SeqAllToAll.apply(ctx.group, grad, ctx.gather, ctx.scatter), None, None


class UlyssesAttention(nn.Module):
    def __init__(self, group):
        super().__init__()
        self.group = group
        self.wq, self.wk, self.wv, self.wo = (nn.Linear(DIM, DIM, bias=False) for _ in range(4))

    def forward(self, x):
        q, k, v = (w(x).unflatten(-1, (HEADS, -1)) for w in (self.wq, self.wk, self.wv))
        q, k, v = (SeqAllToAll.apply(self.group, t, 2, 1).transpose(1, 2) for t in (q, k, v))
        out = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        out = SeqAllToAll.apply(self.group, out.transpose(1, 2), 1, 2)
        return self.wo(out.flatten(2))


class Layer(nn.Module):
    def __init__(self, group):
        super().__init__()
        self.n1, self.n2 = nn.LayerNorm(DIM), nn.LayerNorm(DIM)
        self.attn = UlyssesAttention(group)
        self.up, self.down = nn.Linear(DIM, 4 * DIM), nn.Linear(4 * DIM, DIM)

    def forward(self, x):
        x = x + self.attn(self.n1(x))
        return x + self.down(F.gelu(self.up(self.n2(x)), approximate="tanh"))


class LongLM(nn.Module):
    def __init__(self, group):
        super().__init__()
        self.tok, self.pos = nn.Embedding(VOCAB, DIM), nn.Embedding(SEQ, DIM)
        self.layers = nn.ModuleList(Layer(group) for _ in range(LAYERS))
        self.norm, self.head = nn.LayerNorm(DIM), nn.Linear(DIM, VOCAB, bias=False)

    def forward(self, ids, positions):
        x = self.tok(ids) + self.pos(positions)
        for layer in self.layers:
            x = layer(x)
        return self.head(self.norm(x))


def main():
    torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    dist.init_process_group("nccl")
    rank, world = dist.get_rank(), dist.get_world_size()
    group = dist.new_group(range(world))
    torch.manual_seed(0)
    model = LongLM(group).to("cuda", torch.bfloat16)
    model = DDP(model, device_ids=[torch.cuda.current_device()], bucket_cap_mb=100)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, betas=(0.9, 0.95))
    local = SEQ // world
    positions = torch.arange(rank * local, (rank + 1) * local, device="cuda").unsqueeze(0)
    for _ in steps():
        document = torch.randint(0, VOCAB, (1, SEQ + 1), device="cuda")
        dist.broadcast(document, src=0)
        ids = document[:, rank * local : (rank + 1) * local]
        targets = document[:, rank * local + 1 : (rank + 1) * local + 1]
        logits = model(ids, positions)
        loss = F.cross_entropy(logits.flatten(0, 1), targets.flatten())
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()


if __name__ == "__main__":
    main()
