import torch, torch.nn as nn, torch.nn.functional as F
from tick import steps

D, H, DEPTH, WIN, GRID, B = 768, 12, 8, 14, 64, 3


class LayerNorm2d(nn.Module):
    def __init__(self, c, eps=1e-6):
        super().__init__()
        self.weight, self.bias, self.eps = nn.Parameter(torch.ones(c)), nn.Parameter(torch.zeros(c)), eps

    def forward(self, x):
        u = x.mean(1, keepdim=True)
        s = (x - u).pow(2).mean(1, keepdim=True)
        return self.weight[:, None, None] * ((x - u) / torch.sqrt(s + self.eps)) + self.bias[:, None, None]


def window_partition(x, w):
    b, h, ww, c = x.shape
    ph, pw = (w - h % w) % w, (w - ww % w) % w
    x = F.pad(x, (0, 0, 0, pw, 0, ph))
    hp, wp = h + ph, ww + pw
    x = x.view(b, hp // w, w, wp // w, w, c).permute(0, 1, 3, 2, 4, 5).contiguous()
    return x.view(-1, w, w, c), (hp, wp)


def window_unpartition(x, w, pad_hw, hw):
    (hp, wp), (h, ww) = pad_hw, hw
    b = x.shape[0] // (hp * wp // w // w)
    x = x.view(b, hp // w, wp // w, w, w, -1).permute(0, 1, 3, 2, 4, 5).contiguous().view(b, hp, wp, -1)
    return x[:, :h, :ww].contiguous()


def get_rel_pos(size, rel_pos):
    coords = torch.arange(size, device=rel_pos.device)
    return rel_pos[coords[:, None] - coords[None] + size - 1]


class Attention(nn.Module):
    def __init__(self, size):
        super().__init__()
        self.qkv, self.proj = nn.Linear(D, 3 * D), nn.Linear(D, D)
        self.rel_pos_h = nn.Parameter(torch.zeros(2 * size - 1, D // H))
        self.rel_pos_w = nn.Parameter(torch.zeros(2 * size - 1, D // H))

    def forward(self, x):
        b, h, w, _ = x.shape
        q, k, v = self.qkv(x).reshape(b, h * w, 3, H, -1).permute(2, 0, 3, 1, 4).reshape(3, b * H, h * w, -1).unbind(0)
        attn = (q * (D // H) ** -0.5) @ k.transpose(-2, -1)
        r_q = q.reshape(b * H, h, w, -1)
        rel_h = torch.einsum("bhwc,hkc->bhwk", r_q, get_rel_pos(h, self.rel_pos_h))
        rel_w = torch.einsum("bhwc,wkc->bhwk", r_q, get_rel_pos(w, self.rel_pos_w))
        attn = (attn.view(-1, h, w, h, w) + rel_h[..., :, None] + rel_w[..., None, :]).view(-1, h * w, h * w)
        x = (attn.softmax(-1) @ v).view(b, H, h, w, -1).permute(0, 2, 3, 1, 4).reshape(b, h, w, -1)
        return self.proj(x)


class Block(nn.Module):
    def __init__(self, window):
        super().__init__()
        self.window = window
        self.norm1, self.norm2 = nn.LayerNorm(D, eps=1e-6), nn.LayerNorm(D, eps=1e-6)
        self.attn = Attention(window or GRID)
        self.mlp = nn.Sequential(nn.Linear(D, 4 * D), nn.GELU(), nn.Linear(4 * D, D))

    def forward(self, x):
        y = self.norm1(x)
        if self.window:
            hw = y.shape[1], y.shape[2]
            y, pad = window_partition(y, self.window)
            y = window_unpartition(self.attn(y), self.window, pad, hw)
        else:
            y = self.attn(y)
        x = x + y
        return x + self.mlp(self.norm2(x))


class Segmenter(nn.Module):
    def __init__(self):
        super().__init__()
        self.patch = nn.Conv2d(3, D, 16, 16)
        self.pos = nn.Parameter(torch.zeros(1, GRID, GRID, D))
        self.blocks = nn.ModuleList(Block(0 if i in (3, 7) else WIN) for i in range(DEPTH))
        self.neck = nn.Sequential(
            nn.Conv2d(D, 256, 1, bias=False),
            LayerNorm2d(256),
            nn.Conv2d(256, 256, 3, padding=1, bias=False),
            LayerNorm2d(256),
        )
        self.up = nn.Sequential(
            nn.ConvTranspose2d(256, 64, 2, 2), LayerNorm2d(64), nn.GELU(), nn.ConvTranspose2d(64, 32, 2, 2), nn.GELU()
        )
        self.head = nn.Conv2d(32, 1, 1)

    def forward(self, x):
        x = self.patch(x).permute(0, 2, 3, 1) + self.pos
        for blk in self.blocks:
            x = blk(x)
        return self.head(self.up(self.neck(x.permute(0, 3, 1, 2))))


def dice(p, y):
    p = p.sigmoid().flatten(1)
    return 1 - ((2 * (p * y.flatten(1)).sum(1) + 1) / (p.sum(1) + y.flatten(1).sum(1) + 1)).mean()


model = Segmenter().cuda()
for blk in model.blocks:
    blk.forward = torch.compile(blk.forward)
opt = torch.optim.AdamW(model.parameters(), lr=1e-4, weight_decay=0.01)
mean = torch.tensor([123.675, 116.28, 103.53], device="cuda").view(-1, 1, 1)
images_all = torch.randint(0, 256, (24, 3, 1024, 1024), dtype=torch.uint8)
masks_all = torch.randint(0, 2, (24, 1, 256, 256), dtype=torch.uint8)
for i in steps(count=6):
    pick = torch.randperm(24)[:B]
    images, masks = images_all[pick].cuda(), masks_all[pick].cuda().float()
    with torch.autocast(device_type="cuda", dtype=torch.bfloat16):
        logits = model((images - mean) / 58.0)
    loss = dice(logits.float(), masks) + F.binary_cross_entropy_with_logits(logits.float(), masks)
    opt.zero_grad()
    loss.backward()
    opt.step()
    if i % 5 == 0:
        print(f"step {i} loss {loss.item():.4f}")
