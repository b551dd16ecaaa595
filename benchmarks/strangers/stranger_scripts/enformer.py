import math
import torch, torch.nn as nn, torch.nn.functional as F
from tick import steps

DIM, HEADS, KEY, DEPTH, LENGTH, TRACKS, CROP, ACCUM = 1024, 8, 64, 8, 131072, 5313, 64, 2


class Residual(nn.Sequential):
    def forward(self, x):
        return x + super().forward(x)


class AttentionPool(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.to_attn_logits = nn.Conv2d(dim, dim, 1, bias=False)
        nn.init.dirac_(self.to_attn_logits.weight)

    def forward(self, x):
        x = x.unflatten(-1, (-1, 2))
        return (x * self.to_attn_logits(x).softmax(dim=-1)).sum(dim=-1)


def conv_block(dim, dim_out, kernel=1):
    return nn.Sequential(nn.BatchNorm1d(dim), nn.GELU(), nn.Conv1d(dim, dim_out, kernel, padding=kernel // 2))


def positional_basis(n, features):
    distance = torch.arange(-n + 1, n).float()[:, None]
    half, sign, distance = features // 6, distance.sign(), distance.abs()
    rate = -math.log(2) / 2 ** torch.linspace(3, math.log2(n), half)
    central = (distance < 2 ** torch.arange(1, half + 1)).float()
    mean, std = torch.linspace(n / half, n, half), n / (2 * half)
    basis = torch.cat([torch.exp(rate * distance), central, torch.exp(-((distance - mean) ** 2) / (2 * std**2))], -1)
    return torch.cat([basis, sign * basis], dim=-1)


def relative_shift(x):
    b, h, t1, t2 = (x := F.pad(x, (1, 0))).shape
    x = x.reshape(b, h, t2, t1)[:, :, 1:, :].reshape(b, h, t1, t2 - 1)
    return x[..., : (t2 + 1) // 2]


class Attention(nn.Module):
    def __init__(self, n):
        super().__init__()
        self.to_q, self.to_k = nn.Linear(DIM, HEADS * KEY, bias=False), nn.Linear(DIM, HEADS * KEY, bias=False)
        self.to_v, self.to_out = nn.Linear(DIM, DIM, bias=False), nn.Linear(DIM, DIM)
        self.register_buffer("positions", positional_basis(n, 126))
        self.to_rel_k = nn.Linear(126, HEADS * KEY, bias=False)
        self.rel_content_bias = nn.Parameter(torch.randn(1, HEADS, 1, KEY))
        self.rel_pos_bias = nn.Parameter(torch.randn(1, HEADS, 1, KEY))
        self.dropout = nn.Dropout(0.05)

    def forward(self, x):
        q, k, v = [f(x).unflatten(-1, (HEADS, -1)).transpose(1, 2) for f in (self.to_q, self.to_k, self.to_v)]
        q = q * KEY**-0.5
        content = torch.einsum("bhid,bhjd->bhij", q + self.rel_content_bias, k)
        rel_k = self.to_rel_k(self.positions).unflatten(-1, (HEADS, -1)).transpose(0, 1)
        relative = relative_shift(torch.einsum("bhid,hjd->bhij", q + self.rel_pos_bias, rel_k))
        attn = self.dropout((content + relative).softmax(dim=-1))
        return self.to_out(torch.einsum("bhij,bhjd->bihd", attn, v).flatten(2))


def transformer_block(n):
    up, down = nn.Linear(DIM, 2 * DIM), nn.Linear(2 * DIM, DIM)
    ff = [nn.LayerNorm(DIM), up, nn.Dropout(0.4), nn.ReLU(), down, nn.Dropout(0.4)]
    return nn.Sequential(Residual(nn.LayerNorm(DIM), Attention(n), nn.Dropout(0.4)), Residual(*ff))


class Enformer(nn.Module):
    def __init__(self):
        super().__init__()
        dims = [DIM // 2, 512, 576, 640, 768, 896, DIM]
        stem = [nn.Conv1d(4, dims[0], 15, padding=7), Residual(conv_block(dims[0], dims[0])), AttentionPool(dims[0])]
        for a, b in zip(dims, dims[1:]):
            stem += [conv_block(a, b, 5), Residual(conv_block(b, b)), AttentionPool(b)]
        self.tower = nn.Sequential(*stem)
        self.transformer = nn.Sequential(*[transformer_block(LENGTH // 128) for _ in range(DEPTH)])
        self.final = nn.Sequential(conv_block(DIM, 2 * DIM), nn.Dropout(0.05), nn.GELU())
        self.head = nn.Sequential(nn.Linear(2 * DIM, TRACKS), nn.Softplus())

    def forward(self, x):
        x = self.transformer(self.tower(x.transpose(1, 2)).transpose(1, 2))[:, CROP:-CROP]
        return self.head(self.final(x.transpose(1, 2)).transpose(1, 2))


model = Enformer().to("cuda", torch.bfloat16)
for block in model.transformer:
    block.compile()
opt = torch.optim.Adam(model.parameters(), lr=5e-4)
warmup = torch.optim.lr_scheduler.LambdaLR(opt, lambda s: min(1.0, (s + 1) / 5000))
for i in steps(count=8):
    for _ in range(ACCUM):
        seq = F.one_hot(torch.randint(0, 4, (2, LENGTH), device="cuda"), 4).bfloat16()
        target = torch.rand(2, LENGTH // 128 - 2 * CROP, TRACKS, device="cuda")
        loss = F.poisson_nll_loss(model(seq).float(), target, log_input=False) / ACCUM
        loss.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 0.2)
    opt.step()
    warmup.step()
    opt.zero_grad()
