import torch, torch.nn as nn
from tick import steps


class Tagger(nn.Module):
    def __init__(self, v=20000, d=256, h=256, k=24):
        super().__init__()
        self.e, self.conv = nn.Embedding(v, d), nn.ModuleList(nn.Conv1d(d, h, w, padding=w // 2) for w in (3, 5, 7))
        self.o, self.t = nn.Linear(3 * h, k), nn.Parameter(torch.randn(k, k))

    def forward(self, x, y):
        z = self.e(x).transpose(1, 2)
        s = self.o(torch.cat([torch.relu(c(z)) for c in self.conv], 1).transpose(1, 2))
        gold = s.gather(2, y[..., None]).sum((1, 2)) + self.t[y[:, :-1], y[:, 1:]].sum(1)
        a = s[:, 0]
        for i in range(1, s.shape[1]):
            a = torch.logsumexp(a[:, :, None] + self.t, 1) + s[:, i]
        return (a.logsumexp(1) - gold).mean()


m = Tagger().cuda()
net = torch.compile(m)
opt = torch.optim.NAdam(m.parameters(), 1e-3)
for i in steps():
    x, y = torch.randint(0, 20000, (256, 40), device="cuda"), torch.randint(0, 24, (256, 40), device="cuda")
    loss = net(x, y)
    opt.zero_grad()
    loss.backward()
    opt.step()
