import torch, torch.nn as nn, torch.nn.functional as F
from tick import steps

torch.set_float32_matmul_precision("high")
SIZES = [1000000, 500000, 200000, 100000, 50000, 20000] + [10000] * 6 + [1000] * 8 + [100] * 6
B, D = 16384, 64


class DLRM(nn.Module):
    def __init__(self):
        super().__init__()
        self.tables = nn.ModuleList(nn.EmbeddingBag(n, D, mode="sum") for n in SIZES)
        self.bot = nn.Sequential(
            nn.Linear(13, 512), nn.ReLU(), nn.Linear(512, 256), nn.ReLU(), nn.Linear(256, D), nn.ReLU()
        )
        n = len(SIZES) + 1
        self.top = nn.Sequential(
            nn.Linear(D + n * (n - 1) // 2, 1024), nn.ReLU(), nn.Linear(1024, 512), nn.ReLU(), nn.Linear(512, 1)
        )
        self.register_buffer("tri", torch.tril_indices(n, n, -1), persistent=False)

    def forward(self, dense, idx, off):
        x = self.bot(dense)
        z = torch.stack([x] + [t(i, off) for t, i in zip(self.tables, idx)], 1)
        inter = torch.bmm(z, z.transpose(1, 2))[:, self.tri[0], self.tri[1]]
        return self.top(torch.cat([x, inter], 1)).squeeze(1)


m = DLRM().cuda()
run = torch.compile(m)
sparse = torch.optim.Adagrad(m.tables.parameters(), lr=0.01)
dense_opt = torch.optim.SGD([*m.bot.parameters(), *m.top.parameters()], lr=0.1)
off = torch.arange(0, B * 4, 4, device="cuda")
for i in steps():
    dense = torch.randn(B, 13, device="cuda")
    idx = [torch.randint(0, n, (B * 4,), device="cuda") for n in SIZES]
    y = torch.randint(0, 2, (B,), device="cuda").float()
    loss = F.binary_cross_entropy_with_logits(run(dense, idx, off), y)
    loss.backward()
    sparse.step()
    dense_opt.step()
    m.zero_grad()
