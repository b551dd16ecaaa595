import math
import torch
import torch.nn as nn
import torch.nn.functional as F
from tick import steps


class KANLinear(nn.Module):
    def __init__(self, i, o, grid_size=8, order=3, lo=-1.0, hi=1.0):
        super().__init__()
        self.i, self.o, self.order = i, o, order
        h = (hi - lo) / grid_size
        grid = (torch.arange(-order, grid_size + order + 1) * h + lo).expand(i, -1).contiguous()
        self.register_buffer("grid", grid)
        self.base_weight = nn.Parameter(torch.empty(o, i))
        self.spline_weight = nn.Parameter(torch.randn(o, i, grid_size + order) * 0.1 / grid_size)
        self.spline_scaler = nn.Parameter(torch.empty(o, i))
        nn.init.kaiming_uniform_(self.base_weight, a=math.sqrt(5))
        nn.init.kaiming_uniform_(self.spline_scaler, a=math.sqrt(5))

    def b_splines(self, x):
        x, g = x.unsqueeze(-1), self.grid
        bases = ((x >= g[:, :-1]) & (x < g[:, 1:])).to(x.dtype)
        for k in range(1, self.order + 1):
            left = (x - g[:, : -(k + 1)]) / (g[:, k:-1] - g[:, : -(k + 1)])
            right = (g[:, k + 1 :] - x) / (g[:, k + 1 :] - g[:, 1:-k])
            bases = left * bases[:, :, :-1] + right * bases[:, :, 1:]
        return bases.contiguous()

    def forward(self, x):
        base = F.linear(F.silu(x), self.base_weight)
        scaled = self.spline_weight * self.spline_scaler.unsqueeze(-1)
        return base + F.linear(self.b_splines(x).view(x.size(0), -1), scaled.view(self.o, -1))


class KAN(nn.Module):
    def __init__(self, widths):
        super().__init__()
        self.layers = nn.ModuleList(KANLinear(a, b) for a, b in zip(widths, widths[1:]))

    def forward(self, x):
        for layer in self.layers:
            x = layer(x)
        return x


def laplacian(u, x):
    du = torch.autograd.grad(u.sum(), x, create_graph=True)[0]
    return sum(torch.autograd.grad(du[:, k].sum(), x, create_graph=True)[0][:, k] for k in range(2))


device = torch.device("cuda")
model = KAN([2, 24, 24, 1]).to(device)
opt = torch.optim.Adam(model.parameters(), lr=1e-3)
sched = torch.optim.lr_scheduler.ExponentialLR(opt, 0.999)
trace = []
for i in steps(count=5):
    x = (torch.rand(40000, 2, device=device) * 2 - 1).requires_grad_()
    edge = torch.rand(4000, 2, device=device) * 2 - 1
    edge[:2000, 0], edge[2000:, 1] = edge[:2000, 0].sign(), edge[2000:, 1].sign()
    source = -2 * math.pi**2 * torch.sin(math.pi * x[:, 0]) * torch.sin(math.pi * x[:, 1])
    opt.zero_grad()
    pde = ((laplacian(model(x), x) - source.detach()) ** 2).mean()
    bc = (model(edge) ** 2).mean()
    loss = 0.01 * pde + bc
    loss.backward()
    opt.step()
    sched.step()
    trace.append((pde.item(), bc.item()))
