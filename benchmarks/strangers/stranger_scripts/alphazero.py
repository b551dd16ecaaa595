import torch, torch.nn as nn, torch.nn.functional as F
from tick import steps


class Res(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.a, self.b = nn.Conv2d(c, c, 3, padding=1, bias=False), nn.Conv2d(c, c, 3, padding=1, bias=False)
        self.na, self.nb = nn.BatchNorm2d(c), nn.BatchNorm2d(c)

    def forward(self, x):
        return F.relu(x + self.nb(self.b(F.relu(self.na(self.a(x))))))


class Net(nn.Module):
    def __init__(self, c=192, n=10):
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(17, c, 3, padding=1), nn.BatchNorm2d(c), nn.ReLU())
        self.body = nn.Sequential(*[Res(c) for _ in range(n)])
        self.p = nn.Sequential(nn.Conv2d(c, 2, 1), nn.BatchNorm2d(2), nn.ReLU(), nn.Flatten(), nn.Linear(722, 362))
        self.v = nn.Sequential(
            nn.Conv2d(c, 1, 1),
            nn.BatchNorm2d(1),
            nn.ReLU(),
            nn.Flatten(),
            nn.Linear(361, 256),
            nn.ReLU(),
            nn.Linear(256, 1),
            nn.Tanh(),
        )

    def forward(self, x):
        h = self.body(self.stem(x))
        return self.p(h), self.v(h).squeeze(-1)


m = Net().cuda()
c = torch.compile(m)
opt = torch.optim.SGD(m.parameters(), 0.02, momentum=0.9, nesterov=True, weight_decay=1e-4)
for i in steps():
    x = (torch.rand(256, 17, 19, 19, device="cuda") > 0.5).float()
    pi = torch.rand(256, 362, device="cuda").softmax(-1)
    z = torch.randint(-1, 2, (256,), device="cuda").float()
    with torch.autocast("cuda", torch.float16):
        p, v = c(x)
        loss = F.cross_entropy(p, pi) + F.mse_loss(v, z)
    opt.zero_grad()
    (loss * 128).backward()
    torch._foreach_div_([q.grad for q in m.parameters()], 128.0)
    opt.step()
