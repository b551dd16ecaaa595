"""PPO with the roles apart: rank 1 plays a batch of games of catch on its GPU while rank 0 learns from the rollout
before; then the new rollout goes to the learner and the new weights come back."""

import os

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.distributions import Categorical
from torch.nn.utils import parameters_to_vector, vector_to_parameters
from tock import steps

ENVS, HORIZON, SIDE, FRAMES, ACTIONS = 256, 32, 84, 4, 3
CHANNELS, HIDDEN = (32, 64, 64), 512
MINIBATCHES, EPOCHS = 4, 1
GAMMA, LAMBDA, CLIP, ENTROPY = 0.99, 0.95, 0.2, 0.01
LEARNER, ACTOR = 0, 1


def layer_init(layer, std=2**0.5):
    nn.init.orthogonal_(layer.weight, std)
    nn.init.zeros_(layer.bias)
    return layer


class Residual(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.conv0, self.conv1 = nn.Conv2d(c, c, 3, padding=1), nn.Conv2d(c, c, 3, padding=1)

    def forward(self, x):
        return x + self.conv1(F.relu(self.conv0(F.relu(x))))


class Agent(nn.Module):
    def __init__(self):
        super().__init__()
        layers, c, side = [], FRAMES, SIDE
        for out in CHANNELS:
            layers += [
                nn.Conv2d(c, out, 3, padding=1),
                nn.MaxPool2d(3, stride=2, padding=1),
                Residual(out),
                Residual(out),
            ]
            c, side = out, (side + 1) // 2
        self.network = nn.Sequential(
            *layers, nn.Flatten(), nn.ReLU(), layer_init(nn.Linear(c * side * side, HIDDEN)), nn.ReLU()
        )
        self.actor = layer_init(nn.Linear(HIDDEN, ACTIONS), std=0.01)
        self.critic = layer_init(nn.Linear(HIDDEN, 1), std=1)

    def forward(self, obs):
        with torch.autocast("cuda", dtype=torch.bfloat16):
            h = self.network(obs.float() / 255.0)
        h = h.float()
        return Categorical(logits=self.actor(h)), self.critic(h).squeeze(-1)


class Catch:
    """A ball falls, a paddle moves; the reward comes when the ball reaches the floor."""

    def __init__(self, device):
        self.rows = torch.arange(SIDE, device=device)
        self.x = torch.randint(0, SIDE, (ENVS,), device=device)
        self.y = torch.randint(0, SIDE - 8, (ENVS,), device=device)
        self.paddle = torch.randint(0, SIDE, (ENVS,), device=device)
        self.stack = torch.zeros(ENVS, FRAMES, SIDE, SIDE, dtype=torch.uint8, device=device)
        self.render()

    def render(self):
        near_x = (self.rows[None, :] - self.x[:, None]).abs() <= 2
        near_y = (self.rows[None, :] - self.y[:, None]).abs() <= 2
        ball = near_y[:, :, None] & near_x[:, None, :]
        bar = ((self.rows[None, :] - self.paddle[:, None]).abs() <= 6)[:, None, :] & (self.rows >= SIDE - 3)[
            None, :, None
        ]
        frame = (ball | bar).to(torch.uint8) * 255
        self.stack = torch.cat([self.stack[:, 1:], frame[:, None]], dim=1)

    def step(self, action):
        self.paddle = (self.paddle + 3 * (action - 1)).clamp(0, SIDE - 1)
        self.y = self.y + 3
        done = self.y >= SIDE - 3
        caught = (self.x - self.paddle).abs() <= 7
        reward = torch.where(done, torch.where(caught, 1.0, -1.0), 0.0)
        self.x = torch.where(done, torch.randint_like(self.x, SIDE), self.x)
        self.y = torch.where(done, torch.zeros_like(self.y), self.y)
        self.render()
        return reward, done


class Rollout:
    def __init__(self, device):
        self.obs = torch.zeros(HORIZON, ENVS, FRAMES, SIDE, SIDE, dtype=torch.uint8, device=device)
        self.actions = torch.zeros(HORIZON, ENVS, dtype=torch.long, device=device)
        # log-probability, reward, done, value; the last row holds the value after the end
        self.scalars = torch.zeros(4, HORIZON + 1, ENVS, device=device)

    def exchange(self):
        if dist.get_rank() == ACTOR:
            for t in (self.obs, self.actions, self.scalars):
                dist.send(t, dst=LEARNER)
        else:
            for t in (self.obs, self.actions, self.scalars):
                dist.recv(t, src=ACTOR)


@torch.no_grad()
def play(agent, env, rollout):
    logprob, rewards, dones, values = rollout.scalars
    for t in range(HORIZON):
        rollout.obs[t] = env.stack
        pi, values[t] = agent(env.stack)
        action = pi.sample()
        rollout.actions[t], logprob[t] = action, pi.log_prob(action)
        rewards[t], dones[t] = env.step(action)
    values[HORIZON] = agent(env.stack)[1]


def learn(agent, optimizer, rollout):
    logprob, rewards, dones, values = rollout.scalars
    advantages, last = torch.zeros_like(rewards[:-1]), 0
    for t in reversed(range(HORIZON)):
        alive = 1.0 - dones[t]
        delta = rewards[t] + GAMMA * values[t + 1] * alive - values[t]
        advantages[t] = last = delta + GAMMA * LAMBDA * alive * last
    returns = (advantages + values[:-1]).flatten()
    advantages, old = advantages.flatten(), logprob[:-1].flatten()
    obs, actions = rollout.obs.flatten(0, 1), rollout.actions.flatten()
    for _ in range(EPOCHS):
        for index in torch.randperm(len(obs), device=obs.device).chunk(MINIBATCHES):
            pi, value = agent(obs[index])
            ratio = (pi.log_prob(actions[index]) - old[index]).exp()
            adv = advantages[index]
            adv = (adv - adv.mean()) / (adv.std() + 1e-8)
            policy_loss = torch.max(-adv * ratio, -adv * ratio.clamp(1 - CLIP, 1 + CLIP)).mean()
            value_loss = 0.5 * (value - returns[index]).square().mean()
            loss = policy_loss + 0.5 * value_loss - ENTROPY * pi.entropy().mean()
            optimizer.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(agent.parameters(), 0.5)
            optimizer.step()


def main():
    dist.init_process_group("nccl")
    rank = dist.get_rank()
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
    torch.cuda.set_device(device)
    torch.manual_seed(rank)

    agent = Agent().to(device)
    rollout = Rollout(device)
    env = Catch(device) if rank == ACTOR else None
    optimizer = torch.optim.Adam(agent.parameters(), lr=2.5e-4, eps=1e-5)
    weights = parameters_to_vector(agent.parameters()).detach()
    dist.broadcast(weights, src=LEARNER)
    vector_to_parameters(weights, agent.parameters())

    for _ in steps():
        if rank == ACTOR:
            play(agent, env, rollout)
        else:
            learn(agent, optimizer, rollout)
        rollout.exchange()
        weights = parameters_to_vector(agent.parameters()).detach()
        dist.broadcast(weights, src=LEARNER)
        if rank == ACTOR:
            vector_to_parameters(weights, agent.parameters())


if __name__ == "__main__":
    main()
