"""Streaming speech recognition: STFT + mel + SpecAugment, LSTM encoder, CTC head and an RNN-T joint with its lattice."""

import math
import torch
import torch.nn as nn
import torch.nn.functional as F
from tick import steps

B, SEC, V, U = 16, 6, 512, 40


def mel_bank(n=80, fft=512, sr=16000):
    m = torch.linspace(0, 2595 * math.log10(1 + sr / 2 / 700), n + 2)
    hz = 700 * (10 ** (m / 2595) - 1)
    f = torch.linspace(0, sr / 2, fft // 2 + 1)
    up = (f[:, None] - hz[:-2]) / (hz[1:-1] - hz[:-2])
    dn = (hz[2:] - f[:, None]) / (hz[2:] - hz[1:-1])
    return torch.minimum(up, dn).clamp(min=0)


class Frontend(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("win", torch.hann_window(400))
        self.register_buffer("fb", mel_bank())

    @torch.no_grad()
    def forward(self, wav):
        s = torch.stft(wav, 512, 160, 400, self.win, center=True, return_complex=True)
        x = torch.log(s.abs().pow(2).mT @ self.fb + 1e-6)
        x = (x - x.mean(1, keepdim=True)) / (x.std(1, keepdim=True) + 1e-5)
        f0 = torch.randint(0, 60, (x.size(0), 1, 1), device=x.device)
        fr = torch.arange(80, device=x.device)
        return x.masked_fill((fr >= f0) & (fr < f0 + 15), 0.0)


class Transducer(nn.Module):
    def __init__(self, d=640):
        super().__init__()
        self.sub = nn.Sequential(nn.Conv2d(1, 64, 3, 2, 1), nn.ReLU(), nn.Conv2d(64, 64, 3, 2, 1), nn.ReLU())
        self.inp = nn.Linear(64 * 20, d)
        self.enc = nn.LSTM(d, d, 5, batch_first=True, dropout=0.1)
        self.ctc = nn.Linear(d, V)
        self.emb, self.pred = nn.Embedding(V, 256), nn.LSTM(256, d, 1, batch_first=True)
        self.je, self.jp, self.jo = nn.Linear(d, 512), nn.Linear(d, 512), nn.Linear(512, V)

    def forward(self, x, y):
        h = self.sub(x[:, None]).transpose(1, 2).flatten(2)
        h, _ = self.enc(self.inp(h))
        g, _ = self.pred(self.emb(F.pad(y, (1, 0))))
        return self.ctc(h), self.jo(torch.tanh(self.je(h)[:, :, None] + self.jp(g)[:, None]))


def rnnt_loss(logits, y, tl, ul):
    lp = logits.float().log_softmax(-1)
    blank, emit = lp[..., 0], lp[:, :, :-1].gather(3, y[:, None, :, None].expand(-1, lp.size(1), -1, 1)).squeeze(-1)
    a = F.pad(emit[:, 0].cumsum(1), (1, 0))
    rows = [a]
    for t in range(1, lp.size(1)):
        stay = a + blank[:, t - 1]
        c = F.pad(emit[:, t].cumsum(1), (1, 0))
        a = torch.logcumsumexp(stay - c, 1) + c
        rows.append(a)
    al = torch.stack(rows, 1)
    b = torch.arange(B, device=al.device)
    return -(al[b, tl - 1, ul] + blank[b, tl - 1, ul]).mean()


front, net = Frontend().cuda(), Transducer().cuda()
net.enc.flatten_parameters()
opt = torch.optim.AdamW(net.parameters(), 3e-4, betas=(0.9, 0.98))
pool = torch.randn(64, SEC * 16000).pin_memory()
for i in steps(count=5):
    wav = pool[torch.randint(0, 64, (B,))].cuda(non_blocking=True)
    y = torch.randint(1, V, (B, U), device="cuda")
    x = front(wav)
    with torch.autocast("cuda", torch.bfloat16):
        ctc, joint = net(x, y)
    tl = torch.full((B,), ctc.size(1), device="cuda")
    ul = torch.randint(20, U + 1, (B,), device="cuda")
    loss = rnnt_loss(joint, y, tl, ul) + 0.3 * F.ctc_loss(
        ctc.float().log_softmax(-1).transpose(0, 1), y, tl, ul, zero_infinity=True
    )
    opt.zero_grad()
    loss.backward()
    total = nn.utils.clip_grad_norm_(net.parameters(), 5.0)
    if torch.isfinite(total):
        opt.step()
