# UNETR for BTCV multi-organ segmentation: ViT-B encoder over 16^3 patches, convolutional decoder.
import torch
import torch.nn as nn
from torch.amp import GradScaler, autocast

from tick import steps

cfg = dict(
    img=(96, 96, 96), patch=16, hidden=768, mlp=3072, heads=12, layers=12, features=16, classes=14, batch=4, lr=1e-4
)
dev = "cuda"


class SelfAttention(nn.Module):
    def __init__(self, dim, heads):
        super().__init__()
        self.heads, self.scale = heads, (dim // heads) ** -0.5
        self.qkv = nn.Linear(dim, dim * 3, bias=False)
        self.out_proj = nn.Linear(dim, dim)

    def forward(self, x):
        b, n, c = x.shape
        q, k, v = self.qkv(x).reshape(b, n, 3, self.heads, c // self.heads).permute(2, 0, 3, 1, 4)
        att = torch.einsum("bhxd,bhyd->bhxy", q, k) * self.scale
        att = att.softmax(dim=-1)
        x = torch.einsum("bhxy,bhyd->bhxd", att, v)
        return self.out_proj(x.transpose(1, 2).reshape(b, n, c))


class ViTBlock(nn.Module):
    def __init__(self, dim, mlp, heads):
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(dim), nn.LayerNorm(dim)
        self.attn = SelfAttention(dim, heads)
        self.mlp = nn.Sequential(nn.Linear(dim, mlp), nn.GELU(), nn.Linear(mlp, dim))

    def forward(self, x):
        x = x + self.attn(self.norm1(x))
        return x + self.mlp(self.norm2(x))


class ResBlock(nn.Module):
    def __init__(self, cin, cout):
        super().__init__()
        self.conv1 = nn.Conv3d(cin, cout, 3, padding=1, bias=False)
        self.conv2 = nn.Conv3d(cout, cout, 3, padding=1, bias=False)
        self.norm1 = nn.InstanceNorm3d(cout, affine=True)
        self.norm2 = nn.InstanceNorm3d(cout, affine=True)
        self.act = nn.LeakyReLU(0.01, inplace=True)
        self.skip = None
        if cin != cout:
            self.skip = nn.Sequential(nn.Conv3d(cin, cout, 1, bias=False), nn.InstanceNorm3d(cout, affine=True))

    def forward(self, x):
        r = x if self.skip is None else self.skip(x)
        x = self.act(self.norm1(self.conv1(x)))
        return self.act(self.norm2(self.conv2(x)) + r)


def up(cin, cout):
    return nn.ConvTranspose3d(cin, cout, 2, stride=2, bias=False)


class PrUp(nn.Module):
    def __init__(self, cin, cout, n):
        super().__init__()
        self.first = up(cin, cout)
        self.rest = nn.ModuleList(nn.Sequential(up(cout, cout), ResBlock(cout, cout)) for _ in range(n))

    def forward(self, x):
        x = self.first(x)
        for block in self.rest:
            x = block(x)
        return x


class UpBlock(nn.Module):
    def __init__(self, cin, cout):
        super().__init__()
        self.up, self.res = up(cin, cout), ResBlock(2 * cout, cout)

    def forward(self, x, skip):
        return self.res(torch.cat((self.up(x), skip), dim=1))


class UNETR(nn.Module):
    def __init__(self, img, patch, hidden, mlp, heads, layers, features, classes, **_):
        super().__init__()
        self.grid = tuple(s // patch for s in img)
        self.embed = nn.Conv3d(1, hidden, patch, patch)
        self.pos = nn.Parameter(torch.zeros(1, self.grid[0] * self.grid[1] * self.grid[2], hidden))
        nn.init.trunc_normal_(self.pos, std=0.02)
        self.blocks = nn.ModuleList([ViTBlock(hidden, mlp, heads) for _ in range(layers)])
        self.taps = [layers // 4, layers // 2, 3 * layers // 4]
        self.norm = nn.LayerNorm(hidden)
        f = features
        self.enc1, self.enc2 = ResBlock(1, f), PrUp(hidden, 2 * f, 2)
        self.enc3, self.enc4 = PrUp(hidden, 4 * f, 1), PrUp(hidden, 8 * f, 0)
        self.dec5, self.dec4 = UpBlock(hidden, 8 * f), UpBlock(8 * f, 4 * f)
        self.dec3, self.dec2 = UpBlock(4 * f, 2 * f), UpBlock(2 * f, f)
        self.out = nn.Conv3d(f, classes, 1)

    def fold(self, x):
        return x.transpose(1, 2).reshape(x.shape[0], -1, *self.grid).contiguous()

    def forward(self, vol):
        x = self.embed(vol).flatten(2).transpose(-1, -2) + self.pos
        hidden = []
        for i, block in enumerate(self.blocks):
            if i in self.taps:
                hidden.append(x)
            x = block(x)
        x = self.norm(x)
        e1 = self.enc1(vol)
        e2, e3, e4 = (enc(self.fold(h)) for enc, h in zip((self.enc2, self.enc3, self.enc4), hidden))
        d = self.dec5(self.fold(x), e4)
        d = self.dec3(self.dec4(d, e3), e2)
        return self.out(self.dec2(d, e1))


class DiceCELoss(nn.Module):
    def __init__(self):
        super().__init__()
        self.ce = nn.CrossEntropyLoss()

    def forward(self, logits, label):
        ce = self.ce(logits, label.squeeze(1).long())
        p = torch.softmax(logits, 1)
        onehot = torch.zeros_like(p).scatter_(1, label.long(), 1)
        axes = (2, 3, 4)
        inter = (p * onehot).sum(axes)
        denom = p.square().sum(axes) + onehot.sum(axes)
        return ce + (1 - (2 * inter + 1e-6) / (denom + 1e-6)).mean()


torch.backends.cudnn.benchmark = True
model = UNETR(**cfg).to(dev)
criterion = DiceCELoss()
opt = torch.optim.AdamW(model.parameters(), lr=cfg["lr"], weight_decay=1e-5)
scaler = GradScaler(dev)
volumes = torch.rand(8, 1, *cfg["img"])
labels = torch.randint(0, cfg["classes"], (8, 1, *cfg["img"]), dtype=torch.uint8)
running = 0.0
for it in steps():
    order = torch.randperm(len(volumes))[: cfg["batch"]]
    data, target = volumes[order].to(dev), labels[order].to(dev)
    for axis in (2, 3, 4):
        if torch.rand(1).item() < 0.1:
            data, target = data.flip(axis), target.flip(axis)
    for param in model.parameters():
        param.grad = None
    with autocast(dev, dtype=torch.float16):
        logits = model(data)
        loss = criterion(logits, target)
    scaler.scale(loss).backward()
    scaler.step(opt)
    scaler.update()
    running += loss.item()
