# Fourier neural operator in three dimensions, the grid cut in slabs along x. The FFT over x needs all of it: modes of
# y are traded for slabs of x. Spectral weights live with their modes, the other weights are on every rank.
import math
import os
import sys

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from tock import steps

N = int(sys.argv[1]) if len(sys.argv) > 1 else 128
WIDTH = 40
MODES = min(24, N // 4)  # kept on each side of x and y, and of z's one side
LAYERS = 4
BATCH = 3
IN, OUT = 4, 4


def trade(x, split, cat):
    """Cuts dimension `split` over the ranks and puts dimension `cat` together. x is complex."""
    world = dist.get_world_size()
    pieces = torch.stack([torch.view_as_real(p.contiguous()) for p in x.chunk(world, dim=split)])
    received = torch.empty_like(pieces)
    dist.all_to_all_single(received, pieces)
    return torch.cat([torch.view_as_complex(p) for p in received.unbind(0)], dim=cat)


class Repartition(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, split, cat):
        ctx.dims = split, cat
        return trade(x, split, cat)

    @staticmethod
    def backward(ctx, grad):
        split, cat = ctx.dims
        return trade(grad, cat, split), None, None


def keep(x, dim, m):
    n = x.shape[dim]
    return torch.cat([x.narrow(dim, 0, m), x.narrow(dim, n - m, m)], dim=dim)


def fill(x, dim, n):
    m = x.shape[dim] // 2
    shape = list(x.shape)
    shape[dim] = n - 2 * m
    low, high = x.split(m, dim=dim)
    return torch.cat([low, x.new_zeros(shape), high], dim=dim)


class SpectralConv(nn.Module):
    def __init__(self, width, modes, world):
        super().__init__()
        self.modes = modes
        shape = (width, width, 2 * modes, 2 * modes // world, modes, 2)
        self.weight = nn.Parameter(torch.randn(shape) / (width * width))
        self.weight.spectral = True

    def forward(self, x):
        m, n = self.modes, x.shape[-1]
        x = torch.fft.rfft(x, dim=4)[..., :m]
        x = keep(torch.fft.fft(x, dim=3), 3, m)
        x = Repartition.apply(x, 3, 2)  # all of x, this rank's modes of y
        x = keep(torch.fft.fft(x, dim=2), 2, m)
        x = torch.einsum("bixyz,ioxyz->boxyz", x, torch.view_as_complex(self.weight))
        x = torch.fft.ifft(fill(x, 2, n), dim=2)
        x = Repartition.apply(x, 2, 3)  # this rank's slab of x, all modes of y
        x = torch.fft.ifft(fill(x, 3, n), dim=3)
        return torch.fft.irfft(F.pad(x, (0, n // 2 + 1 - m)), n=n, dim=4)


class FNO(nn.Module):
    def __init__(self, world):
        super().__init__()
        self.lift = nn.Conv3d(IN + 3, WIDTH, 1)
        self.spectral = nn.ModuleList(SpectralConv(WIDTH, MODES, world) for _ in range(LAYERS))
        self.skip = nn.ModuleList(nn.Conv3d(WIDTH, WIDTH, 1) for _ in range(LAYERS))
        self.project = nn.Sequential(nn.Conv3d(WIDTH, 96, 1), nn.GELU(), nn.Conv3d(96, OUT, 1))

    def forward(self, x, grid):
        x = self.lift(torch.cat([x, grid], dim=1))
        for i, (spectral, skip) in enumerate(zip(self.spectral, self.skip)):
            x = spectral(x) + skip(x)
            if i < LAYERS - 1:
                x = F.gelu(x)
        return self.project(x)


def relative_l2(prediction, truth):
    parts = torch.stack([((prediction - truth) ** 2).sum(dim=(1, 2, 3, 4)), (truth**2).sum(dim=(1, 2, 3, 4))])
    whole = parts.detach().clone()
    dist.all_reduce(whole)
    # the other ranks' part of the sums is a constant here; gradients are summed over the ranks afterwards
    error = parts[0] + (whole[0] - parts[0].detach())
    return (error.sqrt() / whole[1].sqrt()).mean()


def main():
    dist.init_process_group("nccl")
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    device = torch.device("cuda", torch.cuda.current_device())
    torch.backends.cuda.matmul.allow_tf32 = True

    torch.manual_seed(0)
    model = FNO(world).to(device)
    everywhere = [p for p in model.parameters() if not hasattr(p, "spectral")]
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    scheduler = torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=1e-3, total_steps=5000)

    slab = N // world
    axis = torch.linspace(0, 2 * math.pi, N, device=device)
    xs = axis[rank * slab : (rank + 1) * slab]
    grid = torch.stack(torch.meshgrid(xs, axis, axis, indexing="ij")).expand(BATCH, -1, -1, -1, -1)

    torch.manual_seed(rank)
    for _ in steps():
        state = torch.randn(BATCH, IN, slab, N, N, device=device)
        truth = torch.randn(BATCH, OUT, slab, N, N, device=device)
        optimizer.zero_grad()
        loss = relative_l2(model(state, grid), truth)
        loss.backward()
        flat = torch.nn.utils.parameters_to_vector([p.grad for p in everywhere])
        dist.all_reduce(flat)
        torch.nn.utils.vector_to_parameters(flat, [p.grad for p in everywhere])
        optimizer.step()
        scheduler.step()


if __name__ == "__main__":
    main()
