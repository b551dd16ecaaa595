"""Speech recognition: a Conformer with relative positions and CTC, each block under FSDP2, bfloat16 compute."""

import argparse
import math
import os

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.nn import functional as F
from tock import steps


def get_args():
    ap = argparse.ArgumentParser()
    ap.add_argument("--d-model", type=int, default=512)
    ap.add_argument("--heads", type=int, default=8)
    ap.add_argument("--layers", type=int, default=17)
    ap.add_argument("--kernel", type=int, default=31)
    ap.add_argument("--n-mels", type=int, default=80)
    ap.add_argument("--vocab", type=int, default=1024)
    ap.add_argument("--frames", type=int, default=2048)
    ap.add_argument("--batch-size", type=int, default=32)
    ap.add_argument("--max-target", type=int, default=120)
    ap.add_argument("--peak-lr", type=float, default=1e-3)
    return ap.parse_args()


class Subsample(nn.Module):
    def __init__(self, n_mels, d):
        super().__init__()
        self.conv = nn.Sequential(
            nn.Conv2d(1, d, 3, stride=2, padding=1),
            nn.ReLU(),
            nn.Conv2d(d, d, 3, stride=2, padding=1),
            nn.ReLU(),
        )
        self.out = nn.Linear(d * (n_mels // 4), d)

    def forward(self, feats):
        x = self.conv(feats.unsqueeze(1))
        b, c, t, f = x.shape
        return self.out(x.transpose(1, 2).reshape(b, t, c * f))


class RelPosAttention(nn.Module):
    def __init__(self, d, heads, p=0.1):
        super().__init__()
        self.h, self.dk, self.p = heads, d // heads, p
        self.qkv = nn.Linear(d, 3 * d)
        self.pos = nn.Linear(d, d, bias=False)
        self.out = nn.Linear(d, d)
        self.u = nn.Parameter(torch.zeros(heads, 1, d // heads))
        self.v = nn.Parameter(torch.zeros(heads, 1, d // heads))

    @staticmethod
    def rel_shift(x):
        b, h, t, n = x.shape
        x = F.pad(x, (1, 0)).view(b, h, n + 1, t)
        return x[:, :, 1:].reshape(b, h, t, n)[..., :t]

    def forward(self, x, pos_emb, pad_bias):
        b, t, d = x.shape
        q, k, v = self.qkv(x).view(b, t, 3, self.h, self.dk).permute(2, 0, 3, 1, 4)
        p = self.pos(pos_emb).view(-1, self.h, self.dk).permute(1, 2, 0)
        bias = self.rel_shift(torch.matmul(q + self.v, p)) / math.sqrt(self.dk) + pad_bias
        y = F.scaled_dot_product_attention(q + self.u, k, v, attn_mask=bias, dropout_p=self.p if self.training else 0.0)
        return self.out(y.transpose(1, 2).reshape(b, t, d))


class ConvModule(nn.Module):
    def __init__(self, d, kernel):
        super().__init__()
        self.pw1 = nn.Conv1d(d, 2 * d, 1)
        self.dw = nn.Conv1d(d, d, kernel, padding=kernel // 2, groups=d)
        self.norm = nn.GroupNorm(1, d)
        self.pw2 = nn.Conv1d(d, d, 1)

    def forward(self, x, pad_mask):
        x = F.glu(self.pw1(x.transpose(1, 2)), dim=1)
        x = x.masked_fill(pad_mask.unsqueeze(1), 0.0)
        return self.pw2(F.silu(self.norm(self.dw(x)))).transpose(1, 2)


def feed_forward(d):
    return nn.Sequential(
        nn.LayerNorm(d), nn.Linear(d, 4 * d), nn.SiLU(), nn.Dropout(0.1), nn.Linear(4 * d, d), nn.Dropout(0.1)
    )


class ConformerBlock(nn.Module):
    def __init__(self, d, heads, kernel):
        super().__init__()
        self.ff1, self.ff2 = feed_forward(d), feed_forward(d)
        self.attn_norm, self.attn = nn.LayerNorm(d), RelPosAttention(d, heads)
        self.conv_norm, self.conv = nn.LayerNorm(d), ConvModule(d, kernel)
        self.final_norm = nn.LayerNorm(d)
        self.drop = nn.Dropout(0.1)

    def forward(self, x, pos_emb, pad_bias, pad_mask):
        x = x + 0.5 * self.ff1(x)
        x = x + self.drop(self.attn(self.attn_norm(x), pos_emb, pad_bias))
        x = x + self.drop(self.conv(self.conv_norm(x), pad_mask))
        x = x + 0.5 * self.ff2(x)
        return self.final_norm(x)


class Conformer(nn.Module):
    def __init__(self, args):
        super().__init__()
        self.d = args.d_model
        self.subsample = Subsample(args.n_mels, args.d_model)
        self.blocks = nn.ModuleList([ConformerBlock(args.d_model, args.heads, args.kernel) for _ in range(args.layers)])
        self.ctc = nn.Linear(args.d_model, args.vocab)

    def relative_positions(self, t, device):
        pos = torch.arange(t - 1, -t, -1, device=device, dtype=torch.float32).unsqueeze(1)
        inv = torch.exp(torch.arange(0, self.d, 2, device=device).float() * (-math.log(10000.0) / self.d))
        return torch.cat([torch.sin(pos * inv), torch.cos(pos * inv)], dim=1)

    def forward(self, feats, lengths):
        x = self.subsample(feats)
        t = x.shape[1]
        pad_mask = torch.arange(t, device=x.device).unsqueeze(0) >= lengths.unsqueeze(1)
        pad_bias = torch.zeros(pad_mask.shape, device=x.device, dtype=x.dtype)
        pad_bias = pad_bias.masked_fill(pad_mask, -1e4)[:, None, None, :]
        pos_emb = self.relative_positions(t, x.device).to(x.dtype)
        for block in self.blocks:
            x = block(x, pos_emb, pad_bias, pad_mask)
        return self.ctc(x)


def spec_augment(feats):
    b, t, f = feats.shape
    for size, axis in ((27, f), (27, f), (100, t)):
        width = torch.randint(0, min(size, axis), (b, 1), device=feats.device)
        start = (torch.rand(b, 1, device=feats.device) * (axis - width)).long()
        index = torch.arange(axis, device=feats.device)
        mask = (index >= start) & (index < start + width)
        feats = feats.masked_fill(mask.unsqueeze(1) if axis == f else mask.unsqueeze(2), 0.0)
    return feats


def main():
    args = get_args()
    local_rank = int(os.environ["LOCAL_RANK"])
    device = torch.device("cuda", local_rank)
    torch.cuda.set_device(device)
    dist.init_process_group("nccl")
    mesh = init_device_mesh("cuda", (dist.get_world_size(),), mesh_dim_names=("shard",))

    torch.manual_seed(1234)
    model = Conformer(args).to(device)
    mp = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32, output_dtype=torch.bfloat16)
    root_mp = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32, output_dtype=torch.float32)
    for block in model.blocks:
        fully_shard(block, mesh=mesh, mp_policy=mp)
    fully_shard(model, mesh=mesh, mp_policy=root_mp)

    opt = torch.optim.AdamW(model.parameters(), lr=args.peak_lr, betas=(0.9, 0.98), weight_decay=1e-3)
    noam = lambda s: min((s + 1) / 10000, ((s + 1) / 10000) ** -0.5)
    sched = torch.optim.lr_scheduler.LambdaLR(opt, noam)
    ctc_loss = nn.CTCLoss(blank=0, reduction="mean", zero_infinity=True)

    torch.manual_seed(1234 + dist.get_rank())
    model.train()
    for _ in steps():
        feats = torch.randn(args.batch_size, args.frames, args.n_mels, device=device)
        frames = torch.randint(args.frames // 2, args.frames + 1, (args.batch_size,))
        targets = torch.randint(1, args.vocab, (args.batch_size, args.max_target), device=device)
        target_lengths = torch.randint(args.max_target // 4, args.max_target + 1, (args.batch_size,))
        lengths = frames // 4

        logits = model(spec_augment(feats), lengths.to(device, non_blocking=True))
        log_probs = logits.log_softmax(-1).transpose(0, 1)
        loss = ctc_loss(log_probs, targets, lengths, target_lengths)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 5.0)
        opt.step()
        opt.zero_grad()
        sched.step()


if __name__ == "__main__":
    main()
