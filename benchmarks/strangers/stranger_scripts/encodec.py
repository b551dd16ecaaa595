import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.nn.utils.parametrizations import weight_norm
from tick import steps

B, T, C, DIM, NQ, BINS = 24, 24000, 32, 128, 8, 1024
RATIOS = [8, 5, 4, 2]


class WNConv(nn.Module):
    def __init__(self, i, o, k, stride=1, dilation=1):
        super().__init__()
        self.conv = weight_norm(nn.Conv1d(i, o, k, stride, dilation=dilation))
        self.pad = (k - 1) * dilation - (stride - 1)

    def forward(self, x):
        return self.conv(F.pad(x, (self.pad, 0), mode="reflect"))


class WNConvT(nn.Module):
    def __init__(self, i, o, stride):
        super().__init__()
        self.conv, self.stride = weight_norm(nn.ConvTranspose1d(i, o, 2 * stride, stride)), stride

    def forward(self, x):
        return self.conv(x)[..., : -self.stride]


class Res(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.block = nn.Sequential(nn.ELU(), WNConv(c, c // 2, 3), nn.ELU(), WNConv(c // 2, c, 1))
        self.short = WNConv(c, c, 1)

    def forward(self, x):
        return self.short(x) + self.block(x)


class SLSTM(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.lstm = nn.LSTM(c, c, 2)

    def forward(self, x):
        y, _ = self.lstm(x.permute(2, 0, 1))
        return x + y.permute(1, 2, 0)


def encoder():
    net, c = [WNConv(1, C, 7)], C
    for r in reversed(RATIOS):
        net += [Res(c), nn.ELU(), WNConv(c, 2 * c, 2 * r, r)]
        c *= 2
    return nn.Sequential(*net), SLSTM(c), nn.Sequential(nn.ELU(), WNConv(c, DIM, 7))


def decoder():
    c = C * 2 ** len(RATIOS)
    head, lstm, net = WNConv(DIM, c, 7), SLSTM(c), []
    for r in RATIOS:
        net += [nn.ELU(), WNConvT(c, c // 2, r), Res(c // 2)]
        c //= 2
    return head, lstm, nn.Sequential(*net, nn.ELU(), WNConv(c, 1, 7))


class Codebook(nn.Module):
    def __init__(self, decay=0.99):
        super().__init__()
        self.decay = decay
        self.register_buffer("embed", torch.randn(BINS, DIM) * 0.1)
        self.register_buffer("avg", self.embed.clone())
        self.register_buffer("size", torch.ones(BINS))

    def forward(self, x):
        flat = x.reshape(-1, DIM)
        dist = flat.pow(2).sum(1, keepdim=True) - 2 * flat @ self.embed.t() + self.embed.t().pow(2).sum(0, keepdim=True)
        ind = dist.argmin(-1)
        q = F.embedding(ind, self.embed).view_as(x)
        if self.training:
            with torch.no_grad():
                onehot = F.one_hot(ind, BINS).type(flat.dtype)
                self.size.mul_(self.decay).add_(onehot.sum(0), alpha=1 - self.decay)
                self.avg.mul_(self.decay).add_(onehot.t() @ flat, alpha=1 - self.decay)
                n = self.size.sum()
                smooth = (self.size + 1e-5) / (n + BINS * 1e-5) * n
                self.embed.copy_(self.avg / smooth[:, None])
                dead = self.size < 0.02
                if dead.any():
                    fresh = flat[torch.randint(0, flat.shape[0], (BINS,), device=flat.device)]
                    self.embed.copy_(torch.where(dead[:, None], fresh, self.embed))
        return x + (q - x).detach(), F.mse_loss(q.detach(), x)


def mel_like(x, n):
    return torch.stft(
        x.squeeze(1), n, n // 4, window=torch.hann_window(n, device=x.device), normalized=True, return_complex=True
    ).abs()


e1, e2, e3 = (m.cuda() for m in encoder())
d1, d2, d3 = (m.cuda() for m in decoder())
books = nn.ModuleList(Codebook() for _ in range(NQ)).cuda()
enc, dec = torch.compile(e1), torch.compile(d3)
params = [p for m in (e1, e2, e3, d1, d2, d3) for p in m.parameters()]
opt = torch.optim.Adam(params, lr=3e-4, betas=(0.5, 0.9))
for i in steps():
    wav = torch.randn(B, 1, T, device="cuda").clamp(-1, 1)
    z = e3(e2(enc(wav))).transpose(1, 2)
    nq = NQ if i % 2 == 0 else NQ - 1
    residual, out, commit = z, 0.0, 0.0
    for book in books[:nq]:
        q, c = book(residual)
        residual, out, commit = residual - q.detach(), out + q, commit + c
    rec = dec(d2(d1(out.transpose(1, 2))))
    loss = 0.1 * F.l1_loss(rec, wav) + commit / nq
    for n in (64, 128, 256, 512, 1024, 2048):
        a, b = mel_like(wav, n), mel_like(rec, n)
        loss = loss + F.l1_loss(a, b) + F.mse_loss(torch.log(a + 1e-5), torch.log(b + 1e-5))
    opt.zero_grad()
    loss.backward()
    opt.step()
