"""Super-resolution by diffusion (a U-Net on pixels, compiled), ZeRO-2 by hand: a bucket of gradients is reduce-scattered
as soon as backward has filled it and is then freed, each rank keeps Adam's state of its slice of each bucket, and the
updated weights are gathered bucket by bucket."""

import os

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from tock import steps

SIZE, SCALE, BATCH = 128, 4, 24
BASE, MULTS, BLOCKS, HEADS, GROUPS = 192, (1, 2, 4), 2, 8, 32
TIMESTEPS = 2000
BUCKET_BYTES = 48 << 20


class ResBlock(nn.Module):
    def __init__(self, cin, cout, emb):
        super().__init__()
        self.norm1, self.conv1 = nn.GroupNorm(GROUPS, cin), nn.Conv2d(cin, cout, 3, padding=1)
        self.noise = nn.Linear(emb, 2 * cout)
        self.norm2, self.conv2 = nn.GroupNorm(GROUPS, cout), nn.Conv2d(cout, cout, 3, padding=1)
        self.skip = nn.Conv2d(cin, cout, 1) if cin != cout else nn.Identity()

    def forward(self, x, e):
        h = self.conv1(F.silu(self.norm1(x)))
        scale, shift = self.noise(e)[..., None, None].chunk(2, dim=1)
        h = self.norm2(h) * (1 + scale) + shift
        return self.skip(x) + self.conv2(F.silu(h))


class SelfAttention2d(nn.Module):
    def __init__(self, ch):
        super().__init__()
        self.norm, self.qkv, self.out = nn.GroupNorm(GROUPS, ch), nn.Conv2d(ch, 3 * ch, 1), nn.Conv2d(ch, ch, 1)

    def forward(self, x):
        b, c, h, w = x.shape
        q, k, v = self.qkv(self.norm(x)).flatten(2).unflatten(1, (3, HEADS, -1)).transpose(-1, -2).unbind(1)
        y = F.scaled_dot_product_attention(q, k, v)
        return x + self.out(y.transpose(-1, -2).reshape(b, c, h, w))


class UNet(nn.Module):
    def __init__(self):
        super().__init__()
        emb = 4 * BASE
        self.mlp = nn.Sequential(nn.Linear(BASE, emb), nn.SiLU(), nn.Linear(emb, emb), nn.SiLU())
        self.stem = nn.Conv2d(6, BASE, 3, padding=1)
        self.downs, self.ups = nn.ModuleList(), nn.ModuleList()
        ch, skips, last = BASE, [BASE], len(MULTS) - 1
        for level, mult in enumerate(MULTS):
            for _ in range(BLOCKS):
                attn = SelfAttention2d(BASE * mult) if level == last else nn.Identity()
                self.downs.append(nn.ModuleList([ResBlock(ch, BASE * mult, emb), attn]))
                ch = BASE * mult
                skips.append(ch)
            if level < last:
                self.downs.append(nn.Conv2d(ch, ch, 3, stride=2, padding=1))
                skips.append(ch)
        self.mid1, self.mid_attn, self.mid2 = ResBlock(ch, ch, emb), SelfAttention2d(ch), ResBlock(ch, ch, emb)
        for level, mult in reversed(list(enumerate(MULTS))):
            for _ in range(BLOCKS + 1):
                attn = SelfAttention2d(BASE * mult) if level == last else nn.Identity()
                self.ups.append(nn.ModuleList([ResBlock(ch + skips.pop(), BASE * mult, emb), attn]))
                ch = BASE * mult
            if level > 0:
                self.ups.append(nn.Sequential(nn.Upsample(scale_factor=2), nn.Conv2d(ch, ch, 3, padding=1)))
        self.norm, self.final = nn.GroupNorm(GROUPS, ch), nn.Conv2d(ch, 3, 3, padding=1)

    def forward(self, x, level):
        half = BASE // 2
        angle = level[:, None] * 5000 * torch.exp(-9.21 / half * torch.arange(half, device=x.device))
        e = self.mlp(torch.cat((angle.sin(), angle.cos()), dim=-1).to(x.dtype))
        x = self.stem(x)
        skips = [x]
        for m in self.downs:
            x = m(x) if isinstance(m, nn.Conv2d) else m[1](m[0](x, e))
            skips.append(x)
        x = self.mid2(self.mid_attn(self.mid1(x, e)), e)
        for m in self.ups:
            x = m(x) if isinstance(m, nn.Sequential) else m[1](m[0](torch.cat((x, skips.pop()), dim=1), e))
        return self.final(F.silu(self.norm(x)))


class Bucket:
    def __init__(self, params, rank, world):
        self.params, self.missing, self.work, self.full = params, len(params), None, None
        total = sum(p.numel() for p in params)
        self.numel = -(-total // (64 * world)) * 64 * world
        like = params[0]
        self.weights = torch.zeros(self.numel, dtype=like.dtype, device=like.device)
        self.offsets, at = {}, 0
        for p in params:
            view = self.weights[at : at + p.numel()].view_as(p)
            view.copy_(p.data)
            p.data = view
            self.offsets[p] = at
            at += p.numel()
        dist.broadcast(self.weights, src=0)
        self.slice = self.weights.chunk(world)[rank]
        self.master = self.slice.float().requires_grad_()


class Zero2:
    def __init__(self, module, lr):
        self.rank, self.world = dist.get_rank(), dist.get_world_size()
        self.buckets, pending, size = [], [], 0
        for p in reversed(list(module.parameters())):
            pending.append(p)
            size += p.numel() * p.element_size()
            if size >= BUCKET_BYTES:
                self.buckets.append(Bucket(pending, self.rank, self.world))
                pending, size = [], 0
        if pending:
            self.buckets.append(Bucket(pending, self.rank, self.world))
        for bucket in self.buckets:
            for p in bucket.params:
                p.register_post_accumulate_grad_hook(lambda p, bucket=bucket: self.ready(bucket, p))
        self.adam = torch.optim.Adam([b.master for b in self.buckets], lr=lr, fused=True)

    def ready(self, bucket, p):
        if bucket.full is None:
            bucket.full = torch.zeros_like(bucket.weights)
        at = bucket.offsets[p]
        bucket.full[at : at + p.numel()].view_as(p).copy_(p.grad)
        p.grad = None
        bucket.missing -= 1
        if bucket.missing == 0:
            bucket.shard = torch.empty_like(bucket.slice)
            bucket.work = dist.reduce_scatter_tensor(bucket.shard, bucket.full, op=dist.ReduceOp.AVG, async_op=True)

    @torch.no_grad()
    def step(self):
        for b in self.buckets:
            b.work.wait()
            b.master.grad = b.shard.float()
            b.full, b.work, b.shard, b.missing = None, None, None, len(b.params)
        norm = torch.stack([b.master.grad.square().sum() for b in self.buckets]).sum()
        dist.all_reduce(norm)
        scale = (1.0 / (norm.sqrt() + 1e-6)).clamp(max=1.0)
        torch._foreach_mul_([b.master.grad for b in self.buckets], scale)
        self.adam.step()
        gathers = []
        for b in self.buckets:
            b.slice.copy_(b.master)
            gathers.append(dist.all_gather_into_tensor(b.weights, b.slice, async_op=True))
            b.master.grad = None
        for g in gathers:
            g.wait()


def main():
    torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    dist.init_process_group("nccl")
    torch.backends.cudnn.benchmark = True
    torch.manual_seed(0)
    net = UNet().to("cuda", torch.bfloat16)
    optimizer = Zero2(net, lr=1e-4)
    net.compile()
    betas = torch.linspace(1e-6, 1e-2, TIMESTEPS, device="cuda")
    alphas = torch.cat((torch.ones(1, device="cuda"), torch.cumprod(1 - betas, dim=0))).sqrt()

    torch.manual_seed(1 + dist.get_rank())
    for _ in steps():
        high = torch.rand(BATCH, 3, SIZE, SIZE, device="cuda") * 2 - 1
        low = F.interpolate(F.avg_pool2d(high, SCALE), scale_factor=SCALE, mode="bicubic")
        t = torch.randint(1, TIMESTEPS + 1, (BATCH,), device="cuda")
        level = torch.lerp(alphas[t - 1], alphas[t], torch.rand(BATCH, device="cuda"))
        noise = torch.randn_like(high)
        a = level[:, None, None, None]
        noisy = a * high + (1 - a * a).sqrt() * noise
        x = torch.cat((low, noisy), dim=1).bfloat16().to(memory_format=torch.channels_last)
        loss = F.l1_loss(net(x, level).float(), noise)
        loss.backward()
        optimizer.step()


if __name__ == "__main__":
    main()
