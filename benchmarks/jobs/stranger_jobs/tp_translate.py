"""An encoder-decoder for translation: all layers tensor parallel by parallelize_module, dropout, compiled whole."""

import os

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Replicate
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from tock import steps

VOCAB, DIM, HEAD_DIM, FF, LAYERS, DROPOUT = 32000, 2048, 128, 8192, 4, 0.1
BATCH, SRC_LEN, TGT_LEN = 24, 512, 512


class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.q, self.k, self.v, self.o = (nn.Linear(DIM, DIM) for _ in range(4))

    def forward(self, x, memory, is_causal=False):
        q, k, v = self.q(x), self.k(memory), self.v(memory)
        q, k, v = (t.unflatten(-1, (-1, HEAD_DIM)).transpose(1, 2) for t in (q, k, v))
        dropout = DROPOUT if self.training else 0.0
        y = F.scaled_dot_product_attention(q, k, v, dropout_p=dropout, is_causal=is_causal)
        return self.o(y.transpose(1, 2).flatten(2))


class Layer(nn.Module):
    def __init__(self, cross):
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(DIM), nn.LayerNorm(DIM)
        self.attn = Attention()
        self.fc1, self.fc2 = nn.Linear(DIM, FF), nn.Linear(FF, DIM)
        self.drop = nn.Dropout(DROPOUT)
        if cross:
            self.norm3, self.cross_attn = nn.LayerNorm(DIM), Attention()

    def forward(self, x, memory=None):
        h = self.norm1(x)
        x = x + self.drop(self.attn(h, h, is_causal=memory is not None))
        if memory is not None:
            x = x + self.drop(self.cross_attn(self.norm3(x), memory))
        return x + self.drop(self.fc2(self.drop(F.relu(self.fc1(self.norm2(x))))))


class Translator(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(VOCAB, DIM)
        self.pos = nn.Parameter(0.02 * torch.randn(max(SRC_LEN, TGT_LEN), DIM))
        self.encoder = nn.ModuleList(Layer(cross=False) for _ in range(LAYERS))
        self.decoder = nn.ModuleList(Layer(cross=True) for _ in range(LAYERS))
        self.enc_norm, self.dec_norm = nn.LayerNorm(DIM), nn.LayerNorm(DIM)
        self.out = nn.Linear(DIM, VOCAB, bias=False)
        self.drop = nn.Dropout(DROPOUT)

    def forward(self, src, tgt):
        x = self.drop(self.embed(src) + self.pos[: src.shape[1]])
        for layer in self.encoder:
            x = layer(x)
        memory = self.enc_norm(x)
        y = self.drop(self.embed(tgt) + self.pos[: tgt.shape[1]])
        for layer in self.decoder:
            y = layer(y, memory)
        return self.out(self.dec_norm(y))


def parallelize(model, mesh):
    attention = {"q": ColwiseParallel(), "k": ColwiseParallel(), "v": ColwiseParallel(), "o": RowwiseParallel()}
    for layer in [*model.encoder, *model.decoder]:
        plan = {"fc1": ColwiseParallel(), "fc2": RowwiseParallel()}
        plan.update({f"attn.{name}": style for name, style in attention.items()})
        if hasattr(layer, "cross_attn"):
            plan.update({f"cross_attn.{name}": style for name, style in attention.items()})
        parallelize_module(layer, mesh, plan)
    ends = {
        "embed": RowwiseParallel(input_layouts=Replicate()),
        "out": ColwiseParallel(output_layouts=Replicate()),
    }
    return parallelize_module(model, mesh, ends)


def main():
    torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    mesh = init_device_mesh("cuda", (int(os.environ["WORLD_SIZE"]),), mesh_dim_names=("tp",))
    torch.manual_seed(1234)
    model = parallelize(Translator().to("cuda", torch.bfloat16), mesh)
    sharded = [p for p in model.parameters() if isinstance(p, DTensor)]
    replicated = [p for p in model.parameters() if not isinstance(p, DTensor)]
    groups = [{"params": sharded}, {"params": replicated}]
    optimizer = torch.optim.Adam(groups, lr=1e-4, betas=(0.9, 0.98), foreach=True)
    compiled = torch.compile(model)

    model.train()
    for _ in steps():
        src = torch.randint(0, VOCAB, (BATCH, SRC_LEN), device="cuda")
        tgt = torch.randint(0, VOCAB, (BATCH, TGT_LEN + 1), device="cuda")
        logits = compiled(src, tgt[:, :-1])
        loss = F.cross_entropy(logits.flatten(0, 1).float(), tgt[:, 1:].flatten(), label_smoothing=0.1)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


if __name__ == "__main__":
    main()
