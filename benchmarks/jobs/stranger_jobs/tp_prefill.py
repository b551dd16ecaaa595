"""Prefill of a decoder over two ranks: column and row parallel layers by hand, a cache of keys and values, bfloat16."""

import os

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from tock import steps

DIM, HEADS, KV_HEADS, HIDDEN, LAYERS, VOCAB, HEAD = 5120, 40, 8, 13824, 12, 64000, 128
BATCH, PROMPT, MAX_LEN = 2, 4096, 4352


class ColumnParallelLinear(nn.Module):
    def __init__(self, n_in, n_out):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(n_out // dist.get_world_size(), n_in) * 0.02, requires_grad=False)

    def forward(self, x):
        return F.linear(x, self.weight)


class RowParallelLinear(nn.Module):
    def __init__(self, n_in, n_out):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(n_out, n_in // dist.get_world_size()) * 0.02, requires_grad=False)

    def forward(self, x):
        y = F.linear(x, self.weight)
        dist.all_reduce(y)
        return y


def apply_rotary(x, cos, sin):
    x1, x2 = x.chunk(2, dim=-1)
    return torch.cat([x1 * cos - x2 * sin, x2 * cos + x1 * sin], dim=-1)


class DecoderLayer(nn.Module):
    def __init__(self):
        super().__init__()
        world = dist.get_world_size()
        self.heads, self.kv_heads = HEADS // world, KV_HEADS // world
        self.input_norm, self.post_norm = nn.RMSNorm(DIM), nn.RMSNorm(DIM)
        self.qkv = ColumnParallelLinear(DIM, (HEADS + 2 * KV_HEADS) * HEAD)
        self.o = RowParallelLinear(HEADS * HEAD, DIM)
        self.gate_up, self.down = ColumnParallelLinear(DIM, 2 * HIDDEN), RowParallelLinear(HIDDEN, DIM)
        shape = (BATCH, self.kv_heads, MAX_LEN, HEAD)
        self.register_buffer("k_cache", torch.zeros(shape), persistent=False)
        self.register_buffer("v_cache", torch.zeros(shape), persistent=False)

    def forward(self, x, cos, sin):
        b, t, _ = x.shape
        qkv = self.qkv(self.input_norm(x)).view(b, t, -1, HEAD).transpose(1, 2)
        q, k, v = qkv.split([self.heads, self.kv_heads, self.kv_heads], dim=1)
        q, k = apply_rotary(q, cos, sin), apply_rotary(k, cos, sin)
        self.k_cache[:, :, :t] = k
        self.v_cache[:, :, :t] = v
        out = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
        x = x + self.o(out.transpose(1, 2).reshape(b, t, -1))
        gate, up = self.gate_up(self.post_norm(x)).chunk(2, dim=-1)
        return x + self.down(F.silu(gate) * up)


class Decoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(VOCAB, DIM)
        self.layers = nn.ModuleList(DecoderLayer() for _ in range(LAYERS))
        self.norm, self.lm_head = nn.RMSNorm(DIM), ColumnParallelLinear(DIM, VOCAB)
        freqs = 1e6 ** (-torch.arange(0, HEAD, 2).float() / HEAD)
        angles = torch.outer(torch.arange(PROMPT).float(), freqs)
        self.register_buffer("cos", angles.cos().bfloat16(), persistent=False)
        self.register_buffer("sin", angles.sin().bfloat16(), persistent=False)

    def forward(self, tokens):
        x = self.embed(tokens)
        for layer in self.layers:
            x = layer(x, self.cos, self.sin)
        local = self.lm_head(self.norm(x[:, -1]))
        parts = [torch.empty_like(local) for _ in range(dist.get_world_size())]
        dist.all_gather(parts, local)
        return torch.cat(parts, dim=-1).argmax(-1)


def main():
    torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    dist.init_process_group("nccl")
    torch.manual_seed(0)
    torch.set_default_dtype(torch.bfloat16)
    with torch.device("cuda"):
        model = Decoder().eval()
    with torch.inference_mode():
        for _ in steps():
            tokens = torch.randint(0, VOCAB, (BATCH, PROMPT), device="cuda")
            next_token = model(tokens)


if __name__ == "__main__":
    main()
