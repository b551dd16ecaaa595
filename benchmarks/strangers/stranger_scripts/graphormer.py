import math

import torch
import torch.nn as nn
import torch.nn.functional as F
from tick import steps

# Graphormer-base on PCQM4M-like molecules: degree, distance and path-of-edges encodings, one virtual node.
ATOMS, EDGES, DEGREES, SPATIAL, HOPS = 512 * 9 + 1, 512 * 3 + 1, 512, 512, 5
LAYERS, DIM, FFN, HEADS, BATCH, MAX_NODES = 12, 768, 768, 32, 256, 32


def init_params(module):
    if isinstance(module, nn.Linear):
        module.weight.data.normal_(0.0, 0.02 / math.sqrt(LAYERS))
        if module.bias is not None:
            module.bias.data.zero_()
    if isinstance(module, nn.Embedding):
        module.weight.data.normal_(0.0, 0.02)


class GraphNodeFeature(nn.Module):
    def __init__(self):
        super().__init__()
        self.atom = nn.Embedding(ATOMS, DIM, padding_idx=0)
        self.in_degree = nn.Embedding(DEGREES, DIM, padding_idx=0)
        self.out_degree = nn.Embedding(DEGREES, DIM, padding_idx=0)
        self.graph_token = nn.Embedding(1, DIM)

    def forward(self, x, degree):
        node = self.atom(x).sum(-2) + self.in_degree(degree) + self.out_degree(degree)
        return torch.cat([self.graph_token.weight.unsqueeze(0).repeat(x.size(0), 1, 1), node], dim=1)


class GraphAttnBias(nn.Module):
    def __init__(self):
        super().__init__()
        self.edge = nn.Embedding(EDGES, HEADS, padding_idx=0)
        self.edge_dis = nn.Embedding(128 * HEADS * HEADS, 1)
        self.spatial = nn.Embedding(SPATIAL, HEADS, padding_idx=0)
        self.virtual = nn.Embedding(1, HEADS)

    def forward(self, attn_bias, spatial_pos, edge_input):
        b, n = spatial_pos.shape[:2]
        bias = attn_bias.clone().unsqueeze(1).repeat(1, HEADS, 1, 1)
        bias[:, :, 1:, 1:] = bias[:, :, 1:, 1:] + self.spatial(spatial_pos).permute(0, 3, 1, 2)
        t = self.virtual.weight.view(1, HEADS, 1)
        bias[:, :, 1:, 0] = bias[:, :, 1:, 0] + t
        bias[:, :, 0, :] = bias[:, :, 0, :] + t
        hops = spatial_pos.clone()
        hops[hops == 0] = 1
        hops = torch.where(hops > 1, hops - 1, hops).clamp(0, HOPS)
        edges = self.edge(edge_input).mean(-2)
        flat = edges.permute(3, 0, 1, 2, 4).reshape(HOPS, -1, HEADS)
        flat = torch.bmm(flat, self.edge_dis.weight.reshape(-1, HEADS, HEADS)[:HOPS])
        edges = flat.reshape(HOPS, b, n, n, HEADS).permute(1, 2, 3, 0, 4)
        edges = (edges.sum(-2) / hops.float().unsqueeze(-1)).permute(0, 3, 1, 2)
        bias[:, :, 1:, 1:] = bias[:, :, 1:, 1:] + edges
        return bias + attn_bias.unsqueeze(1)


class EncoderLayer(nn.Module):
    def __init__(self, dropout=0.1):
        super().__init__()
        self.q, self.k, self.v, self.o = (nn.Linear(DIM, DIM) for _ in range(4))
        self.norm1, self.norm2 = nn.LayerNorm(DIM), nn.LayerNorm(DIM)
        self.fc1, self.fc2 = nn.Linear(DIM, FFN), nn.Linear(FFN, DIM)
        self.dropout = dropout

    def forward(self, x, bias, pad):
        b, n, _ = x.shape
        residual, x = x, self.norm1(x)
        q, k, v = (f(x).view(b, n, HEADS, -1).transpose(1, 2) for f in (self.q, self.k, self.v))
        w = torch.matmul(q * (DIM // HEADS) ** -0.5, k.transpose(-1, -2)) + bias
        w = w.masked_fill(pad[:, None, None, :], float("-inf"))
        w = F.dropout(torch.softmax(w.float(), dim=-1).type_as(v), self.dropout, self.training)
        x = self.o(torch.matmul(w, v).transpose(1, 2).reshape(b, n, DIM))
        x = residual + F.dropout(x, self.dropout, self.training)
        y = self.fc2(F.gelu(self.fc1(self.norm2(x))))
        return x + F.dropout(y, self.dropout, self.training)


class Graphormer(nn.Module):
    def __init__(self):
        super().__init__()
        self.nodes, self.bias = GraphNodeFeature(), GraphAttnBias()
        self.emb_norm = nn.LayerNorm(DIM)
        self.layers = nn.ModuleList([EncoderLayer() for _ in range(LAYERS)])
        self.lm_transform, self.norm = nn.Linear(DIM, DIM), nn.LayerNorm(DIM)
        self.out = nn.Linear(DIM, 1, bias=False)
        self.apply(init_params)

    def forward(self, batch):
        pad = batch["x"][:, :, 0].eq(0)
        pad = torch.cat([pad.new_zeros(pad.size(0), 1), pad], dim=1)
        x = self.emb_norm(self.nodes(batch["x"], batch["degree"]))
        bias = self.bias(batch["attn_bias"], batch["spatial_pos"], batch["edge_input"])
        for layer in self.layers:
            x = layer(x, bias, pad)
        return self.out(self.norm(F.gelu(self.lm_transform(x[:, 0])))).squeeze(-1)


def random_batch(generator):
    n, options = MAX_NODES, {"generator": generator}
    count = torch.randint(n // 2, n + 1, (BATCH,), **options)
    real = torch.arange(n)[None] < count[:, None]
    both = real[:, :, None] & real[:, None, :]
    x = torch.randint(1, ATOMS, (BATCH, n, 9), **options) * real[..., None]
    spatial = torch.randint(1, 12, (BATCH, n, n), **options)
    edge = torch.randint(1, EDGES, (BATCH, n, n, HOPS, 3), **options)
    edge *= (torch.arange(HOPS) < spatial[..., None] - 1)[..., None]
    bias = torch.zeros(BATCH, n + 1, n + 1)
    bias[:, 1:, 1:].masked_fill_((spatial >= 11) & (torch.rand(BATCH, n, n, **options) < 0.1), -1e4)
    return {
        "x": x,
        "degree": torch.randint(1, 6, (BATCH, n), **options) * real,
        "attn_bias": bias,
        "spatial_pos": spatial * both,
        "edge_input": edge * both[..., None, None],
        "y": torch.randn(BATCH, **options),
    }


def polynomial(step, warmup=10000, total=1_000_000, end=1e-9, peak=2e-4):
    if step < warmup:
        return (step + 1) / warmup
    return max(end / peak, 1 - (step - warmup) / (total - warmup))


generator = torch.Generator().manual_seed(7)
batches = [{k: v.to("cuda") for k, v in random_batch(generator).items()} for _ in range(4)]
mean, std = 5.68, 1.16
model = Graphormer().to("cuda")
compiled = torch.compile(model, dynamic=False)
optimizer = torch.optim.AdamW(model.parameters(), lr=2e-4, betas=(0.9, 0.999), eps=1e-8, weight_decay=0.0)
scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, polynomial)
mae = torch.zeros((), device="cuda")
for step in steps():
    batch = batches[step % len(batches)]
    with torch.autocast(device_type="cuda", dtype=torch.bfloat16):
        pred = compiled({k: v for k, v in batch.items() if k != "y"})
    loss = F.l1_loss(pred.float(), (batch["y"] - mean) / std)
    mae += loss.detach() * std
    optimizer.zero_grad()
    loss.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 5.0)
    optimizer.step()
    scheduler.step()
