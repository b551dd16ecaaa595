import random

import torch
from torch import nn
from torch.nn import functional as F
from tick import steps

VOCAB, HIDDEN, LAYERS, HEADS, INTER = 30522, 768, 12, 12, 3072
QUERIES, ACCUMULATE = 16, 2
Q_LEN, D_LEN = (6, 32), (60, 180)
LAMBDA_Q, LAMBDA_D, WARM = 3e-4, 1e-4, 50
device = "cuda"


class Embeddings(nn.Module):
    def __init__(self):
        super().__init__()
        self.word = nn.Embedding(VOCAB, HIDDEN, padding_idx=0)
        self.position = nn.Embedding(512, HIDDEN)
        self.kind = nn.Embedding(2, HIDDEN)
        self.norm = nn.LayerNorm(HIDDEN, eps=1e-12)
        self.drop = nn.Dropout(0.1)

    def forward(self, ids):
        where = torch.arange(ids.shape[1], device=ids.device)
        x = self.word(ids) + self.position(where) + self.kind(torch.zeros_like(ids))
        return self.drop(self.norm(x))


class SelfAttention(nn.Module):
    def __init__(self):
        super().__init__()
        self.query, self.key, self.value = (nn.Linear(HIDDEN, HIDDEN) for _ in range(3))
        self.dense = nn.Linear(HIDDEN, HIDDEN)
        self.norm = nn.LayerNorm(HIDDEN, eps=1e-12)
        self.drop = nn.Dropout(0.1)

    def heads(self, x):
        return x.view(*x.shape[:2], HEADS, -1).transpose(1, 2)

    def forward(self, x, mask):
        q, k, v = self.heads(self.query(x)), self.heads(self.key(x)), self.heads(self.value(x))
        y = F.scaled_dot_product_attention(q, k, v, attn_mask=mask, dropout_p=0.1 if self.training else 0.0)
        y = y.transpose(1, 2).flatten(2)
        return self.norm(x + self.drop(self.dense(y)))


class Layer(nn.Module):
    def __init__(self):
        super().__init__()
        self.attention = SelfAttention()
        self.up, self.down = nn.Linear(HIDDEN, INTER), nn.Linear(INTER, HIDDEN)
        self.norm = nn.LayerNorm(HIDDEN, eps=1e-12)
        self.drop = nn.Dropout(0.1)

    def forward(self, x, mask):
        x = self.attention(x, mask)
        return self.norm(x + self.drop(self.down(F.gelu(self.up(x)))))


class Splade(nn.Module):
    def __init__(self):
        super().__init__()
        self.embeddings = Embeddings()
        self.layers = nn.ModuleList(Layer() for _ in range(LAYERS))
        self.transform = nn.Sequential(nn.Linear(HIDDEN, HIDDEN), nn.GELU(), nn.LayerNorm(HIDDEN, eps=1e-12))
        self.decoder = nn.Linear(HIDDEN, VOCAB)
        self.apply(self.reset)
        self.decoder.weight = self.embeddings.word.weight

    @staticmethod
    def reset(m):
        if isinstance(m, (nn.Linear, nn.Embedding)):
            nn.init.normal_(m.weight, std=0.02)
        if isinstance(m, nn.Linear):
            nn.init.zeros_(m.bias)

    def forward(self, ids, attention_mask):
        x = self.embeddings(ids)
        mask = attention_mask[:, None, None, :].bool()
        for layer in self.layers:
            x = layer(x, mask)
        logits = self.decoder(self.transform(x))
        values = torch.log1p(torch.relu(logits)) * attention_mask.unsqueeze(-1)
        return values.max(dim=1).values


def flops(reps):
    return (reps.abs().mean(0) ** 2).sum()


def collate(count, bounds):
    rows = [torch.randint(1000, VOCAB, (random.randint(*bounds),)) for _ in range(count)]
    ids = nn.utils.rnn.pad_sequence(rows, batch_first=True)
    return ids.to(device, non_blocking=True), (ids > 0).long().to(device, non_blocking=True)


random.seed(0)
torch.manual_seed(0)
model = Splade().to(device).train()
no_decay = [p for p in model.parameters() if p.ndim < 2]
decay = [p for p in model.parameters() if p.ndim >= 2]
optimizer = torch.optim.AdamW(
    [{"params": decay, "weight_decay": 0.01}, {"params": no_decay, "weight_decay": 0.0}], lr=2e-5
)
scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda s: min((s + 1) / 20, max(0.0, 1 - s / 10000)))
scaler = torch.amp.GradScaler(device)
log = {"margin": 0.0, "q": 0.0, "d": 0.0}

for step in steps():
    ramp = min(1.0, (step / WARM) ** 2)
    optimizer.zero_grad()
    for _ in range(ACCUMULATE):
        queries, documents = collate(QUERIES, Q_LEN), collate(2 * QUERIES, D_LEN)
        teacher = torch.randn(QUERIES, device=device) * 4 + 6
        with torch.autocast(device, dtype=torch.float16):
            q = model(*queries)
            d = model(*documents)
        q, d = q.float(), d.float()
        positive, negative = d.chunk(2)
        in_batch = q @ positive.t()
        margin = in_batch.diagonal() - (q * negative).sum(-1)
        rank = F.mse_loss(margin, teacher)
        contrast = F.cross_entropy(in_batch, torch.arange(QUERIES, device=device))
        loss = 0.05 * rank + contrast + ramp * (LAMBDA_Q * flops(q) + LAMBDA_D * flops(d))
        scaler.scale(loss / ACCUMULATE).backward()
        with torch.no_grad():
            log["margin"] += margin.mean().item()
            log["q"] += (q > 0).sum(1).float().mean().item()
            log["d"] += (d > 0).sum(1).float().mean().item()
    scaler.unscale_(optimizer)
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    scaler.step(optimizer)
    scaler.update()
    scheduler.step()
print({k: round(v, 2) for k, v in log.items()})
