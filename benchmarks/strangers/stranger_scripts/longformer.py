import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.optim.lr_scheduler import LambdaLR
from tick import steps

VOCAB, D, H, W, LAYERS, T, B, G = 50265, 768, 12, 256, 8, 4096, 2, 16


class SlidingAttention(nn.Module):
    def __init__(self):
        super().__init__()
        self.qkv, self.out = nn.Linear(D, 3 * D), nn.Linear(D, D)
        self.kv_global = nn.Linear(D, 2 * D)

    def forward(self, x, band):
        b, t, _ = x.shape
        n = t // W
        q, k, v = self.qkv(x).view(b, t, 3, H, D // H).permute(2, 0, 3, 1, 4)
        q = q / (D // H) ** 0.5
        pad = lambda y: F.pad(y, (0, 0, W, W)).unfold(2, 3 * W, W).transpose(-1, -2)
        qc, kc, vc = q.view(b, H, n, W, -1), pad(k), pad(v)
        local = torch.einsum("bhnqd,bhnkd->bhnqk", qc, kc) + band
        kg, vg = self.kv_global(x[:, :G]).view(b, G, 2, H, D // H).permute(2, 0, 3, 1, 4)
        to_global = torch.einsum("bhnqd,bhgd->bhnqg", qc, kg)
        p = torch.cat([to_global, local], -1).float().softmax(-1).type_as(v)
        p = F.dropout(p, 0.1, self.training)
        y = torch.einsum("bhnqg,bhgd->bhnqd", p[..., :G], vg) + torch.einsum("bhnqk,bhnkd->bhnqd", p[..., G:], vc)
        y = y.reshape(b, H, t, -1)
        full = F.scaled_dot_product_attention(q[:, :, :G], k, v, scale=1.0)
        y = torch.cat([full, y[:, :, G:]], 2)
        return self.out(y.transpose(1, 2).reshape(b, t, D))


class Layer(nn.Module):
    def __init__(self):
        super().__init__()
        self.attn = SlidingAttention()
        self.ln1, self.ln2 = nn.LayerNorm(D), nn.LayerNorm(D)
        self.fc1, self.fc2 = nn.Linear(D, 4 * D), nn.Linear(4 * D, D)
        self.drop = nn.Dropout(0.1)

    def forward(self, x, band):
        x = self.ln1(x + self.drop(self.attn(x, band)))
        return self.ln2(x + self.drop(self.fc2(F.gelu(self.fc1(x)))))


class Longformer(nn.Module):
    def __init__(self):
        super().__init__()
        self.tok, self.pos = nn.Embedding(VOCAB, D, padding_idx=1), nn.Embedding(T, D)
        self.ln, self.layers = nn.LayerNorm(D), nn.ModuleList(Layer() for _ in range(LAYERS))
        self.dense, self.lnh, self.bias = nn.Linear(D, D), nn.LayerNorm(D), nn.Parameter(torch.zeros(VOCAB))
        i, j = torch.arange(W)[:, None], torch.arange(3 * W)[None] - W
        block = torch.arange(T // W)[:, None, None] * W + j
        keep = ((i - j).abs() <= W) & (block >= G) & (block < T)
        self.register_buffer("band", torch.zeros(keep.shape).masked_fill(~keep, -1e4))
        for layer in self.layers:
            layer.compile()

    def forward(self, ids):
        x = self.ln(self.tok(ids) + self.pos.weight)
        for layer in self.layers:
            x = layer(x, self.band)
        return F.linear(self.lnh(F.gelu(self.dense(x))), self.tok.weight, self.bias)


model = Longformer().cuda().train()
decay = [p for p in model.parameters() if p.dim() > 1]
rest = [p for p in model.parameters() if p.dim() <= 1]
opt = torch.optim.AdamW(
    [{"params": decay, "weight_decay": 0.01}, {"params": rest, "weight_decay": 0.0}], 3e-5, fused=True
)
sched = LambdaLR(opt, lambda s: min(1.0, (s + 1) / 500))
for i in steps(count=6):
    ids = torch.randint(4, VOCAB, (B, T), device="cuda")
    masked = torch.rand(B, T, device="cuda") < 0.15
    labels = ids.masked_fill(~masked, -100)
    ids = ids.masked_fill(masked, 3)
    with torch.autocast("cuda", dtype=torch.bfloat16):
        logits = model(ids)
        loss = F.cross_entropy(logits.view(-1, VOCAB), labels.view(-1))
    loss.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    opt.step()
    sched.step()
    opt.zero_grad()
