"""LM with trainable sparse attention: pooled blocks, top-k picked blocks per query block, sliding window."""

import torch
import torch.nn as nn
import torch.nn.functional as F
from tick import steps

VOCAB, DIM, DEPTH, HQ, HKV, HD = 50304, 1024, 12, 16, 4, 64
SEQ, BS, BLOCK, TOPK, WINDOW = 8192, 1, 64, 16, 8
NB, REP = SEQ // BLOCK, HQ // HKV


class Compress(nn.Module):
    def __init__(self):
        super().__init__()
        self.pos = nn.Parameter(torch.zeros(BLOCK, HD))
        self.net = nn.Sequential(nn.Linear(BLOCK * HD, 4 * HD), nn.GELU(), nn.Linear(4 * HD, HD))

    def forward(self, blocks):
        return self.net((blocks + self.pos).flatten(-2))


def pick(blocks, idx):
    """blocks: (b, g, nb, block, d); idx: (b, g, nb, n) -> (b, g, nb, n * block, d)"""
    b, g, nb, s, d = blocks.shape
    flat = idx.reshape(b, g, -1, 1).expand(-1, -1, -1, s * d)
    return blocks.flatten(-2).gather(2, flat).view(b, g, nb, idx.shape[-1] * s, d)


class SparseAttention(nn.Module):
    def __init__(self):
        super().__init__()
        self.q = nn.Linear(DIM, HQ * HD, bias=False)
        self.kv = nn.Linear(DIM, 2 * HKV * HD, bias=False)
        self.gate = nn.Linear(DIM, 3 * HQ)
        self.out = nn.Linear(HQ * HD, DIM, bias=False)
        self.ck, self.cv = Compress(), Compress()
        n = torch.arange(NB)
        t = torch.arange(SEQ)
        self.register_buffer("past", (n + 1)[None] * BLOCK - 1 <= t[:, None], persistent=False)
        self.register_buffer("earlier", n[None] < n[:, None], persistent=False)
        near = n[:, None] - torch.arange(WINDOW - 1, -1, -1)
        self.register_buffer("near", near, persistent=False)

    def block_attention(self, q, kb, vb, idx, valid):
        # q: (b, g, rep, nb, block, d)
        b = q.shape[0]
        k, v = pick(kb, idx), pick(vb, idx)
        keys = (idx[..., None] * BLOCK + torch.arange(BLOCK, device=q.device)).flatten(-2)
        rows = torch.arange(SEQ, device=q.device).view(NB, BLOCK, 1)
        mask = (keys[:, :, :, None] <= rows) & valid.repeat_interleave(BLOCK, -1)[:, :, :, None]
        q = q.permute(0, 1, 3, 2, 4, 5).reshape(b * HKV * NB, 1, REP * BLOCK, HD)
        mask = mask.repeat(1, 1, 1, REP, 1).view(b * HKV * NB, 1, REP * BLOCK, -1)
        n = k.shape[-2]
        y = F.scaled_dot_product_attention(q, k.reshape(-1, 1, n, HD), v.reshape(-1, 1, n, HD), attn_mask=mask)
        return y.view(b, HKV, NB, REP, BLOCK, HD).permute(0, 2, 4, 1, 3, 5).reshape(b, SEQ, HQ, HD)

    def forward(self, x):
        b = x.shape[0]
        q = self.q(x).view(b, SEQ, HKV, REP, HD).permute(0, 2, 3, 1, 4)
        k, v = self.kv(x).view(b, NB, BLOCK, 2, HKV, HD).permute(3, 0, 4, 1, 2, 5).unbind(0)
        ck, cv = self.ck(k), self.cv(v)
        score = torch.einsum("bgrtd,bgnd->bgrtn", q, ck).float() * HD**-0.5
        p = score.masked_fill(~self.past, -1e30).softmax(-1) * self.past
        coarse = torch.einsum("bgrtn,bgnd->btgrd", p.to(cv.dtype), cv).reshape(b, SEQ, HQ, HD)
        with torch.no_grad():
            importance = p.sum(2).unflatten(2, (NB, BLOCK)).sum(3)
            importance = importance.masked_fill(~self.earlier, -1.0)
            importance = importance + torch.eye(NB, device=x.device) * 1e4
            value, idx = importance.topk(min(TOPK, NB), -1)
            valid = value >= 0
        qb = q.unflatten(3, (NB, BLOCK))
        fine = self.block_attention(qb, k, v, idx, valid)
        near = self.near.expand(b, HKV, -1, -1)
        local = self.block_attention(qb, k, v, near.clamp(min=0), near >= 0)
        g = self.gate(x).sigmoid().view(b, SEQ, 3, HQ, 1)
        return self.out((g[:, :, 0] * coarse + g[:, :, 1] * fine + g[:, :, 2] * local).flatten(2))


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.n1, self.n2 = nn.RMSNorm(DIM), nn.RMSNorm(DIM)
        self.attn = SparseAttention()
        self.up, self.down = nn.Linear(DIM, 4 * DIM, bias=False), nn.Linear(4 * DIM, DIM, bias=False)

    def forward(self, x):
        x = x + self.attn(self.n1(x))
        return x + self.down(F.relu(self.up(self.n2(x))).square())


class LM(nn.Module):
    def __init__(self):
        super().__init__()
        self.tok, self.pos = nn.Embedding(VOCAB, DIM), nn.Embedding(SEQ, DIM)
        self.blocks = nn.ModuleList(Block() for _ in range(DEPTH))
        self.norm = nn.RMSNorm(DIM)

    def forward(self, ids):
        x = self.tok(ids) + self.pos.weight
        for block in self.blocks:
            x = block(x)
        return F.linear(self.norm(x), self.tok.weight)


def loss_in_chunks(logits, target, chunks=4):
    parts = zip(logits.flatten(0, 1).chunk(chunks), target.flatten().chunk(chunks))
    return sum(F.cross_entropy(a.float(), b, reduction="sum") for a, b in parts) / target.numel()


torch.manual_seed(0)
model = LM().to("cuda", torch.bfloat16)
for block in model.blocks:
    block.compile()
optimizer = torch.optim.AdamW(model.parameters(), lr=2e-4, betas=(0.9, 0.95), weight_decay=0.1, fused=True)
scheduler = torch.optim.lr_scheduler.OneCycleLR(optimizer, 2e-4, total_steps=5000, pct_start=0.05)
for step in steps():
    ids = torch.randint(VOCAB, (BS, SEQ + 1), device="cuda")
    loss = loss_in_chunks(model(ids[:, :-1]), ids[:, 1:])
    loss.backward()
    optimizer.step()
    scheduler.step()
    optimizer.zero_grad(set_to_none=True)
