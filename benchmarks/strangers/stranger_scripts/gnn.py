import torch, torch.nn as nn, torch.nn.functional as F
from tick import steps

N, E, D = 20000, 200000, 128


class Conv(nn.Module):
    def __init__(self):
        super().__init__()
        self.msg = nn.Sequential(nn.Linear(2 * D + 16, D), nn.SiLU(), nn.Linear(D, D), nn.SiLU())
        self.upd = nn.Sequential(nn.Linear(2 * D, D), nn.SiLU(), nn.Linear(D, D))
        self.bn = nn.BatchNorm1d(D)

    def forward(self, h, src, dst, e):
        m = self.msg(torch.cat([h[src], h[dst], e], -1))
        agg = torch.zeros_like(h).index_add_(0, dst, m)
        return self.bn(h + self.upd(torch.cat([h, agg], -1)))


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.inp, self.convs, self.out = nn.Linear(32, D), nn.ModuleList(Conv() for _ in range(5)), nn.Linear(D, 1)

    def forward(self, x, ei, ea, batch):
        h = self.inp(x)
        for c in self.convs:
            h = c(h, ei[0], ei[1], ea)
        g = torch.zeros(512, D, device=x.device).index_add(0, batch, h)
        return self.out(g).squeeze(-1)


net = Net().cuda()
opt = torch.optim.Adam(net.parameters(), 1e-3)
model = torch.compile(net)
batch = torch.arange(N, device="cuda") % 512
batch = batch.sort().values
for i in steps():
    ei = torch.randint(0, N, (2, E), device="cuda")
    x, ea, y = torch.randn(N, 32, device="cuda"), torch.randn(E, 16, device="cuda"), torch.randn(512, device="cuda")
    loss = F.l1_loss(model(x, ei, ea, batch), y)
    opt.zero_grad()
    loss.backward()
    opt.step()
