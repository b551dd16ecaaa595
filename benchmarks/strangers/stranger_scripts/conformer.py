import torch, torch.nn as nn, torch.nn.functional as F
from tick import steps


class Conv(nn.Module):
    def __init__(self, d, k=31):
        super().__init__()
        self.ln, self.a = nn.LayerNorm(d), nn.Conv1d(d, 2 * d, 1)
        self.dw, self.bn, self.b = nn.Conv1d(d, d, k, padding=k // 2, groups=d), nn.BatchNorm1d(d), nn.Conv1d(d, d, 1)

    def forward(self, x):
        h = F.glu(self.a(self.ln(x).transpose(1, 2)), dim=1)
        return self.b(F.silu(self.bn(self.dw(h)))).transpose(1, 2)


class Block(nn.Module):
    def __init__(self, d=256, h=4):
        super().__init__()
        ff = lambda: nn.Sequential(
            nn.LayerNorm(d), nn.Linear(d, 4 * d), nn.SiLU(), nn.Dropout(0.1), nn.Linear(4 * d, d)
        )
        self.f1, self.f2, self.conv, self.ln, self.out = ff(), ff(), Conv(d), nn.LayerNorm(d), nn.LayerNorm(d)
        self.att = nn.MultiheadAttention(d, h, batch_first=True)

    def forward(self, x):
        x = x + 0.5 * self.f1(x)
        y = self.ln(x)
        x = x + self.att(y, y, y, need_weights=False)[0]
        x = x + self.conv(x)
        return self.out(x + 0.5 * self.f2(x))


class Asr(nn.Module):
    def __init__(self):
        super().__init__()
        self.sub = nn.Sequential(nn.Conv2d(1, 64, 3, 2), nn.ReLU(), nn.Conv2d(64, 64, 3, 2), nn.ReLU())
        self.inp, self.blocks = nn.Linear(64 * 19, 256), nn.ModuleList(Block() for _ in range(8))
        self.out = nn.Linear(256, 500)

    def forward(self, x):
        x = self.sub(x[:, None])
        x = self.inp(x.permute(0, 2, 1, 3).flatten(2))
        for b in self.blocks:
            x = b(x)
        return self.out(x).log_softmax(-1)


m = Asr().cuda()
c = torch.compile(m)
opt = torch.optim.Adam(m.parameters(), 1e-3)
for i in steps():
    x = torch.randn(16, 1000, 80, device="cuda")
    y = torch.randint(1, 500, (16, 40), device="cuda")
    lp = c(x).transpose(0, 1)
    n = torch.full((16,), lp.shape[0], dtype=torch.long)
    loss = F.ctc_loss(lp, y, n, torch.full((16,), 40, dtype=torch.long), zero_infinity=True)
    opt.zero_grad()
    loss.backward()
    nn.utils.clip_grad_norm_(m.parameters(), 5.0)
    opt.step()
