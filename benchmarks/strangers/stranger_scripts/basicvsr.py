import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, Dataset
from tick import steps

torch.backends.cudnn.benchmark = True
torch.backends.cudnn.allow_tf32 = True
CONFIG = dict(frames=7, batch=8, stored=320, patch=256, scale=4, channels=64, blocks=30)


def flow_warp(x, flow):
    n, _, h, w = x.shape
    ys, xs = torch.meshgrid(
        torch.arange(h, device=x.device, dtype=flow.dtype),
        torch.arange(w, device=x.device, dtype=flow.dtype),
        indexing="ij",
    )
    gx = 2.0 * (xs + flow[..., 0]) / max(w - 1, 1) - 1.0
    gy = 2.0 * (ys + flow[..., 1]) / max(h - 1, 1) - 1.0
    return F.grid_sample(x.float(), torch.stack((gx, gy), -1), padding_mode="zeros", align_corners=True)


class SPyNetLevel(nn.Sequential):
    def __init__(self):
        widths = [8, 32, 64, 32, 16, 2]
        layers = []
        for a, b in zip(widths, widths[1:]):
            layers += [nn.Conv2d(a, b, 7, 1, 3), nn.ReLU(inplace=True)]
        super().__init__(*layers[:-1])


class SPyNet(nn.Module):
    def __init__(self, levels=6):
        super().__init__()
        self.levels = nn.ModuleList(SPyNetLevel() for _ in range(levels))
        self.register_buffer("mean", torch.tensor([0.485, 0.456, 0.406]).view(1, 3, 1, 1))
        self.register_buffer("std", torch.tensor([0.229, 0.224, 0.225]).view(1, 3, 1, 1))

    def forward(self, ref, supp):
        refs, supps = [(ref - self.mean) / self.std], [(supp - self.mean) / self.std]
        for _ in range(len(self.levels) - 1):
            refs.insert(0, F.avg_pool2d(refs[0], 2, 2, count_include_pad=False))
            supps.insert(0, F.avg_pool2d(supps[0], 2, 2, count_include_pad=False))
        n, _, h, w = refs[0].shape
        flow = refs[0].new_zeros(n, 2, h, w)
        for level, (r, s) in enumerate(zip(refs, supps)):
            if level > 0:
                flow = F.interpolate(flow, scale_factor=2, mode="bilinear", align_corners=True) * 2.0
            warped = flow_warp(s, flow.permute(0, 2, 3, 1))
            flow = flow + self.levels[level](torch.cat([r, warped, flow], 1))
        return flow


class ResidualBlock(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.conv1, self.conv2 = nn.Conv2d(c, c, 3, 1, 1), nn.Conv2d(c, c, 3, 1, 1)
        for conv in (self.conv1, self.conv2):
            nn.init.kaiming_normal_(conv.weight)
            conv.weight.data *= 0.1
            nn.init.zeros_(conv.bias)

    def forward(self, x):
        return x + self.conv2(F.relu(self.conv1(x), inplace=True))


def trunk(cin, c, blocks):
    return nn.Sequential(
        nn.Conv2d(cin, c, 3, 1, 1), nn.LeakyReLU(0.1, inplace=True), *[ResidualBlock(c) for _ in range(blocks)]
    )


class BasicVSR(nn.Module):
    def __init__(self, c, blocks):
        super().__init__()
        self.c = c
        self.spynet = SPyNet()
        self.backward_trunk = torch.compile(trunk(c + 3, c, blocks))
        self.forward_trunk = torch.compile(trunk(c + 3, c, blocks))
        self.fusion = nn.Conv2d(2 * c, c, 1)
        self.up1, self.up2 = nn.Conv2d(c, 4 * c, 3, 1, 1), nn.Conv2d(c, 4 * c, 3, 1, 1)
        self.hr, self.last = nn.Conv2d(c, c, 3, 1, 1), nn.Conv2d(c, 3, 3, 1, 1)

    def flows(self, lqs):
        b, t, c, h, w = lqs.shape
        first, second = lqs[:, :-1].reshape(-1, c, h, w), lqs[:, 1:].reshape(-1, c, h, w)
        with torch.autocast("cuda", enabled=False):
            back, forth = self.spynet(first, second), self.spynet(second, first)
        return back.view(b, t - 1, 2, h, w), forth.view(b, t - 1, 2, h, w)

    def forward(self, lqs):
        b, t, _, h, w = lqs.shape
        back, forth = self.flows(lqs)
        feat, kept = lqs.new_zeros(b, self.c, h, w), []
        for i in reversed(range(t)):
            if i < t - 1:
                feat = flow_warp(feat, back[:, i].permute(0, 2, 3, 1))
            feat = self.backward_trunk(torch.cat([lqs[:, i], feat], 1))
            kept.insert(0, feat)
        feat, outputs = torch.zeros_like(feat), []
        for i in range(t):
            if i > 0:
                feat = flow_warp(feat, forth[:, i - 1].permute(0, 2, 3, 1))
            feat = self.forward_trunk(torch.cat([lqs[:, i], feat.float()], 1))
            out = F.leaky_relu(self.fusion(torch.cat([kept[i], feat], 1)), 0.1)
            out = F.leaky_relu(F.pixel_shuffle(self.up1(out), 2), 0.1)
            out = F.leaky_relu(F.pixel_shuffle(self.up2(out), 2), 0.1)
            out = self.last(F.leaky_relu(self.hr(out), 0.1))
            base = F.interpolate(lqs[:, i], scale_factor=4, mode="bilinear", align_corners=False)
            outputs.append(out + base)
        return torch.stack(outputs, 1)


class Clips(Dataset):
    def __init__(self, frames, size, kept=24):
        self.data = torch.randint(0, 256, (kept, frames, 3, size, size), dtype=torch.uint8)

    def __len__(self):
        return 100000

    def __getitem__(self, index):
        return self.data[index % len(self.data)]


class Augment:
    def __init__(self, patch, scale):
        self.patch, self.scale = patch, scale

    def __call__(self, clips):
        b, t, c, h, w = clips.shape
        top, left = torch.randint(0, h - self.patch + 1, (2,)).tolist()
        x = clips[..., top : top + self.patch, left : left + self.patch].float().div_(255)
        flip = torch.rand(b, 1, 1, 1, 1, device=x.device) < 0.5
        x = torch.where(flip, x.flip(-1), x)
        if torch.rand(()) < 0.5:
            x = x.transpose(-1, -2)
        gain = torch.empty(b, 1, 3, 1, 1, device=x.device).uniform_(0.9, 1.1)
        grey = x.mean((2, 3, 4), keepdim=True)
        contrast = torch.empty(b, 1, 1, 1, 1, device=x.device).uniform_(0.9, 1.1)
        x = ((x * gain - grey) * contrast + grey).clamp(0, 1)
        small = F.interpolate(x.flatten(0, 1), scale_factor=1 / self.scale, mode="bicubic", antialias=True)
        return small.clamp(0, 1).view(b, t, c, *small.shape[-2:]), x


class Trainer:
    def __init__(self, cfg):
        self.net = BasicVSR(cfg["channels"], cfg["blocks"]).cuda()
        flow = list(self.net.spynet.parameters())
        known = {id(p) for p in flow}
        rest = [p for p in self.net.parameters() if id(p) not in known]
        self.optimizer = torch.optim.Adam(
            [{"params": rest, "lr": 2e-4}, {"params": flow, "lr": 2.5e-5}], betas=(0.9, 0.99)
        )
        self.scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(self.optimizer, 300000, eta_min=1e-7)
        self.scaler = torch.amp.GradScaler("cuda")
        self.augment = Augment(cfg["patch"], cfg["scale"])
        self.running = torch.zeros((), device="cuda")

    def losses(self, pred, target):
        pixel = ((pred - target) ** 2 + 1e-12).sqrt().mean()
        spectrum = torch.fft.rfft2(pred) - torch.fft.rfft2(target)
        return pixel + 0.05 * torch.view_as_real(spectrum).abs().mean()

    def step(self, clips):
        clips = clips.pin_memory().cuda(non_blocking=True)
        lq, gt = self.augment(clips)
        self.optimizer.zero_grad(set_to_none=True)
        with torch.autocast("cuda", dtype=torch.float16):
            sr = self.net(lq)
        loss = self.losses(sr.float(), gt)
        self.scaler.scale(loss).backward()
        self.scaler.step(self.optimizer)
        self.scaler.update()
        self.scheduler.step()
        self.running.lerp_(loss.detach(), 0.05)


loader = DataLoader(Clips(CONFIG["frames"], CONFIG["stored"]), CONFIG["batch"], shuffle=True, drop_last=True)
trainer = Trainer(CONFIG)
batches = iter(loader)
for i in steps():
    trainer.step(next(batches))
    if i % 20 == 0:
        print(f"iter {i} loss {trainer.running.item():.4f}")
