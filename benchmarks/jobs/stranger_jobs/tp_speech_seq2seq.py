"""Speech to text in the shape of Whisper: 30 s of mel frames, an encoder of many layers and a short decoder.
Tensor parallel with sequence parallel between the layers, all of it by parallelize_module; layers compiled."""

import os

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Replicate, Shard
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    PrepareModuleInput,
    PrepareModuleOutput,
    RowwiseParallel,
    SequenceParallel,
    loss_parallel,
    parallelize_module,
)

from tock import steps

N_MELS = 128
N_FRAMES = 3000
N_TEXT = 448
N_VOCAB = 51872
WIDTH = 1280
HEADS = 20
ENCODER_LAYERS = 16
DECODER_LAYERS = 4
BATCH_SIZE = 16


class MultiHeadAttention(nn.Module):
    def __init__(self, causal=False):
        super().__init__()
        self.causal = causal
        self.query = nn.Linear(WIDTH, WIDTH)
        self.key = nn.Linear(WIDTH, WIDTH, bias=False)
        self.value = nn.Linear(WIDTH, WIDTH)
        self.out = nn.Linear(WIDTH, WIDTH)

    def forward(self, x, xa=None):
        source = x if xa is None else xa
        q, k, v = self.query(x), self.key(source), self.value(source)
        q, k, v = (t.view(t.shape[0], t.shape[1], -1, WIDTH // HEADS).transpose(1, 2) for t in (q, k, v))
        wv = F.scaled_dot_product_attention(q, k, v, is_causal=self.causal)
        return self.out(wv.transpose(1, 2).flatten(start_dim=2))


class Mlp(nn.Module):
    def __init__(self):
        super().__init__()
        self.up, self.down = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x):
        return self.down(F.gelu(self.up(x)))


class EncoderLayer(nn.Module):
    def __init__(self):
        super().__init__()
        self.attn_ln, self.attn = nn.LayerNorm(WIDTH), MultiHeadAttention()
        self.mlp_ln, self.mlp = nn.LayerNorm(WIDTH), Mlp()

    def forward(self, x):
        x = x + self.attn(self.attn_ln(x))
        return x + self.mlp(self.mlp_ln(x))


class DecoderLayer(nn.Module):
    def __init__(self):
        super().__init__()
        self.attn_ln, self.attn = nn.LayerNorm(WIDTH), MultiHeadAttention(causal=True)
        self.cross_ln, self.cross = nn.LayerNorm(WIDTH), MultiHeadAttention()
        self.mlp_ln, self.mlp = nn.LayerNorm(WIDTH), Mlp()

    def forward(self, x, xa):
        x = x + self.attn(self.attn_ln(x))
        x = x + self.cross(self.cross_ln(x), xa)
        return x + self.mlp(self.mlp_ln(x))


class Stem(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv1 = nn.Conv1d(N_MELS, WIDTH, kernel_size=3, padding=1)
        self.conv2 = nn.Conv1d(WIDTH, WIDTH, kernel_size=3, stride=2, padding=1)
        t = torch.arange(N_FRAMES // 2)[:, None] * torch.exp(-9.2 / (WIDTH // 2 - 1) * torch.arange(WIDTH // 2))
        self.register_buffer("positions", torch.cat([t.sin(), t.cos()], dim=1))

    def forward(self, mel):
        x = F.gelu(self.conv2(F.gelu(self.conv1(mel))))
        return x.transpose(1, 2) + self.positions


class SpeechModel(nn.Module):
    def __init__(self):
        super().__init__()
        self.stem = Stem()
        self.encoder = nn.ModuleList([EncoderLayer() for _ in range(ENCODER_LAYERS)])
        self.ln_post = nn.LayerNorm(WIDTH)
        self.tokens, self.positions = nn.Embedding(N_VOCAB, WIDTH), nn.Embedding(N_TEXT, WIDTH)
        self.decoder = nn.ModuleList([DecoderLayer() for _ in range(DECODER_LAYERS)])
        self.ln = nn.LayerNorm(WIDTH)
        self.head = nn.Linear(WIDTH, N_VOCAB, bias=False)

    def forward(self, mel, text):
        xa = self.stem(mel)
        for layer in self.encoder:
            xa = layer(xa)
        xa = self.ln_post(xa)
        x = self.tokens(text) + self.positions(torch.arange(text.shape[1], device=text.device)[None])
        for layer in self.decoder:
            x = layer(x, xa)
        return self.head(self.ln(x))


def layer_plan(*attentions):
    whole = Replicate()
    plan = {
        "mlp_ln": SequenceParallel(),
        "mlp": PrepareModuleInput(input_layouts=(Shard(1),), desired_input_layouts=(whole,)),
        "mlp.up": ColwiseParallel(),
        "mlp.down": RowwiseParallel(output_layouts=Shard(1)),
    }
    for name in attentions:
        n = 2 if name == "cross" else 1
        plan[f"{name}_ln"] = SequenceParallel()
        plan[name] = PrepareModuleInput(input_layouts=(Shard(1),) * n, desired_input_layouts=(whole,) * n)
        plan |= {f"{name}.{part}": ColwiseParallel() for part in ("query", "key", "value")}
        plan[f"{name}.out"] = RowwiseParallel(output_layouts=Shard(1))
    return plan


def parallelize(model, mesh):
    parallelize_module(
        model,
        mesh,
        {
            "stem": PrepareModuleOutput(output_layouts=Replicate(), desired_output_layouts=Shard(1)),
            "ln_post": SequenceParallel(use_local_output=True),
            "tokens": RowwiseParallel(input_layouts=Replicate(), output_layouts=Shard(1)),
            "positions": RowwiseParallel(input_layouts=Replicate(), output_layouts=Shard(1)),
            "ln": SequenceParallel(),
            "head": ColwiseParallel(input_layouts=Shard(1), output_layouts=Shard(-1), use_local_output=False),
        },
    )
    for layer in model.encoder:
        parallelize_module(layer, mesh, layer_plan("attn"))
        layer.compile()
    for layer in model.decoder:
        parallelize_module(layer, mesh, layer_plan("attn", "cross"))
        layer.compile()


def spec_augment(mel):
    start = torch.randint(0, N_FRAMES - N_FRAMES // 20, (mel.shape[0], 1, 1), device=mel.device)
    frame = torch.arange(N_FRAMES, device=mel.device)
    mel = mel.masked_fill((frame >= start) & (frame < start + N_FRAMES // 20), 0.0)
    start = torch.randint(0, N_MELS - N_MELS // 8, (mel.shape[0], 1, 1), device=mel.device)
    band = torch.arange(N_MELS, device=mel.device)[:, None]
    return mel.masked_fill((band >= start) & (band < start + N_MELS // 8), 0.0)


def main():
    local_rank = int(os.environ["LOCAL_RANK"])
    torch.cuda.set_device(local_rank)
    dist.init_process_group("nccl")
    mesh = init_device_mesh("cuda", (dist.get_world_size(),), mesh_dim_names=("tp",))

    torch.manual_seed(7)  # the same on all ranks, as is the data
    model = SpeechModel().to("cuda", torch.bfloat16)
    parallelize(model, mesh)
    sharded = [p for p in model.parameters() if isinstance(p, DTensor)]
    whole = [p for p in model.parameters() if not isinstance(p, DTensor)]
    groups = [{"params": sharded}, {"params": whole}]  # no call of foreach takes both kinds
    optimizer = torch.optim.AdamW(groups, lr=2e-4, betas=(0.9, 0.98), eps=1e-6, foreach=True)
    warm = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda i: min(1.0, (i + 1) / 2048))

    for _ in steps():
        mel = spec_augment(torch.randn(BATCH_SIZE, N_MELS, N_FRAMES, device="cuda", dtype=torch.bfloat16))
        text = torch.randint(0, N_VOCAB, (BATCH_SIZE, N_TEXT + 1), device="cuda")
        with loss_parallel():
            logits = model(mel, text[:, :-1].contiguous())
            loss = F.cross_entropy(logits.flatten(0, 1).float(), text[:, 1:].flatten())
            loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        warm.step()


if __name__ == "__main__":
    main()
