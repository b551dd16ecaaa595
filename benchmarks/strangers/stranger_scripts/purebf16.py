import torch
import torch.nn as nn
import torch.nn.functional as F
from tick import steps


class RMSNorm(nn.Module):
    def __init__(self, d):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(d))

    def forward(self, x):
        y = x.float()
        return (y * torch.rsqrt(y.pow(2).mean(-1, keepdim=True) + 1e-6)).type_as(x) * self.weight


class Layer(nn.Module):
    def __init__(self, d, h, kv):
        super().__init__()
        self.h, self.kv, self.hd = h, kv, d // h
        self.n1, self.n2 = RMSNorm(d), RMSNorm(d)
        self.q = nn.Linear(d, d, bias=False)
        self.k, self.v = nn.Linear(d, kv * self.hd, bias=False), nn.Linear(d, kv * self.hd, bias=False)
        self.o = nn.Linear(d, d, bias=False)
        self.gate, self.up = nn.Linear(d, 3 * d, bias=False), nn.Linear(d, 3 * d, bias=False)
        self.down = nn.Linear(3 * d, d, bias=False)

    def forward(self, x, cos, sin):
        b, t, d = x.shape
        y = self.n1(x)
        q = self.rotate(self.q(y).view(b, t, self.h, self.hd), cos, sin).transpose(1, 2)
        k = self.rotate(self.k(y).view(b, t, self.kv, self.hd), cos, sin).transpose(1, 2)
        v = self.v(y).view(b, t, self.kv, self.hd).transpose(1, 2)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
        x = x + self.o(y.transpose(1, 2).reshape(b, t, d))
        y = self.n2(x)
        return x + self.down(F.silu(self.gate(y)) * self.up(y))

    @staticmethod
    def rotate(x, cos, sin):
        a, b = x.chunk(2, dim=-1)
        return torch.cat((a * cos - b * sin, b * cos + a * sin), dim=-1)


d, heads, kv, layers, t = 768, 12, 4, 8, 512
torch.set_default_dtype(torch.bfloat16)
embed = nn.Embedding(32000, d).cuda()
stack = nn.ModuleList(Layer(d, heads, kv) for _ in range(layers)).cuda()
norm, head = RMSNorm(d).cuda(), nn.Linear(d, 32000, bias=False).cuda()
parameters = [*embed.parameters(), *stack.parameters(), *norm.parameters(), *head.parameters()]
opt = torch.optim.AdamW(parameters, lr=1e-4, fused=True)
angle = torch.outer(torch.arange(t).float(), 10000 ** (-torch.arange(0, d // heads, 2).float() / (d // heads)))
cos, sin = angle.cos().bfloat16().cuda()[None, :, None], angle.sin().bfloat16().cuda()[None, :, None]
for i in steps():
    ids = torch.randint(0, 32000, (2, t + 1), device="cuda")
    x = embed(ids[:, :-1])
    for layer in stack:
        x = layer(x, cos, sin)
    loss = F.cross_entropy(head(norm(x)).float().view(-1, 32000), ids[:, 1:].reshape(-1))
    loss.backward()
    opt.step()
    opt.zero_grad()
    if i % 10 == 0:
        print(loss.item())
