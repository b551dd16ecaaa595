"""A causal model of DNA on one long window. The window is cut in 2 x world pieces, rank r holds pieces r and 2w-1-r (so
that all have the same work). Keys and values of everybody are gathered in each layer, their gradients reduce-scattered."""

import os

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch._utils import _flatten_dense_tensors, _unflatten_dense_tensors
from torch.nn.attention.bias import causal_lower_right

from tock import steps

WINDOW = 32768
ALPHABET = 12
SPECIES = 64
D_MODEL, N_HEADS, N_KV, N_LAYERS, D_FF = 1280, 10, 2, 10, 3456
HEAD = D_MODEL // N_HEADS


class GatherPieces(torch.autograd.Function):
    """(2, tokens here, heads, head) of each rank -> (2, all tokens, heads, head) in the order of the window."""

    @staticmethod
    def forward(ctx, kv):
        world, half = dist.get_world_size(), kv.shape[1] // 2
        both = kv.unflatten(1, (2, half)).transpose(0, 1).contiguous()  # piece first
        out = both.new_empty(world * 2, *both.shape[1:])
        dist.all_gather_into_tensor(out, both)
        order = [2 * r for r in range(world)] + [2 * r + 1 for r in reversed(range(world))]
        ctx.order = order
        return torch.cat([out[i] for i in order], dim=1)

    @staticmethod
    def backward(ctx, grad):
        pieces = grad.chunk(len(ctx.order), dim=1)
        by_rank = [None] * len(ctx.order)
        for piece, i in zip(pieces, ctx.order):
            by_rank[i] = piece
        stacked = torch.stack(by_rank)
        mine = stacked.new_empty(2, *stacked.shape[1:])
        dist.reduce_scatter_tensor(mine, stacked)
        return mine.transpose(0, 1).flatten(1, 2)


def rope(x, cos, sin):
    a, b = x.chunk(2, dim=-1)
    return torch.cat((a * cos - b * sin, b * cos + a * sin), dim=-1).to(x.dtype)


class Layer(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm1, self.norm2 = nn.RMSNorm(D_MODEL), nn.RMSNorm(D_MODEL)
        self.wq = nn.Linear(D_MODEL, D_MODEL, bias=False)
        self.wkv = nn.Linear(D_MODEL, 2 * N_KV * HEAD, bias=False)
        self.wo = nn.Linear(D_MODEL, D_MODEL, bias=False)
        self.wi = nn.Linear(D_MODEL, 2 * D_FF, bias=False)
        self.wd = nn.Linear(D_FF, D_MODEL, bias=False)

    @torch.compile
    def before(self, x, cos, sin):
        h = self.norm1(x)
        q = rope(self.wq(h).unflatten(-1, (N_HEADS, HEAD)), cos, sin)
        k, v = self.wkv(h).unflatten(-1, (2, N_KV, HEAD)).unbind(-3)
        return q, torch.stack((rope(k, cos, sin), v))

    @torch.compile
    def after(self, x, y):
        x = x + self.wo(y)
        gate, up = self.wi(self.norm2(x)).chunk(2, dim=-1)
        return x + self.wd(F.gelu(gate) * up)

    def forward(self, x, cos, sin, pieces):
        q, kv = self.before(x, cos, sin)
        kv = GatherPieces.apply(kv).repeat_interleave(N_HEADS // N_KV, dim=2)
        k, v = kv.transpose(1, 2).unsqueeze(1).unbind(0)
        outs = []
        for piece, part in zip(pieces, q.transpose(0, 1).unsqueeze(0).chunk(2, dim=2)):
            n = part.shape[2]
            seen = (piece + 1) * n
            mask = causal_lower_right(n, seen)
            outs.append(F.scaled_dot_product_attention(part, k[:, :, :seen], v[:, :, :seen], attn_mask=mask))
        y = torch.cat(outs, dim=2)[0].transpose(0, 1).flatten(1)
        return self.after(x, y)


class DnaModel(nn.Module):
    def __init__(self):
        super().__init__()
        self.base = nn.Embedding(ALPHABET, D_MODEL)
        self.species = nn.Embedding(SPECIES, D_MODEL)
        self.layers = nn.ModuleList(Layer() for _ in range(N_LAYERS))
        self.norm = nn.RMSNorm(D_MODEL)
        self.out = nn.Linear(D_MODEL, ALPHABET)

    def forward(self, ids, species, positions, pieces):
        freq = 1e6 ** (-torch.arange(0, HEAD, 2, device=ids.device) / HEAD)
        angle = (positions[:, None] * freq)[:, None]
        cos, sin = angle.cos(), angle.sin()
        x = self.base(ids) + self.species(species)
        for layer in self.layers:
            x = layer(x, cos, sin, pieces)
        return self.out(self.norm(x))


def all_reduce_gradients(params):
    grads = [p.grad for p in params]
    flat = _flatten_dense_tensors(grads)
    dist.all_reduce(flat)
    for g, new in zip(grads, _unflatten_dense_tensors(flat, grads)):
        g.copy_(new)


def main():
    rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    dist.init_process_group("nccl")
    device = torch.device("cuda")
    torch.manual_seed(20)
    model = DnaModel().to(device)
    params = list(model.parameters())
    optimizer = torch.optim.AdamW(params, lr=6e-4, weight_decay=0.1, betas=(0.9, 0.95), fused=True)

    pieces = (rank, 2 * world - 1 - rank)
    n = WINDOW // (2 * world)
    positions = torch.cat([torch.arange(p * n, (p + 1) * n) for p in pieces]).to(device)
    for _ in steps():
        window = torch.randint(7, 11, (WINDOW + 1,), device=device)
        species = torch.randint(SPECIES, (1,), device=device)
        dist.broadcast(window, src=0)
        dist.broadcast(species, src=0)
        repeats = torch.rand(WINDOW, device=device) < 0.3
        weight = torch.where(repeats, 0.1, 1.0)[positions]
        total = weight.sum()
        dist.all_reduce(total)
        with torch.autocast("cuda", torch.bfloat16):
            logits = model(window[positions], species, positions, pieces)
        loss = (F.cross_entropy(logits.float(), window[positions + 1], reduction="none") * weight).sum() / total
        loss.backward()
        all_reduce_gradients(params)
        nn.utils.clip_grad_norm_(params, 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=False)


if __name__ == "__main__":
    main()
