"""Protein backbone design by diffusion of residue frames (after FrameDiff), buckets of equal length."""

import math
import random
from collections import defaultdict
from dataclasses import dataclass

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.checkpoint import checkpoint

from tick import steps

torch.set_float32_matmul_precision("high")
random.seed(7)


@dataclass
class Config:
    node: int = 256
    edge: int = 128
    hidden: int = 256
    heads: int = 8
    qk_points: int = 8
    v_points: int = 12
    blocks: int = 4
    skip: int = 64
    seq_layers: int = 2
    seq_heads: int = 4
    budget: int = 400_000
    largest: int = 8
    lr: float = 1e-4
    device: str = "cuda"


cfg = Config()


def quat_to_rot(q):
    a, b, c, d = F.normalize(q, dim=-1).unbind(-1)
    rows = [
        a * a + b * b - c * c - d * d, 2 * (b * c - a * d), 2 * (b * d + a * c),
        2 * (b * c + a * d), a * a - b * b + c * c - d * d, 2 * (c * d - a * b),
        2 * (b * d - a * c), 2 * (c * d + a * b), a * a - b * b - c * c + d * d,
    ]  # fmt: skip
    return torch.stack(rows, -1).unflatten(-1, (3, 3))


def exp_so3(v):
    angle = v.norm(dim=-1, keepdim=True).clamp(min=1e-6)
    return quat_to_rot(torch.cat([(angle / 2).cos(), (angle / 2).sin() * v / angle], -1))


def sinusoid(x, d, top):
    f = torch.exp(-math.log(top) * torch.arange(d // 2, device=x.device) / (d // 2))
    return torch.cat([(x[..., None] * f).sin(), (x[..., None] * f).cos()], -1)


class InvariantPointAttention(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.h, self.p, self.pv, self.d = c.heads, c.qk_points, c.v_points, c.hidden
        self.q, self.kv = nn.Linear(c.node, c.heads * c.hidden), nn.Linear(c.node, 2 * c.heads * c.hidden)
        self.qp = nn.Linear(c.node, c.heads * c.qk_points * 3)
        self.kvp = nn.Linear(c.node, c.heads * (c.qk_points + c.v_points) * 3)
        self.bias, self.down = nn.Linear(c.edge, c.heads), nn.Linear(c.edge, c.edge // 4)
        self.weight = nn.Parameter(torch.full((c.heads,), 0.541))
        self.out = nn.Linear(c.heads * (c.hidden + c.v_points * 4 + c.edge // 4), c.node)

    def forward(self, s, z, rot, trans, mask):
        b, n, _ = s.shape
        q = self.q(s).view(b, n, self.h, -1)
        k, v = self.kv(s).view(b, n, self.h, 2, -1).unbind(3)
        qp = self.qp(s).view(b, n, -1, 3) @ rot.transpose(-1, -2) + trans[:, :, None]
        kvp = self.kvp(s).view(b, n, -1, 3) @ rot.transpose(-1, -2) + trans[:, :, None]
        qp = qp.view(b, n, self.h, self.p, 3)
        kp, vp = kvp.view(b, n, self.h, self.p + self.pv, 3).split([self.p, self.pv], 3)
        a = torch.einsum("bihd,bjhd->bhij", q, k) * math.sqrt(1 / (3 * self.d))
        a = a + math.sqrt(1 / 3) * self.bias(z).permute(0, 3, 1, 2)
        far = (qp[:, :, None] - kp[:, None]).square().sum((-1, -2))
        gain = F.softplus(self.weight) * math.sqrt(1 / (3 * self.p * 4.5))
        a = a - 0.5 * (far * gain).permute(0, 3, 1, 2)
        a = a.masked_fill(~mask[:, None, None, :], -1e5).softmax(-1)
        o = torch.einsum("bhij,bjhd->bihd", a, v).flatten(2)
        op = torch.einsum("bhij,bjhpx->bihpx", a, vp).flatten(2, 3)
        op = (op - trans[:, :, None]) @ rot
        oz = torch.einsum("bhij,bijd->bihd", a, self.down(z)).flatten(2)
        length = (op.square().sum(-1) + 1e-8).sqrt()
        return self.out(torch.cat([o, op.flatten(2), length, oz], -1))


class Trunk(nn.Module):
    """One round: attention over frames, a transformer along the chain, new frames."""

    def __init__(self, c):
        super().__init__()
        self.ipa, self.n1 = InvariantPointAttention(c), nn.LayerNorm(c.node)
        self.skip = nn.Linear(c.node, c.skip)
        width = c.node + c.skip
        self.seq = nn.ModuleList(
            nn.TransformerEncoderLayer(width, c.seq_heads, width, 0.0, batch_first=True) for _ in range(c.seq_layers)
        )
        self.post = nn.Linear(width, c.node)
        self.mlp = nn.Sequential(
            nn.Linear(c.node, c.node), nn.ReLU(), nn.Linear(c.node, c.node), nn.ReLU(), nn.Linear(c.node, c.node)
        )
        self.n2, self.update = nn.LayerNorm(c.node), nn.Linear(c.node, 6)

    def forward(self, s, s0, z, rot, trans, mask):
        s = self.n1(s + self.ipa(s, z, rot, trans, mask)) * mask[..., None]
        x = torch.cat([s, self.skip(s0)], -1)
        for layer in self.seq:
            x = layer(x, src_key_padding_mask=~mask)
        s = s + self.post(x)
        s = self.n2(s + self.mlp(s)) * mask[..., None]
        turn, shift = self.update(s).chunk(2, -1)
        trans = trans + (rot @ shift[..., None])[..., 0]
        rot = rot @ quat_to_rot(torch.cat([torch.ones_like(turn[..., :1]), turn], -1))
        return s, rot, trans


class EdgeTransition(nn.Module):
    def __init__(self, c):
        super().__init__()
        wide = c.edge * 2
        self.narrow = nn.Linear(c.node, c.edge // 2)
        self.trunk = nn.Sequential(nn.Linear(wide, wide), nn.ReLU(), nn.Linear(wide, wide), nn.ReLU())
        self.final, self.norm = nn.Linear(wide, c.edge), nn.LayerNorm(c.edge)

    def forward(self, s, z):
        e = self.narrow(s)
        n = e.shape[1]
        e = torch.cat([e[:, :, None].expand(-1, -1, n, -1), e[:, None].expand(-1, n, -1, -1)], -1)
        x = torch.cat([z, e], -1)
        return self.norm(self.final(self.trunk(x) + x))


class FrameDiff(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.node = nn.Sequential(
            nn.Linear(65, c.node),
            nn.ReLU(),
            nn.Linear(c.node, c.node),
            nn.ReLU(),
            nn.Linear(c.node, c.node),
            nn.LayerNorm(c.node),
        )
        self.edge = nn.Sequential(
            nn.Linear(65 * 2 + 32 + 22, c.edge),
            nn.ReLU(),
            nn.Linear(c.edge, c.edge),
            nn.ReLU(),
            nn.Linear(c.edge, c.edge),
            nn.LayerNorm(c.edge),
        )
        self.trunks = nn.ModuleList(Trunk(c) for _ in range(c.blocks))
        self.edges = nn.ModuleList(EdgeTransition(c) for _ in range(c.blocks - 1))
        for m in (*(t.ipa for t in self.trunks), *self.edges):
            m.compile(dynamic=True)
        self.register_buffer("bins", torch.linspace(1e-5, 20.0, 22))

    def embed(self, t, trans, mask):
        b, n = mask.shape
        index = torch.arange(n, device=mask.device)
        one = torch.cat(
            [
                sinusoid(t * 1000, 32, 10000)[:, None].expand(-1, n, -1),
                sinusoid(index.float(), 32, 2056).expand(b, -1, -1),
                mask[..., None],
            ],
            -1,
        )
        pair = torch.cat([one[:, :, None].expand(-1, -1, n, -1), one[:, None].expand(-1, n, -1, -1)], -1)
        apart = sinusoid((index[:, None] - index).float(), 32, 2056).expand(b, -1, -1, -1)
        d = torch.cdist(trans, trans)[..., None]
        upper = torch.cat([self.bins[1:], self.bins.new_tensor([1e8])])
        gram = ((d > self.bins) & (d < upper)).float()
        return self.node(one), self.edge(torch.cat([pair, apart, gram], -1))

    def forward(self, t, rot, trans, mask):
        s, z = self.embed(t, trans * 10, mask)
        s0 = s = s * mask[..., None]
        rot, trans = rot.requires_grad_(), trans.requires_grad_()  # every round is then traced alike
        for i, trunk in enumerate(self.trunks):
            s, rot, trans = trunk(s, s0, z, rot, trans, mask)
            if i < len(self.edges):
                z = checkpoint(self.edges[i], s, z, use_reentrant=False)
        return rot, trans


class Bucketed:
    """Chains sorted into buckets by length, the longest first; the batch is as large as N^2 allows."""

    def __init__(self, lengths):
        self.buckets = defaultdict(list)
        for n in lengths:
            self.buckets[-(-n // 64) * 64].append(n)

    def __iter__(self):
        sizes = sorted(self.buckets, reverse=True)
        while True:
            for size in sizes:
                count = max(1, min(cfg.largest, cfg.budget // size**2))
                yield size, random.choices(self.buckets[size], k=count)
            random.shuffle(sizes)


def chain(size, lengths):
    step = F.normalize(torch.randn(len(lengths), size, 3, device=cfg.device), dim=-1) * 3.8
    trans = step.cumsum(1)
    rot = exp_so3(torch.randn(len(lengths), size, 3, device=cfg.device))
    mask = torch.arange(size, device=cfg.device) < torch.tensor(lengths, device=cfg.device)[:, None]
    centre = (trans * mask[..., None]).sum(1) / mask.sum(1, keepdim=True)
    return rot, (trans - centre[:, None]) / 10, mask


def corrupt(rot, trans, t):
    b = t * 0.1 + 0.5 * t**2 * 19.9
    keep = torch.exp(-0.5 * b)[:, None, None]
    noisy = keep * trans + (1 - keep**2).sqrt() * torch.randn_like(trans)
    sigma = torch.log(t * math.exp(1.5) + (1 - t) * math.exp(0.1))[:, None, None]
    return rot @ exp_so3(sigma * torch.randn_like(trans)), noisy


def backbone(rot, trans):
    ideal = torch.tensor([[-0.0525, 0.1363, 0.0], [0.0, 0.0, 0.0], [0.1526, 0.0, 0.0]], device=trans.device)
    return torch.einsum("bnij,aj->bnai", rot, ideal) + trans[:, :, None]


def objective(pred_rot, pred_trans, rot, trans, mask, t):
    m = mask.float()
    count = m.sum()
    translation = ((pred_trans - trans).square().sum(-1) * m).sum() / count
    rotation = (
        (pred_rot.transpose(-1, -2) @ rot - torch.eye(3, device=m.device)).square().sum((-1, -2)) * m
    ).sum() / count
    early = (t < 0.25).float()[:, None] * m
    guess, truth = backbone(pred_rot, pred_trans), backbone(rot, trans)
    atoms = ((guess - truth).square().sum((-1, -2)) * early).sum() / (early.sum() + 1e-6)
    dg, dt = torch.cdist(guess[:, :, 1], guess[:, :, 1]), torch.cdist(truth[:, :, 1], truth[:, :, 1])
    near = (dt < 0.6) & (early[:, :, None] * m[:, None] > 0)
    pairs = (dg - dt)[near].square().sum() / (near.sum() + 1e-6)
    return translation + 0.5 * rotation + 0.25 * (atoms + pairs)


model = FrameDiff(cfg).to(cfg.device)
optimizer = torch.optim.Adam(model.parameters(), lr=cfg.lr, amsgrad=True)
batches = iter(Bucketed([random.randint(65, 384) for _ in range(3000)]))
log = []
for i in steps(warmup=10):
    rot, trans, mask = chain(*next(batches))
    t = torch.rand(len(rot), device=cfg.device) * 0.99 + 0.01
    noisy_rot, noisy = corrupt(rot, trans, t)
    loss = objective(*model(t, noisy_rot, noisy, mask), rot, trans, mask, t)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    log.append(loss.detach())
    if len(log) == 20:
        print(f"{i:4d} {mask.shape[1]:4d} {torch.stack(log).mean().item():.3f}")
        log.clear()
