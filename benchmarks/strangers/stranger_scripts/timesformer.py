# Divided space-time attention, ViT-B/16, eight frames of 224x224; every block is recomputed in the backward pass.
from types import SimpleNamespace

import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from tick import steps

cfg = SimpleNamespace(
    frames=8, size=224, patch=16, dim=768, depth=12, heads=12, classes=400, drop_path=0.1, batch=16, lr=0.005
)


class Attention(nn.Module):
    def __init__(self, dim, heads):
        super().__init__()
        self.heads = heads
        self.qkv = nn.Linear(dim, dim * 3)
        self.proj = nn.Linear(dim, dim)

    def forward(self, x):
        B, N, C = x.shape
        q, k, v = self.qkv(x).reshape(B, N, 3, self.heads, C // self.heads).permute(2, 0, 3, 1, 4)
        x = F.scaled_dot_product_attention(q, k, v)
        return self.proj(x.transpose(1, 2).reshape(B, N, C))


class Mlp(nn.Sequential):
    def __init__(self, dim, hidden):
        super().__init__(nn.Linear(dim, hidden), nn.GELU(), nn.Linear(hidden, dim))


def drop_path(x, p, training):
    if p == 0.0 or not training:
        return x
    keep = torch.rand(x.shape[0], *[1] * (x.ndim - 1), device=x.device, dtype=x.dtype).add_(1 - p).floor_()
    return x / (1 - p) * keep


class Block(nn.Module):
    def __init__(self, dim, heads, p, frames):
        super().__init__()
        self.norm1, self.attn = nn.LayerNorm(dim, eps=1e-6), Attention(dim, heads)
        self.temporal_norm1, self.temporal_attn = nn.LayerNorm(dim, eps=1e-6), Attention(dim, heads)
        self.temporal_fc = nn.Linear(dim, dim)
        self.norm2, self.mlp = nn.LayerNorm(dim, eps=1e-6), Mlp(dim, dim * 4)
        self.p, self.T = p, frames

    def forward(self, x):
        B, _, C = x.shape
        T = self.T
        P = (x.shape[1] - 1) // T
        cls, xt = x[:, :1], x[:, 1:]
        # time: (b p) t c
        t = xt.reshape(B * P, T, C)
        res = drop_path(self.temporal_attn(self.temporal_norm1(t)), self.p, self.training)
        xt = xt + self.temporal_fc(res.reshape(B, P * T, C))
        # space: (b t) p c, with the class token in every frame
        cls_t = cls.expand(B, T, C).reshape(B * T, 1, C)
        s = xt.reshape(B, P, T, C).transpose(1, 2).reshape(B * T, P, C)
        s = torch.cat([cls_t, s], 1)
        res = drop_path(self.attn(self.norm1(s)), self.p, self.training)
        res_cls = res[:, 0].reshape(B, T, C).mean(1, keepdim=True)
        res_s = res[:, 1:].reshape(B, T, P, C).transpose(1, 2).reshape(B, P * T, C)
        x = torch.cat([cls, xt], 1) + torch.cat([res_cls, res_s], 1)
        return x + drop_path(self.mlp(self.norm2(x)), self.p, self.training)


class TimeSformer(nn.Module):
    def __init__(self, c):
        super().__init__()
        n = (c.size // c.patch) ** 2
        self.patch_embed = nn.Conv2d(3, c.dim, c.patch, c.patch)
        self.cls_token = nn.Parameter(torch.zeros(1, 1, c.dim))
        self.pos_embed = nn.Parameter(torch.randn(1, n + 1, c.dim) * 0.02)
        self.time_embed = nn.Parameter(torch.zeros(1, c.frames, c.dim))
        rates = torch.linspace(0, c.drop_path, c.depth).tolist()
        self.blocks = nn.ModuleList([Block(c.dim, c.heads, p, c.frames) for p in rates])
        self.norm = nn.LayerNorm(c.dim, eps=1e-6)
        self.head = nn.Linear(c.dim, c.classes)
        for i, b in enumerate(self.blocks):
            if i > 0:
                nn.init.zeros_(b.temporal_fc.weight)
                nn.init.zeros_(b.temporal_fc.bias)

    def forward(self, video):
        B, _, T, H, W = video.shape
        x = self.patch_embed(video.transpose(1, 2).reshape(B * T, 3, H, W)).flatten(2).transpose(1, 2)
        P, C = x.shape[1:]
        x = x + self.pos_embed[:, 1:]
        x = x.reshape(B, T, P, C).transpose(1, 2) + self.time_embed
        cls = (self.cls_token + self.pos_embed[:, :1]).expand(B, -1, -1)
        x = torch.cat([cls, x.reshape(B, P * T, C)], 1)
        for block in self.blocks:
            x = checkpoint(block, x, use_reentrant=False)
        return self.head(self.norm(x)[:, 0])


mean = torch.tensor([0.45, 0.45, 0.45], device="cuda").view(1, 3, 1, 1, 1)
std = torch.tensor([0.225, 0.225, 0.225], device="cuda").view(1, 3, 1, 1, 1)
clips = torch.randint(0, 256, (32, 3, cfg.frames, 256, 320), dtype=torch.uint8, device="cuda")
targets = torch.randint(0, cfg.classes, (32,), device="cuda")

model = TimeSformer(cfg).cuda().train()
opt = torch.optim.SGD(model.parameters(), lr=cfg.lr, momentum=0.9, weight_decay=1e-4, nesterov=True)
sched = torch.optim.lr_scheduler.MultiStepLR(opt, milestones=[11000, 14000], gamma=0.1)
criterion = nn.CrossEntropyLoss(label_smoothing=0.1)
correct = torch.zeros((), device="cuda")
for it in steps():
    idx = torch.randperm(32, device="cuda")[: cfg.batch]
    top = int(torch.randint(0, 256 - cfg.size + 1, ()))
    left = int(torch.randint(0, 320 - cfg.size + 1, ()))
    batch = clips[idx, :, :, top : top + cfg.size, left : left + cfg.size]
    label = targets[idx]
    batch = (batch.float() / 255 - mean) / std
    if torch.rand(()) < 0.5:
        batch = batch.flip(-1)
    with torch.autocast("cuda", dtype=torch.bfloat16):
        logits = model(batch)
        loss = criterion(logits, label)
    opt.zero_grad(set_to_none=True)
    loss.backward()
    opt.step()
    sched.step()
    correct += (logits.argmax(-1) == label).float().mean()
    if (it + 1) % 10 == 0:
        print(f"iter {it + 1} loss {loss.item():.3f} top1 {correct.item() / 10:.3f}")
        correct.zero_()
