"""A decoder on 24k tokens, half of them on each rank: torch's context_parallel around FSDP2, bfloat16."""

import os

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor.experimental import context_parallel
from torch.nn.attention import SDPBackend, sdpa_kernel
from tock import steps

VOCAB, DIM, HEADS, LAYERS, SEQ = 32000, 2048, 16, 6, 24576


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm1, self.norm2 = nn.RMSNorm(DIM), nn.RMSNorm(DIM)
        self.qkv, self.proj = nn.Linear(DIM, 3 * DIM, bias=False), nn.Linear(DIM, DIM, bias=False)
        self.up, self.down = nn.Linear(DIM, 4 * DIM, bias=False), nn.Linear(4 * DIM, DIM, bias=False)

    def forward(self, x, freqs):
        B, T, _ = x.shape
        q, k, v = (t.view(B, T, HEADS, -1) for t in self.qkv(self.norm1(x)).chunk(3, dim=-1))
        q, k = (torch.view_as_complex(t.float().unflatten(-1, (-1, 2))) * freqs[:, None] for t in (q, k))
        q, k = (torch.view_as_real(t).flatten(-2).to(v.dtype) for t in (q, k))
        q, k, v = (t.transpose(1, 2) for t in (q, k, v))
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.proj(y.transpose(1, 2).reshape(B, T, DIM))
        return x + self.down(F.gelu(self.up(self.norm2(x)), approximate="tanh"))


class Decoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(VOCAB, DIM)
        self.blocks = nn.ModuleList(Block() for _ in range(LAYERS))
        self.norm, self.head = nn.RMSNorm(DIM), nn.Linear(DIM, VOCAB, bias=False)

    def forward(self, ids, freqs):
        x = self.embed(ids)
        for block in self.blocks:
            x = block(x, freqs)
        return self.head(self.norm(x))


def rope(device):
    half = DIM // HEADS // 2
    inv_freq = 500000.0 ** (-torch.arange(half, device=device) / half)
    angles = torch.outer(torch.arange(SEQ, device=device), inv_freq)
    return torch.polar(torch.ones_like(angles), angles)


def main():
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
    torch.cuda.set_device(device)
    mesh = init_device_mesh("cuda", (int(os.environ["WORLD_SIZE"]),), mesh_dim_names=("cp",))
    torch.manual_seed(0)
    model = Decoder().to(device)
    policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32, cast_forward_inputs=False)
    for block in model.blocks:
        fully_shard(block, mesh=mesh, mp_policy=policy)
    fully_shard(model, mesh=mesh, mp_policy=policy)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)
    freqs = rope(device)

    for _ in steps():
        tokens = torch.randint(0, VOCAB, (1, SEQ + 1), device=device)
        dist.broadcast(tokens, src=0)
        ids, labels = tokens[:, :-1].clone(), tokens[:, 1:].clone()
        with (
            sdpa_kernel(SDPBackend.FLASH_ATTENTION),
            context_parallel(
                mesh,
                buffers=[ids, labels, freqs],
                buffer_seq_dims=[1, 1, 0],
                no_restore_buffers={ids, labels},
            ),
        ):
            logits = model(ids, freqs)
            loss = F.cross_entropy(logits.flatten(0, 1).float(), labels.flatten())
            loss.backward()
        optimizer.step()
        optimizer.zero_grad()


if __name__ == "__main__":
    main()
