import torch
import torch.nn as nn
import torch.nn.functional as F
from tick import steps

H, W, STRIDE, JOINTS = 256, 192, 4, 17
DIM, DEPTH, HEADS, PATCH = 768, 12, 12, 16
BATCH, LAYER_DECAY = 8, 0.75


class Block(nn.Module):
    def __init__(self, dim, heads, drop):
        super().__init__()
        self.heads, self.drop = heads, drop
        self.norm1, self.norm2 = nn.LayerNorm(dim, eps=1e-6), nn.LayerNorm(dim, eps=1e-6)
        self.qkv, self.proj = nn.Linear(dim, 3 * dim), nn.Linear(dim, dim)
        self.fc1, self.fc2 = nn.Linear(dim, 4 * dim), nn.Linear(4 * dim, dim)

    def path(self, y):
        if self.training and self.drop > 0:
            keep = torch.rand(y.shape[0], 1, 1, device=y.device) > self.drop
            y = y * keep / (1 - self.drop)
        return y

    def forward(self, x):
        b, n, d = x.shape
        q, k, v = self.qkv(self.norm1(x)).view(b, n, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        y = F.scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(b, n, d)
        x = x + self.path(self.proj(y))
        return x + self.path(self.fc2(F.gelu(self.fc1(self.norm2(x)))))


class ViTPose(nn.Module):
    def __init__(self):
        super().__init__()
        self.grid = (H // PATCH, W // PATCH)
        self.patch = nn.Conv2d(3, DIM, PATCH, PATCH)
        self.pos = nn.Parameter(torch.randn(1, self.grid[0] * self.grid[1], DIM) * 0.02)
        self.blocks = nn.ModuleList(Block(DIM, HEADS, 0.3 * i / max(DEPTH - 1, 1)) for i in range(DEPTH))
        self.norm = nn.LayerNorm(DIM, eps=1e-6)
        layers, width = [], DIM
        for _ in range(2):
            layers += [nn.ConvTranspose2d(width, 256, 4, 2, 1, bias=False), nn.BatchNorm2d(256), nn.ReLU(inplace=True)]
            width = 256
        self.head = nn.Sequential(*layers, nn.Conv2d(256, JOINTS, 1))

    def forward(self, img):
        x = self.patch(img).flatten(2).transpose(1, 2) + self.pos
        for block in self.blocks:
            x = block(x)
        x = self.norm(x).transpose(1, 2).unflatten(2, self.grid)
        return self.head(x)


def parameter_groups(model, lr, wd):
    groups = {}
    for name, p in model.named_parameters():
        if name.startswith(("patch", "pos")):
            level = 0
        elif name.startswith("blocks"):
            level = int(name.split(".")[1]) + 1
        else:
            level = DEPTH + 1
        decay = 0.0 if p.ndim == 1 or name == "pos" else wd
        key = (level, decay)
        if key not in groups:
            scale = LAYER_DECAY ** (DEPTH + 1 - level)
            groups[key] = {"params": [], "lr": lr * scale, "weight_decay": decay}
        groups[key]["params"].append(p)
    return list(groups.values())


def heatmaps(joints, sigma=2.0):
    """joints (b, 17, 2) in pixels of the heat map."""
    ys = torch.arange(H // STRIDE, device=joints.device, dtype=torch.float32)
    xs = torch.arange(W // STRIDE, device=joints.device, dtype=torch.float32)
    dy = (ys - joints[..., 1:]).square()[..., :, None]
    dx = (xs - joints[..., :1]).square()[..., None, :]
    return torch.exp(-(dx + dy) / (2 * sigma**2))


@torch.no_grad()
def pck(pred, joints, visible, threshold=0.05):
    best = pred.flatten(2).argmax(-1)
    w = W // STRIDE
    xy = torch.stack([best % w, best // w], -1).float()
    norm = torch.tensor([W / STRIDE, H / STRIDE], device=pred.device)
    hit = ((xy - joints) / norm).norm(dim=-1) < threshold
    return (hit * visible).sum() / visible.sum().clamp(min=1)


model = ViTPose().cuda().train()
optimizer = torch.optim.AdamW(parameter_groups(model, 5e-4, 0.1), betas=(0.9, 0.999), fused=True)
warmup = torch.optim.lr_scheduler.LinearLR(optimizer, 0.001, 1.0, total_iters=500)


@torch.compile
def loss_fn(img, joints, visible):
    with torch.autocast("cuda", dtype=torch.bfloat16):
        pred = model(img)
    error = (pred.float() - heatmaps(joints)).square().mean((2, 3))
    return (error * visible).mean(), pred


scale = torch.tensor([W / STRIDE, H / STRIDE], device="cuda")
people = torch.randn(128, 3, H, W, device="cuda")
skeletons = torch.rand(128, JOINTS, 2, device="cuda")
for it in steps():
    pick = torch.randint(0, 128, (BATCH,), device="cuda")
    joints = skeletons[pick] * scale
    visible = (torch.rand(BATCH, JOINTS, device="cuda") > 0.2).float()
    optimizer.zero_grad(set_to_none=True)
    loss, pred = loss_fn(people[pick], joints, visible)
    loss.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    warmup.step()
    if it % 10 == 0:
        print(f"{it} loss {loss.item():.5f} pck {pck(pred, joints, visible).item():.3f}", flush=True)
