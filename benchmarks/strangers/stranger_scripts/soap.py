import torch
import torch.nn as nn
import torch.nn.functional as F
from tick import steps

torch.backends.cuda.matmul.allow_tf32 = True
D, H, LAYERS, T, B, VOCAB = 384, 6, 6, 512, 16, 16384


class SOAP(torch.optim.Optimizer):
    def __init__(self, params, lr=3e-3, betas=(0.95, 0.95), eps=1e-8, weight_decay=0.01, max_dim=512):
        super().__init__(params, dict(lr=lr, betas=betas, eps=eps, weight_decay=weight_decay, max_dim=max_dim))

    def project(self, g, qs, back=False):
        left, right = qs
        if left is not None:
            g = left @ g if back else left.T @ g
        if right is not None:
            g = g @ right.T if back else g @ right
        return g

    @torch.no_grad()
    def step(self):
        for group in self.param_groups:
            b1, b2 = group["betas"]
            for p in group["params"]:
                if p.grad is None:
                    continue
                g, state = p.grad, self.state[p]
                matrix = g.dim() == 2
                if not state:
                    state["step"] = 0
                    state["m"], state["v"] = torch.zeros_like(g), torch.zeros_like(g)
                    if matrix:
                        small = [n <= group["max_dim"] for n in g.shape]
                        state["gg"] = [g @ g.T if small[0] else None, g.T @ g if small[1] else None]
                        state["q"] = [None if m is None else torch.linalg.eigh(m)[1].flip(1) for m in state["gg"]]
                    continue
                state["step"] += 1
                state["m"].lerp_(g, 1 - b1)
                gp = self.project(g, state["q"]) if matrix else g
                state["v"].mul_(b2).addcmul_(gp, gp, value=1 - b2)
                mp = self.project(state["m"], state["q"]) if matrix else state["m"]
                up = mp / (state["v"].sqrt() + group["eps"])
                if matrix:
                    up = self.project(up, state["q"], back=True)
                scale = (1 - b2 ** state["step"]) ** 0.5 / (1 - b1 ** state["step"])
                p.mul_(1 - group["lr"] * group["weight_decay"]).add_(up, alpha=-group["lr"] * scale)
                if not matrix:
                    continue
                for side, outer in enumerate((lambda: g @ g.T, lambda: g.T @ g)):
                    gg, q = state["gg"][side], state["q"][side]
                    if gg is None:
                        continue
                    gg.lerp_(outer(), 1 - b2)
                    order = torch.argsort(torch.diag(q.T @ gg @ q), descending=True)
                    state["v"] = state["v"].index_select(side, order)
                    state["q"][side] = torch.linalg.qr(gg @ q[:, order])[0]


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.n1, self.n2 = nn.RMSNorm(D), nn.RMSNorm(D)
        self.qkv, self.o = nn.Linear(D, 3 * D, bias=False), nn.Linear(D, D, bias=False)
        self.up, self.down = nn.Linear(D, 4 * D, bias=False), nn.Linear(4 * D, D, bias=False)

    def forward(self, x):
        q, k, v = self.qkv(self.n1(x)).unflatten(-1, (3, H, D // H)).permute(2, 0, 3, 1, 4)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.o(y.transpose(1, 2).flatten(2))
        return x + self.down(F.relu(self.up(self.n2(x))).square())


class GPT(nn.Module):
    def __init__(self):
        super().__init__()
        self.wte, self.wpe = nn.Embedding(VOCAB, D), nn.Embedding(T, D)
        self.blocks, self.norm = nn.Sequential(*(Block() for _ in range(LAYERS))), nn.RMSNorm(D)
        self.head = nn.Linear(D, VOCAB, bias=False)

    def forward(self, ids, targets):
        x = self.blocks(self.wte(ids) + self.wpe.weight)
        return F.cross_entropy(self.head(self.norm(x)).flatten(0, 1), targets.flatten())


model = GPT().cuda()
run = torch.compile(model)
opt = SOAP(model.parameters())
for i in steps(count=5):
    ids = torch.randint(0, VOCAB, (B, T + 1), device="cuda")
    loss = run(ids[:, :-1], ids[:, 1:])
    loss.backward()
    opt.step()
    opt.zero_grad()
