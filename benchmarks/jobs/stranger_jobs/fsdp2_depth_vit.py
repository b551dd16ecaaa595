"""Monocular depth: a ViT-g trunk and a DPT head. FSDP2, compiled blocks, selective recomputation (products are kept)."""

import argparse
import functools
import os

import torch
import torch.distributed as dist
import torch.nn.functional as F
from tock import steps
from torch import nn
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import CheckpointImpl, checkpoint_wrapper
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.utils.checkpoint import create_selective_checkpoint_contexts

parser = argparse.ArgumentParser()
parser.add_argument("--img-size", type=int, default=518)
parser.add_argument("--patch-size", type=int, default=14)
parser.add_argument("--embed-dim", type=int, default=1536)
parser.add_argument("--depth", type=int, default=24)
parser.add_argument("--num-heads", type=int, default=24)
parser.add_argument("--ffn", type=int, default=4096)
parser.add_argument("--registers", type=int, default=4)
parser.add_argument("--features", type=int, default=256)
parser.add_argument("--batch-size", type=int, default=8)
parser.add_argument("--drop-path", type=float, default=0.1)
parser.add_argument("--lr", type=float, default=5e-6)
parser.add_argument("--head-lr-factor", type=float, default=10.0)

KEPT = [
    torch.ops.aten.mm.default,
    torch.ops.aten.addmm.default,
    torch.ops.aten._scaled_dot_product_flash_attention.default,
    torch.ops.aten._scaled_dot_product_cudnn_attention.default,
]


class LayerScale(nn.Module):
    def __init__(self, dim, init=1e-5):
        super().__init__()
        self.gamma = nn.Parameter(init * torch.ones(dim))

    def forward(self, x):
        return x * self.gamma


class DropPath(nn.Module):
    def __init__(self, p):
        super().__init__()
        self.p = p

    def forward(self, x):
        if not self.training or self.p == 0.0:
            return x
        keep = torch.rand(x.shape[0], 1, 1, device=x.device) >= self.p
        return x * keep.to(x.dtype) / (1.0 - self.p)


class SwiGLU(nn.Module):
    def __init__(self, dim, hidden):
        super().__init__()
        self.w12 = nn.Linear(dim, 2 * hidden)
        self.w3 = nn.Linear(hidden, dim)

    def forward(self, x):
        x1, x2 = self.w12(x).chunk(2, dim=-1)
        return self.w3(F.silu(x1) * x2)


class Attention(nn.Module):
    def __init__(self, dim, heads):
        super().__init__()
        self.heads = heads
        self.qkv = nn.Linear(dim, 3 * dim)
        self.proj = nn.Linear(dim, dim)

    def forward(self, x):
        B, N, C = x.shape
        q, k, v = self.qkv(x).reshape(B, N, 3, self.heads, C // self.heads).permute(2, 0, 3, 1, 4).unbind(0)
        return self.proj(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(B, N, C))


class Block(nn.Module):
    def __init__(self, dim, heads, hidden, drop_path):
        super().__init__()
        self.norm1, self.attn, self.ls1 = nn.LayerNorm(dim, eps=1e-6), Attention(dim, heads), LayerScale(dim)
        self.norm2, self.mlp, self.ls2 = nn.LayerNorm(dim, eps=1e-6), SwiGLU(dim, hidden), LayerScale(dim)
        self.drop_path = DropPath(drop_path)

    def forward(self, x):
        x = x + self.drop_path(self.ls1(self.attn(self.norm1(x))))
        return x + self.drop_path(self.ls2(self.mlp(self.norm2(x))))


class Trunk(nn.Module):
    def __init__(self, args):
        super().__init__()
        side = args.img_size // args.patch_size
        self.prefix = 1 + args.registers
        self.taps = [args.depth * (i + 1) // 4 - 1 for i in range(4)]
        self.patch_embed = nn.Conv2d(3, args.embed_dim, args.patch_size, args.patch_size)
        self.tokens = nn.Parameter(torch.zeros(1, self.prefix, args.embed_dim))
        self.pos_embed = nn.Parameter(0.02 * torch.randn(1, side * side, args.embed_dim))
        self.blocks = nn.ModuleList(
            [Block(args.embed_dim, args.num_heads, args.ffn, args.drop_path) for _ in range(args.depth)]
        )
        self.norm = nn.LayerNorm(args.embed_dim, eps=1e-6)

    def forward(self, img):
        x = self.patch_embed(img)
        h, w = x.shape[-2:]
        x = x.flatten(2).transpose(1, 2) + self.pos_embed
        x = torch.cat((self.tokens.expand(x.shape[0], -1, -1), x), dim=1)
        maps = []
        for i, blk in enumerate(self.blocks):
            x = blk(x)
            if i in self.taps:
                maps.append(self.norm(x)[:, self.prefix :].transpose(1, 2).unflatten(2, (h, w)))
        return maps


class ResidualConvUnit(nn.Module):
    def __init__(self, ch):
        super().__init__()
        self.conv1, self.conv2 = nn.Conv2d(ch, ch, 3, padding=1), nn.Conv2d(ch, ch, 3, padding=1)

    def forward(self, x):
        return x + self.conv2(F.relu(self.conv1(F.relu(x))))


class Fusion(nn.Module):
    def __init__(self, ch):
        super().__init__()
        self.rcu1, self.rcu2, self.out = ResidualConvUnit(ch), ResidualConvUnit(ch), nn.Conv2d(ch, ch, 1)

    def forward(self, x, skip, size):
        if skip is not None:
            x = x + self.rcu1(skip)
        x = F.interpolate(self.rcu2(x), size=size, mode="bilinear", align_corners=True)
        return self.out(x)


class DPTHead(nn.Module):
    def __init__(self, args):
        super().__init__()
        dim, ch, self.size = args.embed_dim, args.features, args.img_size
        widths = [ch, 2 * ch, 4 * ch, 4 * ch]
        self.project = nn.ModuleList([nn.Conv2d(dim, w, 1) for w in widths])
        self.resize = nn.ModuleList(
            [
                nn.ConvTranspose2d(widths[0], widths[0], 4, 4),
                nn.ConvTranspose2d(widths[1], widths[1], 2, 2),
                nn.Identity(),
                nn.Conv2d(widths[3], widths[3], 3, 2, 1),
            ]
        )
        self.scratch = nn.ModuleList([nn.Conv2d(w, ch, 3, padding=1, bias=False) for w in widths])
        self.fuse = nn.ModuleList([Fusion(ch) for _ in range(4)])
        self.conv1 = nn.Conv2d(ch, ch // 2, 3, padding=1)
        self.conv2 = nn.Sequential(nn.Conv2d(ch // 2, 32, 3, padding=1), nn.ReLU(), nn.Conv2d(32, 1, 1), nn.Softplus())

    def forward(self, m0, m1, m2, m3):
        maps = (m0, m1, m2, m3)
        maps = [s(r(p(m))) for s, r, p, m in zip(self.scratch, self.resize, self.project, maps)]
        x = self.fuse[3](maps[3], None, maps[2].shape[-2:])
        x = self.fuse[2](x, maps[2], maps[1].shape[-2:])
        x = self.fuse[1](x, maps[1], maps[0].shape[-2:])
        x = self.fuse[0](x, maps[0], (2 * maps[0].shape[-2], 2 * maps[0].shape[-1]))
        x = F.interpolate(self.conv1(x), size=(self.size, self.size), mode="bilinear", align_corners=True)
        return self.conv2(x)


class DepthNet(nn.Module):
    def __init__(self, args):
        super().__init__()
        self.trunk, self.head = Trunk(args), DPTHead(args)

    def forward(self, img):
        return self.head(*self.trunk(img))


def silog_and_gradient(pred, target, valid, beta=0.15):
    n = valid.sum(dim=(1, 2, 3)).clamp(min=1)
    d = (torch.log(pred + 1e-3) - torch.log(target)) * valid
    mean = d.sum(dim=(1, 2, 3)) / n
    var = (d**2).sum(dim=(1, 2, 3)) / n - mean**2
    silog = (var + beta * mean**2).clamp(min=1e-6).sqrt().mean()
    grad = 0.0
    for s in range(3):
        e, m = d[..., :: 2**s, :: 2**s], valid[..., :: 2**s, :: 2**s]
        gx = (e[..., 1:] - e[..., :-1]).abs() * (m[..., 1:] & m[..., :-1])
        gy = (e[..., 1:, :] - e[..., :-1, :]).abs() * (m[..., 1:, :] & m[..., :-1, :])
        grad = grad + (gx.sum() + gy.sum()) / m.sum().clamp(min=1)
    return silog + 0.5 * grad


def main(args):
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
    torch.cuda.set_device(device)
    dist.init_process_group("nccl")
    mesh = init_device_mesh("cuda", (dist.get_world_size(),), mesh_dim_names=("dp",))

    torch.manual_seed(0)
    model = DepthNet(args).to(device)
    context_fn = functools.partial(create_selective_checkpoint_contexts, KEPT)
    bf16 = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    for i, block in enumerate(model.trunk.blocks):
        block = checkpoint_wrapper(block, checkpoint_impl=CheckpointImpl.NO_REENTRANT, context_fn=context_fn)
        model.trunk.blocks[i] = torch.compile(block)
        fully_shard(model.trunk.blocks[i], mesh=mesh, mp_policy=bf16)
    model.head.compile()
    fully_shard(model.head, mesh=mesh, mp_policy=bf16, reshard_after_forward=False)
    fully_shard(model, mesh=mesh, mp_policy=bf16)
    criterion = torch.compile(silog_and_gradient)

    optimizer = torch.optim.AdamW(
        [
            {"params": model.trunk.parameters(), "lr": args.lr},
            {"params": model.head.parameters(), "lr": args.lr * args.head_lr_factor},
        ],
        weight_decay=0.01,
    )
    schedule = torch.optim.lr_scheduler.PolynomialLR(optimizer, total_iters=10_000, power=0.9)
    torch.manual_seed(100 + dist.get_rank())
    shape = (args.batch_size, 1, args.img_size, args.img_size)
    for it in steps():
        image = torch.randn(args.batch_size, 3, args.img_size, args.img_size, device=device)
        depth = 0.1 + 80 * torch.rand(shape, device=device)
        if it % 2:
            image, depth = image.flip(-1), depth.flip(-1)
        pred = model(image)
        loss = criterion(pred.float(), depth, depth < 70)
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()


if __name__ == "__main__":
    main(parser.parse_args())
