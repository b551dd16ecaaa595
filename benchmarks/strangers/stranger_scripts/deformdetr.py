import math

import torch
from torch import nn
from torch.nn import functional as F

from tick import steps

torch.backends.cuda.matmul.allow_tf32 = True
torch.backends.cudnn.allow_tf32 = True

BATCH, HEIGHT, WIDTH = 4, 800, 1024
DIM, HEADS, LEVELS, POINTS = 256, 8, 4, 4
QUERIES, CLASSES, OBJECTS = 300, 91, 12


class FrozenBatchNorm2d(nn.Module):
    def __init__(self, n, eps=1e-5):
        super().__init__()
        self.eps = eps
        self.register_buffer("weight", torch.ones(n))
        self.register_buffer("bias", torch.zeros(n))
        self.register_buffer("running_mean", torch.zeros(n))
        self.register_buffer("running_var", torch.ones(n))

    def forward(self, x):
        scale = (self.weight * (self.running_var + self.eps).rsqrt()).reshape(1, -1, 1, 1)
        bias = self.bias.reshape(1, -1, 1, 1) - self.running_mean.reshape(1, -1, 1, 1) * scale
        return x * scale + bias


class Bottleneck(nn.Module):
    def __init__(self, c_in, width, stride):
        super().__init__()
        self.conv1, self.bn1 = nn.Conv2d(c_in, width, 1, bias=False), FrozenBatchNorm2d(width)
        self.conv2, self.bn2 = nn.Conv2d(width, width, 3, stride, 1, bias=False), FrozenBatchNorm2d(width)
        self.conv3, self.bn3 = nn.Conv2d(width, 4 * width, 1, bias=False), FrozenBatchNorm2d(4 * width)
        self.downsample = None
        if stride != 1 or c_in != 4 * width:
            self.downsample = nn.Sequential(
                nn.Conv2d(c_in, 4 * width, 1, stride, bias=False), FrozenBatchNorm2d(4 * width)
            )

    def forward(self, x):
        y = F.relu(self.bn1(self.conv1(x)), inplace=True)
        y = F.relu(self.bn2(self.conv2(y)), inplace=True)
        y = self.bn3(self.conv3(y))
        return F.relu(y + (x if self.downsample is None else self.downsample(x)))


class Backbone(nn.Module):
    def __init__(self):
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(3, 64, 7, 2, 3, bias=False), FrozenBatchNorm2d(64), nn.ReLU())
        self.pool = nn.MaxPool2d(3, 2, 1)
        self.stages, c = nn.ModuleList(), 64
        for width, depth, stride in ((64, 3, 1), (128, 4, 2), (256, 6, 2), (512, 3, 2)):
            blocks = []
            for i in range(depth):
                blocks.append(Bottleneck(c, width, stride if i == 0 else 1))
                c = 4 * width
            self.stages.append(nn.Sequential(*blocks))
        for part in (self.stem, self.stages[0]):
            for p in part.parameters():
                p.requires_grad_(False)

    def forward(self, x):
        x, out = self.pool(self.stem(x)), []
        for stage in self.stages:
            x = stage(x)
            out.append(x)
        return out[1:]


def deformable_core(value, shapes, locations, weights):
    n, _, heads, d = value.shape
    queries = locations.shape[1]
    grids = 2 * locations - 1
    sampled = []
    for level, v in enumerate(value.split([h * w for h, w in shapes], dim=1)):
        h, w = shapes[level]
        v = v.flatten(2).transpose(1, 2).reshape(n * heads, d, h, w)
        grid = grids[:, :, :, level].transpose(1, 2).flatten(0, 1)
        sampled.append(F.grid_sample(v, grid, mode="bilinear", padding_mode="zeros", align_corners=False))
    weights = weights.transpose(1, 2).reshape(n * heads, 1, queries, LEVELS * POINTS)
    out = (torch.stack(sampled, dim=-2).flatten(-2) * weights).sum(-1)
    return out.view(n, heads * d, queries).transpose(1, 2)


class MSDeformAttn(nn.Module):
    def __init__(self):
        super().__init__()
        self.sampling_offsets = nn.Linear(DIM, HEADS * LEVELS * POINTS * 2)
        self.attention_weights = nn.Linear(DIM, HEADS * LEVELS * POINTS)
        self.value_proj, self.output_proj = nn.Linear(DIM, DIM), nn.Linear(DIM, DIM)
        nn.init.zeros_(self.sampling_offsets.weight)
        theta = torch.arange(HEADS) * (2 * math.pi / HEADS)
        grid = torch.stack([theta.cos(), theta.sin()], -1)
        grid = (grid / grid.abs().max(-1, keepdim=True)[0]).view(HEADS, 1, 1, 2).repeat(1, LEVELS, POINTS, 1)
        for i in range(POINTS):
            grid[:, :, i, :] *= i + 1
        with torch.no_grad():
            self.sampling_offsets.bias.copy_(grid.reshape(-1))

    def forward(self, query, reference, memory, shapes):
        n, q, _ = query.shape
        value = self.value_proj(memory).view(n, -1, HEADS, DIM // HEADS)
        offsets = self.sampling_offsets(query).view(n, q, HEADS, LEVELS, POINTS, 2)
        weights = self.attention_weights(query).view(n, q, HEADS, LEVELS * POINTS).softmax(-1)
        if reference.shape[-1] == 2:
            size = torch.tensor([[w, h] for h, w in shapes], device=query.device, dtype=query.dtype)
            locations = reference[:, :, None, None, None] + offsets / size[None, None, None, :, None]
        else:
            box = reference[:, :, None, None, None]
            locations = box[..., :2] + offsets / POINTS * box[..., 2:] * 0.5
        return self.output_proj(deformable_core(value, shapes, locations, weights))


class FFN(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear1, self.linear2 = nn.Linear(DIM, 1024), nn.Linear(1024, DIM)
        self.norm, self.drop = nn.LayerNorm(DIM), nn.Dropout(0.1)

    def forward(self, x):
        return self.norm(x + self.drop(self.linear2(self.drop(F.relu(self.linear1(x))))))


class EncoderLayer(nn.Module):
    def __init__(self):
        super().__init__()
        self.attn, self.norm, self.drop, self.ffn = MSDeformAttn(), nn.LayerNorm(DIM), nn.Dropout(0.1), FFN()

    def forward(self, x, pos, reference, shapes):
        return self.ffn(self.norm(x + self.drop(self.attn(x + pos, reference, x, shapes))))


class DecoderLayer(nn.Module):
    def __init__(self):
        super().__init__()
        self.self_attn = nn.MultiheadAttention(DIM, HEADS, dropout=0.1, batch_first=True)
        self.cross, self.ffn, self.drop = MSDeformAttn(), FFN(), nn.Dropout(0.1)
        self.norm1, self.norm2 = nn.LayerNorm(DIM), nn.LayerNorm(DIM)

    def forward(self, x, pos, reference, memory, shapes):
        q = x + pos
        x = self.norm1(x + self.drop(self.self_attn(q, q, x, need_weights=False)[0]))
        x = self.norm2(x + self.drop(self.cross(x + pos, reference, memory, shapes)))
        return self.ffn(x)


def sine_embedding(h, w, device):
    y, x = torch.meshgrid(
        (torch.arange(h, device=device) + 0.5) / h * 2 * math.pi,
        (torch.arange(w, device=device) + 0.5) / w * 2 * math.pi,
        indexing="ij",
    )
    freq = 10000 ** (2 * (torch.arange(DIM // 2, device=device) // 2) / (DIM // 2))
    parts = []
    for axis in (y, x):
        t = axis[..., None] / freq
        parts.append(torch.stack([t[..., 0::2].sin(), t[..., 1::2].cos()], -1).flatten(-2))
    return torch.cat(parts, -1).flatten(0, 1)


def inverse_sigmoid(x, eps=1e-5):
    x = x.clamp(0, 1)
    return torch.log(x.clamp(min=eps) / (1 - x).clamp(min=eps))


class DeformableDETR(nn.Module):
    def __init__(self):
        super().__init__()
        self.backbone = Backbone()
        self.input_proj = nn.ModuleList(
            [nn.Sequential(nn.Conv2d(c, DIM, 1), nn.GroupNorm(32, DIM)) for c in (512, 1024, 2048)]
            + [nn.Sequential(nn.Conv2d(2048, DIM, 3, 2, 1), nn.GroupNorm(32, DIM))]
        )
        self.level_embed = nn.Parameter(torch.randn(LEVELS, DIM))
        self.encoder = nn.ModuleList(EncoderLayer() for _ in range(6))
        self.decoder = nn.ModuleList(DecoderLayer() for _ in range(6))
        self.query_embed = nn.Embedding(QUERIES, 2 * DIM)
        self.reference = nn.Linear(DIM, 2)
        self.class_heads = nn.ModuleList(nn.Linear(DIM, CLASSES) for _ in range(6))
        self.box_heads = nn.ModuleList(
            nn.Sequential(nn.Linear(DIM, DIM), nn.ReLU(), nn.Linear(DIM, DIM), nn.ReLU(), nn.Linear(DIM, 4))
            for _ in range(6)
        )
        for head in self.class_heads:
            nn.init.constant_(head.bias, -math.log(99))

    def forward(self, images):
        feats = self.backbone(images)
        maps = [proj(f) for proj, f in zip(self.input_proj, feats)]
        maps.append(self.input_proj[-1](feats[-1]))
        shapes = [tuple(m.shape[-2:]) for m in maps]
        pos = torch.cat([sine_embedding(h, w, images.device) + e for (h, w), e in zip(shapes, self.level_embed)])[None]
        reference = []
        for h, w in shapes:
            ys, xs = torch.meshgrid(
                torch.linspace(0.5 / h, 1 - 0.5 / h, h, device=images.device),
                torch.linspace(0.5 / w, 1 - 0.5 / w, w, device=images.device),
                indexing="ij",
            )
            reference.append(torch.stack([xs, ys], -1).flatten(0, 1))
        n = images.shape[0]
        reference = torch.cat(reference)[None].expand(n, -1, -1)
        memory = torch.cat([m.flatten(2).transpose(1, 2) for m in maps], 1)
        for layer in self.encoder:
            memory = layer(memory, pos, reference, shapes)
        query_pos, x = self.query_embed.weight[None].expand(n, -1, -1).chunk(2, -1)
        points = self.reference(query_pos).sigmoid()
        logits, boxes = [], []
        for layer, cls, box in zip(self.decoder, self.class_heads, self.box_heads):
            x = layer(x, query_pos, points, memory, shapes)
            delta = box(x)
            if points.shape[-1] == 2:
                delta = torch.cat([delta[..., :2] + inverse_sigmoid(points), delta[..., 2:]], -1)
            else:
                delta = delta + inverse_sigmoid(points)
            logits.append(cls(x))
            boxes.append(delta.sigmoid())
            points = boxes[-1].detach()
        return torch.stack(logits), torch.stack(boxes)


def corners(b):
    return torch.cat([b[..., :2] - b[..., 2:] / 2, b[..., :2] + b[..., 2:] / 2], -1)


def giou(a, b):
    a, b = corners(a), corners(b)
    inter = (torch.minimum(a[..., 2:], b[..., 2:]) - torch.maximum(a[..., :2], b[..., :2])).clamp(min=0).prod(-1)
    union = (a[..., 2:] - a[..., :2]).prod(-1) + (b[..., 2:] - b[..., :2]).prod(-1) - inter
    hull = (torch.maximum(a[..., 2:], b[..., 2:]) - torch.minimum(a[..., :2], b[..., :2])).clamp(min=0).prod(-1)
    return inter / union.clamp(min=1e-6) - (hull - union) / hull.clamp(min=1e-6)


@torch.no_grad()
def greedy_match(logits, boxes, labels, targets):
    """The cheapest pair first, then the cheapest of those left: all layers and images at once."""
    layers, n, q, _ = boxes.shape
    p = logits.sigmoid().gather(-1, labels[None, :, None].expand(layers, n, q, -1))
    cost = 2 * (0.25 * (1 - p) ** 2 * -(p + 1e-8).log() - 0.75 * p**2 * -(1 - p + 1e-8).log())
    cost = cost + 5 * torch.cdist(boxes, targets[None].expand(layers, -1, -1, -1), p=1)
    cost = cost - 2 * giou(boxes[:, :, :, None], targets[None, :, None])
    cost = cost.flatten(0, 1)
    rows = torch.arange(layers * n, device=boxes.device)
    match = torch.zeros(layers * n, OBJECTS, dtype=torch.long, device=boxes.device)
    for _ in range(OBJECTS):
        best = cost.flatten(1).argmin(1)
        query, target = best // OBJECTS, best % OBJECTS
        match[rows, target] = query
        cost[rows, query] = float("inf")
        cost[rows, :, target] = float("inf")
    return match.view(layers, n, OBJECTS)


def criterion(logits, boxes, labels, targets):
    match = greedy_match(logits, boxes, labels, targets)
    onehot = torch.zeros_like(logits)
    layers, n = match.shape[:2]
    a = torch.arange(layers, device=match.device)[:, None, None]
    b = torch.arange(n, device=match.device)[None, :, None]
    onehot[a, b, match, labels[None]] = 1
    p = logits.sigmoid()
    ce = F.binary_cross_entropy_with_logits(logits, onehot, reduction="none")
    p_t = p * onehot + (1 - p) * (1 - onehot)
    focal = (0.25 * onehot + 0.75 * (1 - onehot)) * ce * (1 - p_t) ** 2
    picked = boxes.gather(2, match[..., None].expand(-1, -1, -1, 4))
    l1 = (picked - targets[None]).abs().sum()
    count = n * OBJECTS
    return {
        "class": 2 * focal.sum() / count,
        "box": 5 * l1 / count,
        "giou": 2 * (1 - giou(picked, targets[None])).sum() / count,
    }


def main():
    model = DeformableDETR().cuda()
    backbone = [p for k, p in model.named_parameters() if k.startswith("backbone") and p.requires_grad]
    slow = [p for k, p in model.named_parameters() if "sampling_offsets" in k or k.startswith("reference")]
    known = {id(p) for p in backbone + slow}
    rest = [p for p in model.parameters() if p.requires_grad and id(p) not in known]
    optimizer = torch.optim.AdamW(
        [{"params": rest}, {"params": backbone, "lr": 2e-5}, {"params": slow, "lr": 2e-5}], lr=2e-4, weight_decay=1e-4
    )
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 40000)
    model.train()
    history = []
    for step in steps():
        images = torch.randn(BATCH, 3, HEIGHT, WIDTH, device="cuda")
        labels = torch.randint(0, CLASSES, (BATCH, OBJECTS), device="cuda")
        centre = torch.rand(BATCH, OBJECTS, 2, device="cuda") * 0.6 + 0.2
        targets = torch.cat([centre, torch.rand(BATCH, OBJECTS, 2, device="cuda") * 0.3 + 0.05], -1)
        losses = criterion(*model(images), labels, targets)
        loss = sum(losses.values())
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 0.1)
        optimizer.step()
        scheduler.step()
        history.append({k: v.item() for k, v in losses.items()})


if __name__ == "__main__":
    main()
