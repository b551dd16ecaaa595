import torch, torch.nn as nn
from torch.distributions import Normal

device = torch.device("cuda")
N, T, obs_dim, act_dim = 1024, 16, 48, 12


class Agent(nn.Module):
    def __init__(self):
        super().__init__()
        self.critic = nn.Sequential(nn.Linear(obs_dim, 256), nn.ELU(), nn.Linear(256, 128), nn.ELU(), nn.Linear(128, 1))
        self.actor = nn.Sequential(
            nn.Linear(obs_dim, 256), nn.ELU(), nn.Linear(256, 128), nn.ELU(), nn.Linear(128, act_dim)
        )
        self.logstd = nn.Parameter(torch.zeros(1, act_dim))

    def act(self, x, a=None):
        mean = self.actor(x)
        d = Normal(mean, self.logstd.expand_as(mean).exp())
        if a is None:
            a = d.sample()
        return a, d.log_prob(a).sum(1), d.entropy().sum(1), self.critic(x)


agent = Agent().to(device)
opt = torch.optim.Adam(agent.parameters(), lr=3e-4, eps=1e-5)
W = torch.randn(obs_dim + act_dim, obs_dim, device=device) * 0.1
obs = torch.randn(N, obs_dim, device=device)
for it in range(60):
    O, A, LP, R, V, D = ([] for _ in range(6))
    for t in range(T):
        with torch.no_grad():
            a, lp, _, v = agent.act(obs)
        O.append(obs)
        A.append(a)
        LP.append(lp)
        V.append(v.flatten())
        obs = torch.tanh(torch.cat([obs, a], 1) @ W)
        R.append(-obs.pow(2).mean(1))
        D.append((torch.rand(N, device=device) < 0.01).float())
    with torch.no_grad():
        nv = agent.critic(obs).flatten()
        adv, last = [None] * T, 0
        for t in reversed(range(T)):
            delta = R[t] + 0.99 * nv * (1 - D[t]) - V[t]
            adv[t] = last = delta + 0.99 * 0.95 * (1 - D[t]) * last
            nv = V[t]
    O, A, LP, V = torch.cat(O), torch.cat(A), torch.cat(LP), torch.cat(V)
    adv = torch.cat(adv)
    ret = adv + V
    for epoch in range(4):
        for idx in torch.randperm(N * T, device=device).split(4096):
            _, lp, ent, v = agent.act(O[idx], A[idx])
            ratio = (lp - LP[idx]).exp()
            a_ = (adv[idx] - adv[idx].mean()) / (adv[idx].std() + 1e-8)
            loss = (
                torch.max(-a_ * ratio, -a_ * ratio.clamp(0.8, 1.2)).mean()
                + 0.5 * (v.flatten() - ret[idx]).pow(2).mean()
                - 0.01 * ent.mean()
            )
            opt.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(agent.parameters(), 0.5)
            opt.step()
            if ((ratio - 1) - ratio.log()).mean() > 0.5:
                break
    print(it, loss.item())
