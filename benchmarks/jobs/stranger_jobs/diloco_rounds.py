"""DiLoCo: each rank trains its own replica for a few inner steps with AdamW, then the replicas meet: the mean of their
displacements is the gradient of an outer SGD with Nesterov momentum. One step of the timer is one round."""

import os
from dataclasses import dataclass

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from tock import steps


@dataclass
class Config:
    vocab: int = 32000
    dim: int = 1024
    layers: int = 16
    heads: int = 16
    ffn: int = 2816
    seq: int = 1024
    batch: int = 8
    inner_steps: int = 4
    inner_lr: float = 4e-4
    outer_lr: float = 0.7
    outer_momentum: float = 0.9


cfg = Config()


def rope_tables(seq, head_dim):
    inv = 10000.0 ** (-torch.arange(0, head_dim, 2).float() / head_dim)
    angles = torch.outer(torch.arange(seq).float(), inv)
    return torch.cat([angles, angles], -1).cos(), torch.cat([angles, angles], -1).sin()


def rotate(x, cos, sin):
    a, b = x.chunk(2, -1)
    return (x * cos + torch.cat([-b, a], -1) * sin).to(x.dtype)


class Layer(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.c = c
        self.n1, self.n2 = nn.RMSNorm(c.dim), nn.RMSNorm(c.dim)
        self.q_norm, self.k_norm = nn.RMSNorm(c.dim // c.heads), nn.RMSNorm(c.dim // c.heads)
        self.wqkv = nn.Linear(c.dim, 3 * c.dim, bias=False)
        self.wo = nn.Linear(c.dim, c.dim, bias=False)
        self.w1, self.w3 = nn.Linear(c.dim, c.ffn, bias=False), nn.Linear(c.dim, c.ffn, bias=False)
        self.w2 = nn.Linear(c.ffn, c.dim, bias=False)

    def forward(self, x, cos, sin):
        b, t, d = x.shape
        q, k, v = self.wqkv(self.n1(x)).view(b, t, 3, self.c.heads, -1).permute(2, 0, 3, 1, 4)
        q, k = rotate(self.q_norm(q), cos, sin), rotate(self.k_norm(k), cos, sin)
        att = F.scaled_dot_product_attention(q, k, v.to(q.dtype), is_causal=True)
        x = x + self.wo(att.transpose(1, 2).reshape(b, t, d))
        h = self.n2(x)
        return x + self.w2(F.silu(self.w1(h)) * self.w3(h))


class Model(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.emb = nn.Embedding(c.vocab, c.dim)
        self.layers = nn.ModuleList(Layer(c) for _ in range(c.layers))
        self.norm = nn.RMSNorm(c.dim)
        self.out = nn.Linear(c.dim, c.vocab, bias=False)
        cos, sin = rope_tables(c.seq, c.dim // c.heads)
        self.register_buffer("cos", cos)
        self.register_buffer("sin", sin)
        for p in self.parameters():
            if p.dim() == 2:
                nn.init.normal_(p, std=0.02)

    def forward(self, ids, targets):
        x = self.emb(ids)
        for layer in self.layers:
            x = layer(x, self.cos, self.sin)
        return F.cross_entropy(self.out(self.norm(x)).flatten(0, 1), targets.flatten())


class DiLoCo:
    def __init__(self, params, lr, momentum):
        self.params = list(params)
        self.anchor = [p.detach().clone() for p in self.params]
        for a in self.anchor:
            a.grad = torch.zeros_like(a)
        self.outer = torch.optim.SGD(self.anchor, lr=lr, momentum=momentum, nesterov=True)

    @torch.no_grad()
    def meet(self):
        works = []
        for p, a in zip(self.params, self.anchor):
            torch.sub(a, p, out=a.grad)
            works.append(dist.all_reduce(a.grad, op=dist.ReduceOp.AVG, async_op=True))
        for w in works:
            w.wait()
        self.outer.step()
        torch._foreach_copy_(self.params, self.anchor)


def main():
    dist.init_process_group("nccl")
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
    torch.cuda.set_device(device)
    torch.set_float32_matmul_precision("high")

    torch.manual_seed(7)
    model = Model(cfg).to(device)
    for p in model.parameters():
        dist.broadcast(p.data, src=0)
    compiled = torch.compile(model)
    inner = torch.optim.AdamW(model.parameters(), lr=cfg.inner_lr, betas=(0.9, 0.95), weight_decay=0.1, fused=True)
    diloco = DiLoCo(model.parameters(), cfg.outer_lr, cfg.outer_momentum)

    data = torch.Generator(device).manual_seed(100 + dist.get_rank())
    for _ in steps():
        for _ in range(cfg.inner_steps):
            tokens = torch.randint(0, cfg.vocab, (cfg.batch, cfg.seq + 1), device=device, generator=data)
            with torch.autocast("cuda", dtype=torch.bfloat16):
                loss = compiled(tokens[:, :-1], tokens[:, 1:])
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            inner.step()
            inner.zero_grad()
        diloco.meet()


if __name__ == "__main__":
    main()
