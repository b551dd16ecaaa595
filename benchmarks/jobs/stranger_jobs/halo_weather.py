"""A convolutional weather model on a global grid which is cut by latitude: each rank has half of the rows and trades the
rows at its border before each convolution. Longitude wraps. Two forecast steps are unrolled."""

import math
import os

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.checkpoint import checkpoint
from tock import steps

VARIABLES, LAT, LON = 72, 720, 1440
PATCH, WIDTH, BLOCKS, UNROLL = 4, 512, 8, 2


class HaloExchange(torch.autograd.Function):
    """(N, C, H, W) -> (N, C, H + 2 * halo, W): rows of the neighbours, zeros beyond the poles."""

    @staticmethod
    def trade(up, down, up_in, down_in):
        rank, world = dist.get_rank(), dist.get_world_size()
        ops = []
        if rank > 0:
            ops += [dist.P2POp(dist.isend, up, rank - 1), dist.P2POp(dist.irecv, up_in, rank - 1)]
        if rank < world - 1:
            ops += [dist.P2POp(dist.isend, down, rank + 1), dist.P2POp(dist.irecv, down_in, rank + 1)]
        for req in dist.batch_isend_irecv(ops):
            req.wait()

    @staticmethod
    def forward(ctx, x, halo):
        ctx.halo = halo
        top, bottom = x[:, :, :halo].contiguous(), x[:, :, -halo:].contiguous()
        north, south = torch.zeros_like(top), torch.zeros_like(bottom)
        HaloExchange.trade(top, bottom, north, south)
        return torch.cat([north, x, south], dim=2)

    @staticmethod
    def backward(ctx, grad):
        h = ctx.halo
        to_north, to_south = grad[:, :, :h].contiguous(), grad[:, :, -h:].contiguous()
        from_north, from_south = torch.zeros_like(to_north), torch.zeros_like(to_south)
        HaloExchange.trade(to_north, to_south, from_north, from_south)
        ours = grad[:, :, h:-h].clone()
        ours[:, :, :h] += from_north
        ours[:, :, -h:] += from_south
        return ours, None


class SphereConv(nn.Conv2d):
    def __init__(self, cin, cout, kernel, groups=1):
        super().__init__(cin, cout, kernel, groups=groups)
        self.halo = kernel // 2

    def forward(self, x):
        x = HaloExchange.apply(x, self.halo)
        x = F.pad(x, (self.halo, self.halo, 0, 0), mode="circular")
        return super().forward(x)


class ChannelNorm(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.scale = nn.Parameter(torch.ones(1, width, 1, 1))

    def forward(self, x):
        return x * torch.rsqrt(x.float().square().mean(1, keepdim=True) + 1e-6).to(x.dtype) * self.scale


class ResidualBlock(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.norm = ChannelNorm(width)
        self.spatial = SphereConv(width, width, 3)
        self.large = SphereConv(width, width, 5, groups=width)
        self.mix = nn.Conv2d(width, width, 1)
        nn.init.zeros_(self.mix.weight)

    def forward(self, x):
        h = F.silu(self.spatial(self.norm(x)))
        return x + self.mix(F.silu(self.large(h)))


class Forecaster(nn.Module):
    def __init__(self):
        super().__init__()
        self.encode = nn.Conv2d(VARIABLES + 2, WIDTH, PATCH, stride=PATCH)
        self.blocks = nn.ModuleList(ResidualBlock(WIDTH) for _ in range(BLOCKS))
        self.decode = nn.Sequential(
            ChannelNorm(WIDTH), nn.Conv2d(WIDTH, VARIABLES * PATCH**2, 1), nn.PixelShuffle(PATCH)
        )

    def advance(self, state, static):
        h = self.encode(torch.cat([state, static], dim=1))
        for block in self.blocks:
            h = block(h)
        return state + self.decode(h)

    def forward(self, state, static, n):
        out = []
        for i in range(n):
            if i == 0:
                state = self.advance(state, static)
            else:
                state = checkpoint(self.advance, state, static, use_reentrant=False)
            out.append(state)
        return out


def reduce_gradients(params):
    flat = torch.cat([p.grad.reshape(-1) for p in params])
    dist.all_reduce(flat)
    start = 0
    for p in params:
        p.grad.copy_(flat[start : start + p.numel()].view_as(p.grad))
        start += p.numel()


dist.init_process_group("nccl")
rank, world = dist.get_rank(), dist.get_world_size()
torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
device = torch.device("cuda")
torch.manual_seed(0)
torch.backends.cudnn.allow_tf32 = True

model = Forecaster().to(device)
params = list(model.parameters())
optimizer = torch.optim.Adam(params, lr=1e-3, betas=(0.9, 0.95))
scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=10_000)

rows = LAT // world
latitudes = torch.linspace(math.pi / 2, -math.pi / 2, LAT, device=device)[rank * rows : (rank + 1) * rows]
area = torch.cos(latitudes).view(1, 1, rows, 1)
total_area = area.sum()
dist.all_reduce(total_area)
area = area / total_area / LON
static = torch.stack([torch.sin(latitudes), torch.cos(latitudes)]).view(1, 2, rows, 1).expand(-1, -1, -1, LON)

torch.manual_seed(10 + rank)
for step in steps():
    state = torch.randn(1, VARIABLES, rows, LON, device=device)
    truth = [torch.randn(1, VARIABLES, rows, LON, device=device) for _ in range(UNROLL)]
    with torch.autocast("cuda", dtype=torch.bfloat16):
        forecasts = model(state, static, UNROLL)
    loss = sum((area * (f.float() - t) ** 2).sum() / VARIABLES for f, t in zip(forecasts, truth)) / UNROLL
    loss.backward()
    reduce_gradients(params)
    torch.nn.utils.clip_grad_norm_(params, 32.0)
    optimizer.step()
    scheduler.step()
    optimizer.zero_grad(set_to_none=False)
    if step % 10 == 0:
        whole = loss.detach().clone()
        dist.all_reduce(whole)
        if rank == 0:
            print(f"step {step} loss {whole.item():.4f}")
