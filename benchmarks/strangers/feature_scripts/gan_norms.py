"""GAN: spectral_norm critic, weight_norm generator (parametrizations), WGAN-GP gradient penalty (double backward), 3 critic steps per generator step, forward hooks."""

import argparse, time
import torch, torch.nn as nn, torch.nn.functional as F
from torch.nn.utils.parametrizations import spectral_norm, weight_norm, orthogonal

p = argparse.ArgumentParser()
p.add_argument("--batch", type=int, default=32)
p.add_argument("--w", type=int, default=32)
p.add_argument("--ncritic", type=int, default=3)
p.add_argument("--steps", type=int, default=13)
a = p.parse_args()
dev = "cuda" if torch.cuda.is_available() else "cpu"
w = a.w
G = nn.Sequential(
    weight_norm(nn.Linear(64, 4 * w * 16)),
    nn.Unflatten(1, (4 * w, 4, 4)),
    nn.ConvTranspose2d(4 * w, 2 * w, 4, 2, 1),
    nn.BatchNorm2d(2 * w),
    nn.ReLU(),
    nn.ConvTranspose2d(2 * w, w, 4, 2, 1, groups=2),
    nn.BatchNorm2d(w),
    nn.ReLU(),
    nn.ConvTranspose2d(w, 3, 4, 2, 1),
    nn.Tanh(),
).to(dev)
D = nn.Sequential(
    spectral_norm(nn.Conv2d(3, w, 4, 2, 1)),
    nn.LeakyReLU(0.2),
    spectral_norm(nn.Conv2d(w, 2 * w, 4, 2, 1)),
    nn.LeakyReLU(0.2),
    nn.Flatten(),
    spectral_norm(nn.Linear(2 * w * 64, 1)),
).to(dev)
seen = []
D[2].register_forward_hook(lambda m, i, o: seen.append(o.shape[0]))
cG = torch.compile(G)
og = torch.optim.Adam(G.parameters(), 1e-4, betas=(0.0, 0.9))
od = torch.optim.Adam(D.parameters(), 1e-4, betas=(0.0, 0.9))
for i in range(a.steps):
    t = time.perf_counter()
    for _ in range(a.ncritic):
        x = torch.rand(a.batch, 3, 32, 32, device=dev) * 2 - 1
        with torch.no_grad():
            fake = cG(torch.randn(a.batch, 64, device=dev))
        e = torch.rand(a.batch, 1, 1, 1, device=dev)
        mix = (e * x + (1 - e) * fake).requires_grad_()
        g = torch.autograd.grad(D(mix).sum(), mix, create_graph=True)[0]
        ld = D(fake).mean() - D(x).mean() + 10 * (g.flatten(1).norm(dim=1) - 1).square().mean()
        od.zero_grad()
        ld.backward()
        od.step()
    lg = -D(cG(torch.randn(a.batch, 64, device=dev))).mean()
    og.zero_grad()
    lg.backward()
    og.step()
    print(f"step {i} D {ld.item():.4f} G {lg.item():.4f} {1e3 * (time.perf_counter() - t):.2f} ms", flush=True)
