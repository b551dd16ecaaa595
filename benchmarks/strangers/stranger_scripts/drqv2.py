import copy
import math

import torch
import torch.nn as nn
import torch.nn.functional as F

from tick import steps

torch.set_float32_matmul_precision("high")
torch.backends.cudnn.allow_tf32 = True
torch.backends.cudnn.benchmark = True


class RandomShiftsAug(nn.Module):
    def __init__(self, pad=4):
        super().__init__()
        self.pad = pad

    def forward(self, x):
        n, c, h, w = x.size()
        x = F.pad(x, (self.pad,) * 4, "replicate")
        eps = 1.0 / (h + 2 * self.pad)
        arange = torch.linspace(-1.0 + eps, 1.0 - eps, h + 2 * self.pad, device=x.device, dtype=x.dtype)[:h]
        arange = arange.unsqueeze(0).repeat(h, 1).unsqueeze(2)
        base_grid = torch.cat([arange, arange.transpose(1, 0)], dim=2).unsqueeze(0).repeat(n, 1, 1, 1)
        shift = torch.randint(0, 2 * self.pad + 1, size=(n, 1, 1, 2), device=x.device, dtype=x.dtype)
        shift *= 2.0 / (h + 2 * self.pad)
        return F.grid_sample(x, base_grid + shift, padding_mode="zeros", align_corners=False)


class Encoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.convnet = nn.Sequential(
            nn.Conv2d(9, 32, 3, stride=2), nn.ReLU(),
            nn.Conv2d(32, 32, 3), nn.ReLU(),
            nn.Conv2d(32, 32, 3), nn.ReLU(),
            nn.Conv2d(32, 32, 3), nn.ReLU(),
        )  # fmt: skip

    def forward(self, obs):
        return self.convnet(obs / 255.0 - 0.5).flatten(1)


def mlp(i, h, o):
    return nn.Sequential(
        nn.Linear(i, h), nn.ReLU(inplace=True), nn.Linear(h, h), nn.ReLU(inplace=True), nn.Linear(h, o)
    )


class Actor(nn.Module):
    def __init__(self, repr_dim, action_dim, feature_dim=50, hidden=1024):
        super().__init__()
        self.trunk = nn.Sequential(nn.Linear(repr_dim, feature_dim), nn.LayerNorm(feature_dim), nn.Tanh())
        self.policy = mlp(feature_dim, hidden, action_dim)

    def forward(self, h):
        return torch.tanh(self.policy(self.trunk(h)))


class Critic(nn.Module):
    def __init__(self, repr_dim, action_dim, feature_dim=50, hidden=1024):
        super().__init__()
        self.trunk = nn.Sequential(nn.Linear(repr_dim, feature_dim), nn.LayerNorm(feature_dim), nn.Tanh())
        self.Q1 = mlp(feature_dim + action_dim, hidden, 1)
        self.Q2 = mlp(feature_dim + action_dim, hidden, 1)

    def forward(self, h, action):
        h = torch.cat([self.trunk(h), action], dim=-1)
        return self.Q1(h), self.Q2(h)


def weight_init(m):
    if isinstance(m, nn.Linear):
        nn.init.orthogonal_(m.weight)
        m.bias.data.zero_()
    elif isinstance(m, nn.Conv2d):
        nn.init.orthogonal_(m.weight, nn.init.calculate_gain("relu"))
        m.bias.data.zero_()


class ReplayBuffer:
    """Single frames on the device; stacks of three are put together when drawn."""

    def __init__(self, capacity, action_dim, nstep, discount):
        self.frames = torch.randint(0, 256, (capacity, 3, 84, 84), dtype=torch.uint8, device="cuda")
        self.actions = torch.rand(capacity, action_dim, device="cuda") * 2 - 1
        self.rewards = torch.rand(capacity, device="cuda")
        self.size, self.nstep = capacity, nstep
        self.powers = discount ** torch.arange(nstep, device="cuda")
        self.last = torch.full((1, 1), discount**nstep, device="cuda")
        self.back = torch.arange(-2, 1, device="cuda")

    def sample(self, n):
        at = torch.randint(2, self.size - self.nstep, (n,), device="cuda")
        obs = self.frames[at[:, None] + self.back].flatten(1, 2)
        next_obs = self.frames[at[:, None] + self.nstep + self.back].flatten(1, 2)
        ahead = at[:, None] + torch.arange(self.nstep, device="cuda")
        reward = (self.rewards[ahead] * self.powers).sum(1, keepdim=True)
        return obs.float(), self.actions[at], reward, self.last.expand(n, 1), next_obs.float()


class DrQV2Agent:
    def __init__(self, action_dim=21, lr=1e-4, tau=0.01, clip=0.3):
        repr_dim = 32 * 35 * 35
        self.encoder = Encoder().cuda().apply(weight_init)
        self.actor = Actor(repr_dim, action_dim).cuda().apply(weight_init)
        self.critic = Critic(repr_dim, action_dim).cuda().apply(weight_init)
        self.target = copy.deepcopy(self.critic).requires_grad_(False)
        self.encoder_opt = torch.optim.Adam(self.encoder.parameters(), lr=lr)
        self.actor_opt = torch.optim.Adam(self.actor.parameters(), lr=lr)
        self.critic_opt = torch.optim.Adam(self.critic.parameters(), lr=lr)
        self.aug, self.tau, self.clip, self.std = RandomShiftsAug(), tau, clip, 1.0
        self.encode = torch.compile(self.encoder)
        self.policy = torch.compile(self.actor)
        self.value = torch.compile(self.critic)
        self.target_value = torch.compile(self.target)

    def noisy(self, h):
        mu = self.policy(h)
        eps = (torch.randn_like(mu) * self.std).clamp(-self.clip, self.clip)
        x = mu + eps
        return x - x.detach() + x.detach().clamp(-1 + 1e-6, 1 - 1e-6)

    def update_critic(self, h, action, reward, discount, next_h):
        with torch.no_grad():
            q1, q2 = self.target_value(next_h, self.noisy(next_h))
            target = reward + discount * torch.min(q1, q2)
        q1, q2 = self.value(h, action)
        loss = F.mse_loss(q1, target) + F.mse_loss(q2, target)
        self.encoder_opt.zero_grad(set_to_none=True)
        self.critic_opt.zero_grad(set_to_none=True)
        loss.backward()
        self.critic_opt.step()
        self.encoder_opt.step()
        return {"critic_loss": loss.item(), "critic_q1": q1.mean().item(), "batch_reward": reward.mean().item()}

    def update_actor(self, h):
        q1, q2 = self.value(h, self.noisy(h))
        loss = -torch.min(q1, q2).mean()
        self.actor_opt.zero_grad(set_to_none=True)
        loss.backward()
        self.actor_opt.step()
        return {"actor_loss": loss.item()}

    def update(self, buffer, step):
        self.std = max(0.1, 1.0 - 0.9 * step / 500000)
        obs, action, reward, discount, next_obs = buffer.sample(256)
        obs, next_obs = self.aug(obs), self.aug(next_obs)
        h = self.encode(obs)
        with torch.no_grad():
            next_h = self.encode(next_obs)
        metrics = self.update_critic(h, action, reward, discount, next_h)
        metrics.update(self.update_actor(h.detach()))
        with torch.no_grad():
            for p, t in zip(self.critic.parameters(), self.target.parameters()):
                t.copy_(self.tau * p + (1 - self.tau) * t)
        return metrics


agent = DrQV2Agent()
buffer = ReplayBuffer(60000, 21, 3, 0.99)
mean = {}
for step in steps():
    metrics = agent.update(buffer, step)
    for k, v in metrics.items():
        mean[k] = 0.9 * mean.get(k, v) + 0.1 * v
    if not math.isfinite(metrics["critic_loss"]):
        raise SystemExit("diverged")
print(mean)
