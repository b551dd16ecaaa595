"""FFJORD-like continuous flow: RK4 with fixed steps, Hutchinson trace by vjp, compiled field."""

import torch, torch.nn as nn
from tick import steps

DIM, W, B, NT = 63, 860, 4096, 6


class Field(nn.Module):
    def __init__(self):
        super().__init__()
        dims = [DIM, W, W, W, DIM]
        self.lin = nn.ModuleList(nn.Linear(a, b) for a, b in zip(dims, dims[1:]))
        self.gate = nn.ModuleList(nn.Linear(1, b) for b in dims[1:])
        self.bias = nn.ModuleList(nn.Linear(1, b, bias=False) for b in dims[1:])

    def forward(self, t, x):
        t = t.view(1, 1)
        for k, (l, g, b) in enumerate(zip(self.lin, self.gate, self.bias)):
            x = l(x) * torch.sigmoid(g(t)) + b(t)
            if k < 3:
                x = torch.tanh(x)
        return x


field = Field().cuda()
logdet_weight = torch.tensor(1.0, device="cuda")


def dynamics(t, z, eps):
    with torch.enable_grad():
        z = z.requires_grad_(True) if z.is_leaf else z
        dz = field(t, z)
        e = torch.autograd.grad(dz, z, eps, create_graph=True)[0]
    return dz, -(e * eps).sum(-1), dz.pow(2).sum(-1), e.pow(2).sum(-1)


def rk4(t, h, state, eps):
    def f(t, s):
        return dynamics(t, s[0], eps)

    add = lambda s, k, c: [a + c * b for a, b in zip(s, k)]
    k1 = f(t, state)
    k2 = f(t + h / 2, add(state, k1, h / 2))
    k3 = f(t + h / 2, add(state, k2, h / 2))
    k4 = f(t + h, add(state, k3, h))
    return [s + h / 6 * (a + 2 * b + 2 * c + d) for s, a, b, c, d in zip(state, k1, k2, k3, k4)]


opt = torch.optim.RAdam(field.parameters(), 1e-3, decoupled_weight_decay=True, weight_decay=1e-6)
swa = torch.optim.swa_utils.AveragedModel(field, multi_avg_fn=torch.optim.swa_utils.get_ema_multi_avg_fn(0.999))
data = torch.randn(200000, DIM, device="cuda")
ts = torch.linspace(1.0, 0.0, NT + 1, device="cuda")
torch.set_float32_matmul_precision("high")
for i in steps(count=6):
    x = data[torch.randint(0, data.shape[0], (B,), device="cuda")]
    eps = torch.randn_like(x)
    zero = torch.zeros(B, device="cuda")
    state = [x.clone().requires_grad_(), zero, zero, zero]
    for k in range(NT):
        state = rk4(ts[k], ts[k + 1] - ts[k], state, eps)
    z, dl, ke, je = state
    logp = torch.distributions.Normal(0.0, 1.0).log_prob(z).sum(-1) - dl * logdet_weight
    loss = -logp.mean() + 0.01 * (ke.abs().mean() + je.abs().mean())
    opt.zero_grad()
    loss.backward()
    nn.utils.clip_grad_value_(field.parameters(), 1.0)
    opt.step()
    swa.update_parameters(field)
