import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, Dataset
from tick import steps

VOCAB, PAD, MASK, CLS, EOS = 33, 1, 32, 0, 2
MAXLEN, BATCH, ACCUM = 512, 24, 2


class Proteins(Dataset):
    def __len__(self):
        return 100000

    def __getitem__(self, i):
        n = int(torch.randint(120, 900, ()))
        seq = torch.randint(4, 24, (min(n, MAXLEN - 2),))
        ids = torch.full((MAXLEN,), PAD)
        ids[0], ids[1 : len(seq) + 1], ids[len(seq) + 1] = CLS, seq, EOS
        return ids


def mask_tokens(ids, p=0.15):
    labels = ids.clone()
    chosen = (torch.rand(ids.shape) < p) & (ids > 3)
    labels[~chosen] = -100
    u = torch.rand(ids.shape)
    ids = ids.masked_fill(chosen & (u < 0.8), MASK)
    swap = chosen & (u >= 0.8) & (u < 0.9)
    ids[swap] = torch.randint(4, 24, (int(swap.sum()),))
    return ids, labels


class Rotary(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.register_buffer("inv_freq", 1.0 / 10000 ** (torch.arange(0, dim, 2).float() / dim))

    def forward(self, q, k):
        t = torch.arange(q.shape[-2], device=q.device).float()
        f = torch.einsum("i,j->ij", t, self.inv_freq.float())
        emb = torch.cat((f, f), -1)
        cos, sin = emb.cos().to(q.dtype), emb.sin().to(q.dtype)
        rot = lambda x: torch.cat((-x[..., x.shape[-1] // 2 :], x[..., : x.shape[-1] // 2]), -1)
        return q * cos + rot(q) * sin, k * cos + rot(k) * sin


class Layer(nn.Module):
    def __init__(self, d, h):
        super().__init__()
        self.h, self.rot = h, Rotary(d // h)
        self.ln1, self.ln2 = nn.LayerNorm(d), nn.LayerNorm(d)
        self.q, self.k, self.v, self.o = (nn.Linear(d, d) for _ in range(4))
        self.fc1, self.fc2 = nn.Linear(d, 4 * d), nn.Linear(4 * d, d)

    def forward(self, x, mask):
        y = self.ln1(x)
        q, k, v = (f(y).unflatten(-1, (self.h, -1)).transpose(1, 2) for f in (self.q, self.k, self.v))
        q, k = self.rot(q, k)
        x = x + self.o(F.scaled_dot_product_attention(q, k, v, attn_mask=mask).transpose(1, 2).flatten(2))
        return x + self.fc2(F.gelu(self.fc1(self.ln2(x))))


class ESM(nn.Module):
    def __init__(self, d=640, layers=12, heads=20):
        super().__init__()
        self.emb = nn.Embedding(VOCAB, d, padding_idx=PAD)
        self.layers = nn.ModuleList(Layer(d, heads) for _ in range(layers))
        self.norm, self.dense, self.norm2 = nn.LayerNorm(d), nn.Linear(d, d), nn.LayerNorm(d)
        self.bias = nn.Parameter(torch.zeros(VOCAB))

    def forward(self, ids):
        pad = ids.eq(PAD)
        x = self.emb(ids).masked_fill((ids == MASK)[..., None], 0.0)
        ratio = (ids == MASK).sum(-1) / (~pad).sum(-1)
        x = (x * (1 - 0.15 * 0.8) / (1 - ratio)[:, None, None]).to(x.dtype) * (~pad)[..., None]
        for layer in self.layers:
            x = layer(x, ~pad[:, None, None, :])
        return F.linear(self.norm2(F.gelu(self.dense(self.norm(x)))), self.emb.weight, self.bias)


model = ESM().to("cuda", torch.bfloat16)
model = torch.compile(model)
opt = torch.optim.AdamW(model.parameters(), lr=4e-4, betas=(0.9, 0.98), weight_decay=0.01, fused=True)
loader = iter(DataLoader(Proteins(), BATCH, num_workers=4, pin_memory=True, drop_last=True))
for i in steps():
    for _ in range(ACCUM):
        ids, labels = mask_tokens(next(loader))
        logits = model(ids.cuda(non_blocking=True))
        loss = F.cross_entropy(logits.view(-1, VOCAB).float(), labels.cuda(non_blocking=True).view(-1))
        (loss / ACCUM).backward()
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    opt.step()
    opt.zero_grad()
