"""Spatial transformer + deformable-like gather with grid_sample, compiled optimizer (functional, compiled by itself), nested autocast off region."""

import argparse, time
import torch, torch.nn as nn, torch.nn.functional as F

p = argparse.ArgumentParser()
p.add_argument("--batch", type=int, default=16)
p.add_argument("--c", type=int, default=32)
p.add_argument("--s", type=int, default=32)
p.add_argument("--steps", type=int, default=13)
a = p.parse_args()
dev = "cuda" if torch.cuda.is_available() else "cpu"


class STN(nn.Module):
    def __init__(self):
        super().__init__()
        c = a.c
        self.loc = nn.Sequential(
            nn.Conv2d(3, 8, 7, 2), nn.ReLU(), nn.AdaptiveAvgPool2d(4), nn.Flatten(), nn.Linear(128, 6)
        )
        self.loc[-1].weight.data.zero_()
        self.loc[-1].bias.data.copy_(torch.tensor([1.0, 0, 0, 0, 1, 0]))
        self.c1 = nn.Conv2d(3, c, 3, padding=1)
        self.off = nn.Conv2d(c, 2 * 4, 3, padding=1)
        self.c2 = nn.Conv2d(4 * c, c, 1, groups=4)
        self.fc = nn.Linear(c, 10)

    def forward(self, x):
        B, _, H, W = x.shape
        x = F.grid_sample(
            x, F.affine_grid(self.loc(x).view(-1, 2, 3), x.shape, align_corners=False), align_corners=False
        )
        h = F.relu(self.c1(x))
        with torch.autocast(x.device.type, enabled=False):
            o = self.off(h.float()).view(B, 4, 2, H, W).permute(0, 1, 3, 4, 2).tanh() * 0.1
            base = F.affine_grid(torch.eye(2, 3, device=x.device).expand(B, 2, 3), (B, 1, H, W), align_corners=False)
            h = torch.cat(
                [
                    F.grid_sample(h.float(), base + o[:, i], padding_mode="border", align_corners=False)
                    for i in range(4)
                ],
                1,
            )
        return self.fc(self.c2(h).mean((2, 3)))


m = STN().to(dev)
c = torch.compile(m)
opt = torch.optim.Adam(m.parameters(), torch.tensor(1e-3), capturable=dev == "cuda")


@torch.compile(fullgraph=False)
def ostep():
    opt.step()


for i in range(a.steps):
    x = torch.randn(a.batch, 3, a.s, a.s, device=dev)
    y = torch.randint(10, (a.batch,), device=dev)
    t = time.perf_counter()
    with torch.autocast(dev, torch.bfloat16):
        loss = F.cross_entropy(c(x), y)
    loss.backward()
    ostep()
    opt.zero_grad()
    print(f"step {i} loss {loss.item():.4f} {1e3 * (time.perf_counter() - t):.2f} ms", flush=True)
