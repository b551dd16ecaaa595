# Fine-tunes the prompt encoder and mask decoder of SAM on cached ViT-H embeddings; clicks are simulated.
import torch, torch.nn as nn, torch.nn.functional as F
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn
from tick import steps

DIM, GRID, MASK = 256, 64, 256
IMAGES, PER_IMAGE, ROUNDS = 4, 12, 3


class LN2d(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.w, self.b = nn.Parameter(torch.ones(c)), nn.Parameter(torch.zeros(c))

    def forward(self, x):
        u = x.mean(1, keepdim=True)
        s = (x - u).pow(2).mean(1, keepdim=True)
        return self.w[:, None, None] * ((x - u) / torch.sqrt(s + 1e-6)) + self.b[:, None, None]


class PromptEncoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("gauss", torch.randn(2, DIM // 2))
        self.kinds = nn.Embedding(2, DIM)
        self.no_mask = nn.Embedding(1, DIM)
        self.mask = nn.Sequential(
            nn.Conv2d(1, 4, 2, 2),
            LN2d(4),
            nn.GELU(),
            nn.Conv2d(4, 16, 2, 2),
            LN2d(16),
            nn.GELU(),
            nn.Conv2d(16, DIM, 1),
        )

    def fourier(self, xy):
        f = 2 * torch.pi * ((2 * xy - 1) @ self.gauss)
        return torch.cat([f.sin(), f.cos()], -1)

    def dense_position(self):
        g = (torch.arange(GRID, device=self.gauss.device) + 0.5) / GRID
        y, x = torch.meshgrid(g, g, indexing="ij")
        return self.fourier(torch.stack([x, y], -1).view(-1, 2))

    def forward(self, points, labels, masks):
        sparse = self.fourier(points) + self.kinds(labels)
        if masks is None:
            dense = self.no_mask.weight.view(1, DIM, 1, 1).expand(len(points), -1, GRID, GRID)
        else:
            dense = self.mask(masks)
        return sparse, dense


class Attention(nn.Module):
    def __init__(self, down=1):
        super().__init__()
        inner = DIM // down
        self.q, self.k, self.v = nn.Linear(DIM, inner), nn.Linear(DIM, inner), nn.Linear(DIM, inner)
        self.out = nn.Linear(inner, DIM)

    def forward(self, q, k, v):
        q, k, v = (f(t).unflatten(-1, (8, -1)).transpose(1, 2) for f, t in ((self.q, q), (self.k, k), (self.v, v)))
        return self.out(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2))


class TwoWayBlock(nn.Module):
    def __init__(self, skip_pe):
        super().__init__()
        self.self_attn, self.to_image, self.to_token = Attention(), Attention(2), Attention(2)
        self.mlp = nn.Sequential(nn.Linear(DIM, 2048), nn.ReLU(), nn.Linear(2048, DIM))
        self.norms = nn.ModuleList(nn.LayerNorm(DIM) for _ in range(4))
        self.skip_pe = skip_pe

    def forward(self, t, image, tpe, ipe):
        if self.skip_pe:
            t = self.norms[0](self.self_attn(t, t, t))
        else:
            t = self.norms[0](t + self.self_attn(t + tpe, t + tpe, t))
        t = self.norms[1](t + self.to_image(t + tpe, image + ipe, image))
        t = self.norms[2](t + self.mlp(t))
        return t, self.norms[3](image + self.to_token(image + ipe, t + tpe, t))


def mlp3(o):
    return nn.Sequential(nn.Linear(DIM, DIM), nn.ReLU(), nn.Linear(DIM, DIM), nn.ReLU(), nn.Linear(DIM, o))


class SamHead(nn.Module):
    def __init__(self, masks=3):
        super().__init__()
        self.prompt = PromptEncoder()
        self.tokens = nn.Embedding(1 + masks, DIM)
        self.blocks = nn.ModuleList([TwoWayBlock(True), TwoWayBlock(False)])
        self.final, self.final_norm = Attention(2), nn.LayerNorm(DIM)
        self.up = nn.Sequential(
            nn.ConvTranspose2d(DIM, 64, 2, 2), LN2d(64), nn.GELU(), nn.ConvTranspose2d(64, 32, 2, 2), nn.GELU()
        )
        self.hyper = nn.ModuleList(mlp3(32) for _ in range(masks))
        self.quality = mlp3(masks)

    def forward(self, embedding, points, labels, masks):
        sparse, dense = self.prompt(points, labels, masks)
        tpe = torch.cat([self.tokens.weight.expand(len(points), -1, -1), sparse], 1)
        ipe = self.prompt.dense_position()
        t, image = tpe, (embedding + dense).flatten(2).transpose(1, 2)
        for block in self.blocks:
            t, image = block(t, image, tpe, ipe)
        t = self.final_norm(t + self.final(t + tpe, image + ipe, image))
        up = self.up(image.transpose(1, 2).unflatten(2, (GRID, GRID)))
        kernels = torch.stack([h(t[:, 1 + i]) for i, h in enumerate(self.hyper)], 1)
        return (kernels @ up.flatten(2)).unflatten(2, (MASK, MASK)), self.quality(t[:, 0]).sigmoid()


def ellipses(n):
    c, r = torch.rand(n, 2, 1, 1, device="cuda"), torch.rand(n, 2, 1, 1, device="cuda") * 0.3 + 0.01
    g = (torch.arange(MASK, device="cuda") + 0.5) / MASK
    return ((g[None, None, :] - c[:, 0]) / r[:, 0]) ** 2 + ((g[None, :, None] - c[:, 1]) / r[:, 1]) ** 2 < 1


def click(region, truth):
    weight = region.flatten(1).float() + 1e-6
    at = torch.multinomial(weight, 1)
    label = truth.flatten(1).gather(1, at).long()
    return torch.stack([(at % MASK + 0.5) / MASK, (at // MASK + 0.5) / MASK], -1), label


def best_of(logits, quality, truth):
    target = truth[:, None].float().expand_as(logits)
    p = logits.sigmoid()
    ce = F.binary_cross_entropy_with_logits(logits, target, reduction="none")
    focal = (ce * (1 - (p * target + (1 - p) * (1 - target))) ** 2).mean((2, 3))
    dice = 1 - (2 * (p * target).sum((2, 3)) + 1) / (p.sum((2, 3)) + target.sum((2, 3)) + 1)
    loss, pick = (20 * focal + dice).min(1)
    with torch.no_grad():
        hard = logits > 0
        iou = (hard & truth[:, None]).sum((2, 3)) / (hard | truth[:, None]).sum((2, 3)).clamp(min=1)
    rows = torch.arange(len(pick), device=pick.device)
    return loss.mean() + F.mse_loss(quality, iou), logits[rows, pick], iou[rows, pick]


def rollout(net, embedding, truth):
    area = truth.sum((1, 2))
    keep = (area > 80) & (area < 0.6 * MASK * MASK)
    embedding, truth = embedding.repeat_interleave(PER_IMAGE, 0)[keep], truth[keep]
    points, labels = click(truth, truth)
    previous, total = None, 0
    for _ in range(ROUNDS):
        with torch.autocast("cuda", dtype=torch.bfloat16):
            logits, quality = net(embedding, points, labels, previous)
        loss, chosen, iou = best_of(logits.float(), quality.float(), truth)
        total = total + loss
        previous = chosen.detach()[:, None]
        p, l = click((previous[:, 0] > 0) ^ truth, truth)
        points, labels = torch.cat([points, p], 1), torch.cat([labels, l], 1)
    return total / ROUNDS, iou


head = SamHead().cuda()
ema = AveragedModel(head, multi_avg_fn=get_ema_multi_avg_fn(0.998), use_buffers=False)
opt = torch.optim.AdamW(head.parameters(), lr=8e-4, weight_decay=0.1, foreach=True)
sched = torch.optim.lr_scheduler.SequentialLR(
    opt,
    [torch.optim.lr_scheduler.LinearLR(opt, 0.01, 1.0, 250), torch.optim.lr_scheduler.ConstantLR(opt, 1.0, 1)],
    milestones=[250],
)
bank = torch.randn(200, DIM, GRID, GRID, device="cuda", dtype=torch.half)
held_out = bank[:IMAGES], ellipses(IMAGES * PER_IMAGE)
history = []
for i in steps():
    rows = torch.randint(IMAGES, len(bank), (IMAGES,), device="cuda")
    loss, _ = rollout(head, bank[rows], ellipses(IMAGES * PER_IMAGE))
    opt.zero_grad()
    loss.backward()
    nn.utils.clip_grad_norm_(head.parameters(), 0.1)
    opt.step()
    sched.step()
    ema.update_parameters(head)
    if i % 4 == 3:
        ema.eval()
        with torch.inference_mode():
            _, iou = rollout(ema, *held_out)
        history.append(iou.mean().item())
print("held-out IoU", history[-1])
