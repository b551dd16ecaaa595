import copy
import torch, torch.nn as nn
from tick import steps


class Critics(nn.Module):
    def __init__(self, n=10, i=48, h=512):
        super().__init__()
        w = lambda a, b: nn.Parameter(torch.randn(n, a, b) * a**-0.5)
        self.w1, self.w2, self.w3 = w(i, h), w(h, h), w(h, 1)
        self.b1, self.b2 = nn.Parameter(torch.zeros(n, 1, h)), nn.Parameter(torch.zeros(n, 1, h))

    def forward(self, s, a):
        x = torch.cat([s, a], -1).expand(self.w1.shape[0], -1, -1)
        x = torch.relu(torch.baddbmm(self.b1, x, self.w1))
        x = torch.relu(torch.baddbmm(self.b2, x, self.w2))
        return torch.bmm(x, self.w3).squeeze(-1)


actor = nn.Sequential(nn.Linear(36, 512), nn.ReLU(), nn.Linear(512, 512), nn.ReLU(), nn.Linear(512, 24)).cuda()
q = Critics().cuda()
qt = copy.deepcopy(q)
alpha = torch.tensor(0.1, device="cuda")
oq, oa = (
    torch.optim.Adam(q.parameters(), 3e-4, capturable=True),
    torch.optim.Adam(actor.parameters(), 3e-4, capturable=True),
)


def sample(s):
    mu, ls = actor(s).chunk(2, -1)
    d = torch.distributions.Normal(mu, ls.clamp(-5, 2).exp(), validate_args=False)
    u = d.rsample()
    a = torch.tanh(u)
    return a, (d.log_prob(u) - torch.log(1 - a.pow(2) + 1e-6)).sum(-1)


@torch.compile
def critic_loss(s, a, r, s2, d):
    with torch.no_grad():
        a2, lp = sample(s2)
        y = r + 0.99 * (1 - d) * (qt(s2, a2)[:2].amin(0) - alpha * lp)
    return (q(s, a) - y).square().mean(1).sum()


@torch.compile
def actor_loss(s):
    a, lp = sample(s)
    return (alpha * lp - q(s, a).mean(0)).mean()


for i in steps(count=20):
    s, s2 = torch.randn(1024, 36, device="cuda"), torch.randn(1024, 36, device="cuda")
    a, r = torch.rand(1024, 12, device="cuda") * 2 - 1, torch.randn(1024, device="cuda")
    oq.zero_grad()
    critic_loss(s, a, r, s2, (r > 2).float()).backward()
    oq.step()
    oa.zero_grad()
    actor_loss(s).backward()
    oa.step()
    with torch.no_grad():
        torch._foreach_lerp_(list(qt.parameters()), list(q.parameters()), 0.005)
