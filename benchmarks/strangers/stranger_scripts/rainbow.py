"""Rainbow-like: replay in GPU tensors, prioritized draws by cumsum + searchsorted, noisy dueling C51, double Q, Polyak."""

import copy, torch, torch.nn as nn, torch.nn.functional as F
from tick import steps

CAP, BATCH, ACT, ATOMS = 100_000, 256, 6, 51
dev = "cuda"


class Noisy(nn.Module):
    def __init__(self, i, o):
        super().__init__()
        b = i**-0.5
        self.w, self.sw = nn.Parameter(torch.empty(o, i).uniform_(-b, b)), nn.Parameter(torch.full((o, i), 0.5 * b))
        self.b, self.sb = nn.Parameter(torch.zeros(o)), nn.Parameter(torch.full((o,), 0.5 * b))
        self.register_buffer("ei", torch.zeros(i))
        self.register_buffer("eo", torch.zeros(o))

    def reset(self):
        for e in (self.ei, self.eo):
            e.normal_()
            e.copy_(e.sign() * e.abs().sqrt())

    def forward(self, x):
        return F.linear(x, self.w + self.sw * torch.outer(self.eo, self.ei), self.b + self.sb * self.eo)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.c = nn.Sequential(
            nn.Conv2d(4, 32, 8, 4),
            nn.ReLU(),
            nn.Conv2d(32, 64, 4, 2),
            nn.ReLU(),
            nn.Conv2d(64, 64, 3),
            nn.ReLU(),
            nn.Flatten(),
        )
        self.v1, self.v2, self.a1, self.a2 = (
            Noisy(3136, 512),
            Noisy(512, ATOMS),
            Noisy(3136, 512),
            Noisy(512, ACT * ATOMS),
        )

    def forward(self, x):
        h = self.c(x.float() / 255)
        v, a = self.v2(F.relu(self.v1(h))).view(-1, 1, ATOMS), self.a2(F.relu(self.a1(h))).view(-1, ACT, ATOMS)
        return (v + a - a.mean(1, keepdim=True)).log_softmax(-1)

    def reset(self):
        for m in (self.v1, self.v2, self.a1, self.a2):
            m.reset()


frames = torch.randint(0, 256, (CAP, 84, 84), dtype=torch.uint8, device=dev)
actions, rewards = torch.randint(0, ACT, (CAP,), device=dev), torch.randn(CAP, device=dev)
prio = torch.ones(CAP, device=dev)
net = Net().to(dev)
tgt = copy.deepcopy(net).requires_grad_(False)
opt = torch.optim.RMSprop(net.parameters(), 2.5e-4, alpha=0.95, centered=True, eps=1e-2)
z = torch.linspace(-10, 10, ATOMS, device=dev)
dz = z[1] - z[0]
back = torch.arange(-3, 1, device=dev)


@torch.compile(mode="reduce-overhead")
@torch.no_grad()
def project(r, p):
    t = (r[:, None] + 0.99**3 * z).clamp(-10, 10)
    b = (t + 10) / dz
    lo, hi = b.floor().long(), b.ceil().long()
    m = torch.zeros_like(p)
    m.scatter_add_(1, lo, p * (hi - b + (lo == hi).float()))
    m.scatter_add_(1, hi.clamp(max=ATOMS - 1), p * (b - lo))
    return m


for i in steps():
    for _ in range(4):
        cum = prio.pow(0.6).cumsum(0)
        u = (torch.arange(BATCH, device=dev) + torch.rand(BATCH, device=dev)) / BATCH * cum[-1]
        idx = torch.searchsorted(cum, u).clamp(3, CAP - 4)
        w = (CAP * prio[idx] / cum[-1]).pow(-0.4)
        w = w / w.max()
        s, s2 = frames[idx[:, None] + back], frames[idx[:, None] + back + 3]
        net.reset()
        tgt.reset()
        with torch.no_grad():
            a2 = (net(s2).exp() * z).sum(-1).argmax(-1)
            p = tgt(s2).exp()[torch.arange(BATCH, device=dev), a2]
        m = project(rewards[idx], p)
        lp = net(s)[torch.arange(BATCH, device=dev), actions[idx]]
        kl = -(m * lp).sum(-1)
        opt.zero_grad(set_to_none=False)
        (w * kl).mean().backward()
        nn.utils.clip_grad_norm_(net.parameters(), 10.0)
        opt.step()
        prio.index_put_((idx,), kl.detach() + 1e-6)
    with torch.no_grad():
        torch._foreach_mul_(list(tgt.parameters()), 0.995)
        torch._foreach_add_(list(tgt.parameters()), list(net.parameters()), alpha=0.005)
