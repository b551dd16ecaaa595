import os

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.nn.utils.parametrizations import spectral_norm
from tock import steps

Z_DIM, CLASSES, BATCH, WIDTHS = 128, 1000, 64, [64, 128, 256, 512, 1024, 1024]


class ConditionalBatchNorm(nn.Module):
    def __init__(self, channels):
        super().__init__()
        self.bn = nn.BatchNorm2d(channels, affine=False)
        self.embed = nn.Embedding(CLASSES, 2 * channels)

    def forward(self, x, y):
        gamma, beta = self.embed(y)[:, :, None, None].chunk(2, dim=1)
        return self.bn(x) * (1 + gamma) + beta


class UpBlock(nn.Module):
    def __init__(self, cin, cout):
        super().__init__()
        self.bn1, self.bn2 = ConditionalBatchNorm(cin), ConditionalBatchNorm(cout)
        self.conv1, self.conv2 = nn.Conv2d(cin, cout, 3, padding=1), nn.Conv2d(cout, cout, 3, padding=1)
        self.skip = nn.Conv2d(cin, cout, 1)

    def forward(self, x, y):
        h = F.interpolate(F.relu(self.bn1(x, y)), scale_factor=2)
        h = self.conv2(F.relu(self.bn2(self.conv1(h), y)))
        return h + F.interpolate(self.skip(x), scale_factor=2)


class Generator(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(Z_DIM, WIDTHS[-1] * 16)
        self.blocks = nn.ModuleList(UpBlock(a, b) for a, b in zip(WIDTHS[:0:-1], WIDTHS[-2::-1]))
        self.bn, self.out = nn.BatchNorm2d(WIDTHS[0]), nn.Conv2d(WIDTHS[0], 3, 3, padding=1)

    def forward(self, z, y):
        h = self.fc(z).view(-1, WIDTHS[-1], 4, 4).contiguous(memory_format=torch.channels_last)
        for block in self.blocks:
            h = block(h, y)
        return torch.tanh(self.out(F.relu(self.bn(h))))


class DownBlock(nn.Module):
    def __init__(self, cin, cout):
        super().__init__()
        self.conv1 = spectral_norm(nn.Conv2d(cin, cout, 3, padding=1))
        self.conv2 = spectral_norm(nn.Conv2d(cout, cout, 3, padding=1))
        self.skip = spectral_norm(nn.Conv2d(cin, cout, 1))

    def forward(self, x):
        return F.avg_pool2d(self.conv2(F.relu(self.conv1(F.relu(x)))) + self.skip(x), 2)


class Discriminator(nn.Module):
    def __init__(self):
        super().__init__()
        self.blocks = nn.Sequential(*[DownBlock(a, b) for a, b in zip([3, *WIDTHS[:-1]], WIDTHS)])
        self.fc = spectral_norm(nn.Linear(WIDTHS[-1], 1))
        self.embed = spectral_norm(nn.Embedding(CLASSES, WIDTHS[-1]))

    def forward(self, x, y):
        h = F.relu(self.blocks(x)).sum(dim=(2, 3))
        return self.fc(h).squeeze(1) + (self.embed(y) * h).sum(dim=1)


dist.init_process_group("nccl")
local_rank = int(os.environ["LOCAL_RANK"])
device = torch.device("cuda", local_rank)
torch.cuda.set_device(device)
torch.backends.cudnn.benchmark = True
netG = Generator().to(device, memory_format=torch.channels_last)
netD = Discriminator().to(device, memory_format=torch.channels_last)
ddpG = DDP(netG, device_ids=[local_rank], broadcast_buffers=False)
ddpD = DDP(netD, device_ids=[local_rank], broadcast_buffers=False)
optG = torch.optim.Adam(netG.parameters(), lr=1e-4, betas=(0.0, 0.999))
optD = torch.optim.Adam(netD.parameters(), lr=4e-4, betas=(0.0, 0.999))
torch.manual_seed(dist.get_rank())
for _ in steps():
    real = 2 * torch.rand(BATCH, 3, 128, 128, device=device) - 1
    labels = torch.randint(CLASSES, (BATCH,), device=device)

    netD.requires_grad_(True)
    optD.zero_grad(set_to_none=True)
    with torch.autocast("cuda", dtype=torch.bfloat16):
        with torch.no_grad():
            fake = netG(torch.randn(BATCH, Z_DIM, device=device), labels)
        images = torch.cat([real, fake.float()]).contiguous(memory_format=torch.channels_last)
        on_real, on_fake = ddpD(images, torch.cat([labels, labels])).float().chunk(2)
        lossD = F.relu(1 - on_real).mean() + F.relu(1 + on_fake).mean()
    lossD.backward()
    optD.step()

    netD.requires_grad_(False)
    optG.zero_grad(set_to_none=True)
    with torch.autocast("cuda", dtype=torch.bfloat16):
        fake = ddpG(torch.randn(BATCH, Z_DIM, device=device), labels)
        lossG = -netD(fake, labels).float().mean()
    lossG.backward()
    optG.step()
