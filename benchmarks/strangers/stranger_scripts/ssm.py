import torch, torch.nn as nn, torch.nn.functional as F
from tick import steps

B, T, D, E, N, L, C = 8, 2048, 1024, 2048, 64, 6, 128
H = E // 64


class SSD(nn.Module):
    """Mamba-2's chunked form."""

    def __init__(self):
        super().__init__()
        self.norm = nn.RMSNorm(D)
        self.inp = nn.Linear(D, 2 * E + 2 * N + H, bias=False)
        self.conv = nn.Conv1d(E + 2 * N, E + 2 * N, 4, groups=E + 2 * N, padding=3)
        self.A = nn.Parameter(torch.rand(H) + 0.5)
        self.dt = nn.Parameter(torch.zeros(H))
        self.skip = nn.Parameter(torch.ones(H))
        self.gn = nn.RMSNorm(E)
        self.out = nn.Linear(E, D, bias=False)

    def forward(self, u):
        z, xbc, dt = self.inp(self.norm(u)).split([E, E + 2 * N, H], -1)
        xbc = F.silu(self.conv(xbc.transpose(1, 2))[..., :T].transpose(1, 2))
        x, b, c = xbc.split([E, N, N], -1)
        dt = F.softplus(dt.float() + self.dt)
        a = (-self.A.exp() * dt).view(B, T // C, C, H).cumsum(2)
        x = x.reshape(B, T // C, C, H, 64)
        xd = x * dt.view(B, T // C, C, H, 1).to(x.dtype)
        b, c = b.view(B, T // C, C, N), c.view(B, T // C, C, N)
        seg = a.unsqueeze(3) - a.unsqueeze(2)
        mask = torch.tril(torch.ones(C, C, dtype=torch.bool, device=u.device))
        decay = torch.where(mask[None, None, :, :, None], seg, -torch.inf).exp()
        scores = torch.einsum("bkin,bkjn->bkij", c, b)
        y = torch.einsum("bkij,bkijh,bkjhp->bkihp", scores, decay.to(x.dtype), xd)
        last = (a[:, :, -1:] - a).exp().to(x.dtype)
        states = torch.einsum("bkjn,bkjh,bkjhp->bkhpn", b, last, xd)
        total = a[:, :, -1].exp()
        s = torch.zeros_like(states[:, 0])
        carried = []
        for k in range(T // C):
            carried.append(s)
            s = s * total[:, k, :, None, None].to(s.dtype) + states[:, k]
        carried = torch.stack(carried, 1)
        y = y + torch.einsum("bkin,bkih,bkhpn->bkihp", c, a.exp().to(x.dtype), carried)
        y = (y + x * self.skip[:, None]).reshape(B, T, E)
        return u + self.out(self.gn(y * F.silu(z)))


class LM(nn.Module):
    def __init__(self):
        super().__init__()
        self.emb = nn.Embedding(32768, D)
        self.blocks = nn.Sequential(*[SSD() for _ in range(L)])
        self.norm = nn.RMSNorm(D)

    def forward(self, idx, y):
        h = self.norm(self.blocks(self.emb(idx)))
        return F.cross_entropy((h @ self.emb.weight.t()).flatten(0, 1).float(), y.flatten())


net = LM().cuda()
step = torch.compile(net)
opt = torch.optim.AdamW(net.parameters(), lr=1e-4, weight_decay=0.1, fused=True)
for i in steps():
    d = torch.randint(0, 32768, (B, T + 1), device="cuda")
    with torch.autocast("cuda", torch.bfloat16):
        loss = step(d[:, :-1], d[:, 1:])
    loss.backward()
    nn.utils.clip_grad_norm_(net.parameters(), 1.0)
    opt.step()
    opt.zero_grad()
