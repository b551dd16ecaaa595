import torch, torch.nn as nn, torch.nn.functional as F
from tick import steps

W, H, D = 128, 8, 512


class Local(nn.Module):
    def __init__(self):
        super().__init__()
        self.n1, self.n2 = nn.RMSNorm(D), nn.RMSNorm(D)
        self.qkv, self.o = nn.Linear(D, 3 * D, bias=False), nn.Linear(D, D, bias=False)
        self.up, self.down = nn.Linear(D, 4 * D), nn.Linear(2 * D, D)
        self.bias = nn.Parameter(torch.zeros(H, W, 2 * W))

    def forward(self, x):
        b, n, _ = x.shape
        q, k, v = self.qkv(self.n1(x)).view(b, n, 3, H, D // H).unbind(2)
        q = q.view(b, n // W, W, H, -1)
        pad = lambda t: F.pad(t, (0, 0, 0, 0, W, 0)).unfold(1, 2 * W, W)
        k, v = pad(k), pad(v)
        s = torch.einsum("bcqhd,bchdk->bchqk", q, k) * (D // H) ** -0.5 + self.bias
        y = torch.einsum("bchqk,bchdk->bcqhd", s.softmax(-1), v).reshape(b, n, D)
        x = x + self.o(y)
        a, g = self.up(self.n2(x)).chunk(2, -1)
        return x + self.down(a * F.gelu(g))


m = nn.Sequential(nn.Embedding(256, D), *[Local() for _ in range(6)], nn.Linear(D, 256)).cuda()
c = torch.compile(m)
opt = torch.optim.AdamW(m.parameters(), 3e-4)
for i in steps():
    x = torch.randint(0, 256, (4, 4097), device="cuda")
    with torch.autocast("cuda", torch.bfloat16):
        loss = F.cross_entropy(c(x[:, :-1]).flatten(0, 1), x[:, 1:].flatten())
    loss.backward()
    opt.step()
    opt.zero_grad()
