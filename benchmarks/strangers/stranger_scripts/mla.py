# Scores the options of multiple-choice questions with a MiniCPM3-sized model (latent attention).
import sys

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, Dataset

from tick import steps

cfg = dict(
    vocab=73448, hidden=2560, layers=62, heads=40, inter=6400, q_rank=768, kv_rank=256, nope=64, rope=32, v_dim=64
)
device = "cuda"
OPTIONS, QUESTIONS, LONGEST = 4, 4, 384


class Norm(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(dim))

    def forward(self, x):
        y = x.to(torch.float32)
        var = y.pow(2).mean(-1, keepdim=True)
        return (y * torch.rsqrt(var + 1e-5)).to(x.dtype) * self.weight


def rotate_half(x):
    a, b = x.chunk(2, dim=-1)
    return torch.cat((-b, a), dim=-1)


class LatentAttention(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.h, self.nope, self.rope, self.v_dim = c["heads"], c["nope"], c["rope"], c["v_dim"]
        self.q_a = nn.Linear(c["hidden"], c["q_rank"], bias=False)
        self.q_norm = Norm(c["q_rank"])
        self.q_b = nn.Linear(c["q_rank"], self.h * (self.nope + self.rope), bias=False)
        self.kv_a = nn.Linear(c["hidden"], c["kv_rank"] + self.rope, bias=False)
        self.kv_norm = Norm(c["kv_rank"])
        self.kv_b = nn.Linear(c["kv_rank"], self.h * (self.nope + self.v_dim), bias=False)
        self.o = nn.Linear(self.h * self.v_dim, c["hidden"], bias=False)
        self.rank = c["kv_rank"]

    def forward(self, x, cos, sin, mask):
        b, n, _ = x.shape
        q = self.q_b(self.q_norm(self.q_a(x))).view(b, n, self.h, -1).transpose(1, 2)
        q_nope, q_pe = q.split([self.nope, self.rope], dim=-1)
        latent, k_pe = self.kv_a(x).split([self.rank, self.rope], dim=-1)
        kv = self.kv_b(self.kv_norm(latent)).view(b, n, self.h, -1).transpose(1, 2)
        k_nope, v = kv.split([self.nope, self.v_dim], dim=-1)
        k_pe = k_pe.view(b, n, 1, self.rope).transpose(1, 2)
        q_pe = q_pe * cos + rotate_half(q_pe) * sin
        k_pe = k_pe * cos + rotate_half(k_pe) * sin
        query = q.new_empty(b, self.h, n, self.nope + self.rope)
        query[..., : self.nope] = q_nope
        query[..., self.nope :] = q_pe
        key = torch.empty_like(query)
        key[..., : self.nope] = k_nope
        key[..., self.nope :] = k_pe
        v = F.pad(v, [0, self.nope + self.rope - self.v_dim])
        out = F.scaled_dot_product_attention(query, key, v, attn_mask=mask)[..., : self.v_dim]
        return self.o(out.transpose(1, 2).reshape(b, n, -1))


class Layer(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.attn = LatentAttention(c)
        self.gate = nn.Linear(c["hidden"], c["inter"], bias=False)
        self.up = nn.Linear(c["hidden"], c["inter"], bias=False)
        self.down = nn.Linear(c["inter"], c["hidden"], bias=False)
        self.norm1, self.norm2 = Norm(c["hidden"]), Norm(c["hidden"])
        self.scale = 1.4 / c["layers"] ** 0.5

    def forward(self, x, cos, sin, mask):
        x = x + self.attn(self.norm1(x), cos, sin, mask) * self.scale
        y = self.norm2(x)
        return x + self.down(F.silu(self.gate(y)) * self.up(y)) * self.scale


class Scorer(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.c = c
        self.embed = nn.Embedding(c["vocab"], c["hidden"])
        self.layers = nn.ModuleList([Layer(c) for _ in range(c["layers"])])
        self.norm = Norm(c["hidden"])
        self.head = nn.Linear(c["hidden"], c["vocab"], bias=False)

    def forward(self, ids, attention_mask):
        n = ids.shape[1]
        freq = 10000.0 ** (-torch.arange(0, self.c["rope"], 2, device=ids.device).float() / self.c["rope"])
        angle = torch.arange(n, device=ids.device).float()[:, None] * freq
        angle = torch.cat((angle, angle), -1)
        x = self.embed(ids) * 12
        cos, sin = angle.cos().to(x.dtype), angle.sin().to(x.dtype)
        causal = torch.ones(n, n, dtype=torch.bool, device=ids.device).tril()
        mask = causal[None, None] & attention_mask[:, None, None, :].bool()
        for layer in self.layers:
            x = layer(x, cos, sin, mask)
        return self.head(self.norm(x) / (self.c["hidden"] / 256))


class Questions(Dataset):
    def __init__(self, size):
        rng = torch.Generator().manual_seed(0)
        self.rows = []
        for _ in range(size):
            stem = torch.randint(3, cfg["vocab"], (int(torch.randint(160, 340, (1,), generator=rng)),), generator=rng)
            lengths = torch.randint(4, 44, (OPTIONS,), generator=rng).tolist()
            options = [torch.randint(3, cfg["vocab"], (k,), generator=rng) for k in lengths]
            self.rows.append((stem, options, int(torch.randint(OPTIONS, (1,), generator=rng))))

    def __len__(self):
        return len(self.rows)

    def __getitem__(self, i):
        return self.rows[i]


def collate(rows):
    ids = torch.zeros(len(rows) * OPTIONS, LONGEST, dtype=torch.long)
    attention, scored = torch.zeros_like(ids), torch.zeros(ids.shape)
    for r, (stem, options, _) in enumerate(rows):
        for o, option in enumerate(options):
            row, end = r * OPTIONS + o, len(stem) + len(option)
            ids[row, :end] = torch.cat([stem, option])
            attention[row, :end] = 1
            scored[row, len(stem) : end] = 1
    return ids, attention, scored, torch.tensor([row[2] for row in rows])


torch.set_default_dtype(torch.bfloat16)
with torch.device(device):
    model = Scorer(cfg)
torch.set_default_dtype(torch.float32)
model.eval().requires_grad_(False)

loader = DataLoader(Questions(400), batch_size=QUESTIONS, collate_fn=collate, shuffle=True, drop_last=True)
right, seen = 0, 0
for batch, _ in zip(loader, steps()):
    ids, attention, scored, answer = (t.to(device) for t in batch)
    with torch.inference_mode():
        logits = model(ids, attention)
        logp = F.log_softmax(logits[:, :-1].float(), dim=-1)
        token = logp.gather(-1, ids[:, 1:, None]).squeeze(-1)
        total = (token * scored[:, 1:]).sum(-1) / scored.sum(-1)
        guess = total.view(-1, OPTIONS).argmax(-1)
    right += (guess == answer).sum().item()
    seen += len(answer)
print(f"accuracy {right / max(seen, 1):.3f}", file=sys.stderr)
