import math
import numpy as np
import torch, torch.nn as nn, torch.nn.functional as F
from tick import steps

torch.backends.cuda.matmul.allow_tf32 = True
BATCH, TEXT, FRAMES, MELS, HIDDEN = 64, 96, 512, 80, 192


def align(score, text_lengths, mel_lengths):
    b, s, t = score.shape
    best = np.full((b, s), -1e9, np.float32)
    stay = np.zeros((b, s, t), bool)
    for j in range(t):
        moved = np.concatenate([np.full((b, 1), -1e9 if j else 0, np.float32), best[:, :-1]], 1)
        stay[:, :, j] = best >= moved
        best = np.maximum(best, moved) + score[:, :, j]
    path, rows, k = np.zeros((b, s, t), np.float32), np.arange(b), text_lengths - 1
    for j in reversed(range(t)):
        path[rows, k, j] = inside = j < mel_lengths
        k = np.where(inside & ~stay[rows, k, j], np.maximum(k - 1, 0), k)
    return path


class ResBlock(nn.Module):
    def __init__(self, i, o, t):
        super().__init__()
        self.c1, self.c2, self.skip = nn.Conv1d(i, o, 3, padding=1), nn.Conv1d(o, o, 3, padding=1), nn.Conv1d(i, o, 1)
        self.n1, self.n2, self.t = nn.GroupNorm(8, o), nn.GroupNorm(8, o), nn.Linear(t, o)

    def forward(self, x, mask, t):
        h = F.mish(self.n1(self.c1(x * mask))) * mask + self.t(F.mish(t))[:, :, None]
        return F.mish(self.n2(self.c2(h * mask))) * mask + self.skip(x * mask)


class Decoder(nn.Module):
    def __init__(self, d=384):
        super().__init__()
        self.register_buffer("f", torch.exp(-math.log(10000) * torch.arange(d // 2) / (d // 2 - 1)))
        self.time = nn.Sequential(nn.Linear(d, 4 * d), nn.SiLU(), nn.Linear(4 * d, d))
        self.res = nn.ModuleList(ResBlock(i, d, d) for i in (2 * MELS, d, d))
        self.att = nn.ModuleList(
            nn.TransformerEncoderLayer(d, 4, 4 * d, 0.05, "gelu", batch_first=True) for _ in range(3)
        )
        self.out = nn.Conv1d(d, MELS, 1)

    def forward(self, x, mask, mu, t):
        e = 1000 * t[:, None] * self.f
        t = self.time(torch.cat([e.sin(), e.cos()], 1))
        x = torch.cat([x, mu], 1)
        for res, att in zip(self.res, self.att):
            x = att(res(x, mask, t).transpose(1, 2), src_key_padding_mask=mask[:, 0] == 0).transpose(1, 2)
        return self.out(x * mask) * mask


class Encoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.emb = nn.Embedding(178, HIDDEN)
        self.layers = nn.TransformerEncoder(nn.TransformerEncoderLayer(HIDDEN, 2, 768, 0.1, batch_first=True), 6)
        self.mu = nn.Conv1d(HIDDEN, MELS, 1)
        self.duration = nn.Sequential(nn.Conv1d(HIDDEN, 256, 3, padding=1), nn.ReLU(), nn.Conv1d(256, 1, 3, padding=1))

    def forward(self, text, mask):
        x = self.layers(self.emb(text) * math.sqrt(HIDDEN), src_key_padding_mask=mask[:, 0] == 0).transpose(1, 2)
        return self.mu(x) * mask, self.duration(x.detach() * mask) * mask


encoder, decoder = Encoder().cuda(), Decoder().cuda()
flow = torch.compile(decoder)
params = [*encoder.parameters(), *decoder.parameters()]
optimizer = torch.optim.Adam(params, 1e-4)
for i in steps():
    text_lengths, mel_lengths = torch.randint(48, TEXT + 1, (BATCH,)), torch.randint(256, FRAMES + 1, (BATCH,))
    text_lengths[0], mel_lengths[0] = TEXT, FRAMES
    text, mel = torch.randint(0, 178, (BATCH, TEXT)).cuda(), torch.randn(BATCH, MELS, FRAMES, device="cuda")
    text_mask = (torch.arange(TEXT) < text_lengths[:, None])[:, None].float().cuda()
    mel_mask = (torch.arange(FRAMES) < mel_lengths[:, None])[:, None].float().cuda()
    mu, log_duration = encoder(text, text_mask)
    with torch.no_grad():
        score = -0.5 * ((mel**2).sum(1)[:, None] - 2 * mu.transpose(1, 2) @ mel + (mu**2).sum(1)[:, :, None])
        path = align((score * mel_mask).cpu().numpy(), text_lengths.numpy(), mel_lengths.numpy())
        path = torch.from_numpy(path).cuda()
    duration_loss = F.mse_loss(log_duration, torch.log(1e-8 + path.sum(2))[:, None] * text_mask)
    mu = mu @ path
    prior_loss = (0.5 * ((mel - mu) ** 2 + math.log(2 * math.pi)) * mel_mask).sum() / (mel_mask.sum() * MELS)
    t, z = torch.rand(BATCH, device="cuda"), torch.randn_like(mel)
    y = (1 - (1 - 1e-4) * t[:, None, None]) * z + t[:, None, None] * mel
    flow_loss = ((flow(y, mel_mask, mu, t) - (mel - (1 - 1e-4) * z)) ** 2 * mel_mask).sum() / (mel_mask.sum() * MELS)
    optimizer.zero_grad()
    (duration_loss + prior_loss + flow_loss).backward()
    nn.utils.clip_grad_norm_(params, 1.0)
    optimizer.step()
