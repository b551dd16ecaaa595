import torch
import torch.nn as nn
import torch.nn.functional as F
from tick import steps

SOURCES, AUDIO, CHANNELS, DEPTH, KERNEL, STRIDE = 4, 2, 48, 6, 8, 4
B, RATE = 12, 44100
FFTS = [(2048, 512), (1024, 256), (512, 128)]


class Demucs(nn.Module):
    def __init__(self):
        super().__init__()
        self.encoder, self.decoder = nn.ModuleList(), nn.ModuleList()
        inner, ch = AUDIO, CHANNELS
        for n in range(DEPTH):
            self.encoder.append(
                nn.Sequential(nn.Conv1d(inner, ch, KERNEL, STRIDE), nn.ReLU(), nn.Conv1d(ch, 2 * ch, 1), nn.GLU(1))
            )
            out = inner if n > 0 else SOURCES * AUDIO
            act = nn.ReLU() if n > 0 else nn.Identity()
            up = nn.ConvTranspose1d(ch, out, KERNEL, STRIDE)
            self.decoder.insert(0, nn.Sequential(nn.Conv1d(ch, 2 * ch, 3, padding=1), nn.GLU(1), up, act))
            inner, ch = ch, 2 * ch
        self.lstm = nn.LSTM(inner, inner, num_layers=2, bidirectional=True)
        self.linear = nn.Linear(2 * inner, inner)
        for m in self.modules():
            if isinstance(m, (nn.Conv1d, nn.ConvTranspose1d)):
                m.weight.data /= (m.weight.detach().std() / 0.1) ** 0.5

    def forward(self, mix):
        mean, std = mix.mean((1, 2), keepdim=True), mix.std((1, 2), keepdim=True)
        x, saved = (mix - mean) / (1e-5 + std), []
        for encode in self.encoder:
            x = encode(x)
            saved.append(x)
        x = self.linear(self.lstm(x.permute(2, 0, 1))[0]).permute(1, 2, 0)
        for decode in self.decoder:
            skip = saved.pop()
            x = decode(x + skip[..., : x.shape[-1]])
        return (x * std + mean).view(x.shape[0], SOURCES, AUDIO, x.shape[-1])


def valid_length(length):
    for _ in range(DEPTH):
        length = max(1, -(-(length - KERNEL) // STRIDE) + 1)
    for _ in range(DEPTH):
        length = (length - 1) * STRIDE + KERNEL
    return length


class STFTLoss(nn.Module):
    def __init__(self):
        super().__init__()
        for n, _ in FFTS:
            self.register_buffer(f"window{n}", torch.hann_window(n))

    def mag(self, x, n, hop):
        z = torch.stft(x, n, hop, window=getattr(self, f"window{n}"), return_complex=True)
        return torch.sqrt(z.real**2 + z.imag**2 + 1e-8)

    def forward(self, x, y):
        total = 0.0
        for n, hop in FFTS:
            a, b = self.mag(x.flatten(0, 2), n, hop), self.mag(y.flatten(0, 2), n, hop)
            total = total + (b - a).norm() / b.norm() + F.l1_loss(a.log(), b.log())
        return total / len(FFTS)


def augment(stems):
    b, s, c, t = stems.shape
    stems = stems * (torch.rand(b, s, 1, 1, device=stems.device) + 0.25)
    stems = stems * torch.randint(0, 2, (b, s, c, 1), device=stems.device).mul(2).sub(1)
    order = torch.rand(b, s, 1, 1, device=stems.device).argsort(0).expand(-1, -1, c, t)
    return stems.gather(0, order)


model, spectral = Demucs().cuda(), STFTLoss().cuda()
separate = torch.compile(model)
opt = torch.optim.Adam(model.parameters(), lr=3e-4, betas=(0.9, 0.999))
length, history = valid_length(4 * RATE), []
for i in steps():
    stems = augment(torch.randn(B, SOURCES, AUDIO, length, device="cuda") * 0.1)
    estimate = separate(stems.sum(1))
    loss = F.l1_loss(estimate, stems) + 0.1 * spectral(estimate, stems)
    loss.backward()
    norm = torch.nn.utils.clip_grad_norm_(model.parameters(), 5.0)
    opt.step()
    opt.zero_grad()
    history.append((loss.item(), norm.item()))
