import torch
import torch.nn as nn
import torch.nn.functional as F
from tick import steps

torch.set_float32_matmul_precision("high")
WIDTH, HEADS, D, WINDOW, VOCAB, LAYERS, BATCH, LENGTH = 1024, 8, 128, 256, 32000, 9, 6, 1024


class SqrtBoundDerivative(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return torch.sqrt(x)

    @staticmethod
    def backward(ctx, grad):
        return grad / torch.sqrt(torch.clamp(4.0 * ctx.saved_tensors[0], min=1e-6))


def linear_scan(a, x):
    shift = 1
    while shift < x.shape[1]:
        x = x + a * F.pad(x[:, :-shift], (0, 0, shift, 0))
        a = a * F.pad(a[:, :-shift], (0, 0, shift, 0), value=1.0)
        shift *= 2
    return x


class RecurrentBlock(nn.Module):
    def __init__(self):
        super().__init__()
        self.x, self.y, self.out = (nn.Linear(WIDTH, WIDTH) for _ in range(3))
        self.conv = nn.Conv1d(WIDTH, WIDTH, 4, padding=3, groups=WIDTH)
        self.gate_w = nn.Parameter(torch.randn(2, HEADS, D, D) * D**-0.5)
        self.gate_b = nn.Parameter(torch.zeros(2, 1, 1, WIDTH))
        self.a_param = nn.Parameter(torch.empty(WIDTH).uniform_(0.9, 0.999).log().neg().expm1().log())

    def forward(self, h):
        gate = F.gelu(self.y(h), approximate="tanh")
        x = self.conv(self.x(h).transpose(1, 2))[..., : h.shape[1]].transpose(1, 2)
        gates = torch.einsum("bthi,ghij->gbthj", x.unflatten(-1, (HEADS, -1)), self.gate_w).flatten(-2)
        r, i = torch.sigmoid(gates.float() + self.gate_b)
        log_a = -8.0 * r * F.softplus(self.a_param)
        y = linear_scan(log_a.exp(), x * i * SqrtBoundDerivative.apply(1 - torch.exp(2 * log_a)))
        return self.out(y.to(gate.dtype) * gate)


class LocalAttention(nn.Module):
    def __init__(self):
        super().__init__()
        self.q, self.kv, self.out = (nn.Linear(WIDTH, n, bias=False) for n in (WIDTH, 2 * WIDTH // HEADS, WIDTH))
        self.register_buffer("mask", torch.ones(LENGTH, LENGTH, dtype=torch.bool).tril().triu(1 - WINDOW))

    def forward(self, h):
        q = self.q(h).unflatten(-1, (HEADS, -1)).transpose(1, 2)
        k, v = (t[:, None].expand_as(q) for t in self.kv(h).chunk(2, -1))
        return self.out(F.scaled_dot_product_attention(q, k, v, attn_mask=self.mask).transpose(1, 2).flatten(2))


class Block(nn.Module):
    def __init__(self, temporal):
        super().__init__()
        self.n1, self.n2, self.temporal = nn.RMSNorm(WIDTH), nn.RMSNorm(WIDTH), temporal
        self.up, self.down = nn.Linear(WIDTH, 6 * WIDTH), nn.Linear(3 * WIDTH, WIDTH)

    def forward(self, x):
        x = x + self.temporal(self.n1(x))
        gate, up = self.up(self.n2(x)).chunk(2, -1)
        return x + self.down(F.gelu(gate) * up)


embed, norm = nn.Embedding(VOCAB, WIDTH).cuda(), nn.RMSNorm(WIDTH).cuda()
blocks = nn.ModuleList(Block(LocalAttention() if n % 3 == 2 else RecurrentBlock()) for n in range(LAYERS)).cuda()
for block in blocks:
    block.compile()
params = [*embed.parameters(), *blocks.parameters(), *norm.parameters()]
opt = torch.optim.AdamW(params, lr=3e-4, weight_decay=0.1, fused=True)
for i in steps():
    tokens = torch.randint(0, VOCAB, (BATCH, LENGTH + 1), device="cuda")
    with torch.autocast("cuda", dtype=torch.bfloat16):
        x = embed(tokens[:, :-1]) * WIDTH**0.5
        for block in blocks:
            x = block(x)
        logits = 30.0 * torch.tanh(F.linear(norm(x), embed.weight) / 30.0)
        loss = F.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten())
    loss.backward()
    torch.nn.utils.clip_grad_norm_(params, 1.0)
    opt.step()
    opt.zero_grad()
