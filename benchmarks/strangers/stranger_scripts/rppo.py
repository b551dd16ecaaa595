"""Recurrent PPO on a batch of planar quadrotors whose velocities are hidden."""

import math

import torch
import torch.nn as nn
from torch.distributions import Normal

from tick import steps

DEVICE = "cuda"
ENVS, HORIZON, HIDDEN = 4096, 32, 256
EPOCHS, MINIBATCHES = 2, 4
GAMMA, LAMBDA, CLIP, VF, ENT = 0.99, 0.95, 0.2, 0.5, 0.003


class Quadrotors:
    obs_dim, act_dim = 9, 2
    dt, substeps, limit = 0.02, 4, 250

    def __init__(self, n):
        self.n = n
        self.state = torch.zeros(n, 6, device=DEVICE)
        self.goal = torch.zeros(n, 2, device=DEVICE)
        self.wind = torch.zeros(n, 2, device=DEVICE)
        self.mass = torch.ones(n, device=DEVICE)
        self.last = torch.zeros(n, 2, device=DEVICE)
        self.age = torch.randint(0, self.limit, (n,), device=DEVICE)
        self.reset(torch.arange(n, device=DEVICE))

    def reset(self, ids):
        k = ids.numel()
        self.state[ids] = torch.randn(k, 6, device=DEVICE) * 0.3
        self.goal[ids] = torch.rand(k, 2, device=DEVICE) * 4 - 2
        self.wind[ids] = torch.randn(k, 2, device=DEVICE) * 0.5
        self.mass[ids] = torch.rand(k, device=DEVICE) * 0.6 + 0.7
        self.last[ids] = 0

    def observe(self):
        x, z, theta = self.state[:, 0], self.state[:, 1], self.state[:, 2]
        position = torch.stack([x, z], 1)
        noise = 0.01 * torch.randn_like(position)
        angle = torch.stack([theta.sin(), theta.cos()], 1)
        left = (1 - self.age / self.limit).unsqueeze(1)
        return torch.cat([position + noise, angle, self.goal - position, self.last, left], 1)

    def step(self, action):
        action = action.clamp(-1, 1)
        self.state, reward, crashed = dynamics(
            self.state, action, self.last, self.goal, self.wind, self.mass, self.dt, self.substeps
        )
        self.last = action
        self.age += 1
        done = crashed | (self.age >= self.limit)
        finished = done.nonzero(as_tuple=True)[0]
        if finished.numel():
            self.reset(finished)
            self.age[finished] = 0
        return self.observe(), reward, done


@torch.compile
def dynamics(state, action, last, goal, wind, mass, dt, substeps):
    for _ in range(substeps):
        x, z, theta, vx, vz, omega = state.unbind(1)
        thrust = (action + 1) * 0.5 * 9.81
        total = thrust.sum(1)
        ax = -total * theta.sin() / mass + wind[:, 0] - 0.1 * vx * vx.abs()
        az = total * theta.cos() / mass - 9.81 + wind[:, 1] - 0.1 * vz * vz.abs()
        alpha = (thrust[:, 1] - thrust[:, 0]) * 0.2 / (0.05 * mass) - 0.5 * omega
        h = dt / substeps
        vx, vz, omega = vx + h * ax, vz + h * az, omega + h * alpha
        state = torch.stack([x + h * vx, z + h * vz, theta + h * omega, vx, vz, omega], 1)
    distance = (state[:, :2] - goal).norm(dim=1)
    reward = torch.exp(-distance) - 0.05 * (action - last).square().sum(1) - 0.02 * state[:, 5].abs()
    crashed = (state[:, 2].abs() > math.pi) | (distance > 8)
    return state, reward - 5 * crashed.float(), crashed


def layer(i, o, gain=math.sqrt(2)):
    m = nn.Linear(i, o)
    nn.init.orthogonal_(m.weight, gain)
    nn.init.zeros_(m.bias)
    return m


class RecurrentPolicy(nn.Module):
    def __init__(self, obs, act):
        super().__init__()
        self.encoder = nn.Sequential(layer(obs, HIDDEN), nn.Tanh(), layer(HIDDEN, HIDDEN), nn.Tanh())
        self.cell = nn.LSTMCell(HIDDEN, HIDDEN)
        self.mean, self.value = layer(HIDDEN, act, 0.01), layer(HIDDEN, 1, 1.0)
        self.log_std = nn.Parameter(torch.full((act,), -0.5))

    def heads(self, h):
        return Normal(self.mean(h), self.log_std.exp()), self.value(h).squeeze(-1)

    def act(self, obs, state):
        state = self.cell(self.encoder(obs), state)
        return *self.heads(state[0]), state

    def unroll(self, obs, first, state):
        x, outs = self.encoder(obs), []
        for t in range(obs.shape[0]):
            keep = 1 - first[t].unsqueeze(1)
            state = self.cell(x[t], (state[0] * keep, state[1] * keep))
            outs.append(state[0])
        return self.heads(torch.stack(outs))


class RunningNorm:
    def __init__(self, dim):
        self.mean, self.var = torch.zeros(dim, device=DEVICE), torch.ones(dim, device=DEVICE)
        self.count = 1e-4

    def update(self, x):
        mean, var, n = x.mean(0), x.var(0), x.shape[0]
        delta, total = mean - self.mean, self.count + n
        self.var = (self.var * self.count + var * n + delta**2 * self.count * n / total) / total
        self.mean = self.mean + delta * n / total
        self.count = total

    def __call__(self, x):
        return ((x - self.mean) / (self.var + 1e-8).sqrt()).clamp(-10, 10)


class Agent:
    def __init__(self):
        self.envs = Quadrotors(ENVS)
        self.policy = RecurrentPolicy(self.envs.obs_dim, self.envs.act_dim).to(DEVICE)
        self.optimizer = torch.optim.Adam(self.policy.parameters(), lr=3e-4, eps=1e-5)
        self.norm = RunningNorm(self.envs.obs_dim)
        self.obs = self.envs.observe()
        self.first = torch.ones(ENVS, device=DEVICE)
        self.state = (torch.zeros(ENVS, HIDDEN, device=DEVICE), torch.zeros(ENVS, HIDDEN, device=DEVICE))

    @torch.no_grad()
    def rollout(self):
        keys = ("obs", "first", "action", "logp", "value", "reward", "done")
        data = {k: [] for k in keys}
        start = self.state
        for _ in range(HORIZON):
            self.norm.update(self.obs)
            obs, keep = self.norm(self.obs), (1 - self.first).unsqueeze(1)
            dist, value, self.state = self.policy.act(obs, (self.state[0] * keep, self.state[1] * keep))
            action = dist.sample()
            self.obs, reward, done = self.envs.step(action)
            row = (obs, self.first, action, dist.log_prob(action).sum(-1), value, reward, done.float())
            for k, v in zip(keys, row):
                data[k].append(v)
            self.first = done.float()
        data = {k: torch.stack(v) for k, v in data.items()}
        _, last, _ = self.policy.act(self.norm(self.obs), self.state)
        advantage, running = torch.zeros_like(data["reward"]), torch.zeros(ENVS, device=DEVICE)
        for t in reversed(range(HORIZON)):
            alive = 1 - data["done"][t]
            following = last if t == HORIZON - 1 else data["value"][t + 1]
            delta = data["reward"][t] + GAMMA * following * alive - data["value"][t]
            running = delta + GAMMA * LAMBDA * alive * running
            advantage[t] = running
        data["advantage"], data["target"] = advantage, advantage + data["value"]
        return data, start

    def update(self, data, start):
        total = 0.0
        for _ in range(EPOCHS):
            for ids in torch.randperm(ENVS, device=DEVICE).chunk(MINIBATCHES):
                mb = {k: v[:, ids] for k, v in data.items()}
                dist, value = self.policy.unroll(mb["obs"], mb["first"], (start[0][ids], start[1][ids]))
                ratio = (dist.log_prob(mb["action"]).sum(-1) - mb["logp"]).exp()
                adv = mb["advantage"]
                adv = (adv - adv.mean()) / (adv.std() + 1e-8)
                pg = -torch.min(ratio * adv, ratio.clamp(1 - CLIP, 1 + CLIP) * adv).mean()
                clipped = mb["value"] + (value - mb["value"]).clamp(-CLIP, CLIP)
                vf = torch.max((value - mb["target"]) ** 2, (clipped - mb["target"]) ** 2).mean()
                loss = pg + VF * 0.5 * vf - ENT * dist.entropy().sum(-1).mean()
                self.optimizer.zero_grad()
                loss.backward()
                nn.utils.clip_grad_norm_(self.policy.parameters(), 0.5)
                self.optimizer.step()
                total += loss.item()
        return total / (EPOCHS * MINIBATCHES)


if __name__ == "__main__":
    torch.manual_seed(5)
    agent = Agent()
    for iteration in steps():
        for g in agent.optimizer.param_groups:
            g["lr"] = 3e-4 * (1 - iteration / 1000)
        rollout, start = agent.rollout()
        loss = agent.update(rollout, start)
        if iteration % 10 == 0:
            print(iteration, f"loss {loss:.4f} reward {rollout['reward'].mean().item():.4f}")
