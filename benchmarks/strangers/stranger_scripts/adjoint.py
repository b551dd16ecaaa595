"""ODE-Net: images through a neural ODE whose gradient solves the adjoint backwards, an autograd Function by hand, RK4."""

import torch, torch.nn as nn, torch.nn.functional as F
from tick import steps

torch.backends.cudnn.benchmark = True
B, CH, TURNS = 256, 128, 6


class Field(nn.Module):
    def __init__(s):
        super().__init__()
        s.n1, s.n2, s.n3 = nn.GroupNorm(32, CH), nn.GroupNorm(32, CH), nn.GroupNorm(32, CH)
        s.c1, s.c2 = nn.Conv2d(CH + 1, CH, 3, 1, 1), nn.Conv2d(CH + 1, CH, 3, 1, 1)
        s.evaluations = 0

    def forward(s, t, x):
        s.evaluations += 1
        plane = torch.ones_like(x[:, :1]) * t
        h = s.c1(torch.cat([plane, F.relu(s.n1(x))], 1))
        return s.n3(s.c2(torch.cat([plane, F.relu(s.n2(h))], 1)))


def rk4(f, t, h, y):
    """One step for a tuple of tensors."""
    add = lambda y, k, c: tuple(a + c * b for a, b in zip(y, k))
    k1 = f(t, y)
    k2 = f(t + h / 2, add(y, k1, h / 2))
    k3 = f(t + h / 2, add(y, k2, h / 2))
    k4 = f(t + h, add(y, k3, h))
    return tuple(a + h / 6 * (p + 2 * q + 2 * r + s) for a, p, q, r, s in zip(y, k1, k2, k3, k4))


class Solve(torch.autograd.Function):
    @staticmethod
    def forward(ctx, field, x, *params):
        y = (x,)
        with torch.no_grad():
            for i in range(TURNS):
                y = rk4(lambda t, y: (field(t, *y),), i / TURNS, 1 / TURNS, y)
        ctx.field = field
        ctx.save_for_backward(y[0], *params)
        return y[0]

    @staticmethod
    def backward(ctx, grad):
        end, *params = ctx.saved_tensors

        def augmented(t, state):
            y, a = state[:2]
            with torch.enable_grad():
                y = y.detach().requires_grad_()
                out = ctx.field(t, y)
                gy, *gp = torch.autograd.grad(out, (y, *params), -a)
            return (out.detach(), gy, *gp)

        state = (end, grad, *(torch.zeros_like(p) for p in params))
        with torch.no_grad():
            for i in range(TURNS, 0, -1):
                state = rk4(augmented, i / TURNS, -1 / TURNS, state)
        return (None, state[1], *state[2:])


class Net(nn.Module):
    def __init__(s):
        super().__init__()
        s.stem = nn.Sequential(nn.Conv2d(3, CH, 3, 1, 1), nn.GroupNorm(32, CH), nn.ReLU(), nn.Conv2d(CH, CH, 4, 2, 1))
        s.field, s.head = Field(), nn.Linear(CH, 10)

    def forward(s, x):
        x = Solve.apply(s.field, s.stem(x), *s.field.parameters())
        return s.head(F.relu(x).mean((2, 3)))


net = Net().cuda()
opt = torch.optim.SGD(net.parameters(), 0.1, 0.9)
sched = torch.optim.lr_scheduler.MultiStepLR(opt, [60, 100, 140])
nfe = 0.0
for i in steps(count=4):
    x, y = torch.randn(B, 3, 32, 32, device="cuda"), torch.randint(0, 10, (B,), device="cuda")
    opt.zero_grad()
    loss = F.cross_entropy(net(x), y)
    loss.backward()
    opt.step()
    nfe, net.field.evaluations = 0.97 * nfe + 0.03 * net.field.evaluations, 0
