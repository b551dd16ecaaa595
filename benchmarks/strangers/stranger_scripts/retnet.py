import math
import torch
import torch.nn as nn
import torch.nn.functional as F
from tick import steps

D, H, LAYERS, T, B, CHUNK, VOCAB, ACC = 768, 6, 8, 2048, 6, 256, 32000, 2
DK, DV = D // H, 2 * D // H


def theta_shift(x, sin, cos):
    rotated = torch.stack((-x[..., 1::2], x[..., ::2]), -1).flatten(-2)
    return x * cos + rotated * sin


class Retention(nn.Module):
    def __init__(self):
        super().__init__()
        self.q, self.k = nn.Linear(D, D, bias=False), nn.Linear(D, D, bias=False)
        self.v, self.g, self.o = (nn.Linear(*s, bias=False) for s in ((D, 2 * D), (D, 2 * D), (2 * D, D)))
        self.norm = nn.RMSNorm(DV, eps=1e-6, elementwise_affine=False)

    def forward(self, x, pos):
        sin, cos, mask, inner, cross, whole = pos
        b, t, _ = x.shape
        n = t // CHUNK
        q = self.q(x).view(b, t, H, DK).transpose(1, 2)
        k = self.k(x).view(b, t, H, DK).transpose(1, 2) * DK**-0.5
        q, k = theta_shift(q, sin, cos), theta_shift(k, sin, cos)
        v = self.v(x).view(b, t, H, DV).transpose(1, 2)
        q, k, v = (y.reshape(b, H, n, CHUNK, -1) for y in (q, k, v))
        intra = ((q @ k.transpose(-1, -2)) * mask[:, None]) @ v
        kv = (k * cross[:, None]).transpose(-1, -2) @ v
        state, states = torch.zeros_like(kv[:, :, 0]), []
        for c in range(n):
            states.append(state)
            state = state * whole + kv[:, :, c]
        y = intra + (q * inner[:, None]) @ torch.stack(states, 2)
        y = self.norm(y).reshape(b, H, t, DV).transpose(1, 2).reshape(b, t, -1)
        return self.o(F.silu(self.g(x)) * y)


class Layer(nn.Module):
    def __init__(self):
        super().__init__()
        self.ret, self.n1, self.n2 = Retention(), nn.RMSNorm(D), nn.RMSNorm(D)
        self.gate, self.up, self.down = nn.Linear(D, 1280), nn.Linear(D, 1280), nn.Linear(1280, D)

    def forward(self, x, pos):
        x = x + self.ret(self.n1(x), pos)
        y = self.n2(x)
        return x + self.down(F.silu(self.gate(y)) * self.up(y))


class RetNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed, self.layers = nn.Embedding(VOCAB, D), nn.ModuleList(Layer() for _ in range(LAYERS))
        self.norm, self.head = nn.RMSNorm(D), nn.Linear(D, VOCAB, bias=False)
        angle = (1.0 / 10000 ** torch.linspace(0, 1, DK // 2)).repeat_interleave(2)
        self.register_buffer("angle", angle)
        self.register_buffer("decay", torch.log(1 - 2 ** (-5 - torch.arange(H, dtype=torch.float))))

    def positions(self, t):
        index = torch.arange(t, device=self.angle.device)
        sin, cos = torch.sin(index[:, None] * self.angle), torch.cos(index[:, None] * self.angle)
        i = torch.arange(CHUNK, device=self.angle.device).float()
        gap = i[:, None] - i
        mask = torch.exp(gap * self.decay[:, None, None]).masked_fill(gap < 0, 0.0)
        inner = torch.exp((i + 1) * self.decay[:, None])[..., None]
        cross = torch.exp((CHUNK - 1 - i) * self.decay[:, None])[..., None]
        return sin, cos, mask, inner, cross, torch.exp(CHUNK * self.decay)[:, None, None]

    def forward(self, ids):
        x, pos = self.embed(ids), self.positions(ids.size(1))
        for layer in self.layers:
            x = layer(x, pos)
        return self.head(self.norm(x))


model = RetNet().cuda()
compiled = torch.compile(model)
opt = torch.optim.AdamW(model.parameters(), lr=6e-4, betas=(0.9, 0.98), weight_decay=0.05)
lr_at = lambda s: 6e-4 * min((s + 1) / 375, 1) * 0.5 * (1 + math.cos(math.pi * min(s / 5000, 1)))
corpus = torch.randint(0, VOCAB, (2_000_000,))
for i in steps(count=6):
    for group in opt.param_groups:
        group["lr"] = lr_at(i)
    for micro in range(ACC):
        at = torch.randint(0, len(corpus) - T - 1, (B,))
        block = torch.stack([corpus[j : j + T + 1] for j in at.tolist()]).to("cuda")
        with torch.autocast("cuda", dtype=torch.bfloat16):
            logits = compiled(block[:, :-1])
            loss = F.cross_entropy(logits.flatten(0, 1), block[:, 1:].flatten()) / ACC
        loss.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 2.0)
    opt.step()
    opt.zero_grad(set_to_none=True)
