import torch, torch.nn as nn
from tick import steps

N, OBS, ACT, T = 2048, 64, 8, 32


class AC(nn.Module):
    def __init__(self):
        super().__init__()
        self.pi = nn.Sequential(nn.Linear(OBS, 256), nn.Tanh(), nn.Linear(256, 256), nn.Tanh(), nn.Linear(256, ACT))
        self.v = nn.Sequential(nn.Linear(OBS, 256), nn.Tanh(), nn.Linear(256, 256), nn.Tanh(), nn.Linear(256, 1))
        self.log_std = nn.Parameter(torch.zeros(ACT))

    def forward(self, o):
        return self.pi(o), self.v(o).squeeze(-1)


ac = AC().cuda()
W = torch.randn(OBS + ACT, OBS, device="cuda") * 0.1


@torch.compile
def act(o):
    m, v = ac(o)
    a = m + ac.log_std.exp() * torch.randn_like(m)
    lp = (-0.5 * ((a - m) / ac.log_std.exp()).pow(2) - ac.log_std).sum(-1)
    o2 = torch.tanh(torch.cat([o, a], -1) @ W)
    return o2, a, lp, v, -o2.pow(2).mean(-1)


@torch.compile
def ppo_loss(o, a, lp0, adv, ret):
    m, v = ac(o)
    lp = (-0.5 * ((a - m) / ac.log_std.exp()).pow(2) - ac.log_std).sum(-1)
    r = (lp - lp0).exp()
    return -torch.min(r * adv, r.clamp(0.8, 1.2) * adv).mean() + 0.5 * (v - ret).pow(2).mean() - 0.01 * ac.log_std.sum()


opt = torch.optim.Adam(ac.parameters(), 3e-4, eps=1e-5)
o = torch.randn(N, OBS, device="cuda")
for i in steps(count=4):
    S = []
    with torch.no_grad():
        for t in range(T):
            o2, a, lp, v, r = act(o)
            S.append((o, a, lp, v, r))
            o = o2
        last = ac(o)[1]
        adv, g = [], torch.zeros(N, device="cuda")
        for t in reversed(range(T)):
            nv = last if t == T - 1 else S[t + 1][3]
            g = S[t][4] + 0.99 * nv - S[t][3] + 0.95 * 0.99 * g
            adv.insert(0, g)
    obs, acts, lps, vals, _ = (torch.cat([s[k] for s in S]) for k in range(5))
    adv = torch.cat(adv)
    ret = adv + vals
    adv = (adv - adv.mean()) / (adv.std() + 1e-8)
    for ep in range(2):
        perm = torch.randperm(N * T, device="cuda")
        for mb in perm.chunk(4):
            loss = ppo_loss(obs[mb], acts[mb], lps[mb], adv[mb], ret[mb])
            opt.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(ac.parameters(), 0.5)
            opt.step()
