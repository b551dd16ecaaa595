import argparse
import logging
import math

import torch
import torch.nn as nn
import torch.nn.functional as F

from tick import steps

log = logging.getLogger("hyper")


class CautiousLion(torch.optim.Optimizer):
    def __init__(self, params, lr=1e-4, betas=(0.95, 0.98), weight_decay=0.1):
        super().__init__(params, dict(lr=lr, betas=betas, weight_decay=weight_decay))

    @torch.no_grad()
    def step(self):
        for group in self.param_groups:
            params = [p for p in group["params"] if p.grad is not None]
            grads = [p.grad for p in params]
            for p in params:
                if "m" not in self.state[p]:
                    self.state[p]["m"] = torch.zeros_like(p)
            moments = [self.state[p]["m"] for p in params]
            b1, b2 = group["betas"]
            update = torch._foreach_lerp(moments, grads, 1 - b1)
            update = torch._foreach_sign(update)
            masks = [(u * g > 0).to(u.dtype) for u, g in zip(update, grads)]
            for u, m in zip(update, masks):
                u.mul_(m).mul_(m.numel() / (m.sum() + 1))
            if group["weight_decay"]:
                torch._foreach_mul_(params, 1 - group["lr"] * group["weight_decay"])
            torch._foreach_add_(params, update, alpha=-group["lr"])
            torch._foreach_lerp_(moments, grads, 1 - b2)


class HyperConnection(nn.Module):
    """Dynamic hyper-connections: `n` residual streams, mixed by weights read from the streams themselves."""

    def __init__(self, dim, n, index):
        super().__init__()
        alpha = torch.zeros(n, n + 1)
        alpha[index % n, 0] = 1
        alpha[:, 1:] = torch.eye(n)
        self.static_alpha = nn.Parameter(alpha)
        self.static_beta = nn.Parameter(torch.ones(n))
        self.norm = nn.LayerNorm(dim)
        self.dynamic_alpha = nn.Parameter(torch.zeros(dim, n + 1))
        self.dynamic_beta = nn.Parameter(torch.zeros(dim))
        self.scale_alpha = nn.Parameter(torch.tensor(0.01))
        self.scale_beta = nn.Parameter(torch.tensor(0.01))

    def width(self, h):
        x = self.norm(h)
        alpha = torch.tanh(x @ self.dynamic_alpha) * self.scale_alpha + self.static_alpha
        beta = torch.tanh((x * self.dynamic_beta).sum(-1)) * self.scale_beta + self.static_beta
        mixed = torch.einsum("btnk,btnd->btkd", alpha.to(h.dtype), h)
        return mixed[:, :, 0], mixed[:, :, 1:], beta.to(h.dtype)

    @staticmethod
    def depth(residual, out, beta):
        return residual + beta.unsqueeze(-1) * out.unsqueeze(2)


class GatedAttention(nn.Module):
    def __init__(self, dim, heads, first):
        super().__init__()
        self.heads, self.hd = heads, dim // heads
        self.qkvg = nn.Linear(dim, 4 * dim, bias=False)
        self.proj = nn.Linear(dim, dim, bias=False)
        self.q_norm, self.k_norm = nn.RMSNorm(self.hd), nn.RMSNorm(self.hd)
        self.mix = None if first else nn.Parameter(torch.tensor(0.5))

    def forward(self, x, v0, cos, sin):
        b, t, d = x.shape
        q, k, v, g = self.qkvg(x).chunk(4, -1)
        q, k, v = (y.view(b, t, self.heads, self.hd).transpose(1, 2) for y in (q, k, v))
        if self.mix is not None:
            v = torch.lerp(v0, v, self.mix.to(v.dtype))
        q, k = self.rope(self.q_norm(q), cos, sin), self.rope(self.k_norm(k), cos, sin)
        y = F.scaled_dot_product_attention(q.to(v.dtype), k.to(v.dtype), v, is_causal=True)
        y = y.transpose(1, 2).reshape(b, t, d) * torch.sigmoid(g)
        return self.proj(y), v

    @staticmethod
    def rope(x, cos, sin):
        a, b = x.chunk(2, -1)
        return torch.cat((a * cos - b * sin, a * sin + b * cos), -1)


class Block(nn.Module):
    def __init__(self, dim, heads, n, index):
        super().__init__()
        self.hc1, self.hc2 = HyperConnection(dim, n, 2 * index), HyperConnection(dim, n, 2 * index + 1)
        self.norm1, self.norm2 = nn.RMSNorm(dim), nn.RMSNorm(dim)
        self.attn = GatedAttention(dim, heads, index == 0)
        self.up, self.down = nn.Linear(dim, 4 * dim, bias=False), nn.Linear(4 * dim, dim, bias=False)

    def forward(self, h, v0, cos, sin):
        x, rest, beta = self.hc1.width(h)
        y, v = self.attn(self.norm1(x), v0, cos, sin)
        h = self.hc1.depth(rest, y, beta)
        x, rest, beta = self.hc2.width(h)
        y = self.down(F.relu(self.up(self.norm2(x))).square())
        return self.hc2.depth(rest, y, beta), v


class LM(nn.Module):
    def __init__(self, a):
        super().__init__()
        self.n = a.streams
        self.embed = nn.Embedding(a.vocab, a.dim)
        self.blocks = nn.ModuleList(Block(a.dim, a.heads, a.streams, i) for i in range(a.layers))
        self.norm = nn.RMSNorm(a.dim)
        half = a.dim // a.heads // 2
        angle = torch.arange(a.length)[:, None] / 10000 ** (torch.arange(half) / half)
        self.register_buffer("cos", angle.cos())
        self.register_buffer("sin", angle.sin())
        for p in self.parameters():
            if p.ndim == 2 and min(p.shape) >= 64:
                nn.init.normal_(p, std=0.02)

    def forward(self, ids):
        h = self.embed(ids).bfloat16().unsqueeze(2).expand(-1, -1, self.n, -1)
        v0 = None
        for block in self.blocks:
            h, v = block(h, v0, self.cos, self.sin)
            v0 = v if v0 is None else v0
        return self.norm(h.sum(2))


@torch.compile
def head_loss(x, weight, targets, z=1e-4):
    logits = F.linear(x.flatten(0, 1), weight.to(x.dtype)).float()
    logits = 30 * torch.tanh(logits / 30)
    lse = logits.logsumexp(-1)
    picked = logits.gather(1, targets.flatten().unsqueeze(1)).squeeze(1)
    return (lse - picked).mean(), z * lse.square().mean()


def wsd(step, total=5000, warm=50, decay=0.2):
    if step < warm:
        return (step + 1) / warm
    left = (total - step) / (decay * total)
    return min(1.0, math.sqrt(max(left, 0.0)))


def parse():
    p = argparse.ArgumentParser()
    p.add_argument("--dim", type=int, default=768)
    p.add_argument("--layers", type=int, default=12)
    p.add_argument("--heads", type=int, default=12)
    p.add_argument("--streams", type=int, default=4)
    p.add_argument("--vocab", type=int, default=50304)
    p.add_argument("--length", type=int, default=1024)
    p.add_argument("--batch", type=int, default=8)
    p.add_argument("--lr", type=float, default=2e-4)
    p.add_argument("--device", default="cuda")
    return p.parse_args()


def main():
    args = parse()
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(message)s")
    torch.manual_seed(1337)
    model = LM(args).to(args.device)
    for block in model.blocks:
        block.compile(fullgraph=True)
    matrices = [p for p in model.parameters() if p.ndim >= 2]
    rest = [p for p in model.parameters() if p.ndim < 2]
    opt = CautiousLion([{"params": matrices}, {"params": rest, "weight_decay": 0.0}], lr=args.lr)
    sched = torch.optim.lr_scheduler.LambdaLR(opt, wsd)
    corpus = torch.randint(0, args.vocab, (2_000_000,), device=args.device)
    offsets = torch.arange(args.length + 1, device=args.device)
    for i in steps():
        start = torch.randint(0, corpus.numel() - args.length - 1, (args.batch, 1), device=args.device)
        window = corpus[start + offsets]
        with torch.autocast(args.device, dtype=torch.bfloat16):
            x = model(window[:, :-1])
            loss, z = head_loss(x, model.embed.weight, window[:, 1:])
        (loss + z).backward()
        norm = torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        opt.step()
        sched.step()
        opt.zero_grad(set_to_none=True)
        if i % 25 == 0:
            log.info("step %d loss %.3f norm %.2f lr %.2e", i, loss.item(), norm.item(), sched.get_last_lr()[0])


if __name__ == "__main__":
    main()
