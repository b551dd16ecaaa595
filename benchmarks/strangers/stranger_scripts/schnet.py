"""SchNet/PaiNN-like potential: energies and forces, loss on forces needs a double backward. Eager."""

import copy, math
import torch
from torch import nn
from tick import steps

M, A, F_, R, CUT = 64, 24, 128, 20, 5.0


class Interaction(nn.Module):
    def __init__(self):
        super().__init__()
        self.phi = nn.Sequential(nn.Linear(F_, F_), nn.SiLU(), nn.Linear(F_, 3 * F_))
        self.filt = nn.Linear(R, 3 * F_)
        self.u, self.v = nn.Linear(F_, F_, bias=False), nn.Linear(F_, F_, bias=False)
        self.mix = nn.Sequential(nn.Linear(2 * F_, F_), nn.SiLU(), nn.Linear(F_, 3 * F_))

    def forward(self, s, vec, rbf, unit, cut, i, j):
        w = self.filt(rbf) * cut[:, None]
        a, b, c = (self.phi(s)[j] * w).chunk(3, -1)
        s = s + torch.zeros_like(s).index_add_(0, i, a)
        dv = vec[j] * b[:, None] + unit[:, :, None] * c[:, None]
        vec = vec + torch.zeros_like(vec).index_add_(0, i, dv)
        u, v = self.u(vec), self.v(vec)
        norm = (v.pow(2).sum(1) + 1e-8).sqrt()
        avv, asv, ass = self.mix(torch.cat([s, norm], -1)).chunk(3, -1)
        return s + ass + asv * (u * v).sum(1), vec + avv[:, None] * u


class Potential(nn.Module):
    def __init__(self):
        super().__init__()
        self.emb = nn.Embedding(100, F_)
        self.blocks = nn.ModuleList(Interaction() for _ in range(4))
        self.out = nn.Sequential(nn.Linear(F_, F_ // 2), nn.SiLU(), nn.Linear(F_ // 2, 1))
        self.register_buffer("n", torch.arange(1, R + 1) * math.pi / CUT)

    def forward(self, z, pos, i, j, mol):
        d = pos[j] - pos[i]
        r = d.norm(dim=-1).clamp(min=1e-3)
        rbf = torch.sin(r[:, None] * self.n) / r[:, None]
        cut = 0.5 * (torch.cos(r * math.pi / CUT) + 1) * (r < CUT).float()
        s, vec = self.emb(z), torch.zeros(len(z), 3, F_, device=pos.device)
        for b in self.blocks:
            s, vec = b(s, vec, rbf, d / r[:, None], cut, i, j)
        e = self.out(s).squeeze(-1)
        return torch.zeros(M, device=pos.device).scatter_add_(0, mol, e)


net = Potential().cuda()
ema = copy.deepcopy(net).requires_grad_(False)
opt = torch.optim.Adam(net.parameters(), 5e-4, amsgrad=True)
plateau = torch.optim.lr_scheduler.ReduceLROnPlateau(opt, factor=0.8, patience=50)
pairs = torch.cartesian_prod(torch.arange(A), torch.arange(A))
pairs = pairs[pairs[:, 0] != pairs[:, 1]]
i0 = (pairs[:, 0] + A * torch.arange(M)[:, None]).flatten().cuda()
j0 = (pairs[:, 1] + A * torch.arange(M)[:, None]).flatten().cuda()
mol = torch.arange(M).repeat_interleave(A).cuda()
for step in steps():
    z = torch.randint(1, 10, (M * A,), device="cuda")
    pos = torch.randn(M * A, 3, device="cuda").mul_(3).requires_grad_()
    e_ref, f_ref = torch.randn(M, device="cuda"), torch.randn(M * A, 3, device="cuda")
    energy = net(z, pos, i0, j0, mol)
    forces = -torch.autograd.grad(energy.sum(), pos, create_graph=True)[0]
    loss = 0.05 * (energy - e_ref).pow(2).mean() + 0.95 * (forces - f_ref).pow(2).sum(-1).mean()
    opt.zero_grad(set_to_none=True)
    loss.backward()
    torch.nn.utils.clip_grad_norm_(net.parameters(), 10.0)
    opt.step()
    with torch.no_grad():
        for p, q in zip(net.parameters(), ema.parameters()):
            q.lerp_(p, 0.01)
    if step % 10 == 9:
        plateau.step(loss.item())
