import argparse
import math
import os

import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as funcol
import torch.nn as nn
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel

from tock import steps

# every routed expert lives on one rank; attention, routers and the shared expert are replicated (DDP)
torch._dynamo.config.optimize_ddp = False


class SelfAttention(nn.Module):
    def __init__(self, dim, heads, latent):
        super().__init__()
        self.heads = heads
        self.q = nn.Linear(dim, dim, bias=False)
        self.kv_down, self.kv_norm = nn.Linear(dim, latent, bias=False), nn.RMSNorm(latent)
        self.kv_up = nn.Linear(latent, 2 * dim, bias=False)
        self.o = nn.Linear(dim, dim, bias=False)

    def forward(self, x):
        q = self.q(x)
        k, v = self.kv_up(self.kv_norm(self.kv_down(x))).chunk(2, dim=-1)
        q, k, v = (t.unflatten(-1, (self.heads, -1)).transpose(1, 2) for t in (q, k, v))
        return self.o(F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(2))


class GatedMLP(nn.Module):
    def __init__(self, dim, hidden):
        super().__init__()
        self.gate, self.up = nn.Linear(dim, hidden, bias=False), nn.Linear(dim, hidden, bias=False)
        self.down = nn.Linear(hidden, dim, bias=False)

    def forward(self, x):
        return self.down(F.silu(self.gate(x)) * self.up(x))


class RoutedExperts(nn.Module):
    def __init__(self, local, dim, hidden):
        super().__init__()
        self.w_gate = nn.Parameter(torch.randn(local, dim, hidden) / math.sqrt(dim))
        self.w_up = nn.Parameter(torch.randn(local, dim, hidden) / math.sqrt(dim))
        self.w_down = nn.Parameter(torch.randn(local, hidden, dim) / math.sqrt(hidden))

    def forward(self, x):  # (local experts, slots, dim)
        return torch.bmm(F.silu(torch.bmm(x, self.w_gate)) * torch.bmm(x, self.w_up), self.w_down)


class MoE(nn.Module):
    def __init__(self, a, world):
        super().__init__()
        self.n, self.k, self.world, self.factor = a.experts, a.top_k, world, a.capacity
        self.router = nn.Linear(a.dim, a.experts, bias=False)
        self.shared = GatedMLP(a.dim, a.shared_hidden)
        self.experts = RoutedExperts(a.experts // world, a.dim, a.expert_hidden)
        self.register_buffer("bias", torch.zeros(a.experts))
        self.register_buffer("load", torch.zeros(a.experts))

    def forward(self, x):
        shape, dim = x.shape, x.shape[-1]
        x = x.reshape(-1, dim)
        tokens = x.shape[0]
        slots = int(self.factor * tokens * self.k / self.n)

        scores = torch.sigmoid(self.router(x).float())
        chosen = (scores + self.bias).topk(self.k, dim=-1).indices
        weight = scores.gather(1, chosen)
        weight = weight / weight.sum(dim=-1, keepdim=True)

        flat = chosen.flatten()
        hot = F.one_hot(flat, self.n)
        self.load.add_(hot.sum(0))
        place = (hot.cumsum(0) - 1).gather(1, flat[:, None]).squeeze(1)
        slot = torch.where(place < slots, flat * slots + place, self.n * slots)  # the last row takes what overflows

        sent = x.new_zeros(self.n * slots + 1, dim).to(torch.bfloat16)
        sent = sent.index_copy(0, slot, x.to(torch.bfloat16).repeat_interleave(self.k, dim=0))
        got = funcol.all_to_all_single_autograd(sent[:-1], None, None, dist.group.WORLD)
        shared = self.shared(x)
        got = got.view(self.world, -1, slots, dim).transpose(0, 1).reshape(-1, self.world * slots, dim)
        y = self.experts(got).view(-1, self.world, slots, dim).transpose(0, 1).reshape(-1, dim)
        y = funcol.all_to_all_single_autograd(y.contiguous(), None, None, dist.group.WORLD)
        y = torch.cat((y, y.new_zeros(1, dim)))[slot].view(tokens, self.k, dim)
        return (shared + (y * weight.unsqueeze(-1)).sum(dim=1)).to(torch.bfloat16).view(shape)


class Block(nn.Module):
    def __init__(self, a, dense, world):
        super().__init__()
        self.n1, self.n2 = nn.RMSNorm(a.dim), nn.RMSNorm(a.dim)
        self.attn = SelfAttention(a.dim, a.heads, a.latent)
        self.ffn = GatedMLP(a.dim, a.dense_hidden) if dense else MoE(a, world)

    def forward(self, x):
        x = x + self.attn(self.n1(x))
        return x + self.ffn(self.n2(x))


class Model(nn.Module):
    def __init__(self, a, world):
        super().__init__()
        self.embed = nn.Embedding(a.vocab, a.dim)
        self.pos = nn.Embedding(a.seq, a.dim)
        self.blocks = nn.ModuleList([Block(a, i < a.dense_layers, world) for i in range(a.layers)])
        self.norm, self.head = nn.RMSNorm(a.dim), nn.Linear(a.dim, a.vocab, bias=False)

    def forward(self, ids):
        x = self.embed(ids) + self.pos.weight[: ids.shape[1]]
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))


def main(a):
    dist.init_process_group("nccl")
    rank, world = dist.get_rank(), dist.get_world_size()
    local_rank = int(os.environ["LOCAL_RANK"])
    torch.cuda.set_device(local_rank)
    torch.manual_seed(rank)  # DDP copies what is replicated from rank 0
    model = Model(a, world).cuda()
    routed = [n for n, _ in model.named_parameters() if ".experts." in n]
    moes = [m for m in model.modules() if isinstance(m, MoE)]
    for block in model.blocks:
        block.compile()
    DistributedDataParallel._set_params_and_buffers_to_ignore_for_model(model, routed)
    ddp = DistributedDataParallel(
        model, device_ids=[local_rank], broadcast_buffers=False, gradient_as_bucket_view=True, bucket_cap_mb=100
    )
    experts = [p for n, p in model.named_parameters() if ".experts." in n]
    others = [p for n, p in model.named_parameters() if ".experts." not in n]
    optim = torch.optim.AdamW([{"params": others}, {"params": experts, "lr": a.lr / 2}], lr=a.lr, fused=True)

    for it in steps():
        data = torch.randint(a.vocab, (a.batch, a.seq + 1)).cuda(non_blocking=True)
        with torch.autocast("cuda", dtype=torch.bfloat16):
            logits = ddp(data[:, :-1])
            loss = F.cross_entropy(logits.view(-1, a.vocab), data[:, 1:].reshape(-1))
        loss.backward()
        # an expert has seen the tokens of all ranks
        torch._foreach_div_([p.grad for p in experts], world)
        optim.step()
        optim.zero_grad()
        loads = torch.stack([m.load for m in moes])
        dist.all_reduce(loads)
        nudge = a.bias_rate * torch.sign(loads.mean(dim=1, keepdim=True) - loads)
        for m, row in zip(moes, nudge):
            m.bias.add_(row)
            m.load.zero_()


if __name__ == "__main__":
    p = argparse.ArgumentParser()
    p.add_argument("--dim", type=int, default=2048)
    p.add_argument("--heads", type=int, default=16)
    p.add_argument("--latent", type=int, default=512)
    p.add_argument("--layers", type=int, default=12)
    p.add_argument("--dense-layers", type=int, default=1)
    p.add_argument("--dense-hidden", type=int, default=8192)
    p.add_argument("--experts", type=int, default=32)
    p.add_argument("--top-k", type=int, default=4)
    p.add_argument("--expert-hidden", type=int, default=1024)
    p.add_argument("--shared-hidden", type=int, default=2048)
    p.add_argument("--capacity", type=float, default=1.25)
    p.add_argument("--vocab", type=int, default=32768)
    p.add_argument("--seq", type=int, default=2048)
    p.add_argument("--batch", type=int, default=4)
    p.add_argument("--bias-rate", type=float, default=1e-3)
    p.add_argument("--lr", type=float, default=3e-4)
    main(p.parse_args())
