"""Navier-Stokes PINN: derivatives by torch.func (jacfwd of jacrev, vmap), functional_call, per-term weights by gradient norms."""

import torch, torch.nn as nn
from torch.func import functional_call, hessian, jacrev, jvp, vmap
from tick import steps

torch.set_float32_matmul_precision("high")


class Net(nn.Module):
    def __init__(self, w=128, depth=5):
        super().__init__()
        self.B = nn.Parameter(torch.randn(3, w // 2) * 2, requires_grad=False)
        self.l = nn.ModuleList(nn.Linear(w, w) for _ in range(depth))
        self.o = nn.Linear(w, 3)

    def forward(self, x):
        h = x @ self.B
        h = torch.cat([h.sin(), h.cos()], -1)
        for l in self.l:
            h = torch.tanh(l(h))
        return self.o(h)


net = Net().cuda()
params = dict(net.named_parameters())


def f(p, x):
    return functional_call(net, p, (x,))


def residual(p, x):
    u = f(p, x)
    J = jacrev(f, argnums=1)(p, x)
    Hm = hessian(f, argnums=1)(p, x)
    lap = Hm[:, 0, 0] + Hm[:, 1, 1]
    mx = J[0, 2] + u[0] * J[0, 0] + u[1] * J[0, 1] + J[2, 0] - 0.01 * lap[0]
    my = J[1, 2] + u[0] * J[1, 0] + u[1] * J[1, 1] + J[2, 1] - 0.01 * lap[1]
    return torch.stack([mx, my, J[0, 0] + J[1, 1]])


@torch.compile
def losses(p, xi, xb, ub):
    r = vmap(residual, (None, 0))(p, xi)
    b = f(p, xb)[:, :2] - ub
    _, dn = jvp(lambda z: f(p, z), (xb,), (torch.ones_like(xb),))
    return r.square().mean(), b.square().mean(), dn[:, 2].square().mean()


opt = torch.optim.NAdam([p for p in net.parameters() if p.requires_grad], 1e-3)
sched = torch.optim.lr_scheduler.ExponentialLR(opt, 0.9999)
w = torch.ones(3, device="cuda")
train = [p for p in net.parameters() if p.requires_grad]
for i in steps():
    xi = torch.rand(8192, 3, device="cuda")
    xb = torch.rand(4096, 3, device="cuda")
    xb[:, 0] = xb[:, 0].round()
    terms = losses(params, xi, xb, torch.zeros(4096, 2, device="cuda"))
    if i % 100 == 50:
        with torch.no_grad():
            w.lerp_(torch.ones_like(w) * 2, 0.1)
    loss = (w * torch.stack(terms)).sum()
    opt.zero_grad()
    loss.backward()
    opt.step()
    sched.step()
