import copy, math
import torch, torch.nn as nn, torch.nn.functional as F
from tick import steps

torch.backends.cuda.matmul.allow_tf32 = True
torch.backends.cudnn.allow_tf32 = True
torch.backends.cudnn.benchmark = True
CH, EMB, B, ACC, RES = 128, 512, 32, 2, 64


class UNetBlock(nn.Module):
    def __init__(self, i, o, up=False, down=False, attention=False):
        super().__init__()
        self.up, self.down = up, down
        self.norm0, self.conv0 = nn.GroupNorm(32, i), nn.Conv2d(i, o, 3, padding=1)
        self.affine, self.norm1, self.conv1 = nn.Linear(EMB, 2 * o), nn.GroupNorm(32, o), nn.Conv2d(o, o, 3, padding=1)
        self.skip = nn.Conv2d(i, o, 1) if i != o else nn.Identity()
        self.norm2 = nn.GroupNorm(32, o) if attention else None
        self.qkv, self.proj = (nn.Conv2d(o, 3 * o, 1), nn.Conv2d(o, o, 1)) if attention else (None, None)
        nn.init.zeros_(self.conv1.weight)

    def resample(self, x):
        if self.up:
            return F.interpolate(x, scale_factor=2, mode="nearest")
        return F.avg_pool2d(x, 2) if self.down else x

    def forward(self, x, emb):
        h = self.conv0(self.resample(F.silu(self.norm0(x))))
        scale, shift = self.affine(emb)[:, :, None, None].chunk(2, 1)
        h = self.conv1(F.dropout(F.silu(torch.addcmul(shift, self.norm1(h), scale + 1)), 0.1, self.training))
        x = (h + self.skip(self.resample(x))) * 0.5**0.5
        if self.norm2 is not None:
            q, k, v = self.qkv(self.norm2(x)).flatten(2).unflatten(1, (3, -1, 64)).transpose(-1, -2).unbind(1)
            a = F.scaled_dot_product_attention(q.contiguous(), k.contiguous(), v.contiguous())
            x = (x + self.proj(a.transpose(-1, -2).reshape(x.shape))) * 0.5**0.5
        return x


class SongUNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.map_aug, self.map0, self.map1 = nn.Linear(6, CH, bias=False), nn.Linear(CH, EMB), nn.Linear(EMB, EMB)
        self.conv_in, self.enc, self.dec = nn.Conv2d(3, CH, 3, padding=1), nn.ModuleList(), nn.ModuleList()
        c, skips = CH, [CH]
        for level, o in enumerate((CH, 2 * CH, 2 * CH)):
            if level:
                self.enc.append(UNetBlock(c, c, down=True))
                skips.append(c)
            self.enc.append(UNetBlock(c, o, attention=level == 2))
            c = o
            skips.append(c)
        for level, o in reversed(list(enumerate((CH, 2 * CH, 2 * CH)))):
            self.dec.append(UNetBlock(c, c, attention=level == 2) if level == 2 else UNetBlock(c, c, up=True))
            for _ in range(2):
                self.dec.append(UNetBlock(c + skips.pop(), o))
                c = o
        self.norm, self.out = nn.GroupNorm(32, c), nn.Conv2d(c, 3, 3, padding=1)

    def forward(self, x, noise, aug):
        f = (1 / 10000) ** (torch.arange(CH // 2, device=x.device) / (CH // 2 - 1))
        emb = noise.ger(f)
        emb = torch.cat([emb.cos(), emb.sin()], 1) + self.map_aug(aug)
        emb = F.silu(self.map1(F.silu(self.map0(emb))))
        x = self.conv_in(x)
        skips = [x]
        for block in self.enc:
            x = block(x, emb)
            skips.append(x)
        for block in self.dec:
            if block.conv0.in_channels != x.shape[1]:
                x = torch.cat([x, skips.pop()], 1)
            x = block(x, emb)
        return self.out(F.silu(self.norm(x)))


def augment(x, p=0.12):
    n, dev = x.size(0), x.device
    on = lambda: (torch.rand(n, device=dev) < p).float()
    flip = torch.randint(2, (n,), device=dev).float() * on()
    x = torch.where(flip.view(-1, 1, 1, 1) == 1, x.flip(3), x)
    angle = (torch.rand(n, device=dev) * 2 - 1) * math.pi * on()
    scale = torch.exp2(torch.randn(n, device=dev) * 0.2 * on())
    tx, ty = torch.randn(2, n, device=dev) * 0.125 * on()
    row0 = torch.stack([angle.cos() * scale, -angle.sin() * scale, tx], 1)
    row1 = torch.stack([angle.sin() * scale, angle.cos() * scale, ty], 1)
    padded = F.pad(x, (16, 16, 16, 16), mode="reflect")
    big = F.interpolate(padded, scale_factor=2, mode="bilinear", align_corners=False)
    grid = F.affine_grid(torch.stack([row0, row1], 1), (n, 3, 2 * RES, 2 * RES), align_corners=False)
    x = F.avg_pool2d(F.grid_sample(big, grid * (RES / (RES + 32)), align_corners=False), 2)
    bright = torch.randn(n, device=dev) * 0.2 * on()
    x = (x + bright.view(-1, 1, 1, 1)) * torch.exp2(torch.randn(n, device=dev) * 0.5 * on()).view(-1, 1, 1, 1)
    return x, torch.stack([flip, angle, scale - 1, tx, ty, bright], 1)


net = SongUNet().cuda().train().requires_grad_(True)
ema = copy.deepcopy(net).eval().requires_grad_(False)
fast = torch.compile(net)
opt = torch.optim.Adam(net.parameters(), lr=2e-4, betas=(0.9, 0.999), eps=1e-8)
images = torch.randint(0, 256, (4096, 3, RES, RES), dtype=torch.uint8)
for i in steps(count=5):
    opt.zero_grad(set_to_none=True)
    for round_idx in range(ACC):
        pick = torch.randint(0, len(images), (B,))
        y, labels = augment(images[pick].cuda().to(torch.float32) / 127.5 - 1)
        sigma = (torch.randn(B, 1, 1, 1, device="cuda") * 1.2 - 1.2).exp()
        weight = (sigma**2 + 0.25) / (sigma * 0.5) ** 2
        noisy = y + torch.randn_like(y) * sigma
        c_skip, c_out = 0.25 / (sigma**2 + 0.25), sigma * 0.5 / (sigma**2 + 0.25).sqrt()
        d = c_skip * noisy + c_out * fast(noisy / (0.25 + sigma**2).sqrt(), sigma.log().flatten() / 4, labels)
        (weight * (d - y) ** 2).sum().mul(1 / (B * ACC)).backward()
    for g in opt.param_groups:
        g["lr"] = 2e-4 * min((i + 1) * B * ACC / 100000, 1)
    for p in net.parameters():
        if p.grad is not None:
            torch.nan_to_num(p.grad, nan=0, posinf=1e5, neginf=-1e5, out=p.grad)
    opt.step()
    with torch.no_grad():
        for p_ema, p_net in zip(ema.parameters(), net.parameters()):
            p_ema.copy_(p_net.lerp(p_ema, 0.999))
