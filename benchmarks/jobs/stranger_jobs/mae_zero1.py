"""Masked autoencoder (ViT-L). ZeRO-1 without a library: bf16 weights and gradients live in two flat buffers; each rank
keeps float32 masters and Adam moments of its slice only: reduce-scatter, update, all-gather."""

import math
import os

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from tock import steps

IMAGE, PATCH, MASK_RATIO = 224, 16, 0.75
ENC_DIM, ENC_DEPTH, ENC_HEADS = 1024, 24, 16
DEC_DIM, DEC_DEPTH, DEC_HEADS = 512, 8, 16
BATCH = 256
TOKENS = (IMAGE // PATCH) ** 2


class Attention(nn.Module):
    def __init__(self, dim, heads):
        super().__init__()
        self.heads = heads
        self.qkv = nn.Linear(dim, dim * 3, bias=True)
        self.proj = nn.Linear(dim, dim)

    def forward(self, x):
        B, N, C = x.shape
        qkv = self.qkv(x).reshape(B, N, 3, self.heads, C // self.heads).permute(2, 0, 3, 1, 4)
        q, k, v = qkv.unbind(0)
        x = F.scaled_dot_product_attention(q, k, v)
        return self.proj(x.transpose(1, 2).reshape(B, N, C))


class Mlp(nn.Module):
    def __init__(self, dim, hidden):
        super().__init__()
        self.fc1 = nn.Linear(dim, hidden)
        self.act = nn.GELU()
        self.fc2 = nn.Linear(hidden, dim)

    def forward(self, x):
        return self.fc2(self.act(self.fc1(x)))


class Block(nn.Module):
    def __init__(self, dim, heads):
        super().__init__()
        self.norm1 = nn.LayerNorm(dim, eps=1e-6)
        self.attn = Attention(dim, heads)
        self.norm2 = nn.LayerNorm(dim, eps=1e-6)
        self.mlp = Mlp(dim, dim * 4)

    def forward(self, x):
        x = x + self.attn(self.norm1(x))
        x = x + self.mlp(self.norm2(x))
        return x


class MaskedAutoencoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.patch_embed = nn.Conv2d(3, ENC_DIM, PATCH, PATCH)
        self.cls_token = nn.Parameter(torch.randn(1, 1, ENC_DIM) * 0.02)
        self.register_buffer("pos_embed", torch.randn(1, TOKENS + 1, ENC_DIM) * 0.02)
        self.blocks = nn.ModuleList([Block(ENC_DIM, ENC_HEADS) for _ in range(ENC_DEPTH)])
        self.norm = nn.LayerNorm(ENC_DIM, eps=1e-6)
        self.decoder_embed = nn.Linear(ENC_DIM, DEC_DIM)
        self.mask_token = nn.Parameter(torch.randn(1, 1, DEC_DIM) * 0.02)
        self.register_buffer("decoder_pos_embed", torch.randn(1, TOKENS + 1, DEC_DIM) * 0.02)
        self.decoder_blocks = nn.ModuleList([Block(DEC_DIM, DEC_HEADS) for _ in range(DEC_DEPTH)])
        self.decoder_norm = nn.LayerNorm(DEC_DIM, eps=1e-6)
        self.decoder_pred = nn.Linear(DEC_DIM, PATCH**2 * 3)

    def patchify(self, imgs):
        h = w = IMAGE // PATCH
        x = imgs.reshape(imgs.shape[0], 3, h, PATCH, w, PATCH)
        x = torch.einsum("nchpwq->nhwpqc", x)
        return x.reshape(imgs.shape[0], h * w, PATCH**2 * 3)

    def random_masking(self, x):
        N, L, D = x.shape
        keep = int(L * (1 - MASK_RATIO))
        noise = torch.rand(N, L, device=x.device)
        ids_shuffle = torch.argsort(noise, dim=1)
        ids_restore = torch.argsort(ids_shuffle, dim=1)
        x = torch.gather(x, dim=1, index=ids_shuffle[:, :keep].unsqueeze(-1).repeat(1, 1, D))
        mask = torch.ones([N, L], device=x.device)
        mask[:, :keep] = 0
        return x, torch.gather(mask, dim=1, index=ids_restore), ids_restore

    def forward(self, imgs):
        x = self.patch_embed(imgs).flatten(2).transpose(1, 2) + self.pos_embed[:, 1:]
        x, mask, ids_restore = self.random_masking(x)
        cls = (self.cls_token + self.pos_embed[:, :1]).expand(x.shape[0], -1, -1)
        x = torch.cat([cls, x], dim=1)
        for blk in self.blocks:
            x = blk(x)
        x = self.decoder_embed(self.norm(x))

        masks = self.mask_token.repeat(x.shape[0], ids_restore.shape[1] + 1 - x.shape[1], 1)
        full = torch.cat([x[:, 1:], masks], dim=1)
        full = torch.gather(full, dim=1, index=ids_restore.unsqueeze(-1).repeat(1, 1, x.shape[2]))
        x = torch.cat([x[:, :1], full], dim=1) + self.decoder_pos_embed
        for blk in self.decoder_blocks:
            x = blk(x)
        pred = self.decoder_pred(self.decoder_norm(x))[:, 1:].float()

        target = self.patchify(imgs.float())
        mean, var = target.mean(dim=-1, keepdim=True), target.var(dim=-1, keepdim=True)
        target = (target - mean) / (var + 1.0e-6) ** 0.5
        loss = ((pred - target) ** 2).mean(dim=-1)
        return (loss * mask).sum() / mask.sum()


class Zero1AdamW:
    def __init__(self, model, lr, betas=(0.9, 0.95), weight_decay=0.05, clip=1.0):
        self.rank, self.world = dist.get_rank(), dist.get_world_size()
        self.params, self.clip = [p for p in model.parameters() if p.requires_grad], clip
        total = sum(p.numel() for p in self.params)
        padded = math.ceil(total / (self.world * 128)) * self.world * 128
        first = self.params[0]
        self.weights = torch.zeros(padded, dtype=first.dtype, device=first.device)
        self.grads = torch.zeros_like(self.weights)
        offset = 0
        for p in self.params:
            n = p.numel()
            self.weights[offset : offset + n].copy_(p.data.flatten())
            p.data = self.weights[offset : offset + n].view_as(p)
            p.grad = self.grads[offset : offset + n].view_as(p)
            offset += n
        dist.broadcast(self.weights, src=0)
        self.shard = padded // self.world
        self.mine = self.weights.narrow(0, self.rank * self.shard, self.shard)
        self.master = nn.Parameter(self.mine.float())
        self.grad_shard = torch.empty_like(self.mine)
        self.adam = torch.optim.AdamW([self.master], lr=lr, betas=betas, weight_decay=weight_decay, fused=True)

    @torch.no_grad()
    def step(self):
        dist.reduce_scatter_tensor(self.grad_shard, self.grads, op=dist.ReduceOp.AVG)
        grad = self.grad_shard.float()
        squared = grad.square().sum()
        dist.all_reduce(squared)
        grad.mul_((self.clip / (squared.sqrt() + 1e-6)).clamp(max=1.0))
        self.master.grad = grad
        self.adam.step()
        self.master.grad = None
        self.mine.copy_(self.master)
        dist.all_gather_into_tensor(self.weights, self.mine)
        return squared.sqrt()

    def zero_grad(self):
        self.grads.zero_()


def main():
    dist.init_process_group("nccl")
    torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    torch.manual_seed(42)
    model = MaskedAutoencoder().to("cuda", torch.bfloat16)
    optimizer = Zero1AdamW(model, lr=1.5e-4 * BATCH * dist.get_world_size() / 256)
    torch.manual_seed(42 + dist.get_rank())
    running = torch.zeros((), device="cuda")
    for it in steps():
        lr = 2.4e-3 * min((it + 1) / 40, 1.0)
        optimizer.adam.param_groups[0]["lr"] = lr
        images = torch.randn(BATCH, 3, IMAGE, IMAGE, device="cuda", dtype=torch.bfloat16)
        optimizer.zero_grad()
        loss = model(images)
        loss.backward()
        optimizer.step()
        running.lerp_(loss.detach(), 0.05)


if __name__ == "__main__":
    main()
