"""Variational Monte Carlo with a FermiNet-like ansatz: Metropolis moves, the Laplacian by jvp of grad under vmap, clipped energies."""

import torch, torch.nn as nn
from torch.func import functional_call, grad, jvp, vmap
from tick import steps

WALKERS, UP, DOWN, WIDE, PAIR, DETS, MOVES = 256, 4, 4, 128, 16, 8, 10
N = UP + DOWN
atoms = torch.tensor([[0.0, 0.0, -1.2], [0.0, 0.0, 1.2]]).cuda()
charges = torch.tensor([4.0, 4.0]).cuda()


class Ansatz(nn.Module):
    def __init__(s, layers=3):
        super().__init__()
        one, two = 2 * 4, 4
        s.ones, s.twos = nn.ModuleList(), nn.ModuleList()
        for _ in range(layers):
            s.ones.append(nn.Linear(3 * one + 2 * two, WIDE))
            s.twos.append(nn.Linear(two, PAIR))
            one, two = WIDE, PAIR
        s.orbitals = nn.ModuleList(nn.Linear(WIDE, DETS * n) for n in (UP, DOWN))
        s.sigma = nn.ParameterList(nn.Parameter(torch.ones(2, DETS * n)) for n in (UP, DOWN))
        s.pi = nn.ParameterList(nn.Parameter(torch.ones(2, DETS * n)) for n in (UP, DOWN))

    def forward(s, flat):
        """log |psi| of one walker, (3 N,)."""
        r = flat.view(N, 3)
        ra = r[:, None] - atoms
        da = (ra.square().sum(-1, keepdim=True) + 1e-12).sqrt()
        rr = r[:, None] - r[None]
        dr = (rr.square().sum(-1, keepdim=True) + torch.eye(N, device=r.device)[..., None] * 1e-6).sqrt()
        h, g = torch.cat([ra, da], -1).flatten(1), torch.cat([rr, dr], -1)
        for one, two in zip(s.ones, s.twos):
            means = torch.cat([h[:UP].mean(0), h[UP:].mean(0)]).expand(N, -1)
            pairs = torch.cat([g[:, :UP].mean(1), g[:, UP:].mean(1)], -1)
            new = torch.tanh(one(torch.cat([h, means, pairs], -1)))
            h = new + h if new.shape == h.shape else new
            new = torch.tanh(two(g))
            g = new + g if new.shape == g.shape else new
        signs, logs = None, None
        for orbital, sigma, pi, part, n in zip(s.orbitals, s.sigma, s.pi, (slice(UP), slice(UP, N)), (UP, DOWN)):
            envelope = (pi * torch.exp(-da[part] * sigma)).sum(1)
            m = (orbital(h[part]) * envelope).view(n, DETS, n).transpose(0, 1)
            sign, log = torch.linalg.slogdet(m)
            signs, logs = (sign, log) if signs is None else (signs * sign, logs + log)
        top = logs.amax().detach()
        return (signs * (logs - top).exp()).sum().abs().log() + top


net = Ansatz().cuda()
params = dict(net.named_parameters())
opt = torch.optim.Adam(net.parameters(), 1e-3)
eye = torch.eye(3 * N, device="cuda")


def log_psi(p, x):
    return functional_call(net, p, (x,))


def kinetic(p, x):
    slope = grad(lambda y: log_psi(p, y))
    first = slope(x)
    second = vmap(lambda e: (jvp(slope, (x,), (e,))[1] * e).sum())(eye).sum()
    return -0.5 * (second + first.square().sum())


def potential(x):
    r = x.view(-1, N, 3)
    near = (charges / torch.cdist(r, atoms.expand(len(r), -1, -1))).sum((1, 2))
    i, j = torch.triu_indices(N, N, 1, device="cuda")
    return (1 / (r[:, i] - r[:, j]).norm(dim=-1)).sum(1) - near + charges.prod() / 2.4


many = vmap(log_psi, in_dims=(None, 0))
walkers = torch.randn(WALKERS, 3 * N, device="cuda")
width, energies = 0.1, []
for i in steps(count=4):
    fixed = {k: v.detach() for k, v in params.items()}
    with torch.no_grad():
        now, accepted = many(fixed, walkers), 0.0
        for _ in range(MOVES):
            moved = walkers + width * torch.randn_like(walkers)
            then = many(fixed, moved)
            taken = torch.rand(WALKERS, device="cuda").log() < 2 * (then - now)
            walkers, now = torch.where(taken[:, None], moved, walkers), torch.where(taken, then, now)
            accepted = accepted + taken.float().mean() / MOVES
        local = vmap(kinetic, in_dims=(None, 0))(fixed, walkers) + potential(walkers)
        middle = local.median()
        spread = (local - middle).abs().mean()
        local = local.clamp(middle - 5 * spread, middle + 5 * spread)
    loss = 2 * ((local - local.mean()) * many(params, walkers)).mean()
    opt.zero_grad()
    loss.backward()
    opt.step()
    energies.append(local.mean())
    width *= 1.05 if accepted.item() > 0.55 else 0.95
