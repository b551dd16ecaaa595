import torch
import torch.nn as nn
import torch.nn.functional as F
from tick import steps

T, B, ACTIONS = 20, 64, 15


class Residual(nn.Module):
    def __init__(self, ch):
        super().__init__()
        self.conv1, self.conv2 = (nn.Conv2d(ch, ch, 3, padding=1) for _ in range(2))

    def forward(self, x):
        return x + self.conv2(F.relu(self.conv1(F.relu(x))))


def section(i, o):
    return nn.Sequential(nn.Conv2d(i, o, 3, padding=1), nn.MaxPool2d(3, 2, padding=1), Residual(o), Residual(o))


class AtariNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.torso = nn.Sequential(section(4, 16), section(16, 32), section(32, 32), nn.ReLU(), nn.Flatten())
        self.fc = nn.Linear(11 * 11 * 32, 256)
        self.core = nn.LSTM(256 + ACTIONS + 1, 256, 1)
        self.policy, self.baseline = nn.Linear(256, ACTIONS), nn.Linear(256, 1)

    def forward(self, frame, reward, done, last_action, state):
        t, b = frame.shape[:2]
        x = F.relu(self.fc(self.torso(frame.flatten(0, 1).float() / 255.0)))
        one_hot = F.one_hot(last_action.flatten(), ACTIONS).float()
        x = torch.cat([x, reward.clamp(-1, 1).view(t * b, 1), one_hot], -1).view(t, b, -1)
        outputs = []
        for inp, nd in zip(x.unbind(), (~done).float().unbind()):
            state = tuple(nd.view(1, -1, 1) * s for s in state)
            out, state = self.core(inp.unsqueeze(0), state)
            outputs.append(out)
        x = torch.cat(outputs)
        return self.policy(x), self.baseline(x).squeeze(-1)


@torch.compile
@torch.no_grad()
def vtrace(log_rhos, discounts, rewards, values, bootstrap):
    rhos = log_rhos.exp()
    clipped, cs = rhos.clamp(max=1.0), rhos.clamp(max=1.0)
    next_values = torch.cat([values[1:], bootstrap[None]])
    deltas = clipped * (rewards + discounts * next_values - values)
    acc, result = torch.zeros_like(bootstrap), []
    for t in reversed(range(T)):
        acc = deltas[t] + discounts[t] * cs[t] * acc
        result.append(acc)
    vs = torch.stack(result[::-1]) + values
    next_vs = torch.cat([vs[1:], bootstrap[None]])
    return vs, clipped * (rewards + discounts * next_vs - values)


def logp(logits, actions):
    return -F.cross_entropy(logits.flatten(0, 1), actions.flatten(), reduction="none").view_as(actions)


model = AtariNet().cuda()
model.torso.compile()
opt = torch.optim.RMSprop(model.parameters(), lr=4.8e-4, alpha=0.99, eps=0.01)
sched = torch.optim.lr_scheduler.LambdaLR(opt, lambda n: 1 - min(n * T * B, 3e7) / 3e7)
frames = torch.randint(0, 256, (T + 1, B, 4, 84, 84), dtype=torch.uint8).pin_memory()
for i in steps():
    frame = frames.to("cuda", non_blocking=True)
    reward = torch.randn(T + 1, B, device="cuda")
    done = torch.rand(T + 1, B, device="cuda") < 0.01
    action = torch.randint(0, ACTIONS, (T + 1, B), device="cuda")
    behavior = torch.randn(T + 1, B, ACTIONS, device="cuda")
    state = tuple(torch.zeros(1, B, 256, device="cuda") for _ in range(2))
    logits, values = model(frame, reward, done, action, state)
    bootstrap, logits, values = values[-1], logits[:-1], values[:-1]
    taken, rewards, discounts = action[1:], reward[1:].clamp(-1, 1), (~done[1:]).float() * 0.99
    target_logp = logp(logits, taken)
    log_rhos = (target_logp - logp(behavior[:-1], taken)).detach()
    vs, adv = vtrace(log_rhos, discounts, rewards, values.detach(), bootstrap.detach())
    pg_loss, baseline_loss = -(target_logp * adv).sum(), 0.25 * (vs - values).pow(2).sum()
    entropy_loss = 0.0006 * (F.softmax(logits, -1) * F.log_softmax(logits, -1)).sum()
    opt.zero_grad()
    total = pg_loss + baseline_loss + entropy_loss
    total.backward()
    nn.utils.clip_grad_norm_(model.parameters(), 40.0)
    opt.step()
    sched.step()
    stats = {"total_loss": total.item(), "pg_loss": pg_loss.item(), "entropy_loss": entropy_loss.item()}
