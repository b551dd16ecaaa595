import random
import torch
import torch.nn as nn
import torch.nn.functional as F
from tick import steps

LATENT, PROCESSORS, BATCH, TYPES = 128, 15, 10, 9


def mlp(i, o, norm=True):
    net = [nn.Linear(i, LATENT), nn.ReLU(), nn.Linear(LATENT, LATENT), nn.ReLU(), nn.Linear(LATENT, o)]
    return nn.Sequential(*net, nn.LayerNorm(o)) if norm else nn.Sequential(*net)


class Normalizer(nn.Module):
    def __init__(self, size, limit=1e6):
        super().__init__()
        self.limit = limit
        self.register_buffer("count", torch.zeros(()))
        self.register_buffer("num", torch.zeros(()))
        self.register_buffer("total", torch.zeros(size))
        self.register_buffer("squares", torch.zeros(size))

    def forward(self, x, accumulate=True):
        if accumulate and self.num < self.limit:
            self.total += x.detach().sum(0)
            self.squares += (x.detach() ** 2).sum(0)
            self.count += x.shape[0]
            self.num += 1
        return (x - self.mean()) / self.std()

    def mean(self):
        return self.total / self.count.clamp(min=1.0)

    def std(self):
        return torch.sqrt((self.squares / self.count.clamp(min=1.0) - self.mean() ** 2).clamp(min=0)).clamp(min=1e-8)


class GraphNetBlock(nn.Module):
    def __init__(self):
        super().__init__()
        self.edge, self.node = mlp(3 * LATENT, LATENT), mlp(2 * LATENT, LATENT)

    def forward(self, v, e, senders, receivers):
        new_e = self.edge(torch.cat([v[senders], v[receivers], e], dim=-1))
        gathered = torch.zeros_like(v).index_add(0, receivers, new_e)
        new_v = self.node(torch.cat([v, gathered], dim=-1))
        return v + new_v, e + new_e


class MeshGraphNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.node_norm, self.edge_norm, self.out_norm = Normalizer(2 + TYPES), Normalizer(3), Normalizer(2)
        self.node_enc, self.edge_enc = mlp(2 + TYPES, LATENT), mlp(3, LATENT)
        self.blocks = nn.ModuleList(GraphNetBlock() for _ in range(PROCESSORS))
        self.dec = mlp(LATENT, 2, norm=False)

    def forward(self, velocity, kind, pos, senders, receivers):
        rel = pos[senders] - pos[receivers]
        edges = torch.cat([rel, rel.norm(dim=-1, keepdim=True)], dim=-1)
        v = self.node_enc(self.node_norm(torch.cat([velocity, F.one_hot(kind, TYPES).float()], -1)))
        e = self.edge_enc(self.edge_norm(edges))
        for block in self.blocks:
            v, e = block(v, e, senders, receivers)
        return self.dec(v)


def make_mesh(nx, ny):
    idx = torch.arange(nx * ny).view(nx, ny)
    quads = [
        (idx[:-1].flatten(), idx[1:].flatten()),
        (idx[:, :-1].flatten(), idx[:, 1:].flatten()),
        (idx[:-1, :-1].flatten(), idx[1:, 1:].flatten()),
    ]
    s, r = torch.cat([q[0] for q in quads]), torch.cat([q[1] for q in quads])
    pos = torch.stack(torch.meshgrid(torch.linspace(0, 1.6, nx), torch.linspace(0, 0.41, ny), indexing="ij"), -1).view(
        -1, 2
    )
    kind = torch.where(torch.rand(nx * ny) < 0.1, torch.randint(1, TYPES, (nx * ny,)), 0)
    return dict(
        pos=pos + 0.003 * torch.randn_like(pos),
        kind=kind,
        senders=torch.cat([s, r]),
        receivers=torch.cat([r, s]),
        velocity=torch.randn(20, nx * ny, 2),
    )


def collate(graphs):
    out, base = {k: [] for k in ("pos", "kind", "senders", "receivers", "velocity", "target")}, 0
    for g in graphs:
        t = random.randrange(19)
        for k, v in dict(
            pos=g["pos"],
            kind=g["kind"],
            senders=g["senders"] + base,
            receivers=g["receivers"] + base,
            velocity=g["velocity"][t],
            target=g["velocity"][t + 1],
        ).items():
            out[k].append(v)
        base += len(g["pos"])
    return {k: torch.cat(v).cuda() for k, v in out.items()}


meshes = [make_mesh(random.randint(68, 76), random.randint(25, 29)) for _ in range(40)]
model = MeshGraphNet().cuda()
for block in model.blocks:
    block.compile()
opt = torch.optim.Adam(model.parameters(), lr=1e-4)
sched = torch.optim.lr_scheduler.ExponentialLR(opt, 0.9999)
history = []
for i in steps():
    g = collate(random.sample(meshes, BATCH))
    normal = g["kind"] == 0
    noise = 0.02 * torch.randn_like(g["velocity"]) * normal[:, None]
    velocity = g["velocity"] + noise
    out = model(velocity, g["kind"], g["pos"], g["senders"], g["receivers"])
    target = model.out_norm(g["target"] - velocity)
    loss = ((out - target) ** 2).sum(-1)[normal].mean()
    opt.zero_grad()
    loss.backward()
    opt.step()
    sched.step()
    if i % 10 == 0:
        history.append(loss.item())
