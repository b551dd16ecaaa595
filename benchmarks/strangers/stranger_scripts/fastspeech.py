import random
import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.nn.utils.rnn import pad_sequence
from tick import steps

torch.backends.cuda.matmul.allow_tf32 = True
torch.backends.cudnn.allow_tf32 = True
D, MELS, PHONES, BATCH = 384, 80, 80, 48


class FFTBlock(nn.Module):
    def __init__(self, d=D, heads=2, hidden=1024, k=9, p=0.2):
        super().__init__()
        self.attn = nn.MultiheadAttention(d, heads, dropout=p, batch_first=True)
        self.c1, self.c2 = nn.Conv1d(d, hidden, k, padding=k // 2), nn.Conv1d(hidden, d, 1)
        self.n1, self.n2, self.drop = nn.LayerNorm(d), nn.LayerNorm(d), nn.Dropout(p)

    def forward(self, x, pad):
        x = self.n1(x + self.drop(self.attn(x, x, x, key_padding_mask=pad, need_weights=False)[0]))
        x = x.masked_fill(pad[..., None], 0)
        y = self.c2(F.relu(self.c1(x.transpose(1, 2)))).transpose(1, 2)
        return self.n2(x + self.drop(y)).masked_fill(pad[..., None], 0)


class Stack(nn.Module):
    def __init__(self, n):
        super().__init__()
        self.layers = nn.ModuleList(FFTBlock() for _ in range(n))
        pos = torch.arange(2000)[:, None] / 10000 ** (torch.arange(0, D, 2) / D)
        self.register_buffer("pos", torch.stack([pos.sin(), pos.cos()], -1).flatten(1), persistent=False)

    def forward(self, x, pad):
        x = x + self.pos[: x.shape[1]]
        for layer in self.layers:
            x = layer(x, pad)
        return x


class Predictor(nn.Module):
    def __init__(self, d=256):
        super().__init__()
        self.c1, self.c2 = nn.Conv1d(D, d, 3, padding=1), nn.Conv1d(d, d, 3, padding=1)
        self.n1, self.n2, self.out = nn.LayerNorm(d), nn.LayerNorm(d), nn.Linear(d, 1)

    def forward(self, x, pad):
        x = F.dropout(self.n1(F.relu(self.c1(x.transpose(1, 2))).transpose(1, 2)), 0.5, self.training)
        x = F.dropout(self.n2(F.relu(self.c2(x.transpose(1, 2))).transpose(1, 2)), 0.5, self.training)
        return self.out(x).squeeze(-1).masked_fill(pad, 0)


class PostNet(nn.Sequential):
    def __init__(self, c=512):
        size = [MELS, c, c, c, c, MELS]
        super().__init__(
            *(
                nn.Sequential(
                    nn.Conv1d(i, o, 5, padding=2),
                    nn.BatchNorm1d(o),
                    nn.Tanh() if n < 4 else nn.Identity(),
                    nn.Dropout(0.5),
                )
                for n, (i, o) in enumerate(zip(size, size[1:]))
            )
        )


class FastSpeech2(nn.Module):
    def __init__(self):
        super().__init__()
        self.emb = nn.Embedding(PHONES, D, padding_idx=0)
        self.encoder, self.decoder = Stack(4), Stack(4)
        self.duration, self.pitch, self.energy = Predictor(), Predictor(), Predictor()
        self.pitch_emb, self.energy_emb = nn.Embedding(256, D), nn.Embedding(256, D)
        self.register_buffer("bins", torch.linspace(-3, 3, 255))
        self.mel, self.post = nn.Linear(D, MELS), PostNet()

    def forward(self, text, durations, pitch, energy):
        tpad = text == 0
        x = self.encoder(self.emb(text), tpad)
        logd, p, e = self.duration(x, tpad), self.pitch(x, tpad), self.energy(x, tpad)
        x = x + self.pitch_emb(torch.bucketize(pitch, self.bins)) + self.energy_emb(torch.bucketize(energy, self.bins))
        x = pad_sequence([torch.repeat_interleave(h, d, dim=0) for h, d in zip(x, durations)], batch_first=True)
        total = durations.sum(1)
        mpad = torch.arange(x.shape[1], device=x.device)[None] >= total[:, None]
        mel = self.mel(self.decoder(x, mpad))
        return mel, mel + self.post(mel.transpose(1, 2)).transpose(1, 2), logd, p, e, tpad, mpad


def batch():
    lengths = [random.randint(60, 110) for _ in range(BATCH)]
    text = pad_sequence([torch.randint(1, PHONES, (n,)) for n in lengths], batch_first=True)
    durations = torch.randint(3, 10, text.shape) * (text > 0)
    mel = torch.randn(BATCH, int(durations.sum(1).max()), MELS)
    return text, durations, torch.randn(text.shape), torch.randn(text.shape), mel


model = FastSpeech2().cuda()
model.encoder = torch.compile(model.encoder, dynamic=True)
model.decoder = torch.compile(model.decoder, dynamic=True)
opt = torch.optim.Adam(model.parameters(), lr=1.0, betas=(0.9, 0.98), eps=1e-9)
sched = torch.optim.lr_scheduler.LambdaLR(opt, lambda s: D**-0.5 * min((s + 1) ** -0.5, (s + 1) * 4000**-1.5))
data, log = [batch() for _ in range(16)], []
for i in steps():
    text, durations, pitch, energy, target = [t.cuda() for t in data[i % 16]]
    mel, post, logd, p, e, tpad, mpad = model(text, durations, pitch, energy)
    keep = ~mpad[..., None]
    l_mel = F.l1_loss(mel.masked_select(keep), target.masked_select(keep))
    l_post = F.l1_loss(post.masked_select(keep), target.masked_select(keep))
    l_dur = F.mse_loss(logd[~tpad], torch.log(durations[~tpad].float() + 1))
    l_var = F.mse_loss(p[~tpad], pitch[~tpad]) + F.mse_loss(e[~tpad], energy[~tpad])
    loss = l_mel + l_post + l_dur + l_var
    opt.zero_grad()
    loss.backward()
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    opt.step()
    sched.step()
    log.append([x.item() for x in (loss, l_mel, l_post, l_dur)])
