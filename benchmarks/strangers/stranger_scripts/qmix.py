"""QMIX learner (after PyMARL) on batches of 5m_vs_6m-sized episodes."""

from types import SimpleNamespace as SN
import copy
import torch as th
import torch.nn as nn
import torch.nn.functional as F
from tick import steps

args = SN(
    n_agents=5,
    obs=72,
    n_actions=12,
    state=98,
    limit=70,
    batch_size=32,
    rnn=64,
    embed=32,
    hyper=64,
    gamma=0.99,
    lr=0.0005,
    alpha=0.99,
    eps=1e-5,
    clip=10,
    target_interval=200,
    buffer=256,
    device="cuda",
)


class RNNAgent(nn.Module):
    def __init__(self, input_shape):
        super().__init__()
        self.fc1 = nn.Linear(input_shape, args.rnn)
        self.rnn = nn.GRUCell(args.rnn, args.rnn)
        self.fc2 = nn.Linear(args.rnn, args.n_actions)

    def init_hidden(self, n):
        return self.fc1.weight.new_zeros(n, args.rnn)

    def forward(self, inputs, hidden):
        h = self.rnn(F.relu(self.fc1(inputs)), hidden)
        return self.fc2(h), h


class QMixer(nn.Module):
    def __init__(self):
        super().__init__()
        s, e, h = args.state, args.embed, args.hyper
        self.hyper_w_1 = nn.Sequential(nn.Linear(s, h), nn.ReLU(), nn.Linear(h, e * args.n_agents))
        self.hyper_w_final = nn.Sequential(nn.Linear(s, h), nn.ReLU(), nn.Linear(h, e))
        self.hyper_b_1 = nn.Linear(s, e)
        self.V = nn.Sequential(nn.Linear(s, e), nn.ReLU(), nn.Linear(e, 1))

    def forward(self, agent_qs, states):
        bs = agent_qs.size(0)
        states = states.reshape(-1, args.state)
        agent_qs = agent_qs.reshape(-1, 1, args.n_agents)
        w1 = th.abs(self.hyper_w_1(states)).view(-1, args.n_agents, args.embed)
        b1 = self.hyper_b_1(states).view(-1, 1, args.embed)
        hidden = F.elu(th.bmm(agent_qs, w1) + b1)
        w_final = th.abs(self.hyper_w_final(states)).view(-1, args.embed, 1)
        v = self.V(states).view(-1, 1, 1)
        return (th.bmm(hidden, w_final) + v).view(bs, -1, 1)


class EpisodeBuffer:
    def __init__(self):
        n, t = args.buffer, args.limit + 1
        self.data = {
            "obs": th.randn(n, t, args.n_agents, args.obs),
            "state": th.randn(n, t, args.state),
            "avail": th.rand(n, t, args.n_agents, args.n_actions) < 0.6,
            "actions": th.randint(0, args.n_actions, (n, t, args.n_agents, 1)),
            "reward": th.randn(n, t, 1),
            "terminated": th.zeros(n, t, 1),
            "filled": th.ones(n, t, 1),
        }
        self.data["avail"][..., 0] = True
        last = F.one_hot(self.data["actions"].squeeze(-1), args.n_actions).float()
        self.data["last"] = th.cat([th.zeros_like(last[:, :1]), last[:, :-1]], 1)

    def sample(self, k):
        ids = th.randperm(args.buffer)[:k]
        return {name: value[ids].to(args.device) for name, value in self.data.items()}


class Learner:
    def __init__(self):
        self.agent = RNNAgent(args.obs + args.n_actions + args.n_agents).to(args.device)
        self.mixer = QMixer().to(args.device)
        self.target_agent, self.target_mixer = copy.deepcopy(self.agent), copy.deepcopy(self.mixer)
        self.params = list(self.agent.parameters()) + list(self.mixer.parameters())
        self.optimiser = th.optim.RMSprop(self.params, lr=args.lr, alpha=args.alpha, eps=args.eps)
        self.eye = th.eye(args.n_agents, device=args.device)
        self.last_update, self.stats = 0, {}

    def unroll(self, agent, batch):
        bs, length = batch["obs"].shape[:2]
        hidden, out = agent.init_hidden(bs * args.n_agents), []
        for t in range(length):
            ident = self.eye.unsqueeze(0).expand(bs, -1, -1)
            inputs = th.cat([batch["obs"][:, t], batch["last"][:, t], ident], -1).reshape(bs * args.n_agents, -1)
            q, hidden = agent(inputs, hidden)
            out.append(q.view(bs, args.n_agents, -1))
        return th.stack(out, dim=1)

    def train(self, batch, episode):
        rewards, terminated = batch["reward"][:, :-1], batch["terminated"][:, :-1]
        mask = batch["filled"][:, :-1].clone()
        mask[:, 1:] = mask[:, 1:] * (1 - terminated[:, :-1])
        mac_out = self.unroll(self.agent, batch)
        chosen = th.gather(mac_out[:, :-1], dim=3, index=batch["actions"][:, :-1]).squeeze(3)
        target_out = self.unroll(self.target_agent, batch)[:, 1:]
        target_out[~batch["avail"][:, 1:]] = -9999999
        detached = mac_out.clone().detach()
        detached[~batch["avail"]] = -9999999
        best = detached[:, 1:].max(dim=3, keepdim=True)[1]
        target_max = th.gather(target_out, 3, best).squeeze(3)
        q_tot = self.mixer(chosen, batch["state"][:, :-1])
        target_tot = self.target_mixer(target_max, batch["state"][:, 1:])
        targets = rewards + args.gamma * (1 - terminated) * target_tot
        td = (q_tot - targets.detach()) * mask
        loss = (td**2).sum() / mask.sum()
        self.optimiser.zero_grad()
        loss.backward()
        grad_norm = th.nn.utils.clip_grad_norm_(self.params, args.clip)
        self.optimiser.step()
        if (episode - self.last_update) / args.target_interval >= 1.0:
            self.target_agent.load_state_dict(self.agent.state_dict())
            self.target_mixer.load_state_dict(self.mixer.state_dict())
            self.last_update = episode
        self.stats = {"loss": loss.item(), "grad_norm": grad_norm.item(), "q": (q_tot * mask).sum().item()}


buffer, learner = EpisodeBuffer(), Learner()
for episode in steps():
    learner.train(buffer.sample(args.batch_size), episode * 8)
