"""D2Q9 lattice Boltzmann, compiled step, no optimizer; flow around a cylinder."""

import argparse, time
import torch

p = argparse.ArgumentParser()
p.add_argument("--nx", type=int, default=400)
p.add_argument("--ny", type=int, default=200)
p.add_argument("--steps", type=int, default=60)
p.add_argument("--every", type=int, default=10)
a = p.parse_args()
dev = "cuda" if torch.cuda.is_available() else "cpu"
torch.set_default_device(dev)
c = torch.tensor([[0, 0], [1, 0], [0, 1], [-1, 0], [0, -1], [1, 1], [-1, 1], [-1, -1], [1, -1]])
w = torch.tensor([4 / 9] + [1 / 9] * 4 + [1 / 36] * 4)
opp = torch.tensor([0, 3, 4, 1, 2, 7, 8, 5, 6])
cf = c.float()
shifts = c.tolist()
X, Y = torch.meshgrid(torch.arange(a.nx), torch.arange(a.ny), indexing="ij")
wall = (X - a.nx / 4) ** 2 + (Y - a.ny / 2) ** 2 < (a.ny / 9) ** 2


def eq(rho, u):
    cu = torch.einsum("qd,dxy->qxy", cf, u)
    return rho * w[:, None, None] * (1 + 3 * cu + 4.5 * cu**2 - 1.5 * (u**2).sum(0))


@torch.compile
def step(f):
    rho = f.sum(0)
    u = torch.einsum("qd,qxy->dxy", cf, f) / rho
    f = f - (f - eq(rho, u)) / 0.6
    f = torch.where(wall, f[opp], f)
    return torch.stack([torch.roll(f[i], shifts[i], (0, 1)) for i in range(9)])


u0 = torch.zeros(2, a.nx, a.ny)
u0[0] = 0.1
f = eq(torch.ones(a.nx, a.ny), u0)
t = time.perf_counter()
for i in range(a.steps):
    f = step(f)
    if (i + 1) % a.every == 0:
        m = f.sum().item()
        print(f"{i} mass {m:.1f} {1e3 * (time.perf_counter() - t) / a.every:.3f} ms", flush=True)
        t = time.perf_counter()
