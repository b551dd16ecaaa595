import numpy as np
import torch
from torch import nn
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn
from tick import steps

C, CUTOFF, ELEMENTS, STRUCTURES, ATOMS = 64, 5.0, 10, 80, 64
L = torch.tensor([0, 1, 1, 1, 2, 2, 2, 2, 2])


def spherical_harmonics(v):
    (x, y, z), s3, s5, s15 = v.unbind(-1), 3**0.5, 5**0.5, 15**0.5
    second = [s15 * x * y, s15 * y * z, s5 / 2 * (3 * z * z - 1), s15 * x * z, s15 / 2 * (x * x - y * y)]
    return torch.stack([torch.ones_like(x), s3 * y, s3 * z, s3 * x, *second], dim=-1)


def gaunt():
    z, w = np.polynomial.legendre.leggauss(8)
    phi = np.arange(16) * 2 * np.pi / 16
    z, phi, w = np.repeat(z, 16), np.tile(phi, 8), np.repeat(w, 16) / 32
    x, y = np.sqrt(1 - z**2) * np.cos(phi), np.sqrt(1 - z**2) * np.sin(phi)
    Y = spherical_harmonics(torch.tensor(np.stack([x, y, z], -1)))
    return torch.einsum("p,pa,pb,pc->abc", torch.tensor(w), Y, Y, Y).float()


class Radial(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("freq", torch.arange(1, 9) * torch.pi / CUTOFF)
        self.mlp = nn.Sequential(nn.Linear(8, 64), nn.SiLU(), nn.Linear(64, 64), nn.SiLU(), nn.Linear(64, 3 * C))

    def forward(self, r):
        envelope = 1 - 21 * (r / CUTOFF) ** 5 + 35 * (r / CUTOFF) ** 6 - 15 * (r / CUTOFF) ** 7
        return self.mlp((2 / CUTOFF) ** 0.5 * torch.sin(self.freq * r) / r * envelope).view(-1, C, 3)


class Linear(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight, self.l = nn.Parameter(torch.randn(3, C, C) / C**0.5), nn.Buffer(L)

    def forward(self, x):
        return torch.einsum("ncm,mcd->ndm", x, self.weight[self.l])


class Interaction(nn.Module):
    def __init__(self):
        super().__init__()
        self.radial, self.up, self.mix, self.out, self.skip = Radial(), Linear(), Linear(), Linear(), Linear()
        self.weights = nn.Parameter(torch.randn(ELEMENTS, 3, C, 3) * 0.1)
        self.G, self.l = nn.Buffer(gaunt()), nn.Buffer(L)

    def forward(self, h, z, Y, r, src, dst):
        filters = torch.einsum("en,mnk->emk", Y, self.G)
        m = torch.einsum("ecm,emk->eck", self.up(h)[src], filters) * self.radial(r)[..., self.l]
        A = self.mix(torch.zeros_like(h).index_add_(0, dst, m) / 20)
        A2 = torch.einsum("ncm,nck,mkl->ncl", A, A, self.G)
        A3 = torch.einsum("ncm,nck,mkl->ncl", A2, A, self.G)
        w = self.weights[z][..., self.l]
        return self.out(w[:, 0] * A + w[:, 1] * A2 + w[:, 2] * A3) + self.skip(h)


class MACE(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding, self.e0 = nn.Embedding(ELEMENTS, C), nn.Embedding(ELEMENTS, 1)
        self.layers = nn.ModuleList([Interaction(), Interaction()])
        self.readouts = nn.ModuleList([nn.Linear(C, 1), nn.Linear(C, 1)])

    def forward(self, z, pos, src, dst, batch):
        pos.requires_grad_(True)
        vec = pos[dst] - pos[src]
        r = torch.linalg.norm(vec, dim=-1, keepdim=True)
        Y = spherical_harmonics(vec / r)
        h, node_energy = nn.functional.pad(self.embedding(z)[..., None], (0, 8)), self.e0(z)
        for layer, readout in zip(self.layers, self.readouts):
            h = layer(h, z, Y, r, src, dst)
            node_energy = node_energy + readout(h[..., 0])
        energy = pos.new_zeros(STRUCTURES).index_add_(0, batch, node_energy.squeeze(-1))
        forces = -torch.autograd.grad(energy.sum(), pos, create_graph=True)[0]
        return energy, forces


def make_batch():
    pos = torch.rand(STRUCTURES, ATOMS, 3) * 9
    d = torch.cdist(pos, pos)
    s, src, dst = ((d < CUTOFF) & (d > 1e-3)).nonzero(as_tuple=True)
    batch = torch.arange(STRUCTURES).repeat_interleave(ATOMS)
    z, forces = torch.randint(0, ELEMENTS, (STRUCTURES * ATOMS,)), torch.randn(STRUCTURES * ATOMS, 3)
    return z, pos.view(-1, 3), src + s * ATOMS, dst + s * ATOMS, batch, torch.randn(STRUCTURES), forces


model = MACE().cuda()
ema = AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(0.99))
optimizer = torch.optim.Adam(model.parameters(), lr=0.01, amsgrad=True, weight_decay=5e-7)
batches = [make_batch() for _ in range(8)]
for step in steps():
    z, pos, src, dst, batch, energy, forces = [t.to("cuda") for t in batches[step % 8]]
    optimizer.zero_grad(set_to_none=True)
    e, f = model(z, pos, src, dst, batch)
    loss = ((e - energy) / ATOMS).square().mean() + 100 * (f - forces).square().mean()
    loss.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), max_norm=10.0)
    optimizer.step()
    ema.update_parameters(model)
