import copy
import torch
import torch.nn as nn
import torch.nn.functional as F
from tick import steps

torch.set_float32_matmul_precision("high")
OBS, ACT, LATENT, MLP, TASKS, TASK_DIM, NUM_Q, BINS = 39, 6, 768, 1792, 80, 96, 5, 101
BATCH, HORIZON, VMIN, VMAX, RHO = 1024, 3, -10.0, 10.0, 0.5


class SimNorm(nn.Module):
    def forward(self, x):
        return F.softmax(x.view(*x.shape[:-1], -1, 8), dim=-1).flatten(-2)


class NormedLinear(nn.Module):
    def __init__(self, i, o, act=None, dropout=0.0):
        super().__init__()
        self.linear, self.ln = nn.Linear(i, o), nn.LayerNorm(o)
        self.act, self.dropout = act or nn.Mish(), nn.Dropout(dropout)

    def forward(self, x):
        return self.act(self.ln(self.dropout(self.linear(x))))


def mlp(i, o, act=None, dropout=0.0):
    last = NormedLinear(MLP, o, act) if act else nn.Linear(MLP, o)
    return nn.Sequential(NormedLinear(i, MLP, dropout=dropout), NormedLinear(MLP, MLP), last)


def two_hot(x):
    x = (torch.sign(x) * torch.log1p(torch.abs(x))).clamp(VMIN, VMAX).squeeze(-1)
    pos = (x - VMIN) / ((VMAX - VMIN) / (BINS - 1))
    low = pos.floor().long().clamp(0, BINS - 2)
    frac = (pos - low).unsqueeze(-1)
    return F.one_hot(low, BINS) * (1 - frac) + F.one_hot(low + 1, BINS) * frac


def two_hot_inv(logits):
    x = (F.softmax(logits, -1) * torch.linspace(VMIN, VMAX, BINS, device=logits.device)).sum(-1, keepdim=True)
    return torch.sign(x) * (torch.exp(torch.abs(x)) - 1)


def soft_ce(logits, target):
    return -(two_hot(target) * F.log_softmax(logits, -1)).sum(-1)


class WorldModel(nn.Module):
    def __init__(self):
        super().__init__()
        self.task_emb = nn.Embedding(TASKS, TASK_DIM, max_norm=1)
        self.encoder = nn.Sequential(NormedLinear(OBS + TASK_DIM, MLP), NormedLinear(MLP, LATENT, SimNorm()))
        self.dynamics = mlp(LATENT + ACT + TASK_DIM, LATENT, SimNorm())
        self.reward = mlp(LATENT + ACT + TASK_DIM, BINS)
        self.pi = mlp(LATENT + TASK_DIM, 2 * ACT)
        self.qs = nn.ModuleList(mlp(LATENT + ACT + TASK_DIM, BINS, dropout=0.01) for _ in range(NUM_Q))
        self.target_qs = copy.deepcopy(self.qs).requires_grad_(False)

    def policy(self, z, e):
        mean, log_std = self.pi(torch.cat([z, e], -1)).chunk(2, -1)
        log_std = -10 + 6 * (torch.tanh(log_std) + 1)
        eps = torch.randn_like(mean)
        logp = (-0.5 * eps.pow(2) - log_std - 0.919).sum(-1, keepdim=True)
        action = torch.tanh(mean + eps * log_std.exp())
        return action, logp - torch.log(F.relu(1 - action.pow(2)) + 1e-6).sum(-1, keepdim=True)


def model_loss(m, obs, action, reward, e):
    x = torch.cat([obs, e.expand(HORIZON + 1, -1, -1)], -1)
    with torch.no_grad():
        next_z = m.encoder(x[1:])
        a, _ = m.policy(next_z, e.expand(HORIZON, -1, -1))
        za = torch.cat([next_z, a, e.expand(HORIZON, -1, -1)], -1)
        td = reward + 0.99 * torch.min(two_hot_inv(m.target_qs[0](za)), two_hot_inv(m.target_qs[1](za)))
    z = m.encoder(x[0])
    zs, consistency = [z], 0.0
    for t in range(HORIZON):
        z = m.dynamics(torch.cat([z, action[t], e], -1))
        consistency = consistency + F.mse_loss(z, next_z[t]) * RHO**t
        zs.append(z)
    zs = torch.stack(zs)
    za = torch.cat([zs[:-1], action, e.expand(HORIZON, -1, -1)], -1)
    rho = RHO ** torch.arange(HORIZON, device=z.device)
    reward_loss = (soft_ce(m.reward(za), reward).mean(1) * rho).mean()
    value_loss = sum((soft_ce(q(za), td).mean(1) * rho).mean() for q in m.qs) / NUM_Q
    return 20 * consistency / HORIZON + 0.1 * reward_loss + 0.1 * value_loss, zs.detach()


def pi_loss(m, zs, e):
    e = e.detach().expand(HORIZON + 1, -1, -1)
    action, logp = m.policy(zs, e)
    za = torch.cat([zs, action, e], -1)
    q = (two_hot_inv(m.qs[0](za)) + two_hot_inv(m.qs[1](za))) / 2
    rho = RHO ** torch.arange(HORIZON + 1, device=zs.device)
    return ((1e-4 * logp - q).mean((1, 2)) * rho).mean()


world = WorldModel().cuda()
params = [p for n, p in world.named_parameters() if not n.startswith(("pi.", "target_qs."))]
optim = torch.optim.Adam(params, lr=3e-4, capturable=True)
pi_optim = torch.optim.Adam(world.pi.parameters(), lr=3e-4, eps=1e-5, capturable=True)
model_loss = torch.compile(model_loss, mode="reduce-overhead")
pi_loss = torch.compile(pi_loss, mode="reduce-overhead")
size = 100000
observations = torch.randn(size, OBS, device="cuda")
actions, rewards = torch.rand(size, ACT, device="cuda") * 2 - 1, torch.rand(size, 1, device="cuda")
for step in steps():
    start = torch.randint(0, size - HORIZON - 1, (BATCH,), device="cuda")
    idx = start + torch.arange(HORIZON + 1, device="cuda")[:, None]
    obs, action, reward = observations[idx], actions[idx[:-1]], rewards[idx[:-1]]
    task = torch.randint(0, TASKS, (BATCH,), device="cuda")
    torch.compiler.cudagraph_mark_step_begin()
    loss, zs = model_loss(world, obs, action, reward, world.task_emb(task))
    loss.backward()
    torch.nn.utils.clip_grad_norm_(params, 20.0)
    optim.step()
    optim.zero_grad(set_to_none=True)
    pi_loss(world, zs.clone(), world.task_emb(task).detach()).backward()
    torch.nn.utils.clip_grad_norm_(world.pi.parameters(), 20.0)
    pi_optim.step()
    pi_optim.zero_grad(set_to_none=True)
    world.qs.zero_grad(set_to_none=True)
    with torch.no_grad():
        torch._foreach_lerp_(list(world.target_qs.parameters()), list(world.qs.parameters()), 0.01)
