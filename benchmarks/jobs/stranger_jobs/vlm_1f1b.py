"""A model of pictures and text in two unequal stages: rank 0 has the vision tower, the projector, the embedding and the
first layers of the decoder; rank 1 the other layers and the head. 1F1B, bfloat16, every block compiled."""

import os

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.distributed.pipelining import PipelineStage, Schedule1F1B

from tock import steps

cfg = dict(
    image=336,
    patch=14,
    v_dim=1024,
    v_heads=16,
    v_layers=20,
    dim=2048,
    heads=16,
    hidden=5632,
    layers=14,
    first_layers=5,
    vocab=64000,
    text=896,
    micro_batch=3,
    n_micro=6,
)
PATCHES = (cfg["image"] // cfg["patch"]) ** 2
VISUAL = PATCHES // 4
SEQ = VISUAL + cfg["text"]


class VisionBlock(nn.Module):
    def __init__(self, d, h):
        super().__init__()
        self.h = h
        self.n1, self.n2 = nn.LayerNorm(d), nn.LayerNorm(d)
        self.qkv, self.o = nn.Linear(d, 3 * d), nn.Linear(d, d)
        self.fc1, self.fc2 = nn.Linear(d, 4 * d), nn.Linear(4 * d, d)

    def forward(self, x):
        q, k, v = self.qkv(self.n1(x)).unflatten(-1, (3, self.h, -1)).permute(2, 0, 3, 1, 4)
        x = x + self.o(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2))
        return x + self.fc2(F.gelu(self.fc1(self.n2(x)), approximate="tanh"))


class DecoderBlock(nn.Module):
    def __init__(self, d, h, hidden):
        super().__init__()
        self.h, self.hd = h, d // h
        self.n1, self.n2 = nn.RMSNorm(d), nn.RMSNorm(d)
        self.q, self.k, self.v, self.o = (nn.Linear(d, d, bias=False) for _ in range(4))
        self.gate, self.up, self.down = (
            nn.Linear(d, hidden, bias=False),
            nn.Linear(d, hidden, bias=False),
            nn.Linear(hidden, d, bias=False),
        )

    def forward(self, x, cos, sin):
        b, t, d = x.shape
        y = self.n1(x)
        q, k, v = (f(y).view(b, t, self.h, self.hd).transpose(1, 2) for f in (self.q, self.k, self.v))
        q, k = (torch.cat((-z[..., self.hd // 2 :], z[..., : self.hd // 2]), -1) * sin + z * cos for z in (q, k))
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.o(y.transpose(1, 2).reshape(b, t, d))
        y = self.n2(x)
        return x + self.down(F.silu(self.gate(y)) * self.up(y))


class Decoder(nn.Module):
    def __init__(self, n):
        super().__init__()
        self.blocks = nn.ModuleList(DecoderBlock(cfg["dim"], cfg["heads"], cfg["hidden"]) for _ in range(n))
        hd = cfg["dim"] // cfg["heads"]
        a = torch.outer(torch.arange(SEQ), 5e5 ** (-torch.arange(0, hd, 2) / hd)).repeat(1, 2)
        self.register_buffer("cos", a.cos())
        self.register_buffer("sin", a.sin())

    def forward(self, x):
        for block in self.blocks:
            x = block(x, self.cos, self.sin)
        return x


class FrontStage(nn.Module):
    def __init__(self):
        super().__init__()
        d = cfg["v_dim"]
        self.patchify = nn.Conv2d(3, d, cfg["patch"], cfg["patch"])
        self.pos = nn.Parameter(torch.randn(PATCHES, d) * 0.02)
        self.vision = nn.ModuleList(VisionBlock(d, cfg["v_heads"]) for _ in range(cfg["v_layers"]))
        self.projector = nn.Sequential(
            nn.LayerNorm(4 * d), nn.Linear(4 * d, cfg["dim"]), nn.GELU(), nn.Linear(cfg["dim"], cfg["dim"])
        )
        self.embed = nn.Embedding(cfg["vocab"], cfg["dim"])
        self.decoder = Decoder(cfg["first_layers"])

    def forward(self, pixels, ids):
        x = self.patchify(pixels).flatten(2).transpose(1, 2) + self.pos
        for block in self.vision:
            x = block(x)
        side = cfg["image"] // cfg["patch"]
        x = x.view(-1, side // 2, 2, side // 2, 2, x.shape[-1]).transpose(2, 3)  # 2 x 2 patches become one token
        x = self.projector(x.reshape(x.shape[0], VISUAL, -1))
        return self.decoder(torch.cat((x, self.embed(ids)), dim=1))


class BackStage(nn.Module):
    def __init__(self):
        super().__init__()
        self.decoder = Decoder(cfg["layers"] - cfg["first_layers"])
        self.norm = nn.RMSNorm(cfg["dim"])
        self.head = nn.Linear(cfg["dim"], cfg["vocab"], bias=False)

    def forward(self, x):
        return self.head(self.norm(self.decoder(x)[:, VISUAL:]))


@torch.compile
def loss_fn(logits, labels):
    return F.cross_entropy(logits.float().view(-1, logits.shape[-1]), labels.view(-1), ignore_index=-100)


def batch(generator, device):
    n = cfg["micro_batch"] * cfg["n_micro"]
    ids = torch.randint(cfg["vocab"], (n, cfg["text"] + 1), generator=generator, device=device)
    prompt = torch.randint(16, cfg["text"] // 4, (n, 1), generator=generator, device=device)
    labels = ids[:, 1:].masked_fill(torch.arange(cfg["text"], device=device) < prompt, -100)
    return ids[:, :-1].contiguous(), labels.contiguous()


def main():
    rank = int(os.environ["RANK"])
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
    torch.cuda.set_device(device)
    dist.init_process_group("nccl", device_id=device)
    assert dist.get_world_size() == 2, "two stages"

    torch.manual_seed(rank)
    with device:
        module = FrontStage() if rank == 0 else BackStage()
    module.to(torch.bfloat16)
    for sub in module.modules():
        if isinstance(sub, (VisionBlock, DecoderBlock)):
            sub.compile(dynamic=False)

    stage = PipelineStage(module, rank, 2, device)
    schedule = Schedule1F1B(stage, n_microbatches=cfg["n_micro"], loss_fn=loss_fn)
    optimizer = torch.optim.AdamW(module.parameters(), lr=2e-5, weight_decay=0.0, fused=True)
    generator = torch.Generator(device).manual_seed(11)  # both ranks draw the same text

    mean_loss = None
    for step in steps():
        ids, labels = batch(generator, device)
        if rank == 0:
            pixels = torch.rand(len(ids), 3, cfg["image"], cfg["image"], device=device).bfloat16()
            schedule.step(pixels.sub_(0.5).div_(0.27), ids)
        else:
            losses = []
            schedule.step(target=labels, losses=losses)
            mean_loss = torch.stack(losses).mean()
        optimizer.step()
        optimizer.zero_grad()
        if step % 20 == 0 and rank == 1:
            print("step", step, "loss", mean_loss.item())


if __name__ == "__main__":
    main()
