import torch, torch.nn as nn, torch.nn.functional as F
from tick import steps


@torch.compile
def zeropower(G):
    X = G.bfloat16()
    X = X / (X.norm(dim=(-2, -1), keepdim=True) + 1e-7)
    tall = X.size(-2) > X.size(-1)
    X = X.mT if tall else X
    for _ in range(5):
        A = X @ X.mT
        X = 3.4445 * X + (-4.7750 * A + 2.0315 * A @ A) @ X
    return X.mT if tall else X


class Muon(torch.optim.Optimizer):
    def __init__(self, params, lr=0.02, momentum=0.95):
        super().__init__(params, dict(lr=lr, momentum=momentum))

    @torch.no_grad()
    def step(self):
        for g in self.param_groups:
            for p in g["params"]:
                s = self.state[p]
                if "m" not in s:
                    s["m"] = torch.zeros_like(p.grad)
                s["m"].lerp_(p.grad, 1 - g["momentum"])
                u = zeropower(p.grad.lerp(s["m"], g["momentum"]))
                p.add_(u.to(p.dtype), alpha=-g["lr"] * max(1, p.size(-2) / p.size(-1)) ** 0.5)


D, H = 768, 6


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.qkv, self.o = nn.Linear(D, 3 * D, bias=False), nn.Linear(D, D, bias=False)
        self.up, self.down = nn.Linear(D, 4 * D, bias=False), nn.Linear(4 * D, D, bias=False)
        self.lamb = nn.Parameter(torch.tensor([1.0, 0.0]))

    def forward(self, x, x0):
        x = self.lamb[0] * x + self.lamb[1] * x0
        b, n, _ = x.shape
        q, k, v = self.qkv(F.rms_norm(x, (D,))).view(b, n, 3 * H, D // H).chunk(3, 2)
        q, k = F.rms_norm(q, (D // H,)), F.rms_norm(k, (D // H,))
        y = F.scaled_dot_product_attention(q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2), is_causal=True)
        x = x + self.o(y.transpose(1, 2).reshape(b, n, D))
        return x + self.down(F.relu(self.up(F.rms_norm(x, (D,)))).square())


class GPT(nn.Module):
    def __init__(self):
        super().__init__()
        self.e, self.b, self.h = (
            nn.Embedding(50304, D),
            nn.ModuleList(Block() for _ in range(8)),
            nn.Linear(D, 50304, bias=False),
        )

    def forward(self, x, y):
        x = x0 = F.rms_norm(self.e(x), (D,))
        for b in self.b:
            x = b(x, x0)
        logits = self.h(F.rms_norm(x, (D,))).float()
        return F.cross_entropy((30 * torch.tanh(logits / 30)).flatten(0, 1), y.flatten())


m = GPT().cuda().bfloat16()
net = torch.compile(m)
mats = [p for p in m.b.parameters() if p.ndim == 2]
rest = [m.e.weight, m.h.weight, *[p for p in m.b.parameters() if p.ndim < 2]]
opts = [Muon(mats), torch.optim.Adam(rest, 3e-3, betas=(0.8, 0.95), fused=True)]
for i in steps():
    x = torch.randint(0, 50304, (8, 1025), device="cuda")
    net(x[:, :-1], x[:, 1:]).backward()
    for o in opts:
        o.step()
        o.zero_grad(set_to_none=True)
