import torch, torch.nn as nn
from tick import steps


def unit(i, o, st=1):
    m = (i * o * 27) // (i * 9 + 3 * o)
    return nn.Sequential(
        nn.Conv3d(i, m, (1, 3, 3), (1, st, st), (0, 1, 1), bias=False),
        nn.BatchNorm3d(m),
        nn.ReLU(True),
        nn.Conv3d(m, o, (3, 1, 1), (st, 1, 1), (1, 0, 0), bias=False),
        nn.BatchNorm3d(o),
    )


class Blk(nn.Module):
    def __init__(self, i, o, st):
        super().__init__()
        self.a, self.b = unit(i, o, st), unit(o, o)
        self.s = (
            nn.Sequential(nn.Conv3d(i, o, 1, st, bias=False), nn.BatchNorm3d(o)) if st > 1 or i != o else nn.Identity()
        )

    def forward(self, x):
        return torch.relu(self.b(torch.relu(self.a(x))) + self.s(x))


net = nn.Sequential(
    nn.Conv3d(3, 64, (3, 7, 7), (1, 2, 2), (1, 3, 3), bias=False),
    nn.BatchNorm3d(64),
    nn.ReLU(True),
    Blk(64, 64, 1),
    Blk(64, 128, 2),
    Blk(128, 256, 2),
    nn.AdaptiveAvgPool3d(1),
    nn.Flatten(),
    nn.Linear(256, 400),
).cuda()
opt = torch.optim.SGD(net.parameters(), 0.01, momentum=0.9, weight_decay=1e-4)
step = torch.compile(net)
ce = nn.CrossEntropyLoss()
for i in steps():
    x, y = torch.randn(8, 3, 16, 112, 112, device="cuda"), torch.randint(0, 400, (8,), device="cuda")
    with torch.autocast("cuda", torch.bfloat16):
        loss = ce(step(x), y)
    opt.zero_grad()
    loss.backward()
    opt.step()
