import torch, torch.nn as nn
from tick import steps

G = nn.Sequential(
    nn.ConvTranspose2d(128, 512, 4),
    nn.BatchNorm2d(512),
    nn.ReLU(),
    nn.ConvTranspose2d(512, 256, 4, 2, 1),
    nn.BatchNorm2d(256),
    nn.ReLU(),
    nn.ConvTranspose2d(256, 128, 4, 2, 1),
    nn.BatchNorm2d(128),
    nn.ReLU(),
    nn.ConvTranspose2d(128, 64, 4, 2, 1),
    nn.BatchNorm2d(64),
    nn.ReLU(),
    nn.ConvTranspose2d(64, 3, 4, 2, 1),
    nn.Tanh(),
).cuda()
D = nn.Sequential(
    nn.Conv2d(3, 64, 4, 2, 1),
    nn.LeakyReLU(0.2),
    nn.Conv2d(64, 128, 4, 2, 1),
    nn.InstanceNorm2d(128, affine=True),
    nn.LeakyReLU(0.2),
    nn.Conv2d(128, 256, 4, 2, 1),
    nn.InstanceNorm2d(256, affine=True),
    nn.LeakyReLU(0.2),
    nn.Conv2d(256, 512, 4, 2, 1),
    nn.LeakyReLU(0.2),
    nn.Conv2d(512, 1, 4),
).cuda()
gc = torch.compile(G)
og, od = torch.optim.Adam(G.parameters(), 1e-4, (0.0, 0.9)), torch.optim.Adam(D.parameters(), 1e-4, (0.0, 0.9))
B = 64
for i in steps():
    for _ in range(3):
        real = torch.randn(B, 3, 64, 64, device="cuda")
        with torch.no_grad():
            fake = gc(torch.randn(B, 128, 1, 1, device="cuda"))
        a = torch.rand(B, 1, 1, 1, device="cuda")
        mix = (a * real + (1 - a) * fake).requires_grad_()
        (g,) = torch.autograd.grad(D(mix).sum(), mix, create_graph=True)
        gp = ((g.flatten(1).norm(2, 1) - 1) ** 2).mean()
        loss = D(fake).mean() - D(real).mean() + 10 * gp
        od.zero_grad()
        loss.backward()
        od.step()
    lg = -D(gc(torch.randn(B, 128, 1, 1, device="cuda"))).mean()
    og.zero_grad()
    lg.backward()
    og.step()
