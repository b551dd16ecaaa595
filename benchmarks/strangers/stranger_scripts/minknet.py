import torch, torch.nn as nn, torch.nn.functional as F
from tick import steps

torch.set_float32_matmul_precision("high")
SCANS, POINTS, VOXEL, CLASSES = 4, 80000, 0.05, 20
ENC, DEC = (32, 64, 128, 256), (128, 128, 96, 96)
SHIFT = 1 << 12


def key_of(c):
    return ((c[:, 0] * SHIFT + c[:, 1]) * SHIFT + c[:, 2]) * SHIFT + c[:, 3]


def coords_of(key):
    return torch.stack([key // SHIFT**3, key // SHIFT**2 % SHIFT, key // SHIFT % SHIFT, key % SHIFT], 1)


class Level:
    """Active voxels of one stride, their 3x3x3 rule book, and the way to the next coarser level."""

    def __init__(self, keys):
        self.keys, self.n = keys, keys.numel()
        r = torch.arange(-1, 2, device=keys.device)
        off = torch.cartesian_prod(r, r, r)
        delta = (off[:, 0] * SHIFT + off[:, 1]) * SHIFT + off[:, 2]
        query = keys[None] + delta[:, None]
        at = torch.searchsorted(keys, query).clamp_(max=self.n - 1)
        hit = keys[at] == query
        k, out = hit.nonzero(as_tuple=True)
        counts = hit.sum(1).tolist()
        self.rules = list(zip(at[k, out].split(counts), out.split(counts)))

    def coarser(self):
        c = coords_of(self.keys)
        half = c.clone()
        half[:, 1:] //= 2
        octant = ((c[:, 1] % 2) * 2 + c[:, 2] % 2) * 2 + c[:, 3] % 2
        keys, parent = torch.unique(key_of(half), return_inverse=True)
        order = octant.argsort()
        counts = torch.bincount(octant, minlength=8).tolist()
        self.pool = list(zip(order.split(counts), parent[order].split(counts)))
        return Level(keys)


def gather_gemm_scatter(x, weight, rules, n):
    out = x.new_zeros(n, weight.shape[-1])
    for w, (src, dst) in zip(weight, rules):
        if src.numel():
            out.index_add_(0, dst, x.index_select(0, src) @ w)
    return out


class SparseConv(nn.Module):
    def __init__(self, cin, cout, volume):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(volume, cin, cout) * (2 / (cin * volume)) ** 0.5)

    def forward(self, x, rules, n):
        return gather_gemm_scatter(x, self.weight, rules, n)


class ConvBN(nn.Module):
    def __init__(self, cin, cout, volume=27):
        super().__init__()
        self.conv, self.bn = SparseConv(cin, cout, volume), nn.BatchNorm1d(cout, momentum=0.02)

    def forward(self, x, rules, n):
        return self.bn(self.conv(x, rules, n))


class Basic(nn.Module):
    def __init__(self, cin, cout):
        super().__init__()
        self.a, self.b = ConvBN(cin, cout), ConvBN(cout, cout)
        self.short = (
            nn.Sequential(nn.Linear(cin, cout, bias=False), nn.BatchNorm1d(cout)) if cin != cout else nn.Identity()
        )

    def forward(self, x, level):
        y = F.relu(self.a(x, level.rules, level.n), inplace=True)
        return F.relu(self.b(y, level.rules, level.n) + self.short(x))


class MinkUNet14(nn.Module):
    def __init__(self):
        super().__init__()
        self.stem = ConvBN(4, 32)
        self.down, self.enc, self.up, self.dec = (nn.ModuleList() for _ in range(4))
        c, skips = 32, []
        for d in ENC:
            skips.append(c)
            self.down.append(ConvBN(c, c, 8))
            self.enc.append(Basic(c, d))
            c = d
        for d, s in zip(DEC, skips[::-1]):
            self.up.append(ConvBN(c, d, 8))
            self.dec.append(Basic(d + s, d))
            c = d
        self.final = nn.Linear(c, CLASSES)

    def forward(self, x, level):
        levels, skips = [level], []
        x = F.relu(self.stem(x, level.rules, level.n))
        for down, enc in zip(self.down, self.enc):
            skips.append(x)
            fine, coarse = levels[-1], levels[-1].coarser()
            levels.append(coarse)
            x = enc(F.relu(down(x, fine.pool, coarse.n)), coarse)
        levels.pop()
        for up, dec in zip(self.up, self.dec):
            fine = levels.pop()
            x = F.relu(up(x, [(dst, src) for src, dst in fine.pool], fine.n))
            x = dec(torch.cat([x, skips.pop()], 1), fine)
        return self.final(x)


def make_scan():
    """A room: floor, four walls and some spheres."""
    n = POINTS // 2
    p = torch.rand(n, 3, device="cuda") * torch.tensor([9.0, 7.0, 3.0], device="cuda")
    face = torch.randint(0, 5, (n,), device="cuda")
    p[:, 2] = torch.where(face == 0, 0, p[:, 2])
    p[:, 0] = torch.where(face == 1, 0, torch.where(face == 2, 9.0, p[:, 0]))
    p[:, 1] = torch.where(face == 3, 0, torch.where(face == 4, 7.0, p[:, 1]))
    centre = torch.rand(12, 3, device="cuda") * torch.tensor([7.0, 5.0, 1.0], device="cuda") + 1
    which = torch.randint(0, 12, (POINTS - n,), device="cuda")
    ball = centre[which] + F.normalize(torch.randn(POINTS - n, 3, device="cuda"), dim=1) * (0.3 + 0.06 * which[:, None])
    return torch.cat([p, ball]), torch.cat([face, 5 + which])


scans = [make_scan() for _ in range(8)]
net = MinkUNet14().cuda()
optim = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9, weight_decay=1e-4)
poly = torch.optim.lr_scheduler.PolynomialLR(optim, total_iters=60000, power=0.9)
criterion = nn.CrossEntropyLoss(ignore_index=255)
for it in steps():
    coords, feats, labels = [], [], []
    for b in range(SCANS):
        xyz, label = scans[(it * SCANS + b) % len(scans)]
        angle = torch.rand(1, device="cuda") * 6.2832
        c, s, o, l = angle.cos(), angle.sin(), torch.zeros_like(angle), torch.ones_like(angle)
        xyz = xyz @ torch.cat([c, -s, o, s, c, o, o, o, l]).view(3, 3)
        grid = torch.floor((xyz - xyz.min(0).values) / VOXEL).long() + 2
        coords.append(torch.cat([torch.full_like(grid[:, :1], b), grid], 1))
        feats.append(torch.cat([xyz, torch.ones_like(xyz[:, :1])], 1))
        labels.append(label)
    keys, inverse = torch.unique(key_of(torch.cat(coords)), return_inverse=True)
    feats, labels = torch.cat(feats), torch.cat(labels)
    count = torch.bincount(inverse, minlength=keys.numel()).unsqueeze(1)
    x = torch.zeros(keys.numel(), 4, device="cuda").index_add_(0, inverse, feats) / count
    logits = net(x, Level(keys))
    loss = criterion(logits[inverse], labels)
    optim.zero_grad()
    loss.backward()
    optim.step()
    poly.step()
