# small DeepSeek-V3-like model: latent attention, shared + routed experts balanced by a bias, one multi-token-prediction depth
import torch
import torch.nn as nn
import torch.nn.functional as F
from tick import steps

DEV, DT = "cuda", torch.bfloat16
V, D, L, H = 32000, 1024, 8, 16
QR, KVR, NOPE, ROPE, VD = 512, 256, 64, 32, 64
E, K, SHARED, FE, FDENSE = 32, 4, 1, 704, 2816
B, T = 6, 1024
GAMMA, MTP_WEIGHT = 1e-3, 0.3


class RMSNorm(nn.Module):
    def __init__(self, d):
        super().__init__()
        self.g = nn.Parameter(torch.ones(d))

    def forward(self, x):
        y = x.float()
        return (y * torch.rsqrt(y.square().mean(-1, keepdim=True) + 1e-6)).to(x.dtype) * self.g


def lin(i, o):
    m = nn.Linear(i, o, bias=False)
    nn.init.normal_(m.weight, std=0.006 if o == V else 0.02)
    return m


def rotate(x, cos, sin):
    a, b = x.float().unflatten(-1, (-1, 2)).unbind(-1)
    return torch.stack([a * cos - b * sin, a * sin + b * cos], -1).flatten(-2).to(x.dtype)


class MLA(nn.Module):
    def __init__(self):
        super().__init__()
        self.q_a, self.q_norm, self.q_b = lin(D, QR), RMSNorm(QR), lin(QR, H * (NOPE + ROPE))
        self.kv_a, self.kv_norm, self.kv_b = lin(D, KVR + ROPE), RMSNorm(KVR), lin(KVR, H * (NOPE + VD))
        self.o = lin(H * VD, D)

    @torch.compile
    def forward(self, x, cos, sin):
        b, t, _ = x.shape
        q = self.q_b(self.q_norm(self.q_a(x))).view(b, t, H, NOPE + ROPE).transpose(1, 2)
        q_nope, q_rope = q.split([NOPE, ROPE], -1)
        c, k_rope = self.kv_a(x).split([KVR, ROPE], -1)
        kv = self.kv_b(self.kv_norm(c)).view(b, t, H, NOPE + VD).transpose(1, 2)
        k_nope, v = kv.split([NOPE, VD], -1)
        k_rope = rotate(k_rope.unsqueeze(1), cos, sin).expand(b, H, t, ROPE)
        q = torch.cat([q_nope, rotate(q_rope, cos, sin)], -1)
        k = torch.cat([k_nope, k_rope], -1)
        y = F.scaled_dot_product_attention(q, k, F.pad(v, (0, NOPE + ROPE - VD)), is_causal=True)[..., :VD]
        return self.o(y.transpose(1, 2).reshape(b, t, H * VD))


class MLP(nn.Module):
    def __init__(self, f):
        super().__init__()
        self.w1, self.w3, self.w2 = lin(D, f), lin(D, f), lin(f, D)

    def forward(self, x):
        return self.w2(F.silu(self.w1(x)) * self.w3(x))


class MoE(nn.Module):
    def __init__(self):
        super().__init__()
        self.gate = lin(D, E)
        self.experts = nn.ModuleList(MLP(FE) for _ in range(E))
        self.shared = MLP(SHARED * FE)
        self.register_buffer("bias", torch.zeros(E))
        self.register_buffer("load", torch.zeros(E))

    def forward(self, x):
        shape = x.shape
        x = x.reshape(-1, D)
        scores = self.gate(x).float().sigmoid()
        top = (scores + self.bias).topk(K, dim=-1).indices
        w = scores.gather(1, top)
        w = (w / w.sum(-1, keepdim=True)).to(x.dtype)
        counts = torch.bincount(top.flatten(), minlength=E)
        self.load += counts
        order = top.flatten().argsort()
        token = order // K
        grouped = x[token].split(counts.tolist())
        ys = [expert(xs) for expert, xs in zip(self.experts, grouped) if xs.shape[0]]
        y = torch.cat(ys) * w.flatten()[order].unsqueeze(1)
        out = self.shared(x).index_add(0, token, y)
        return out.view(shape)

    @torch.no_grad()
    def balance(self):
        self.bias += GAMMA * torch.sign(self.load.mean() - self.load)
        self.load.zero_()


class Block(nn.Module):
    def __init__(self, dense):
        super().__init__()
        self.n1, self.n2 = RMSNorm(D), RMSNorm(D)
        self.attn = MLA()
        self.ffn = MLP(FDENSE) if dense else MoE()

    def forward(self, x, cos, sin):
        x = x + self.attn(self.n1(x), cos, sin)
        return x + self.ffn(self.n2(x))


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed, self.head = nn.Embedding(V, D), lin(D, V)
        nn.init.normal_(self.embed.weight, std=0.02)
        self.blocks = nn.ModuleList(Block(i == 0) for i in range(L))
        self.norm = RMSNorm(D)
        self.mtp_h, self.mtp_e, self.mtp_proj = RMSNorm(D), RMSNorm(D), lin(2 * D, D)
        self.mtp_block, self.mtp_norm = Block(False), RMSNorm(D)

    def forward(self, tokens, cos, sin):
        e = self.embed(tokens)
        x = e[:, :-1]
        for block in self.blocks:
            x = block(x, cos, sin)
        main = self.head(self.norm(x))
        y = self.mtp_proj(torch.cat([self.mtp_h(x), self.mtp_e(e[:, 1:])], -1))
        return main, self.head(self.mtp_norm(self.mtp_block(y, cos, sin)))


angle = torch.arange(T, device=DEV)[:, None] * 10000 ** (-torch.arange(0, ROPE, 2, device=DEV) / ROPE)
cos, sin = angle.cos(), angle.sin()
torch.manual_seed(7)
net = Net().to(DEV, DT)
for m in net.modules():
    if isinstance(m, MoE):
        m.bias, m.load = m.bias.float(), m.load.float()
moes = [m for m in net.modules() if isinstance(m, MoE)]
print(f"{sum(p.numel() for p in net.parameters()) / 1e6:.0f}M parameters")
opt = torch.optim.AdamW(net.parameters(), 3e-4, (0.9, 0.95), weight_decay=0.1, fused=True)

for it in steps():
    for g in opt.param_groups:
        g["lr"] = 3e-4 * min(1, (it + 1) / 30)
    data = torch.randint(0, V, (B, T + 2), device=DEV)
    main, ahead = net(data[:, :-1], cos, sin)
    loss = F.cross_entropy(main.flatten(0, 1).float(), data[:, 1:-1].flatten())
    mtp = F.cross_entropy(ahead.flatten(0, 1).float(), data[:, 2:].flatten())
    (loss + MTP_WEIGHT * mtp).backward()
    norm = nn.utils.clip_grad_norm_(net.parameters(), 1.0)
    opt.step()
    opt.zero_grad(set_to_none=True)
    for m in moes:
        m.balance()
    if it % 10 == 0:
        print(it, loss.item(), mtp.item(), norm.item())
