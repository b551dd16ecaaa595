import random
import torch, torch.nn as nn, torch.nn.functional as F
from torch.utils.data import DataLoader, Dataset
from tick import steps

torch.set_float32_matmul_precision("high")
HID, LAYERS, BATCH = 256, 7, 384


class Molecules(Dataset):
    def __init__(self, n=20000):
        self.sizes = [min(29, max(6, round(random.gauss(18, 3)))) for _ in range(n)]

    def __len__(self):
        return len(self.sizes)

    def __getitem__(self, i):
        n = self.sizes[i]
        return torch.randint(0, 5, (n,)), torch.randn(n, 3), torch.randn(())


EDGES = {n: (~torch.eye(n, dtype=torch.bool)).nonzero().t() for n in range(6, 30)}


def collate(items):
    z, pos, y, edges, batch, at = [], [], [], [], [], 0
    for k, (a, p, t) in enumerate(items):
        n = len(a)
        z.append(a), pos.append(p), y.append(t)
        edges.append(EDGES[n] + at)
        batch.append(torch.full((n,), k))
        at += n
    return torch.cat(z), torch.cat(pos), torch.cat(edges, 1), torch.cat(batch), torch.stack(y)


def unsorted_segment_sum(data, segment_ids, num_segments):
    result = data.new_zeros(num_segments, data.size(1))
    return result.scatter_add_(0, segment_ids.unsqueeze(-1).expand(-1, data.size(1)), data)


class EGCL(nn.Module):
    def __init__(self, d):
        super().__init__()
        self.edge_mlp = nn.Sequential(nn.Linear(2 * d + 1, d), nn.SiLU(), nn.Linear(d, d), nn.SiLU())
        self.att = nn.Sequential(nn.Linear(d, 1), nn.Sigmoid())
        self.coord_mlp = nn.Sequential(nn.Linear(d, d), nn.SiLU(), nn.Linear(d, 1, bias=False), nn.Tanh())
        self.node_mlp = nn.Sequential(nn.Linear(2 * d, d), nn.SiLU(), nn.Linear(d, d))

    def forward(self, h, x, row, col):
        diff = x[row] - x[col]
        radial = (diff**2).sum(1, keepdim=True)
        m = self.edge_mlp(torch.cat([h[row], h[col], radial], 1))
        m = m * self.att(m)
        x = x + unsorted_segment_sum(diff / (radial.sqrt() + 1) * self.coord_mlp(m), row, x.size(0)) / 20
        agg = unsorted_segment_sum(m, row, h.size(0))
        return h + self.node_mlp(torch.cat([h, agg], 1)), x


class EGNN(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(5, HID)
        self.layers = nn.ModuleList(EGCL(HID) for _ in range(LAYERS))
        self.dec = nn.Sequential(nn.Linear(HID, HID), nn.SiLU(), nn.Linear(HID, HID))
        self.out = nn.Sequential(nn.Linear(HID, HID), nn.SiLU(), nn.Linear(HID, 1))

    def forward(self, z, pos, edges, batch, graphs):
        h, x = self.embed(z), pos
        row, col = edges[0], edges[1]
        for layer in self.layers:
            h, x = layer(h, x, row, col)
        return self.out(unsorted_segment_sum(self.dec(h), batch, graphs)).squeeze(1)


model = EGNN().cuda()
net = torch.compile(model, dynamic=True)
opt = torch.optim.Adam(model.parameters(), lr=5e-4, weight_decay=1e-16)
sched = torch.optim.lr_scheduler.CosineAnnealingLR(opt, 1000)
loader = DataLoader(
    Molecules(), BATCH, shuffle=True, num_workers=4, collate_fn=collate, pin_memory=True, drop_last=True
)
it = iter(loader)
total = 0.0
for i in steps(count=6):
    try:
        items = next(it)
    except StopIteration:
        it = iter(loader)
        items = next(it)
    z, pos, edges, batch, y = (t.cuda(non_blocking=True) for t in items)
    opt.zero_grad()
    loss = F.l1_loss(net(z, pos, edges, batch, BATCH), y)
    loss.backward()
    opt.step()
    sched.step()
    total += loss.item() * BATCH
