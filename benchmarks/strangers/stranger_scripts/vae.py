import torch, torch.nn as nn, torch.nn.functional as F
from tick import steps

torch.backends.cudnn.allow_tf32 = True


def down(i, o):
    return nn.Sequential(nn.Conv2d(i, o, 4, 2, 1), nn.BatchNorm2d(o), nn.LeakyReLU(0.2, True))


def up(i, o):
    return nn.Sequential(nn.ConvTranspose2d(i, o, 4, 2, 1), nn.BatchNorm2d(o), nn.ReLU(True))


class VAE(nn.Module):
    def __init__(self, z=128):
        super().__init__()
        self.enc = nn.Sequential(down(3, 64), down(64, 128), down(128, 256), down(256, 512), nn.Flatten())
        self.mu, self.lv, self.fc = nn.Linear(512 * 64, z), nn.Linear(512 * 64, z), nn.Linear(z, 512 * 64)
        self.dec = nn.Sequential(up(512, 256), up(256, 128), up(128, 64), nn.ConvTranspose2d(64, 3, 4, 2, 1))

    def forward(self, x):
        h = self.enc(x)
        mu, lv = self.mu(h), self.lv(h)
        z = mu + torch.randn_like(mu) * (0.5 * lv).exp()
        return self.dec(self.fc(z).view(-1, 512, 8, 8)), mu, lv


m = VAE().cuda()
c = torch.compile(m)
opt = torch.optim.Adam(m.parameters(), 2e-4)
for i in steps():
    x = torch.rand(64, 3, 128, 128, device="cuda")
    r, mu, lv = c(x)
    loss = F.mse_loss(r, x, reduction="sum") / 64 - 0.5 * (1 + lv - mu**2 - lv.exp()).sum(1).mean()
    opt.zero_grad()
    loss.backward()
    opt.step()
