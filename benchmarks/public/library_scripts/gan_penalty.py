import torch, torch.nn as nn
from torch.autograd import grad

G = nn.Sequential(
    nn.Linear(100, 256 * 8 * 8),
    nn.Unflatten(1, (256, 8, 8)),
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
    nn.LeakyReLU(0.2),
    nn.Flatten(),
    nn.Linear(256 * 64, 1),
).cuda()
og, od = (torch.optim.Adam(G.parameters(), 0.0001, (0.0, 0.9)), torch.optim.Adam(D.parameters(), 0.0001, (0.0, 0.9)))
for it in range(60):
    real = torch.rand(64, 3, 64, 64).cuda()
    z = torch.randn(64, 100, device="cuda")
    fake = G(z).detach()
    e = torch.rand(64, 1, 1, 1, device="cuda")
    x = (e * real + (1 - e) * fake).requires_grad_()
    g = grad(D(x).sum(), x, create_graph=True)[0]
    gp = ((g.flatten(1).norm(2, 1) - 1) ** 2).mean()
    loss = D(fake).mean() - D(real).mean() + 10 * gp
    od.zero_grad()
    loss.backward()
    od.step()
    if it % 5 == 0:
        lg = -D(G(torch.randn(64, 100, device="cuda"))).mean()
        og.zero_grad()
        lg.backward()
        og.step()
    if it % 10 == 0:
        print(it, loss.item())
