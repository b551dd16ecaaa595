import torch, torch.nn as nn, torch.nn.functional as F
from tick import steps

ITEMS, TAGS, D, HEADS, LAYERS, LENGTH, BATCH, NEGATIVES = 2000000, 50000, 256, 4, 8, 256, 128, 2048


class HSTULayer(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm, self.attn_norm = nn.LayerNorm(D), nn.LayerNorm(D)
        self.uvqk, self.out = nn.Linear(D, 4 * D, bias=False), nn.Linear(D, D)
        self.pos_bias = nn.Parameter(torch.randn(2 * LENGTH - 1) * 0.02)
        self.time_bias = nn.Parameter(torch.randn(64) * 0.02)

    def forward(self, x, buckets, relative, mask):
        b, n, _ = x.shape
        u, v, q, k = F.silu(self.uvqk(self.norm(x))).chunk(4, -1)
        q, k, v = (y.view(b, n, HEADS, -1).transpose(1, 2) for y in (q, k, v))
        bias = self.pos_bias[relative] + self.time_bias[buckets][:, None]
        scores = F.silu(q @ k.transpose(-1, -2) + bias) / n
        scores = scores.masked_fill(~mask, 0)
        y = (scores.to(v.dtype) @ v).transpose(1, 2).reshape(b, n, D)
        return x + self.out(F.dropout(u * self.attn_norm(y), 0.1, self.training))


class HSTU(nn.Module):
    def __init__(self):
        super().__init__()
        self.pos = nn.Embedding(LENGTH, D)
        self.layers = nn.ModuleList(HSTULayer() for _ in range(LAYERS))
        n = torch.arange(LENGTH)
        self.register_buffer("relative", n[:, None] - n[None] + LENGTH - 1)
        self.register_buffer("causal", n[:, None] >= n[None])

    def forward(self, x, times, lengths):
        gaps = (times[:, :, None] - times[:, None, :]).abs().clamp(min=1)
        buckets = (gaps.float().log() / 0.301).long().clamp(0, 63)
        valid = torch.arange(LENGTH, device=x.device) < lengths[:, None]
        mask = self.causal & valid[:, None, None, :]
        x = F.dropout(x + self.pos.weight, 0.2, self.training) * valid[..., None]
        for layer in self.layers:
            x = layer(x, buckets, self.relative, mask)
        return F.normalize(x.float(), dim=-1)


items = nn.Embedding(ITEMS, D, sparse=True, device="cuda")
tags = nn.EmbeddingBag(TAGS, D, mode="mean", device="cuda")
nn.init.normal_(items.weight, std=0.02)
model = HSTU().cuda()
net = torch.compile(model)
dense = torch.optim.AdamW([*model.parameters(), *tags.parameters()], 1e-3, fused=True)
sparse = torch.optim.SparseAdam(items.parameters(), 1e-3)
offsets = torch.arange(0, BATCH * LENGTH * 3, 3, device="cuda")
for i in steps():
    ids = torch.randint(1, ITEMS, (BATCH, LENGTH + 1), device="cuda")
    bag = torch.randint(0, TAGS, (BATCH * LENGTH * 3,), device="cuda")
    times = torch.randint(0, 3600, (BATCH, LENGTH), device="cuda").cumsum(1)
    lengths = torch.randint(LENGTH // 2, LENGTH + 1, (BATCH,), device="cuda")
    inputs, targets = ids[:, :-1], ids[:, 1:]
    with torch.autocast("cuda", dtype=torch.bfloat16):
        h = net(items(inputs) + tags(bag, offsets).view(BATCH, LENGTH, D), times, lengths)
    negatives = torch.randint(1, ITEMS, (NEGATIVES,), device="cuda")
    positive = F.normalize(items(targets), dim=-1)
    others = F.normalize(items(negatives), dim=-1)
    pos = (h * positive).sum(-1, keepdim=True) / 0.05
    with torch.autocast("cuda", dtype=torch.bfloat16):
        neg = h @ others.t() / 0.05
    neg = neg.float().masked_fill(targets[..., None] == negatives, -1e4)
    logits = torch.cat([pos, neg], -1)
    weight = (torch.arange(LENGTH, device="cuda") < lengths[:, None]).float()
    loss = (-F.log_softmax(logits, -1)[..., 0] * weight).sum() / weight.sum()
    dense.zero_grad()
    sparse.zero_grad()
    loss.backward()
    dense.step()
    sparse.step()
