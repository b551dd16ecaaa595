"""Mixture of depths: every other block takes only the tokens that its router chooses; causal predictor, Adafactor, compiled."""

import torch, torch.nn as nn, torch.nn.functional as F
from tick import steps

B, T, D, H, LAYERS, KEEP, VOCAB = 8, 2048, 1024, 16, 10, 256, 32000


def rotate(x, position):
    half = x.size(-1) // 2
    angle = position[:, None, :, None] * 10000 ** (-torch.arange(half, device=x.device) / half)
    a, b = x.float().chunk(2, -1)
    return torch.cat([a * angle.cos() - b * angle.sin(), a * angle.sin() + b * angle.cos()], -1).to(x.dtype)


class Layer(nn.Module):
    def __init__(s):
        super().__init__()
        s.n1, s.n2 = nn.RMSNorm(D), nn.RMSNorm(D)
        s.qkv, s.o = nn.Linear(D, 3 * D, bias=False), nn.Linear(D, D, bias=False)
        s.up, s.down = nn.Linear(D, 4 * D, bias=False), nn.Linear(4 * D, D, bias=False)

    def forward(s, x, position):
        q, k, v = s.qkv(s.n1(x)).unflatten(-1, (3, H, -1)).permute(2, 0, 3, 1, 4)
        y = F.scaled_dot_product_attention(rotate(q, position), rotate(k, position), v, is_causal=True)
        x = x + s.o(y.transpose(1, 2).flatten(2))
        return x + s.down(F.relu(s.up(s.n2(x))).square())


class Routed(nn.Module):
    def __init__(s):
        super().__init__()
        s.layer, s.router = Layer(), nn.Linear(D, 1, bias=False)
        s.guess = nn.Sequential(nn.Linear(D, D // 4), nn.SiLU(), nn.Linear(D // 4, 1))

    def forward(s, x, position):
        weight = s.router(x).squeeze(-1)
        chosen = weight.topk(KEEP, dim=1, sorted=False).indices.sort(dim=1).values
        rows = chosen[..., None].expand(-1, -1, D)
        some = x.gather(1, rows)
        delta = s.layer(some, position.gather(1, chosen)) - some
        delta = delta * weight.gather(1, chosen).sigmoid()[..., None]
        taken = torch.zeros_like(weight).scatter(1, chosen, 1.0)
        aux = F.binary_cross_entropy_with_logits(s.guess(x.detach()).squeeze(-1).float(), taken.float())
        return x.scatter_add(1, rows, delta.to(x.dtype)), aux


class Net(nn.Module):
    def __init__(s):
        super().__init__()
        s.e, s.n, s.head = nn.Embedding(VOCAB, D), nn.RMSNorm(D), nn.Linear(D, VOCAB, bias=False)
        s.layers = nn.ModuleList(Routed() if i % 2 else Layer() for i in range(LAYERS))

    def forward(s, ids):
        x, total = s.e(ids), 0.0
        position = torch.arange(ids.size(1), device=ids.device).expand_as(ids)
        for layer in s.layers:
            if isinstance(layer, Routed):
                x, aux = layer(x, position)
                total = total + aux
            else:
                x = layer(x, position)
        loss = F.cross_entropy(s.head(s.n(x)).float().flatten(0, 1)[:-1], ids.flatten()[1:])
        return loss, total


net = Net().cuda().bfloat16()
step = torch.compile(net, dynamic=False)
opt = torch.optim.Adafactor(net.parameters(), 1e-2, weight_decay=0.01)
for i in steps(count=6):
    loss, aux = step(torch.randint(0, VOCAB, (B, T), device="cuda"))
    (loss + 0.01 * aux).backward()
    opt.step()
    opt.zero_grad()
