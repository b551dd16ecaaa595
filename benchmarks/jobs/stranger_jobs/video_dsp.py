"""Video diffusion (rectified flow) on one clip per pair of ranks. Blocks attend within a frame or along time in turn;
the sequence is cut by frames for the first and by places for the second, with an all-to-all at each change."""

import math
import os

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel
from tock import steps

FRAMES, SIDE, CHANNELS, PATCH = 32, 64, 16, 2
DIM, HEADS, PAIRS = 1024, 16, 10
TEXT, TEXT_DIM = 120, 2048


class Switch(torch.autograd.Function):
    """(a, b, c) with b whole and a cut over the ranks <-> (b, a, c) with a whole and b cut."""

    @staticmethod
    def run(x, group):
        world = dist.get_world_size(group)
        a, b, c = x.shape
        out = x.view(a, world, b // world, c).transpose(0, 1).contiguous()
        got = torch.empty_like(out)
        dist.all_to_all_single(got, out, group=group)
        return got.view(world * a, b // world, c).transpose(0, 1).contiguous()

    @staticmethod
    def forward(ctx, x, group):
        ctx.group = group
        return Switch.run(x, group)

    @staticmethod
    def backward(ctx, grad):
        return Switch.run(grad.contiguous(), ctx.group), None


def timestep_embedding(t, dim):
    freqs = torch.exp(-math.log(10000) * torch.arange(dim // 2, device=t.device) / (dim // 2))
    args = 1000 * t[:, None] * freqs
    return torch.cat([torch.cos(args), torch.sin(args)], dim=-1)


class Block(nn.Module):
    def __init__(self, cross):
        super().__init__()
        self.norm1 = nn.LayerNorm(DIM, elementwise_affine=False, eps=1e-6)
        self.norm2 = nn.LayerNorm(DIM, elementwise_affine=False, eps=1e-6)
        self.qkv, self.proj = nn.Linear(DIM, 3 * DIM), nn.Linear(DIM, DIM)
        self.q_norm, self.k_norm = nn.RMSNorm(DIM // HEADS), nn.RMSNorm(DIM // HEADS)
        self.mlp = nn.Sequential(nn.Linear(DIM, 4 * DIM), nn.GELU(approximate="tanh"), nn.Linear(4 * DIM, DIM))
        self.table = nn.Parameter(torch.randn(6, DIM) / DIM**0.5)
        self.cross = cross
        if cross:
            self.cross_q, self.cross_kv = nn.Linear(DIM, DIM), nn.Linear(DIM, 2 * DIM)
            self.cross_proj = nn.Linear(DIM, DIM)

    def heads(self, x):
        return x.unflatten(-1, (HEADS, DIM // HEADS)).transpose(1, 2)

    def forward(self, x, mod, text):
        shift1, scale1, gate1, shift2, scale2, gate2 = (self.table + mod).unbind(0)
        h = self.norm1(x) * (1 + scale1) + shift1
        q, k, v = map(self.heads, self.qkv(h).chunk(3, dim=-1))
        h = F.scaled_dot_product_attention(self.q_norm(q).to(v.dtype), self.k_norm(k).to(v.dtype), v)
        x = x + gate1 * self.proj(h.transpose(1, 2).flatten(2))
        if self.cross:
            # every place of every frame asks the same text: one long sequence of queries
            q = self.heads(self.cross_q(x.flatten(0, 1).unsqueeze(0)))
            k, v = map(self.heads, self.cross_kv(text.unsqueeze(0)).chunk(2, dim=-1))
            h = F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2)
            x = x + self.cross_proj(h).view_as(x)
        h = self.norm2(x) * (1 + scale2) + shift2
        return x + gate2 * self.mlp(h)


class VideoTransformer(nn.Module):
    def __init__(self, group):
        super().__init__()
        self.group = group
        places = (SIDE // PATCH) ** 2
        self.embed = nn.Linear(CHANNELS * PATCH**2, DIM)
        self.place_emb = nn.Parameter(0.02 * torch.randn(places, DIM))
        self.frame_emb = nn.Parameter(0.02 * torch.randn(FRAMES, 1, DIM))
        self.time_mlp = nn.Sequential(nn.Linear(256, DIM), nn.SiLU(), nn.Linear(DIM, DIM))
        self.time_mod = nn.Sequential(nn.SiLU(), nn.Linear(DIM, 6 * DIM))
        self.text_proj = nn.Sequential(nn.Linear(TEXT_DIM, DIM), nn.GELU(), nn.Linear(DIM, DIM))
        self.spatial = nn.ModuleList([Block(cross=True) for _ in range(PAIRS)])
        self.temporal = nn.ModuleList([Block(cross=False) for _ in range(PAIRS)])
        self.final = nn.Linear(DIM, CHANNELS * PATCH**2)

    def forward(self, x, t, text, first_frame):
        """x: (frames of this rank, places, channels of a patch)."""
        frames = self.frame_emb[first_frame : first_frame + x.shape[0]]
        x = self.embed(x) + self.place_emb + frames
        mod = self.time_mod(self.time_mlp(timestep_embedding(t, 256))).view(6, DIM)
        text = self.text_proj(text)
        for spatial, temporal in zip(self.spatial, self.temporal):
            x = spatial(x, mod, text)
            x = Switch.apply(x, self.group)
            x = temporal(x, mod, text)
            x = Switch.apply(x, self.group)
        return self.final(F.layer_norm(x, (DIM,)))


def patchify(video):
    f, c, s, _ = video.shape
    n = s // PATCH
    return video.view(f, c, n, PATCH, n, PATCH).permute(0, 2, 4, 1, 3, 5).reshape(f, n * n, c * PATCH**2)


def main():
    local_rank = int(os.environ["LOCAL_RANK"])
    torch.cuda.set_device(local_rank)
    device = torch.device("cuda", local_rank)
    dist.init_process_group("nccl")
    rank, world = dist.get_rank(), dist.get_world_size()
    sequence_group = dist.new_group(list(range(world)))

    torch.manual_seed(0)
    model = VideoTransformer(sequence_group).to(device)
    for block in [*model.spatial, *model.temporal]:
        block.compile(dynamic=False)
    ddp = DistributedDataParallel(model, device_ids=[local_rank], gradient_as_bucket_view=True, static_graph=True)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, weight_decay=0.0, fused=True)

    mine = FRAMES // world
    shared = torch.Generator(device=device).manual_seed(11)  # the same clip's time and text on all ranks
    torch.manual_seed(20 + rank)
    for _ in steps():
        latents = torch.randn(mine, CHANNELS, SIDE, SIDE, device=device)
        noise = torch.randn_like(latents)
        t = torch.sigmoid(torch.randn(1, device=device, generator=shared))
        text = torch.randn(TEXT, TEXT_DIM, device=device, generator=shared)
        noisy = (1 - t) * latents + t * noise
        with torch.autocast("cuda", dtype=torch.bfloat16):
            velocity = ddp(patchify(noisy), t, text, rank * mine)
        loss = F.mse_loss(velocity.float(), patchify(noise - latents))
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)


if __name__ == "__main__":
    main()
