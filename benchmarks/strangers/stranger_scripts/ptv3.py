"""Point Transformer V3 (small) on indoor scans: serialized patches of 1024 points, sparse convolutions by gathering."""

import torch
import torch.nn as nn
import torch.nn.functional as F
from tick import steps

ENC = dict(depths=(2, 2, 2, 6, 2), dims=(32, 64, 128, 256, 512), heads=(2, 4, 8, 16, 32))
DEC = dict(depths=(2, 2, 2, 2), dims=(64, 64, 128, 256), heads=(4, 4, 8, 16))
PATCH, CLASSES, SCANS, BITS = 1024, 20, 3, 10
RANGE = torch.arange(-1, 2)
OFFSETS = torch.stack(torch.meshgrid(RANGE, RANGE, RANGE, indexing="ij"), -1).view(27, 3)


@torch.library.custom_op("ptv3::gather_cells", mutates_args=())
def gather_cells(x: torch.Tensor, cells: torch.Tensor) -> torch.Tensor:
    padded = torch.cat([x, x.new_zeros(1, x.shape[1])])
    return padded[cells].flatten(1)


@gather_cells.register_fake
def _(x, cells):
    return x.new_empty(x.shape[0], cells.shape[1] * x.shape[1])


@torch.library.custom_op("ptv3::collect_cells", mutates_args=())
def collect_cells(grad: torch.Tensor, cells: torch.Tensor) -> torch.Tensor:
    # i is the k-th neighbour of j exactly when j is the (26 - k)-th of i: no atomics are needed
    n, k = cells.shape
    g = torch.cat([grad.reshape(n * k, -1), grad.new_zeros(1, grad.shape[1] // k)])
    at = cells.flip(1) * k + torch.arange(k, device=cells.device)
    return g[torch.where(cells.flip(1) < n, at, n * k)].sum(1)


@collect_cells.register_fake
def _(grad, cells):
    return grad.new_empty(grad.shape[0], grad.shape[1] // cells.shape[1])


def _setup(ctx, inputs, output):
    ctx.save_for_backward(inputs[1])


def _backward(ctx, grad):
    return torch.ops.ptv3.collect_cells(grad.contiguous(), ctx.saved_tensors[0]), None


gather_cells.register_autograd(_backward, setup_context=_setup)


def spread(x):
    out = torch.zeros_like(x)
    for b in range(BITS):
        out |= ((x >> b) & 1) << (3 * b)
    return out


def zorder(grid, swap=False):
    x, y, z = grid.unbind(1)
    if swap:
        x, y = y, x
    return spread(x) | spread(y) << 1 | spread(z) << 2


class Level:
    """What all blocks of one resolution share: order of the points, patches and neighbours."""

    def __init__(self, grid, batch):
        self.grid, self.batch, n = grid, batch, len(grid)
        self.counts = torch.bincount(batch, minlength=SCANS)
        sizes = self.counts.tolist()
        patch = min(PATCH, min(sizes))
        self.orders = []
        for swap in (False, True):
            order = torch.argsort(batch << 40 | zorder(grid, swap))
            padded, start = [], 0
            for size in sizes:
                scan = order[start : start + size]
                rest = -size % patch
                padded.append(torch.cat([scan, scan[size - patch : size - patch + rest]]) if rest else scan)
                start += size
            padded = torch.cat(padded)
            back = torch.empty(n, dtype=torch.long, device=grid.device)
            back[padded.flip(0)] = torch.arange(len(padded) - 1, -1, -1, device=grid.device)
            self.orders.append((padded, back, patch))
        self.cells = self.neighbours()

    def neighbours(self):
        def key(batch, g):
            return ((batch * 2048 + g[..., 0] + 1) * 2048 + g[..., 1] + 1) * 2048 + g[..., 2] + 1

        own, index = key(self.batch, self.grid).sort()
        wanted = key(self.batch[:, None], self.grid[:, None] + OFFSETS.to(self.grid.device))
        at = torch.searchsorted(own, wanted).clamp(max=len(own) - 1)
        return torch.where(own[at] == wanted, index[at], len(own))

    def coarser(self):
        key = self.batch << 40 | zorder(self.grid >> 1)
        unique, cluster = torch.unique(key, return_inverse=True)
        first = torch.empty_like(unique).scatter_(0, cluster, torch.arange(len(key), device=key.device))
        return Level((self.grid >> 1)[first], self.batch[first]), cluster


class Block(nn.Module):
    def __init__(self, dim, heads, which, drop):
        super().__init__()
        self.conv, self.fc, self.cn = nn.Linear(27 * dim, dim), nn.Linear(dim, dim), nn.LayerNorm(dim)
        self.n1, self.n2 = nn.LayerNorm(dim), nn.LayerNorm(dim)
        self.qkv, self.proj = nn.Linear(dim, 3 * dim), nn.Linear(dim, dim)
        self.mlp = nn.Sequential(nn.Linear(dim, 4 * dim), nn.GELU(), nn.Linear(4 * dim, dim))
        self.heads, self.which, self.drop = heads, which, drop

    def path(self, y, level):
        if not self.training or self.drop == 0:
            return y
        keep = (torch.rand(SCANS, device=y.device) >= self.drop) / (1 - self.drop)
        return y * keep[level.batch, None].to(y.dtype)

    def attend(self, x, level):
        order, back, patch = level.orders[self.which]
        qkv = self.qkv(x)[order].view(-1, patch, 3, self.heads, x.shape[1] // self.heads)
        q, k, v = qkv.permute(2, 0, 3, 1, 4)
        y = F.scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(len(order), -1)
        return self.proj(y[back])

    def forward(self, x, level):
        x = x + self.cn(self.fc(self.conv(gather_cells(x.to(torch.bfloat16), level.cells))))
        x = x + self.path(self.attend(self.n1(x), level), level)
        return x + self.path(self.mlp(self.n2(x)), level)


class Pool(nn.Module):
    def __init__(self, a, b):
        super().__init__()
        self.proj, self.norm = nn.Linear(a, b), nn.BatchNorm1d(b, eps=1e-3, momentum=0.01)

    def forward(self, x, cluster, n):
        x = self.proj(x)
        index = cluster[:, None].expand_as(x)
        out = x.new_zeros(n, x.shape[1]).scatter_reduce(0, index, x, "amax", include_self=False)
        return F.gelu(self.norm(out))


class Unpool(nn.Module):
    def __init__(self, a, skip, b):
        super().__init__()
        self.up = nn.Sequential(nn.Linear(a, b), nn.BatchNorm1d(b, eps=1e-3, momentum=0.01), nn.GELU())
        self.side = nn.Sequential(nn.Linear(skip, b), nn.BatchNorm1d(b, eps=1e-3, momentum=0.01), nn.GELU())

    def forward(self, x, skip, cluster):
        return self.side(skip) + self.up(x)[cluster]


class PTv3(nn.Module):
    def __init__(self, channels=6):
        super().__init__()
        dims, rates = ENC["dims"], torch.linspace(0, 0.3, sum(ENC["depths"])).tolist()
        self.stem = nn.Sequential(nn.Linear(channels, dims[0]), nn.BatchNorm1d(dims[0]), nn.GELU())
        self.enc, self.pools = nn.ModuleList(), nn.ModuleList()
        for i, depth in enumerate(ENC["depths"]):
            if i:
                self.pools.append(Pool(dims[i - 1], dims[i]))
            blocks = [Block(dims[i], ENC["heads"][i], j % 2, rates.pop(0)) for j in range(depth)]
            self.enc.append(nn.ModuleList(blocks))
        self.dec, self.ups, last = nn.ModuleList(), nn.ModuleList(), dims[-1]
        for i in reversed(range(4)):
            self.ups.append(Unpool(last, dims[i], DEC["dims"][i]))
            last = DEC["dims"][i]
            self.dec.append(nn.ModuleList(Block(last, DEC["heads"][i], j % 2, 0.1) for j in range(DEC["depths"][i])))
        self.head = nn.Linear(last, CLASSES)

    def forward(self, feats, grid, batch):
        x, level, skips = self.stem(feats), Level(grid, batch), []
        for i, blocks in enumerate(self.enc):
            if i:
                coarse, cluster = level.coarser()
                skips.append((x, level, cluster))
                x, level = self.pools[i - 1](x, cluster, len(coarse.grid)), coarse
            for block in blocks:
                x = block(x, level)
        for up, blocks in zip(self.ups, self.dec):
            skip, level, cluster = skips.pop()
            x = up(x, skip, cluster)
            for block in blocks:
                x = block(x, level)
        return self.head(x)


def room(points):
    """A box with furniture: walls and table tops are planes, kept once per cell of 2 cm."""
    size = torch.tensor([180.0, 150.0, 110.0]) * (0.8 + 0.4 * torch.rand(3))
    p = torch.rand(points, 3)
    axis, side = torch.randint(0, 3, (points,)), torch.randint(0, 2, (points,))
    p[torch.arange(points), axis] = side.float()
    inside = torch.rand(points) < 0.4
    pieces = torch.rand(12, 3) * 0.7
    p[inside] = pieces[torch.randint(0, 12, (int(inside.sum()),))] + p[inside] * 0.2
    grid = torch.unique((p.clamp(0, 1) * size).long(), dim=0)
    label = torch.randint(-1, CLASSES, (len(grid),))
    return grid, torch.cat([torch.rand(len(grid), 3) * 2 - 1, grid / 100], 1), label


scans = [room(int(n)) for n in torch.randint(50000, 90000, (24,))]
model = PTv3().cuda()
special = [p for n, p in model.named_parameters() if ".qkv" in n or ".proj" in n]
names = {id(p) for p in special}
groups = [{"params": [p for p in model.parameters() if id(p) not in names]}, {"params": special, "lr": 6e-4}]
optimizer = torch.optim.AdamW(groups, lr=6e-3, weight_decay=0.05)
scheduler = torch.optim.lr_scheduler.OneCycleLR(optimizer, [6e-3, 6e-4], total_steps=20000, pct_start=0.05)
for i in steps():
    drawn = [scans[j] for j in torch.randint(0, len(scans), (SCANS,)).tolist()]
    grid, feats, label = (torch.cat(t).cuda(non_blocking=True) for t in zip(*drawn))
    batch = torch.repeat_interleave(torch.tensor([len(d[0]) for d in drawn])).cuda()
    with torch.autocast("cuda", dtype=torch.bfloat16):
        logits = model(feats, grid, batch)
    known = label >= 0
    loss = F.cross_entropy(logits[known].float(), label[known])
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    scheduler.step()
    if i % 10 == 0:
        hit = (logits[known].argmax(-1) == label[known]).float().mean().item()
        print(f"[{i}] points {len(grid)} loss {loss.item():.3f} acc {hit:.3f}")
