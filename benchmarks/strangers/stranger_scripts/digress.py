"""Discrete denoising diffusion of molecular graphs: nodes, edges and a global vector."""

import torch
import torch.nn as nn
import torch.nn.functional as F
from tick import steps

B, N, T = 128, 30, 500
ATOMS, BONDS = 9, 5
LAYERS, DX, DE, DY, HEADS = 12, 256, 64, 256, 8
FFX, FFE, FFY = 256, 128, 256
device = "cuda"


def film(mul, add, x):
    return add + (mul + 1) * x


def stats_x(x, mask):
    m = mask.float()[..., None]
    n = m.sum(1)
    mean = (x * m).sum(1) / n
    low = x.masked_fill(m == 0, 1e5).amin(1)
    high = x.masked_fill(m == 0, -1e5).amax(1)
    var = (((x - mean[:, None]) ** 2) * m).sum(1) / n
    return torch.cat([mean, low, high, var], -1)


def stats_e(e, mask):
    m = (mask[:, :, None] & mask[:, None]).float()[..., None]
    n = m.sum((1, 2))
    mean = (e * m).sum((1, 2)) / n
    low = e.masked_fill(m == 0, 1e5).amin((1, 2))
    high = e.masked_fill(m == 0, -1e5).amax((1, 2))
    var = (((e - mean[:, None, None]) ** 2) * m).sum((1, 2)) / n
    return torch.cat([mean, low, high, var], -1)


class NodeEdgeAttention(nn.Module):
    def __init__(self):
        super().__init__()
        self.q, self.k, self.v = nn.Linear(DX, DX), nn.Linear(DX, DX), nn.Linear(DX, DX)
        self.e_mul, self.e_add = nn.Linear(DE, DX), nn.Linear(DE, DX)
        self.ye_mul, self.ye_add = nn.Linear(DY, DX), nn.Linear(DY, DX)
        self.yx_mul, self.yx_add = nn.Linear(DY, DX), nn.Linear(DY, DX)
        self.y_y, self.x_y, self.e_y = nn.Linear(DY, DY), nn.Linear(4 * DX, DY), nn.Linear(4 * DE, DY)
        self.x_out, self.e_out = nn.Linear(DX, DX), nn.Linear(DX, DE)
        self.y_out = nn.Sequential(nn.Linear(DY, DY), nn.ReLU(), nn.Linear(DY, DY))

    def forward(self, x, e, y, mask):
        b, n, _ = x.shape
        xm = mask[..., None]
        em = (mask[:, :, None] & mask[:, None])[..., None]
        q = (self.q(x) * xm).view(b, n, 1, HEADS, -1)
        k = (self.k(x) * xm).view(b, 1, n, HEADS, -1)
        s = (q * k / (DX // HEADS) ** 0.5).flatten(3)
        s = film(self.e_mul(e) * em, self.e_add(e) * em, s)
        new_e = film(self.ye_mul(y)[:, None, None], self.ye_add(y)[:, None, None], s)
        new_e = self.e_out(new_e) * em
        attn = s.float().masked_fill(~mask[:, None, :, None], -1e9).softmax(2)
        v = (self.v(x) * xm)[:, None]
        agg = (attn * v).sum(2)
        new_x = self.x_out(film(self.yx_mul(y)[:, None], self.yx_add(y)[:, None], agg)) * xm
        new_y = self.y_out(self.y_y(y) + self.x_y(stats_x(x, mask)) + self.e_y(stats_e(e, mask)))
        return new_x, new_e, new_y


def feed(d, h):
    return nn.Sequential(nn.Linear(d, h), nn.ReLU(), nn.Dropout(0.1), nn.Linear(h, d), nn.Dropout(0.1))


class Layer(nn.Module):
    def __init__(self):
        super().__init__()
        self.attn = NodeEdgeAttention()
        self.norm = nn.ModuleList(nn.LayerNorm(d) for d in (DX, DE, DY, DX, DE, DY))
        self.ff = nn.ModuleList([feed(DX, FFX), feed(DE, FFE), feed(DY, FFY)])
        self.drop = nn.Dropout(0.1)

    def forward(self, x, e, y, mask):
        out = self.attn(x, e, y, mask)
        h = [norm(old + self.drop(new)) for norm, old, new in zip(self.norm[:3], (x, e, y), out)]
        return [norm(a + ff(a)) for norm, ff, a in zip(self.norm[3:], self.ff, h)]


def mlp(a, b, c):
    return nn.Sequential(nn.Linear(a, b), nn.ReLU(), nn.Linear(b, c), nn.ReLU())


class GraphTransformer(nn.Module):
    def __init__(self, nx, ne, ny):
        super().__init__()
        self.in_x, self.in_e, self.in_y = mlp(nx, 256, DX), mlp(ne, 128, DE), mlp(ny, 128, DY)
        self.layers = nn.ModuleList(Layer() for _ in range(LAYERS))
        self.out_x = nn.Sequential(nn.Linear(DX, 256), nn.ReLU(), nn.Linear(256, ATOMS))
        self.out_e = nn.Sequential(nn.Linear(DE, 128), nn.ReLU(), nn.Linear(128, BONDS))

    def forward(self, x, e, y, mask):
        skip_x, skip_e = x[..., :ATOMS], e[..., :BONDS]
        em = (mask[:, :, None] & mask[:, None])[..., None]
        e = self.in_e(e)
        x, e, y = self.in_x(x) * mask[..., None], (e + e.transpose(1, 2)) / 2 * em, self.in_y(y)
        for layer in self.layers:
            x, e, y = layer(x, e, y, mask)
        x = self.out_x(x) + skip_x
        e = self.out_e(e)
        off = 1 - torch.eye(e.shape[1], device=e.device)[None, :, :, None]
        e = (e * off + skip_e * off) * em
        return x, (e + e.transpose(1, 2)) / 2


def cycles(adj):
    """Counts of 3- and 4-cycles through each node, and the lowest Laplacian eigenvalues."""
    d = adj.sum(-1)
    k2 = adj @ adj
    k3 = k2 @ adj
    k4 = k3 @ adj
    c3 = torch.diagonal(k3, dim1=1, dim2=2)
    c4 = torch.diagonal(k4, dim1=1, dim2=2) - d * (d - 1) - (adj @ d[..., None]).sum(-1)
    lap = torch.diag_embed(d) - adj
    eig = torch.linalg.eigvalsh(lap)[:, :6]
    nodes = torch.stack([c3 / 2, c4 / 2], -1).clamp(max=10) / 10
    return nodes, torch.cat([nodes.sum(1), eig], 1)


marginal_x = torch.tensor([0.72, 0.11, 0.11, 0.02, 0.01, 0.01, 0.01, 0.005, 0.005], device=device)
marginal_e = torch.tensor([0.92, 0.05, 0.01, 0.0, 0.02], device=device)
alpha_bar = torch.cos((torch.arange(T + 1, device=device) / T + 0.008) / 1.008 * torch.pi / 2) ** 2


def corrupt(x, e, mask, a):
    px = a[:, None, None] * x + (1 - a[:, None, None]) * marginal_x
    pe = a[:, None, None, None] * e + (1 - a[:, None, None, None]) * marginal_e
    xt = F.one_hot(px.flatten(0, 1).multinomial(1).view(len(x), -1), ATOMS).float() * mask[..., None]
    et = pe.flatten(0, 2).multinomial(1).view(len(x), N, N).triu(1)
    et = F.one_hot(et + et.transpose(1, 2), BONDS).float()
    return xt, et * (mask[:, :, None] & mask[:, None])[..., None]


def batch():
    sizes = torch.randint(15, N + 1, (B,), device=device)
    mask = torch.arange(N, device=device) < sizes[:, None]
    x = marginal_x.expand(B * N, -1).multinomial(1, replacement=True).view(B, N)
    e = marginal_e.expand(B * N * N, -1).multinomial(1, replacement=True).view(B, N, N).triu(1)
    return x, e + e.transpose(1, 2), mask


model = GraphTransformer(ATOMS + 2, BONDS, 1 + 8).to(device)
forward = torch.compile(model)
opt = torch.optim.AdamW(model.parameters(), lr=2e-4, amsgrad=True, weight_decay=1e-12)
for _ in steps():
    x0, e0, mask = batch()
    t = torch.randint(1, T + 1, (B,), device=device)
    xt, et = corrupt(F.one_hot(x0, ATOMS).float(), F.one_hot(e0, BONDS).float(), mask, alpha_bar[t])
    node_extra, graph_extra = cycles(et[..., 1:].sum(-1))
    y = torch.cat([t[:, None] / T, graph_extra], 1)
    px, pe = forward(torch.cat([xt, node_extra], -1), et, y, mask)
    pair = (mask[:, :, None] & mask[:, None]).triu(1)
    loss_x = F.cross_entropy(px[mask], x0[mask])
    loss_e = F.cross_entropy(pe[pair], e0[pair])
    loss = loss_x + 5 * loss_e
    opt.zero_grad()
    loss.backward()
    opt.step()
