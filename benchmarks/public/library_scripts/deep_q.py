import torch, torch.nn as nn, gymnasium as gym, random, collections, numpy as np

env = gym.make("CartPole-v1")
dev = torch.device("cuda" if torch.cuda.is_available() else "cpu")
net = lambda: nn.Sequential(nn.Linear(4, 128), nn.ReLU(), nn.Linear(128, 128), nn.ReLU(), nn.Linear(128, 2)).to(dev)
p, t = (net(), net())
t.load_state_dict(p.state_dict())
opt = torch.optim.AdamW(p.parameters(), lr=0.0001, amsgrad=True)
mem = collections.deque(maxlen=10000)
steps = 0
for ep in range(30):
    s, _ = env.reset()
    s = torch.tensor(s, dtype=torch.float32, device=dev).unsqueeze(0)
    for k in range(200):
        steps += 1
        if random.random() > 0.5:
            with torch.no_grad():
                a = p(s).max(1).indices.view(1, 1)
        else:
            a = torch.tensor([[env.action_space.sample()]], device=dev, dtype=torch.long)
        o, r, term, trunc, _ = env.step(a.item())
        r = torch.tensor([r], device=dev)
        n = None if term else torch.tensor(o, dtype=torch.float32, device=dev).unsqueeze(0)
        mem.append((s, a, n, r))
        s = n
        if len(mem) >= 128:
            b = random.sample(mem, 128)
            S, A, N, R = zip(*b)
            mask = torch.tensor(tuple((x is not None for x in N)), device=dev, dtype=torch.bool)
            nn_ = torch.cat([x for x in N if x is not None])
            q = p(torch.cat(S)).gather(1, torch.cat(A))
            v = torch.zeros(128, device=dev)
            with torch.no_grad():
                v[mask] = t(nn_).max(1).values
            loss = nn.SmoothL1Loss()(q, (v * 0.99 + torch.cat(R)).unsqueeze(1))
            opt.zero_grad()
            loss.backward()
            nn.utils.clip_grad_value_(p.parameters(), 100)
            opt.step()
        if term or trunc:
            break
