import copy
import math
import os
import sys

import numpy as np
import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel
from tock import steps

# DINO, ViT-S/16, 2 global and 8 local crops
EMBED, DEPTH, HEADS, PATCH = 384, 12, 6, 16
GLOBAL, LOCAL, LOCAL_CROPS = 224, 96, 8
OUT_DIM, BATCH = 65536, 48


class DropPath(nn.Module):
    def __init__(self, p):
        super().__init__()
        self.p = p

    def forward(self, x):
        if self.p == 0.0 or not self.training:
            return x
        keep = 1 - self.p
        mask = keep + torch.rand((x.shape[0],) + (1,) * (x.ndim - 1), dtype=x.dtype, device=x.device)
        mask.floor_()
        return x.div(keep) * mask


class Block(nn.Module):
    def __init__(self, dim, heads, drop):
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(dim, eps=1e-6), nn.LayerNorm(dim, eps=1e-6)
        self.heads, self.scale = heads, (dim // heads) ** -0.5
        self.qkv, self.proj = nn.Linear(dim, 3 * dim), nn.Linear(dim, dim)
        self.mlp = nn.Sequential(nn.Linear(dim, 4 * dim), nn.GELU(), nn.Linear(4 * dim, dim))
        self.drop_path = DropPath(drop)

    def attention(self, x):
        B, N, C = x.shape
        q, k, v = self.qkv(x).reshape(B, N, 3, self.heads, C // self.heads).permute(2, 0, 3, 1, 4)
        attn = ((q @ k.transpose(-2, -1)) * self.scale).softmax(dim=-1)
        return self.proj((attn @ v).transpose(1, 2).reshape(B, N, C))

    def forward(self, x):
        x = x + self.drop_path(self.attention(self.norm1(x)))
        return x + self.drop_path(self.mlp(self.norm2(x)))


class VisionTransformer(nn.Module):
    def __init__(self, drop_path_rate=0.0):
        super().__init__()
        self.patch_embed = nn.Conv2d(3, EMBED, kernel_size=PATCH, stride=PATCH)
        self.cls_token = nn.Parameter(torch.zeros(1, 1, EMBED))
        self.pos_embed = nn.Parameter(torch.zeros(1, (GLOBAL // PATCH) ** 2 + 1, EMBED))
        nn.init.trunc_normal_(self.pos_embed, std=0.02)
        nn.init.trunc_normal_(self.cls_token, std=0.02)
        rates = torch.linspace(0, drop_path_rate, DEPTH).tolist()
        self.blocks = nn.ModuleList([Block(EMBED, HEADS, r) for r in rates])
        self.norm = nn.LayerNorm(EMBED, eps=1e-6)

    def positions(self, n, side):
        if n == self.pos_embed.shape[1] - 1:
            return self.pos_embed
        full = int(math.sqrt(self.pos_embed.shape[1] - 1))
        patches = self.pos_embed[:, 1:].reshape(1, full, full, EMBED).permute(0, 3, 1, 2)
        patches = F.interpolate(patches, size=(side, side), mode="bicubic")
        return torch.cat((self.pos_embed[:, :1], patches.permute(0, 2, 3, 1).reshape(1, -1, EMBED)), dim=1)

    def forward(self, x):
        B, _, H, _ = x.shape
        x = self.patch_embed(x).flatten(2).transpose(1, 2)
        x = torch.cat((self.cls_token.expand(B, -1, -1), x), dim=1) + self.positions(x.shape[1], H // PATCH)
        for blk in self.blocks:
            x = blk(x)
        return self.norm(x)[:, 0]


class DINOHead(nn.Module):
    def __init__(self, hidden=2048, bottleneck=256):
        super().__init__()
        self.mlp = nn.Sequential(
            nn.Linear(EMBED, hidden), nn.GELU(), nn.Linear(hidden, hidden), nn.GELU(), nn.Linear(hidden, bottleneck)
        )
        self.last_layer = nn.utils.parametrizations.weight_norm(nn.Linear(bottleneck, OUT_DIM, bias=False))
        self.last_layer.parametrizations.weight.original0.data.fill_(1)
        self.last_layer.parametrizations.weight.original0.requires_grad = False

    def forward(self, x):
        return self.last_layer(F.normalize(self.mlp(x), dim=-1, p=2))


class MultiCropWrapper(nn.Module):
    def __init__(self, backbone, head):
        super().__init__()
        self.backbone, self.head = backbone, head

    def forward(self, x):
        sizes = torch.tensor([crop.shape[-1] for crop in x])
        ends = torch.cumsum(torch.unique_consecutive(sizes, return_counts=True)[1], 0)
        start, out = 0, []
        for end in ends.tolist():
            out.append(self.backbone(torch.cat(x[start:end])))
            start = end
        return self.head(torch.cat(out))


class DINOLoss(nn.Module):
    def __init__(self, crops, student_temp=0.1, center_momentum=0.9):
        super().__init__()
        self.crops, self.student_temp, self.center_momentum = crops, student_temp, center_momentum
        self.register_buffer("center", torch.zeros(1, OUT_DIM))

    def forward(self, student_output, teacher_output, teacher_temp):
        student = (student_output / self.student_temp).chunk(self.crops)
        teacher = F.softmax((teacher_output - self.center) / teacher_temp, dim=-1).detach().chunk(2)
        total, terms = 0, 0
        for i, q in enumerate(teacher):
            for v in range(len(student)):
                if v == i:
                    continue
                total += torch.sum(-q * F.log_softmax(student[v], dim=-1), dim=-1).mean()
                terms += 1
        self.update_center(teacher_output)
        return total / terms

    @torch.no_grad()
    def update_center(self, teacher_output):
        batch_center = torch.sum(teacher_output, dim=0, keepdim=True)
        dist.all_reduce(batch_center)
        batch_center = batch_center / (len(teacher_output) * dist.get_world_size())
        self.center = self.center * self.center_momentum + batch_center * (1 - self.center_momentum)


def cosine_scheduler(base, final, iters):
    return final + 0.5 * (base - final) * (1 + np.cos(np.pi * np.arange(iters) / iters))


def main():
    gpu = int(os.environ["LOCAL_RANK"])
    torch.cuda.set_device(gpu)
    dist.init_process_group("nccl", init_method="env://")
    dist.barrier()
    torch.manual_seed(0)
    np.random.seed(0)
    torch.backends.cudnn.benchmark = True

    student = MultiCropWrapper(VisionTransformer(drop_path_rate=0.1), DINOHead()).cuda()
    teacher = copy.deepcopy(student).cuda()
    for m in teacher.modules():
        if isinstance(m, DropPath):
            m.p = 0.0
    for p in teacher.parameters():
        p.requires_grad = False
    student = DistributedDataParallel(student, device_ids=[gpu], gradient_as_bucket_view=True)
    dino_loss = DINOLoss(LOCAL_CROPS + 2).cuda()

    regularized, not_regularized = [], []
    for name, p in student.named_parameters():
        if p.requires_grad:
            (not_regularized if name.endswith(".bias") or p.ndim == 1 else regularized).append(p)
    optimizer = torch.optim.AdamW([{"params": regularized}, {"params": not_regularized, "weight_decay": 0.0}])
    fp16_scaler = torch.amp.GradScaler("cuda")

    lr_schedule = cosine_scheduler(0.0005 * BATCH * dist.get_world_size() / 256, 1e-6, 1000)
    wd_schedule = cosine_scheduler(0.04, 0.4, 1000)
    momentum_schedule = cosine_scheduler(0.996, 1, 1000)

    torch.manual_seed(dist.get_rank())
    for it in steps():
        for i, group in enumerate(optimizer.param_groups):
            group["lr"] = lr_schedule[it]
            if i == 0:
                group["weight_decay"] = wd_schedule[it]
        images = [torch.randn(BATCH, 3, GLOBAL, GLOBAL, device="cuda") for _ in range(2)]
        images += [torch.randn(BATCH, 3, LOCAL, LOCAL, device="cuda") for _ in range(LOCAL_CROPS)]

        with torch.autocast("cuda", dtype=torch.float16):
            teacher_output = teacher(images[:2])
            student_output = student(images)
            loss = dino_loss(student_output, teacher_output, 0.04)

        if not math.isfinite(loss.item()):
            print(f"Loss is {loss.item()}, stopping training", flush=True)
            sys.exit(1)

        optimizer.zero_grad()
        fp16_scaler.scale(loss).backward()
        fp16_scaler.unscale_(optimizer)
        nn.utils.clip_grad_norm_(student.parameters(), 3.0)
        fp16_scaler.step(optimizer)
        fp16_scaler.update()

        with torch.no_grad():
            m = momentum_schedule[it]
            for param_q, param_k in zip(student.module.parameters(), teacher.parameters()):
                param_k.data.mul_(m).add_((1 - m) * param_q.detach().data)


if __name__ == "__main__":
    main()
