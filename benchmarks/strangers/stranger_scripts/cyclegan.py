import itertools
import random
import torch
import torch.nn as nn
from tick import steps


class ResnetBlock(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.conv_block = nn.Sequential(
            nn.ReflectionPad2d(1),
            nn.Conv2d(dim, dim, 3),
            nn.InstanceNorm2d(dim),
            nn.ReLU(True),
            nn.ReflectionPad2d(1),
            nn.Conv2d(dim, dim, 3),
            nn.InstanceNorm2d(dim),
        )

    def forward(self, x):
        return x + self.conv_block(x)


class Generator(nn.Module):
    def __init__(self, ngf=64, n_blocks=9):
        super().__init__()
        m = [nn.ReflectionPad2d(3), nn.Conv2d(3, ngf, 7), nn.InstanceNorm2d(ngf), nn.ReLU(True)]
        for k in (1, 2):
            m += [nn.Conv2d(ngf * k, ngf * k * 2, 3, 2, 1), nn.InstanceNorm2d(ngf * k * 2), nn.ReLU(True)]
        m += [ResnetBlock(ngf * 4) for _ in range(n_blocks)]
        for k in (4, 2):
            m += [nn.ConvTranspose2d(ngf * k, ngf * k // 2, 3, 2, 1, 1), nn.InstanceNorm2d(ngf * k // 2), nn.ReLU(True)]
        m += [nn.ReflectionPad2d(3), nn.Conv2d(ngf, 3, 7), nn.Tanh()]
        self.model = nn.Sequential(*m)

    def forward(self, x):
        return self.model(x)


def discriminator(ndf=64):
    m = [nn.Conv2d(3, ndf, 4, 2, 1), nn.LeakyReLU(0.2, True)]
    for i, o, s in ((1, 2, 2), (2, 4, 2), (4, 8, 1)):
        m += [nn.Conv2d(ndf * i, ndf * o, 4, s, 1), nn.InstanceNorm2d(ndf * o), nn.LeakyReLU(0.2, True)]
    return nn.Sequential(*m, nn.Conv2d(ndf * 8, 1, 4, 1, 1))


class ImagePool:
    def __init__(self, size=50):
        self.size, self.images = size, []

    def query(self, images):
        out = []
        for image in images.detach():
            image = image.unsqueeze(0)
            if len(self.images) < self.size:
                self.images.append(image)
                out.append(image)
            elif random.uniform(0, 1) > 0.5:
                k = random.randint(0, self.size - 1)
                out.append(self.images[k].clone())
                self.images[k] = image
            else:
                out.append(image)
        return torch.cat(out, 0)


def init_weights(m):
    if isinstance(m, (nn.Conv2d, nn.ConvTranspose2d)):
        nn.init.normal_(m.weight, 0.0, 0.02)
        nn.init.zeros_(m.bias)


def set_requires_grad(nets, flag):
    for net in nets:
        for p in net.parameters():
            p.requires_grad = flag


def gan_loss(pred, real):
    return mse(pred, torch.tensor(1.0 if real else 0.0, device=pred.device).expand_as(pred))


netG_A, netG_B = Generator().apply(init_weights).cuda(), Generator().apply(init_weights).cuda()
netD_A, netD_B = discriminator().apply(init_weights).cuda(), discriminator().apply(init_weights).cuda()
netG_A, netG_B = torch.compile(netG_A), torch.compile(netG_B)
mse, l1 = nn.MSELoss(), nn.L1Loss()
optimizer_G = torch.optim.Adam(itertools.chain(netG_A.parameters(), netG_B.parameters()), lr=2e-4, betas=(0.5, 0.999))
optimizer_D = torch.optim.Adam(itertools.chain(netD_A.parameters(), netD_B.parameters()), lr=2e-4, betas=(0.5, 0.999))
schedulers = [
    torch.optim.lr_scheduler.LambdaLR(o, lambda e: 1.0 - max(0, e - 100) / 101) for o in (optimizer_G, optimizer_D)
]
fake_A_pool, fake_B_pool = ImagePool(), ImagePool()
for i in steps(count=8):
    real_A = torch.rand(2, 3, 256, 256).cuda() * 2 - 1
    real_B = torch.rand(2, 3, 256, 256).cuda() * 2 - 1
    fake_B, fake_A = netG_A(real_A), netG_B(real_B)
    rec_A, rec_B = netG_B(fake_B), netG_A(fake_A)
    set_requires_grad([netD_A, netD_B], False)
    optimizer_G.zero_grad()
    loss_idt = l1(netG_A(real_B), real_B) * 5.0 + l1(netG_B(real_A), real_A) * 5.0
    loss_gan = gan_loss(netD_A(fake_B), True) + gan_loss(netD_B(fake_A), True)
    loss_cycle = l1(rec_A, real_A) * 10.0 + l1(rec_B, real_B) * 10.0
    loss_G = loss_gan + loss_cycle + loss_idt
    loss_G.backward()
    optimizer_G.step()
    set_requires_grad([netD_A, netD_B], True)
    optimizer_D.zero_grad()
    for netD, real, fake in ((netD_A, real_B, fake_B_pool.query(fake_B)), (netD_B, real_A, fake_A_pool.query(fake_A))):
        loss_D = (gan_loss(netD(real), True) + gan_loss(netD(fake), False)) * 0.5
        loss_D.backward()
    optimizer_D.step()
    if i % 10 == 0:
        print(f"G {loss_G.item():.3f} D {loss_D.item():.3f}")
