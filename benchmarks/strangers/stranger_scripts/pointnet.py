import torch, torch.nn as nn, torch.nn.functional as F
from tick import steps


def knn(x, k):
    return torch.cdist(x, x).topk(k, dim=-1, largest=False).indices


class Edge(nn.Module):
    def __init__(self, i, o):
        super().__init__()
        self.f = nn.Sequential(nn.Conv2d(2 * i, o, 1, bias=False), nn.BatchNorm2d(o), nn.LeakyReLU(0.2))

    def forward(self, x, idx):
        b, n, c = x.shape
        nb = x.gather(1, idx.reshape(b, -1, 1).expand(-1, -1, c)).view(b, n, -1, c)
        e = torch.cat([nb - x[:, :, None], x[:, :, None].expand_as(nb)], -1)
        return self.f(e.permute(0, 3, 1, 2)).amax(-1).transpose(1, 2)


class DGCNN(nn.Module):
    def __init__(self):
        super().__init__()
        self.e = nn.ModuleList([Edge(3, 64), Edge(64, 64), Edge(64, 128)])
        self.h = nn.Sequential(nn.Linear(512, 256), nn.ReLU(), nn.Dropout(0.5), nn.Linear(256, 40))
        self.g = nn.Linear(256, 512)

    def forward(self, p):
        fs, x = [], p
        for e in self.e:
            x = e(x, knn(x, 20))
            fs.append(x)
        return self.h(self.g(torch.cat(fs, -1)).amax(1))


m = DGCNN().cuda()
net = torch.compile(m)
opt = torch.optim.AdamW(m.parameters(), 1e-3)
for i in steps():
    loss = F.cross_entropy(net(torch.randn(16, 1024, 3, device="cuda")), torch.randint(0, 40, (16,), device="cuda"))
    opt.zero_grad()
    loss.backward()
    opt.step()
