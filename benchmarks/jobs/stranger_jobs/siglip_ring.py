import math
import os
from types import SimpleNamespace

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel as DDP

from tock import steps

# SigLIP base: sigmoid loss. Text features go round the ring of ranks, images stay (nothing is ever gathered).
CFG = SimpleNamespace(
    image_size=224,
    patch=16,
    width=768,
    heads=12,
    layers=12,
    mlp=3072,
    vocab=32000,
    context=64,
    embed=768,
    batch=256,
    lr=1e-3,
    wd=1e-4,
    clip=1.0,
)


class Residual(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.h = c.heads
        self.ln_1 = nn.LayerNorm(c.width)
        self.in_proj = nn.Linear(c.width, 3 * c.width)
        self.out_proj = nn.Linear(c.width, c.width)
        self.ln_2 = nn.LayerNorm(c.width)
        self.c_fc = nn.Linear(c.width, c.mlp)
        self.c_proj = nn.Linear(c.mlp, c.width)

    def forward(self, x):
        B, L, D = x.shape
        q, k, v = self.in_proj(self.ln_1(x)).reshape(B, L, 3, self.h, D // self.h).permute(2, 0, 3, 1, 4).unbind(0)
        x = x + self.out_proj(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(B, L, D))
        return x + self.c_proj(F.gelu(self.c_fc(self.ln_2(x)), approximate="tanh"))


class AttentionPool(nn.Module):
    """A learned query looks at all the tokens."""

    def __init__(self, c):
        super().__init__()
        self.h = c.heads
        self.probe = nn.Parameter(torch.randn(1, 1, c.width) * c.width**-0.5)
        self.q, self.kv, self.o = (
            nn.Linear(c.width, c.width),
            nn.Linear(c.width, 2 * c.width),
            nn.Linear(c.width, c.width),
        )
        self.ln = nn.LayerNorm(c.width)
        self.mlp = nn.Sequential(nn.Linear(c.width, c.mlp), nn.GELU(approximate="tanh"), nn.Linear(c.mlp, c.width))

    def forward(self, x):
        B, L, D = x.shape
        q = self.q(self.probe).expand(B, -1, -1).reshape(B, 1, self.h, -1).transpose(1, 2)
        k, v = self.kv(x).reshape(B, L, 2, self.h, -1).permute(2, 0, 3, 1, 4).unbind(0)
        y = self.o(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(B, 1, D))
        return (y + self.mlp(self.ln(y)))[:, 0]


class ImageTower(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.conv1 = nn.Conv2d(3, c.width, c.patch, c.patch)
        self.pos = nn.Parameter(torch.randn((c.image_size // c.patch) ** 2, c.width) * c.width**-0.5)
        self.blocks = nn.Sequential(*[Residual(c) for _ in range(c.layers)])
        self.ln_post = nn.LayerNorm(c.width)
        self.pool = AttentionPool(c)

    def forward(self, x):
        x = self.conv1(x).flatten(2).transpose(1, 2) + self.pos
        return F.normalize(self.pool(self.ln_post(self.blocks(x))).float(), dim=-1)


class TextTower(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.tok = nn.Embedding(c.vocab, c.width)
        self.pos = nn.Parameter(torch.randn(c.context, c.width) * 0.01)
        self.blocks = nn.Sequential(*[Residual(c) for _ in range(c.layers)])
        self.ln_final = nn.LayerNorm(c.width)
        self.proj = nn.Linear(c.width, c.embed)

    def forward(self, ids):
        x = self.ln_final(self.blocks(self.tok(ids) + self.pos))
        return F.normalize(self.proj(x[:, -1]).float(), dim=-1)


class SigLIP(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.visual, self.text = ImageTower(c), TextTower(c)
        self.logit_scale = nn.Parameter(torch.tensor(math.log(10.0)))
        self.logit_bias = nn.Parameter(torch.tensor(-10.0))

    def forward(self, images, ids):
        return self.visual(images), self.text(ids), self.logit_scale.exp(), self.logit_bias


def pass_on(to, frm, tensor):
    got = torch.empty_like(tensor)
    reqs = dist.batch_isend_irecv([dist.P2POp(dist.isend, tensor, to), dist.P2POp(dist.irecv, got, frm)])
    for r in reqs:
        r.wait()
    return got


class NeighbourExchange(torch.autograd.Function):
    @staticmethod
    def forward(ctx, to, frm, tensor):
        ctx.to, ctx.frm = to, frm
        return pass_on(to, frm, tensor.contiguous())

    @staticmethod
    def backward(ctx, grad):
        return None, None, pass_on(ctx.frm, ctx.to, grad.contiguous())


def pair_loss(img, txt, scale, bias, positives):
    logits = scale * img @ txt.t() + bias
    signs = 2 * torch.eye(len(img), device=img.device) - 1 if positives else -1.0
    return -F.logsigmoid(signs * logits).sum() / len(img)


def ring_loss(img, txt, scale, bias, rank, world):
    loss = pair_loss(img, txt, scale, bias, True)
    right, left = (rank + 1) % world, (rank - 1) % world
    for _ in range(world - 1):
        txt = NeighbourExchange.apply(right, left, txt)
        loss = loss + pair_loss(img, txt, scale, bias, False)
    return loss


if __name__ == "__main__":
    dist.init_process_group("nccl")
    rank, world = dist.get_rank(), dist.get_world_size()
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
    torch.cuda.set_device(device)
    torch.backends.cuda.matmul.allow_tf32 = True

    torch.manual_seed(0)
    net = SigLIP(CFG).to(device)
    net.visual.compile()
    net.text.compile()
    model = DDP(net, device_ids=[device.index], gradient_as_bucket_view=True, static_graph=True, bucket_cap_mb=50)
    decay = [p for p in model.parameters() if p.ndim >= 2]
    rest = [p for p in model.parameters() if p.ndim < 2]
    opt = torch.optim.AdamW(
        [{"params": decay, "weight_decay": CFG.wd}, {"params": rest, "weight_decay": 0.0}],
        lr=CFG.lr,
        betas=(0.9, 0.95),
        fused=True,
    )
    seen = 0
    torch.manual_seed(500 + rank)
    for step in steps():
        for g in opt.param_groups:
            g["lr"] = CFG.lr * min(1.0, (step + 1) / 2000)
        images = torch.randn(CFG.batch, 3, CFG.image_size, CFG.image_size, device=device)
        ids = torch.randint(0, CFG.vocab, (CFG.batch, CFG.context), device=device)
        with torch.autocast("cuda", dtype=torch.bfloat16):
            img, txt, scale, bias = model(images, ids)
        loss = ring_loss(img, txt, scale, bias, rank, world)
        opt.zero_grad(set_to_none=True)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), CFG.clip, foreach=True)
        opt.step()
        with torch.no_grad():
            net.logit_scale.clamp_(0, math.log(100))
        seen += CFG.batch * world
