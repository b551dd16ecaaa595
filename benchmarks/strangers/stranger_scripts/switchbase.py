import math

import torch
import torch.nn as nn
import torch.nn.functional as F
from tick import steps

VOCAB, DIM, HEADS, HEAD, FF, EXPERTS, LAYERS = 32128, 1024, 16, 64, 2816, 8, 12
BATCH, LENGTH, BUCKETS, FAR = 16, 1024, 32, 128


class RMSNorm(nn.Module):
    def __init__(self, dim, eps=1e-6):
        super().__init__()
        self.scale, self.eps = nn.Parameter(torch.ones(dim)), eps

    def forward(self, x):
        h = x.float()
        h = h * torch.rsqrt(h.pow(2).mean(-1, keepdim=True) + self.eps)
        return (h * self.scale).to(x.dtype)


class RelativeBias(nn.Module):
    """T5's logarithmic buckets, one direction only."""

    def __init__(self):
        super().__init__()
        self.table = nn.Embedding(BUCKETS, HEADS)
        position = torch.arange(LENGTH)
        back = (position[:, None] - position[None, :]).clamp(min=0)
        exact = BUCKETS // 2
        far = exact + (back.clamp(min=1).float() / exact).log() / math.log(FAR / exact) * (BUCKETS - exact)
        bucket = torch.where(back < exact, back, far.long().clamp(max=BUCKETS - 1))
        self.register_buffer("bucket", bucket)
        self.register_buffer("future", position[None, :] > position[:, None])

    def forward(self):
        bias = self.table(self.bucket).permute(2, 0, 1)
        return bias.masked_fill(self.future, float("-inf"))[None]


class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.q = nn.Linear(DIM, HEADS * HEAD, bias=False)
        self.k = nn.Linear(DIM, HEADS * HEAD, bias=False)
        self.v = nn.Linear(DIM, HEADS * HEAD, bias=False)
        self.o = nn.Linear(HEADS * HEAD, DIM, bias=False)

    def forward(self, x, bias):
        b, n, _ = x.shape
        q, k, v = (f(x).view(b, n, HEADS, HEAD).transpose(1, 2) for f in (self.q, self.k, self.v))
        bias = bias.to(q.dtype).expand(b, -1, -1, -1)
        y = F.scaled_dot_product_attention(q, k, v, attn_mask=bias)
        return self.o(y.transpose(1, 2).reshape(b, n, -1))


class SwiGLU(nn.Module):
    def __init__(self):
        super().__init__()
        self.gate = nn.Linear(DIM, FF, bias=False)
        self.up = nn.Linear(DIM, FF, bias=False)
        self.down = nn.Linear(FF, DIM, bias=False)

    def forward(self, x):
        return self.down(F.silu(self.gate(x)) * self.up(x)), x.new_zeros((), dtype=torch.float32)


class SwitchFFN(nn.Module):
    def __init__(self):
        super().__init__()
        self.router = nn.Linear(DIM, EXPERTS, bias=False)
        self.experts = nn.ModuleList(SwiGLU() for _ in range(EXPERTS))

    def forward(self, x):
        flat = x.reshape(-1, DIM)
        with torch.autocast(x.device.type, enabled=False):
            noisy = flat.float() * torch.empty_like(flat, dtype=torch.float32).uniform_(0.99, 1.01)
            logits = self.router(noisy)
        probs = logits.softmax(-1)
        weight, chosen = probs.max(-1)
        order = chosen.argsort()
        counts = torch.bincount(chosen, minlength=EXPERTS)
        out = torch.zeros_like(flat)
        for expert, where in zip(self.experts, order.split(counts.tolist())):
            y, _ = expert(flat[where])
            out.index_add_(0, where, (y * weight[where, None]).to(out.dtype))
        share = counts.float() / len(flat)
        balance = EXPERTS * (share * probs.mean(0)).sum()
        z = torch.logsumexp(logits, -1).pow(2).mean()
        return out.view_as(x), 0.01 * balance + 0.001 * z


class Layer(nn.Module):
    def __init__(self, sparse):
        super().__init__()
        self.norm1, self.norm2 = RMSNorm(DIM), RMSNorm(DIM)
        self.attention = Attention()
        self.ffn = SwitchFFN() if sparse else SwiGLU()

    def forward(self, x, bias):
        x = x + F.dropout(self.attention(self.norm1(x), bias), 0.1)
        y, extra = self.ffn(self.norm2(x))
        return x + F.dropout(y, 0.1), extra


class SwitchLM(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(VOCAB, DIM)
        self.bias = RelativeBias()
        self.layers = nn.ModuleList(Layer(i % 2 == 1) for i in range(LAYERS))
        self.norm = RMSNorm(DIM)
        for m in self.modules():
            if isinstance(m, nn.Linear):
                nn.init.trunc_normal_(m.weight, std=math.sqrt(0.1 / m.in_features))

    def forward(self, ids):
        x, bias, extra = self.embed(ids), self.bias(), 0.0
        for layer in self.layers:
            x, e = layer(x, bias)
            extra = extra + e
        return F.linear(self.norm(x) * DIM**-0.5, self.embed.weight), extra


class Adafactor:
    def __init__(self, params, lr=1e-2, decay=0.8, clip=1.0, eps=(1e-30, 1e-3)):
        self.params, self.lr, self.decay, self.clip, self.eps = list(params), lr, decay, clip, eps
        self.count = 0
        self.state = []
        for p in self.params:
            if p.ndim >= 2:
                self.state.append((p.new_zeros(p.shape[:-1]), p.new_zeros(p.shape[-1:])))
            else:
                self.state.append(torch.zeros_like(p))

    @torch.no_grad()
    def step(self):
        self.count += 1
        beta = 1 - self.count**-self.decay
        rate = min(self.lr, self.count**-0.5)
        for p, state in zip(self.params, self.state):
            if p.grad is None:
                continue
            g = p.grad
            square = g.square().add_(self.eps[0])
            if p.ndim >= 2:
                row, col = state
                row.lerp_(square.mean(-1), 1 - beta)
                col.lerp_(square.mean(0), 1 - beta)
                r = (row / row.mean()).rsqrt_().unsqueeze(-1)
                update = g * r * col.rsqrt()
            else:
                state.lerp_(square, 1 - beta)
                update = g * state.rsqrt()
            rms = update.norm() / update.numel() ** 0.5
            update.div_((rms / self.clip).clamp_(min=1.0))
            scale = (p.norm() / p.numel() ** 0.5).clamp_(min=self.eps[1])
            p.sub_(update.mul_(scale * rate))
            p.grad = None


torch.manual_seed(0)
model = SwitchLM().cuda()
optimizer = Adafactor(model.parameters())
corpus = torch.randint(0, VOCAB, (2_000_000,), dtype=torch.int32)
offsets = torch.arange(LENGTH + 1)
for step in steps():
    start = torch.randint(0, len(corpus) - LENGTH - 1, (BATCH, 1))
    tokens = corpus[start + offsets].cuda().long()
    with torch.autocast("cuda", torch.bfloat16):
        logits, extra = model(tokens[:, :-1])
        loss = F.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten())
    (loss + extra).backward()
    optimizer.step()
