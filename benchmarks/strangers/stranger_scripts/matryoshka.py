import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F
from tick import steps

rng = np.random.default_rng(1)
dim, heads, layers, vocab, queries = 768, 12, 12, 50368, 128
query_range, doc_range = (8, 32), (64, 256)
widths = (768, 512, 256, 128, 64)


class Pack:
    """Sequences of differing lengths laid end to end, and the ways to a padded layout and back."""

    def __init__(self, lengths, longest):
        lengths = torch.from_numpy(lengths)
        cu = F.pad(lengths.cumsum(0), (1, 0))
        self.total, self.count, self.longest = int(cu[-1]), len(lengths), longest
        slot = torch.arange(self.total) - torch.repeat_interleave(cu[:-1], lengths)
        seq = torch.repeat_interleave(torch.arange(self.count), lengths)
        packed = torch.stack([slot, seq, seq * longest + slot]).pin_memory().cuda(non_blocking=True)
        self.position, self.seq, self.index = packed
        self.cu = cu.pin_memory().cuda(non_blocking=True)
        cols = torch.arange(longest, device=self.cu.device)
        self.mask = (cols < self.cu.diff()[:, None])[:, None, None, :]

    def pad(self, x):
        out = x.new_zeros(self.count * self.longest, *x.shape[1:])
        return out.index_copy(0, self.index, x).unflatten(0, (self.count, self.longest))

    def unpad(self, x):
        return x.flatten(0, 1)[self.index]

    def mean(self, x):
        total = x.new_zeros(self.count, x.shape[-1]).index_add(0, self.seq, x)
        return total / self.cu.diff()[:, None]


def rope(x, cos, sin):
    a, b = x.chunk(2, -1)
    return torch.cat([a * cos - b * sin, b * cos + a * sin], -1)


class Block(nn.Module):
    def __init__(self, first):
        super().__init__()
        self.norm1 = nn.Identity() if first else nn.LayerNorm(dim, bias=False)
        self.norm2 = nn.LayerNorm(dim, bias=False)
        self.qkv, self.out = nn.Linear(dim, 3 * dim, bias=False), nn.Linear(dim, dim, bias=False)
        self.wi, self.wo = nn.Linear(dim, 2 * 1152, bias=False), nn.Linear(1152, dim, bias=False)

    def forward(self, x, packs, cos, sin):
        qkv = self.qkv(self.norm1(x)).view(len(x), 3, heads, -1)
        q, k = rope(qkv[:, 0], cos, sin), rope(qkv[:, 1], cos, sin)
        qkv = torch.stack([q, k, qkv[:, 2]], 1).to(qkv.dtype)
        outs = []
        for pack, part in zip(packs, qkv.split([p.total for p in packs])):
            q, k, v = pack.pad(part).permute(2, 0, 3, 1, 4)
            y = F.scaled_dot_product_attention(q, k, v, attn_mask=pack.mask)
            outs.append(pack.unpad(y.transpose(1, 2)))
        x = x + self.out(torch.cat(outs).flatten(1))
        gate, up = self.wi(self.norm2(x)).chunk(2, -1)
        return x + self.wo(F.gelu(gate) * up)


class Encoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed, self.norm = nn.Embedding(vocab, dim), nn.LayerNorm(dim, bias=False)
        self.blocks = nn.ModuleList(Block(i == 0) for i in range(layers))
        self.final = nn.LayerNorm(dim, bias=False)
        angles = torch.outer(torch.arange(doc_range[1]), 10000 ** -(torch.arange(0, 1, 2 * heads / dim)))
        self.register_buffer("cos", angles.cos())
        self.register_buffer("sin", angles.sin())

    def forward(self, ids, packs):
        position = torch.cat([p.position for p in packs])
        cos, sin = self.cos[position][:, None], self.sin[position][:, None]
        x = self.norm(self.embed(ids))
        for block in self.blocks:
            x = block(x, packs, cos, sin)
        x = self.final(x).float().split([p.total for p in packs])
        return [p.mean(y) for p, y in zip(packs, x)]


@torch.compile
def matryoshka_loss(q, d, teacher, weights):
    """`d` holds the positives, then a hard negative per query. Likely false negatives are left out."""
    labels = torch.arange(len(q), device=q.device)
    loss = 0.0
    for w in widths:
        a, b = F.normalize(q[:, :w], dim=-1), F.normalize(d[:, :w], dim=-1)
        sim = a @ b.t()
        own = torch.arange(len(d), device=q.device)[None] == labels[:, None]
        too_close = (teacher > teacher.gather(1, labels[:, None]) - 0.05) & ~own
        logits = torch.where(too_close, -1e4, sim / 0.02)
        each = F.cross_entropy(logits, labels, reduction="none")
        each = torch.where(each > 10.0, 10.0 + 0.1 * (each - 10.0), each)
        loss = loss + (each * weights).sum() / weights.sum()
    return loss / len(widths)


def lengths_of(n, low, high):
    return np.clip(rng.lognormal(np.log((low + high) / 2.2), 0.4, n), low, high).astype(np.int64)


model = Encoder().cuda()
decayed = [p for p in model.parameters() if p.ndim > 1]
plain = [p for p in model.parameters() if p.ndim == 1]
optim = torch.optim.AdamW(
    [{"params": decayed, "weight_decay": 0.01}, {"params": plain, "weight_decay": 0.0}], lr=2e-5, eps=1e-6
)
history = []
for step in steps():
    packs = [
        Pack(lengths_of(queries, *query_range), query_range[1]),
        Pack(lengths_of(2 * queries, *doc_range), doc_range[1]),
    ]
    ids = torch.from_numpy(rng.integers(0, vocab, sum(p.total for p in packs))).pin_memory().cuda(non_blocking=True)
    teacher = torch.rand(queries, 2 * queries, device=ids.device)
    teacher[:, :queries].fill_diagonal_(1.0)
    weights = torch.rand(queries, device=ids.device) + 0.5
    with torch.autocast("cuda", dtype=torch.bfloat16):
        q, d = model(ids, packs)
    loss = matryoshka_loss(q, d, teacher, weights)
    loss.backward()
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optim.step()
    optim.zero_grad()
    history.append(loss.item())
print(sum(history[-10:]) / 10)
