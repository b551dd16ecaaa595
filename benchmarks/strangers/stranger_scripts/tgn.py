# Temporal graph network (memory + time-encoded attention) for link prediction on a Reddit-sized stream
import numpy as np
import torch
from torch import nn
from torch.nn import functional as F

from tick import steps

dev = torch.device("cuda")
USERS, ITEMS, EVENTS, FEATS = 10000, 984, 672447, 172
MEM, TIME, EMB, HEADS, K, BATCH = 100, 100, 100, 2, 10, 200
N = USERS + ITEMS

rng = np.random.default_rng(0)
popular = 1.0 / np.arange(1, ITEMS + 1)
src = torch.from_numpy(rng.integers(0, USERS, EVENTS)).to(dev)
dst = torch.from_numpy(USERS + rng.choice(ITEMS, EVENTS, p=popular / popular.sum())).to(dev)
t = torch.from_numpy(np.sort(rng.integers(0, 2678400, EVENTS))).float().to(dev)
edge_feat = torch.randn(EVENTS, FEATS, device=dev)


class RecentNeighbours:
    def __init__(self):
        self.node = torch.zeros(N, K, dtype=torch.long, device=dev)
        self.event = torch.full((N, K), -1, dtype=torch.long, device=dev)
        self.cursor = torch.zeros(N, dtype=torch.long, device=dev)

    def insert(self, a, b, e):
        nodes, order = torch.cat([a, b]).sort(stable=True)
        others, events = torch.cat([b, a])[order], torch.cat([e, e])[order]
        first = torch.searchsorted(nodes, nodes)
        size = torch.searchsorted(nodes, nodes, right=True) - first
        rank = torch.arange(nodes.numel(), device=dev) - first
        keep = size - rank <= K
        nodes, others, events, rank = nodes[keep], others[keep], events[keep], rank[keep]
        slot = (self.cursor[nodes] + rank) % K
        self.node[nodes, slot] = others
        self.event[nodes, slot] = events
        self.cursor.scatter_reduce_(0, nodes, self.cursor[nodes] + rank + 1, "amax")


class TimeEncode(nn.Module):
    def __init__(self):
        super().__init__()
        self.lin = nn.Linear(1, TIME)
        with torch.no_grad():
            self.lin.weight.copy_(torch.from_numpy(1 / 10 ** np.linspace(0, 9, TIME)).float()[:, None])
            self.lin.bias.zero_()

    def forward(self, x):
        return self.lin(x.unsqueeze(-1)).cos()


class TGN(nn.Module):
    def __init__(self):
        super().__init__()
        self.time = TimeEncode()
        self.gru = nn.GRUCell(2 * MEM + FEATS + TIME, MEM)
        self.q = nn.Linear(MEM + TIME, EMB * HEADS)
        self.kv = nn.Linear(MEM + FEATS + TIME, 2 * EMB * HEADS)
        self.merge = nn.Sequential(nn.Linear(EMB * HEADS + MEM, EMB), nn.ReLU(), nn.Linear(EMB, EMB))
        self.link = nn.Sequential(nn.Linear(2 * EMB, EMB), nn.ReLU(), nn.Linear(EMB, 1))
        self.register_buffer("memory", torch.zeros(N, MEM))
        self.register_buffer("updated", torch.zeros(N))
        self.register_buffer("pending", torch.full((N,), -1))

    def fresh_memory(self, nodes):
        """Memory of `nodes` after the last raw message that waits for each of them."""
        event = self.pending[nodes]
        waits = (event >= 0).nonzero().squeeze(1)
        n, e = nodes[waits], event[waits]
        other = torch.where(src[e] == n, dst[e], src[e])
        message = torch.cat([self.memory[n], self.memory[other], edge_feat[e], self.time(t[e] - self.updated[n])], 1)
        memory = self.memory[nodes].index_copy(0, waits, self.gru(message, self.memory[n]))
        updated = self.updated[nodes].index_copy(0, waits, t[e])
        return memory, updated

    def embed(self, nodes, now, table):
        event = table.event[nodes]
        mask = event >= 0
        neighbours = table.node[nodes]
        unique, inverse = torch.unique(torch.cat([nodes, neighbours.flatten()]), return_inverse=True)
        memory, updated = self.fresh_memory(unique)
        me, them = memory[inverse[: len(nodes)]], memory[inverse[len(nodes) :]].view(len(nodes), K, MEM)
        age = self.time((now[:, None] - t[event.clamp(min=0)]) * mask)
        q = self.q(torch.cat([me, self.time(torch.zeros_like(now))], -1)).view(-1, HEADS, 1, EMB)
        kv = self.kv(torch.cat([them, edge_feat[event.clamp(min=0)], age], -1))
        k, v = kv.view(-1, K, HEADS, 2 * EMB).transpose(1, 2).chunk(2, -1)
        score = (q * k).sum(-1) / EMB**0.5
        attn = score.masked_fill(~mask[:, None], -1e10).softmax(-1) * mask[:, None]
        attn = F.dropout(attn, 0.1, self.training)
        z = (attn.unsqueeze(2) @ v).flatten(1)
        return self.merge(torch.cat([z, me], 1)), unique, memory, updated

    def forward(self, a, b, neg, now, table):
        z, unique, memory, updated = self.embed(torch.cat([a, b, neg]), now.repeat(3), table)
        za, zb, zn = z.chunk(3)
        pos = self.link(torch.cat([za, zb], 1)).squeeze(1)
        fake = self.link(torch.cat([za, zn], 1)).squeeze(1)
        return pos, fake, (unique, memory, updated)

    @torch.no_grad()
    def commit(self, a, b, e, state):
        unique, memory, updated = state
        touched = torch.isin(unique, torch.cat([a, b]))
        self.memory[unique[touched]] = memory[touched].detach()
        self.updated[unique[touched]] = updated[touched]
        self.pending.scatter_reduce_(0, torch.cat([a, b]), torch.cat([e, e]), "amax")


def average_precision(pos, neg):
    score = torch.cat([pos, neg])
    label = torch.cat([torch.ones_like(pos), torch.zeros_like(neg)])[score.argsort(descending=True)]
    precision = label.cumsum(0) / torch.arange(1, len(label) + 1, device=label.device)
    return (precision * label).sum() / label.sum()


model, table = TGN().to(dev), RecentNeighbours()
opt = torch.optim.Adam(model.parameters(), lr=1e-4, foreach=False)
seen = torch.arange(20000, device=dev)
table.insert(src[seen], dst[seen], seen)
model.pending.scatter_reduce_(0, torch.cat([src[seen], dst[seen]]), seen.repeat(2), "amax")
history = []
for i in steps():
    e = len(seen) + i * BATCH + torch.arange(BATCH, device=dev)
    a, b, now = src[e], dst[e], t[e]
    neg = torch.randint(USERS, N, (BATCH,), device=dev)
    pos, fake, state = model(a, b, neg, now, table)
    loss = F.binary_cross_entropy_with_logits(pos, torch.ones_like(pos))
    loss += F.binary_cross_entropy_with_logits(fake, torch.zeros_like(fake))
    opt.zero_grad()
    loss.backward()
    opt.step()
    model.commit(a, b, e, state)
    table.insert(a, b, e)
    history.append((float(loss.detach()), float(average_precision(pos.detach(), fake.detach()))))
print("loss %.4f  ap %.4f" % tuple(np.mean(history[-10:], 0)))
