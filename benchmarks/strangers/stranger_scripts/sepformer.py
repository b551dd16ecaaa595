"""Speech separation with SepFormer (WSJ0-2mix recipe): one utterance at a time, four of them per update."""

import itertools

import torch
import torch.nn as nn
import torch.nn.functional as F

from tick import steps

torch.backends.cuda.matmul.allow_tf32 = True
torch.backends.cudnn.allow_tf32 = True
torch.manual_seed(1234)

hparams = dict(
    sample_rate=8000, channels=256, kernel=16, chunk=250, layers=8, blocks=2, heads=8, ffn=1024, speakers=2,
    lr=1.5e-4, clip=5.0, accumulate=4, threshold=-30.0, patience=400,
)  # fmt: skip


class OverlapAdd(torch.autograd.Function):
    """Sums chunks that overlap by one half; its gradient is the cutting into chunks."""

    @staticmethod
    def forward(ctx, chunks):
        b, n, s, k = chunks.shape
        hop = k // 2
        ctx.chunk = k
        out = chunks.new_zeros(b, n, (s + 1) * hop)
        out[..., : s * hop] += chunks[..., :hop].reshape(b, n, -1)
        out[..., hop:] += chunks[..., hop:].reshape(b, n, -1)
        return out

    @staticmethod
    def backward(ctx, grad):
        return grad.unfold(-1, ctx.chunk, ctx.chunk // 2)


def cut(x, chunk):
    hop = chunk // 2
    length = x.shape[-1]
    right = hop - length % hop
    x = F.pad(x, (hop, right + hop))
    return x.unfold(-1, chunk, hop), right


def positions(length, d, device):
    t = torch.arange(length, device=device).unsqueeze(1)
    freq = torch.exp(torch.arange(0, d, 2, device=device) * (-9.210340371976184 / d))
    pe = torch.zeros(length, d, device=device)
    pe[:, 0::2] = torch.sin(t * freq)
    pe[:, 1::2] = torch.cos(t * freq)
    return pe


class Path(nn.Module):
    def __init__(self, h):
        super().__init__()
        layer = nn.TransformerEncoderLayer(
            h["channels"], h["heads"], h["ffn"], dropout=0.0, activation="relu", batch_first=True, norm_first=True
        )
        self.encoder = nn.TransformerEncoder(
            layer, h["layers"], norm=nn.LayerNorm(h["channels"]), enable_nested_tensor=False
        )

    def forward(self, x):
        return self.encoder(x + positions(x.shape[1], x.shape[2], x.device))


class DualPath(nn.Module):
    def __init__(self, h):
        super().__init__()
        self.intra, self.inter = Path(h), Path(h)
        self.intra_norm, self.inter_norm = nn.GroupNorm(1, h["channels"]), nn.GroupNorm(1, h["channels"])

    def forward(self, x):
        b, n, s, k = x.shape
        y = self.intra(x.permute(0, 2, 3, 1).reshape(b * s, k, n))
        y = y.view(b, s, k, n).permute(0, 3, 1, 2)
        x = x + self.intra_norm(y)
        y = self.inter(x.permute(0, 3, 2, 1).reshape(b * k, s, n))
        y = y.view(b, k, s, n).permute(0, 3, 2, 1)
        return x + self.inter_norm(y)


class SepFormer(nn.Module):
    def __init__(self, h):
        super().__init__()
        c, self.spk, self.chunk = h["channels"], h["speakers"], h["chunk"]
        self.encoder = nn.Conv1d(1, c, h["kernel"], h["kernel"] // 2, bias=False)
        self.decoder = nn.ConvTranspose1d(c, 1, h["kernel"], h["kernel"] // 2, bias=False)
        self.norm, self.squeeze = nn.GroupNorm(1, c), nn.Conv1d(c, c, 1, bias=False)
        self.dual = nn.ModuleList(DualPath(h) for _ in range(h["blocks"]))
        self.prelu, self.split = nn.PReLU(), nn.Conv2d(c, c * self.spk, 1)
        self.out, self.gate = (
            nn.Sequential(nn.Conv1d(c, c, 1), nn.Tanh()),
            nn.Sequential(nn.Conv1d(c, c, 1), nn.Sigmoid()),
        )
        self.end = nn.Conv1d(c, c, 1, bias=False)

    def forward(self, mix):
        w = F.relu(self.encoder(mix.unsqueeze(1)))
        x, right = cut(self.squeeze(self.norm(w)), self.chunk)
        for block in self.dual:
            x = block(x)
        x = self.split(self.prelu(x))
        b, _, s, k = x.shape
        x = OverlapAdd.apply(x.reshape(b * self.spk, -1, s, k))
        x = x[..., k // 2 : x.shape[-1] - k // 2 - right]
        mask = F.relu(self.end(self.out(x) * self.gate(x)))
        sources = self.decoder((w.unsqueeze(1) * mask.view(b, self.spk, *mask.shape[1:])).flatten(0, 1))
        sources = sources.view(b, self.spk, -1)
        return F.pad(sources, (0, mix.shape[-1] - sources.shape[-1]))


def si_snr(est, ref):
    est, ref = est - est.mean(-1, keepdim=True), ref - ref.mean(-1, keepdim=True)
    target = (est * ref).sum(-1, keepdim=True) * ref / (ref.pow(2).sum(-1, keepdim=True) + 1e-8)
    return 10 * torch.log10(target.pow(2).sum(-1) / ((est - target).pow(2).sum(-1) + 1e-8) + 1e-8)


def pit_loss(est, ref):
    losses = [-si_snr(est[:, list(order)], ref).mean(-1) for order in itertools.permutations(range(ref.shape[1]))]
    return torch.stack(losses, -1).min(-1).values


class Mixtures(torch.utils.data.Dataset):
    def __init__(self, h, n=400):
        g = torch.Generator().manual_seed(0)
        self.lengths = (torch.rand(n, generator=g) * 2.5 + 2.0).mul(h["sample_rate"]).long().tolist()
        self.noise = torch.randn(h["speakers"], 40 * h["sample_rate"], generator=g)

    def __len__(self):
        return len(self.lengths)

    def __getitem__(self, i):
        length, start = self.lengths[i], i * 97
        sources = 0.1 * self.noise[:, start : start + length]
        return sources.sum(0), sources


def endless(loader):
    while True:
        yield from loader


model = SepFormer(hparams).to("cuda")
optimizer = torch.optim.Adam(model.parameters(), lr=hparams["lr"])
plateau = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, factor=0.5, patience=100)
batches = endless(torch.utils.data.DataLoader(Mixtures(hparams), batch_size=1, shuffle=True, num_workers=0))
best, waited = float("inf"), 0
for step in steps():
    total = 0.0
    for _ in range(hparams["accumulate"]):
        mix, sources = (t.to("cuda") for t in next(batches))
        loss = pit_loss(model(mix), sources)
        loss = loss[loss > hparams["threshold"]]
        if loss.numel() == 0:
            continue
        loss = loss.mean() / hparams["accumulate"]
        loss.backward()
        total += loss.item()
    torch.nn.utils.clip_grad_norm_(model.parameters(), hparams["clip"])
    optimizer.step()
    optimizer.zero_grad()
    plateau.step(total)
    best, waited = (total, 0) if total < best else (best, waited + 1)
    if waited > hparams["patience"]:
        print("no better since", waited, "updates")
        break
