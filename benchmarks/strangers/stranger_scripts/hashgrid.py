import torch, torch.nn as nn, torch.nn.functional as F
from tick import steps

L, T, C = 12, 2**18, 2
primes = torch.tensor([1, 2654435761, 805459861], device="cuda")
scales = torch.tensor([16 * 1.5**i for i in range(L)], device="cuda")
corners = torch.tensor([[i >> 2 & 1, i >> 1 & 1, i & 1] for i in range(8)], device="cuda")


class Field(nn.Module):
    def __init__(self):
        super().__init__()
        self.table = nn.Parameter(torch.rand(L * T, C, device="cuda") * 2e-4 - 1e-4)
        self.mlp = nn.Sequential(nn.Linear(L * C, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 4)).cuda()

    def forward(self, p):
        x = p[:, None, :] * scales[None, :, None]
        lo = x.floor()
        f = (x - lo)[:, :, None]
        at = lo.long()[:, :, None] + corners
        h = (at * primes).unbind(-1)
        idx = (h[0] ^ h[1] ^ h[2]) % T + (torch.arange(L, device=p.device) * T)[None, :, None]
        w = torch.where(corners.bool(), f, 1 - f).prod(-1, keepdim=True)
        return self.mlp((self.table[idx] * w).sum(2).flatten(1))


m = Field()
net = torch.compile(m)
opt = torch.optim.Adam(m.parameters(), 1e-2, eps=1e-15)
for i in steps():
    p, t = torch.rand(2**17, 3, device="cuda"), torch.rand(2**17, 4, device="cuda")
    loss = F.smooth_l1_loss(net(p), t)
    opt.zero_grad()
    loss.backward()
    opt.step()
