import torch, torch.nn as nn, torch.nn.functional as F
from tick import steps

VOCAB, D, LAYERS, BATCH, T, ACCUM = 256, 768, 8, 16, 1024, 4


def log_g(x):
    return torch.where(x >= 0, (F.relu(x) + 0.5).log(), -F.softplus(-x))


def parallel_scan_log(log_coeffs, log_values):
    a_star = F.pad(log_coeffs.cumsum(dim=1), (0, 0, 1, 0))
    return (a_star + (log_values - a_star).logcumsumexp(dim=1)).exp()


class MinGRU(nn.Module):
    def __init__(self, dim, expansion=1.5):
        super().__init__()
        inner = int(dim * expansion)
        self.to_hidden_gate = nn.Linear(dim, 2 * inner, bias=False)
        self.to_out = nn.Linear(inner, dim, bias=False)
        self.h0 = nn.Parameter(torch.zeros(1, 1, inner))

    def forward(self, x):
        hidden, gate = self.to_hidden_gate(x).float().chunk(2, dim=-1)
        log_coeffs = -F.softplus(gate)
        log_z = -F.softplus(-gate)
        log_h0 = log_g(self.h0).expand(x.shape[0], -1, -1)
        h = parallel_scan_log(log_coeffs, torch.cat([log_h0, log_z + log_g(hidden)], dim=1))
        return self.to_out(h[:, 1:])


class CausalConv(nn.Module):
    def __init__(self, dim, kernel=3):
        super().__init__()
        self.kernel = kernel
        self.depthwise = nn.Conv1d(dim, dim, kernel, groups=dim)
        self.pointwise = nn.Conv1d(dim, dim, 1)

    def forward(self, x):
        x = F.pad(x.transpose(1, 2), (self.kernel - 1, 0))
        return self.pointwise(self.depthwise(x)).transpose(1, 2)


class Block(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.conv, self.rnn = CausalConv(dim), MinGRU(dim)
        self.n1, self.n2 = nn.RMSNorm(dim), nn.RMSNorm(dim)
        self.ff = nn.Sequential(nn.Linear(dim, 4 * dim), nn.GELU(), nn.Linear(4 * dim, dim))

    def forward(self, x):
        x = x + self.conv(x)
        x = x + self.rnn(self.n1(x))
        return x + self.ff(self.n2(x))


class LM(nn.Module):
    def __init__(self):
        super().__init__()
        self.emb = nn.Embedding(VOCAB, D)
        self.blocks = nn.ModuleList(Block(D) for _ in range(LAYERS))
        self.norm, self.head = nn.RMSNorm(D), nn.Linear(D, VOCAB, bias=False)

    def forward(self, tokens):
        x, labels = tokens[:, :-1], tokens[:, 1:]
        x = self.emb(x)
        for block in self.blocks:
            x = block(x)
        return F.cross_entropy(self.head(self.norm(x)).transpose(1, 2), labels)


data = torch.randint(0, VOCAB, (1000000,))
model = LM().cuda()
model = torch.compile(model)
optim = torch.optim.Adam(model.parameters(), lr=4e-4)
for i in steps():
    total = 0.0
    for _ in range(ACCUM):
        starts = torch.randint(0, len(data) - T - 1, (BATCH,))
        batch = torch.stack([data[s : s + T + 1] for s in starts.tolist()]).cuda()
        with torch.autocast("cuda", dtype=torch.bfloat16):
            loss = model(batch)
        (loss / ACCUM).backward()
        total += loss.item()
    nn.utils.clip_grad_norm_(model.parameters(), 0.5)
    optim.step()
    optim.zero_grad()
