"""PETS: a probabilistic ensemble of dynamics models, a plan by the cross-entropy method at every step of the world."""

import torch
from torch import nn

from tick import steps

torch.backends.cuda.matmul.allow_tf32 = True


class EnsembleLinear(nn.Module):
    def __init__(self, members, n_in, n_out):
        super().__init__()
        self.weight = nn.Parameter(torch.empty(members, n_in, n_out))
        self.bias = nn.Parameter(torch.zeros(members, 1, n_out))
        nn.init.trunc_normal_(self.weight, std=1 / (2 * n_in**0.5))

    def forward(self, x):
        return torch.baddbmm(self.bias, x, self.weight)


class ProbabilisticEnsemble(nn.Module):
    def __init__(self, obs_dim, act_dim, members=5, hidden=200):
        super().__init__()
        self.members, self.obs_dim = members, obs_dim
        layers, width = [], obs_dim + act_dim
        for _ in range(4):
            layers += [EnsembleLinear(members, width, hidden), nn.SiLU()]
            width = hidden
        self.body, self.head = nn.Sequential(*layers), EnsembleLinear(members, hidden, 2 * obs_dim)
        self.max_logvar = nn.Parameter(torch.full((obs_dim,), 0.5))
        self.min_logvar = nn.Parameter(torch.full((obs_dim,), -10.0))
        self.register_buffer("mu", torch.zeros(obs_dim + act_dim))
        self.register_buffer("sigma", torch.ones(obs_dim + act_dim))

    def forward(self, obs, act):
        x = (torch.cat([obs, act], -1) - self.mu) / self.sigma
        mean, logvar = self.head(self.body(x)).chunk(2, -1)
        logvar = self.max_logvar - nn.functional.softplus(self.max_logvar - logvar)
        logvar = self.min_logvar + nn.functional.softplus(logvar - self.min_logvar)
        return mean, logvar

    def sample(self, obs, act):
        mean, logvar = self(obs, act)
        return obs + mean + torch.randn_like(mean) * (0.5 * logvar).exp()


class CEMPlanner:
    def __init__(self, model, act_dim, horizon=30, population=500, elites=50, iterations=5, particles=20, alpha=0.1):
        self.model, self.act_dim, self.horizon = model, act_dim, horizon
        self.population, self.elites, self.iterations = population, elites, iterations
        self.particles, self.alpha = particles, alpha
        self.previous = torch.zeros(horizon, act_dim, device="cuda")
        self.evaluate = torch.compile(self.rollout, mode="reduce-overhead")

    def rollout(self, obs, plans):
        m = self.model.members
        share = self.particles // m
        state = obs.expand(m, self.population * share, -1)
        acts = plans.transpose(0, 1).repeat_interleave(share, dim=1)
        total = torch.zeros(m, self.population * share, device=obs.device)
        for t in range(self.horizon):
            act = acts[t].expand(m, -1, -1)
            state = self.model.sample(state, act)
            total = total + state[..., 0] - 0.1 * act.square().sum(-1)
        return total.view(m, self.population, share).mean((0, 2))

    @torch.no_grad()
    def __call__(self, obs):
        mean = torch.cat([self.previous[1:], self.previous[-1:] * 0])
        var = torch.full_like(mean, 0.25)
        best, best_value = mean, torch.full((), -torch.inf, device=mean.device)
        for _ in range(self.iterations):
            room = torch.minimum((mean + 1) / 2, (1 - mean) / 2).square()
            std = torch.minimum(room, var).sqrt()
            noise = torch.empty(self.population, *mean.shape, device=mean.device)
            nn.init.trunc_normal_(noise, a=-2.0, b=2.0)
            plans = mean + noise * std
            torch.compiler.cudagraph_mark_step_begin()
            value, index = self.evaluate(obs, plans).nan_to_num(-1e10).topk(self.elites)
            chosen = plans[index]
            mean = self.alpha * mean + (1 - self.alpha) * chosen.mean(0)
            var = self.alpha * var + (1 - self.alpha) * chosen.var(0)
            better = value[0] > best_value
            best = torch.where(better, chosen[0], best)
            best_value = torch.where(better, value[0], best_value)
        self.previous = best
        return best[0].cpu().numpy()


OBS, ACT = 18, 6
model = ProbabilisticEnsemble(OBS, ACT).cuda().eval()
planner = CEMPlanner(model, ACT)
obs = torch.randn(OBS, device="cuda")
for _ in steps():
    action = planner(obs)
    obs = (0.99 * obs + 0.01 * torch.randn(OBS, device="cuda")) + float(action.mean()) * 0.1
