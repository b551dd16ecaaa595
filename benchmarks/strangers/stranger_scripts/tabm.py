import math
import torch
import torch.nn as nn
import torch.nn.functional as F
from tick import steps

K, WIDTH, BLOCKS, NUM, CATS, BINS, EMBED, BATCH, ROWS = 32, 512, 3, 54, [12, 7, 300, 24, 5, 40], 48, 16, 2048, 500_000


class PiecewiseLinearEmbeddings(nn.Module):
    """Quantile bins per feature, then a linear map of each feature of its own."""

    def __init__(self, edges):
        super().__init__()
        width = (edges[:, 1:] - edges[:, :-1]).clamp(min=1e-6)
        self.register_buffer("weight", 1 / width)
        self.register_buffer("bias", -edges[:, :-1] / width)
        n = edges.shape[0]
        self.linear0_w, self.linear0_b = nn.Parameter(torch.randn(n, EMBED)), nn.Parameter(torch.randn(n, EMBED))
        self.inner = nn.Parameter(torch.zeros(n, edges.shape[1] - 1, EMBED))

    def forward(self, x):
        ple = torch.addcmul(self.bias, self.weight, x[..., None])
        ple = torch.cat([ple[..., :1].clamp_max(1), ple[..., 1:-1].clamp(0, 1), ple[..., -1:].clamp_min(0)], -1)
        own = (ple.transpose(0, 1) @ self.inner).transpose(0, 1)
        return F.relu(torch.addcmul(self.linear0_b, self.linear0_w, x[..., None]) + own)


class BatchEnsembleLinear(nn.Module):
    def __init__(self, cin, cout, first):
        super().__init__()
        bound = cin**-0.5
        self.weight = nn.Parameter(torch.empty(cout, cin).uniform_(-bound, bound))
        signs = torch.randint(0, 2, (K, cin)) * 2.0 - 1
        self.r = nn.Parameter(signs if first else torch.ones(K, cin))
        self.s = nn.Parameter(torch.ones(K, cout))
        self.bias = nn.Parameter(torch.empty(cout).uniform_(-bound, bound).repeat(K, 1))

    def forward(self, x):
        return F.linear(x * self.r, self.weight) * self.s + self.bias


class TabM(nn.Module):
    def __init__(self, edges):
        super().__init__()
        self.num = PiecewiseLinearEmbeddings(edges)
        self.sizes = CATS
        d = NUM * EMBED + sum(CATS)
        self.backbone = nn.ModuleList(BatchEnsembleLinear(WIDTH if i else d, WIDTH, i == 0) for i in range(BLOCKS))
        self.head_w = nn.Parameter(torch.randn(K, WIDTH, 1) / math.sqrt(WIDTH))
        self.head_b = nn.Parameter(torch.zeros(K, 1, 1))

    def forward(self, x_num, x_cat):
        cats = [F.one_hot(c, n).to(x_num.dtype) for c, n in zip(x_cat.unbind(1), self.sizes)]
        x = torch.cat([self.num(x_num).flatten(1), *cats], 1)
        x = x[:, None].expand(-1, K, -1)
        for layer in self.backbone:
            x = F.dropout(F.relu(layer(x)), 0.1, self.training)
        return torch.baddbmm(self.head_b, x.transpose(0, 1), self.head_w).squeeze(-1).t()


def quantile_edges(x):
    q = torch.linspace(0, 1, BINS + 1, device=x.device)
    return torch.quantile(x[:100_000], q, dim=0).t().contiguous()


x_num = torch.randn(ROWS, NUM, device="cuda")
x_num[:, ::3] = x_num[:, ::3].exp()
x_cat = torch.stack([torch.randint(n, (ROWS,), device="cuda") for n in CATS], 1)
y = torch.tanh(x_num[:, :8].sum(1)) + 0.1 * torch.randn(ROWS, device="cuda")
model = TabM(quantile_edges(x_num)).cuda()
optimizer = torch.optim.AdamW(
    model.parameters(), lr=torch.tensor(2e-3, device="cuda"), weight_decay=3e-4, capturable=True
)


@torch.compile(mode="reduce-overhead")
def loss_of(a, b, target):
    with torch.autocast("cuda", dtype=torch.bfloat16):
        pred = model(a, b)
    return F.mse_loss(pred.float(), target[:, None].expand(-1, K))


@torch.compile
def update():
    optimizer.step()


def epochs():
    while True:
        yield from torch.randperm(ROWS, device="cuda").split(BATCH)[:-1]


stream = epochs()
ema = torch.zeros((), device="cuda")
for i in steps():
    idx = next(stream)
    loss = loss_of(x_num[idx], x_cat[idx], y[idx])
    loss.backward()
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    update()
    optimizer.zero_grad()
    ema.lerp_(loss.detach(), 0.02)
print(ema.item())
