"""A Llama of our own in bfloat16: tensor parallel by a plan, the loss on sharded logits, compiled as a whole."""

import os

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Replicate, Shard
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, loss_parallel, parallelize_module
from tock import steps

DIM, HEADS, KV_HEADS, HIDDEN, LAYERS, VOCAB = 4096, 32, 8, 14336, 5, 32000
BATCH, SEQ, HEAD = 2, 2048, 128


def rope_table():
    freqs = 1.0 / 500000 ** (torch.arange(0, HEAD, 2, device="cuda").float() / HEAD)
    angles = torch.outer(torch.arange(SEQ, device="cuda").float(), freqs)
    angles = torch.cat([angles, angles], -1)
    return angles.cos().bfloat16(), angles.sin().bfloat16()


def rotate(x, cos, sin):
    a, b = x.chunk(2, -1)
    return x * cos + torch.cat([-b, a], -1) * sin


class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.wq = nn.Linear(DIM, HEADS * HEAD, bias=False)
        self.wk = nn.Linear(DIM, KV_HEADS * HEAD, bias=False)
        self.wv = nn.Linear(DIM, KV_HEADS * HEAD, bias=False)
        self.wo = nn.Linear(HEADS * HEAD, DIM, bias=False)

    def forward(self, x, cos, sin):
        b, t, _ = x.shape
        q, k, v = (w(x).view(b, t, -1, HEAD).transpose(1, 2) for w in (self.wq, self.wk, self.wv))
        q, k = rotate(q, cos, sin), rotate(k, cos, sin)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
        return self.wo(y.transpose(1, 2).reshape(b, t, -1))


class SwiGLU(nn.Module):
    def __init__(self):
        super().__init__()
        self.w1 = nn.Linear(DIM, HIDDEN, bias=False)
        self.w2 = nn.Linear(HIDDEN, DIM, bias=False)
        self.w3 = nn.Linear(DIM, HIDDEN, bias=False)

    def forward(self, x):
        return self.w2(F.silu(self.w1(x)) * self.w3(x))


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.attn_norm, self.mlp_norm = nn.RMSNorm(DIM, eps=1e-5), nn.RMSNorm(DIM, eps=1e-5)
        self.attn, self.mlp = Attention(), SwiGLU()

    def forward(self, x, cos, sin):
        x = x + self.attn(self.attn_norm(x), cos, sin)
        return x + self.mlp(self.mlp_norm(x))


class Llama(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(VOCAB, DIM)
        self.blocks = nn.ModuleList(Block() for _ in range(LAYERS))
        self.norm, self.head = nn.RMSNorm(DIM, eps=1e-5), nn.Linear(DIM, VOCAB, bias=False)

    def forward(self, tokens, cos, sin):
        x = self.embed(tokens)
        for block in self.blocks:
            x = block(x, cos, sin)
        return self.head(self.norm(x))


torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
tp = init_device_mesh("cuda", (2,), mesh_dim_names=("tp",))
torch.manual_seed(0)
model = Llama().to("cuda", torch.bfloat16)
colwise, rowwise = ColwiseParallel, RowwiseParallel
parallelize_module(
    model,
    tp,
    {
        "embed": rowwise(input_layouts=Replicate()),
        "head": colwise(output_layouts=Shard(-1), use_local_output=False),
        **{f"blocks.*.attn.{w}": colwise() for w in ("wq", "wk", "wv")},
        "blocks.*.attn.wo": rowwise(),
        **{f"blocks.*.mlp.{w}": colwise() for w in ("w1", "w3")},
        "blocks.*.mlp.w2": rowwise(),
    },
)
model = torch.compile(model)
sharded = [p for n, p in model.named_parameters() if "norm" not in n]
norms = [p for n, p in model.named_parameters() if "norm" in n]
optimizers = [torch.optim.AdamW(ps, lr=1e-4, betas=(0.9, 0.95)) for ps in (sharded, norms)]
cos, sin = rope_table()

for _ in steps():
    tokens = torch.randint(0, VOCAB, (BATCH, SEQ + 1), device="cuda")
    logits = model(tokens[:, :-1], cos, sin)
    with loss_parallel():
        loss = F.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten())
        loss.backward()
    for optimizer in optimizers:
        optimizer.step()
        optimizer.zero_grad()
