import torch
import torch.nn as nn
from torch.utils.data import DataLoader, Dataset
from tick import steps

IN, OUT, BATCH, SIZE = 10, 10, 6, 256


class Radar(Dataset):
    def __init__(self, n=64):
        self.frames = torch.randint(0, 256, (n, IN + OUT, 1, SIZE, SIZE), dtype=torch.uint8)

    def __len__(self):
        return 1024

    def __getitem__(self, i):
        seq = self.frames[i % len(self.frames)].float() / 255
        return seq[:IN], seq[IN:]


class ConvLSTMCell(nn.Module):
    def __init__(self, cin, hidden, size):
        super().__init__()
        self.conv = nn.Conv2d(cin + hidden, 4 * hidden, 3, padding=1)
        self.wci, self.wcf, self.wco = (nn.Parameter(torch.zeros(1, hidden, size, size)) for _ in range(3))

    def forward(self, x, h, c):
        i, f, g, o = self.conv(torch.cat([x, h], dim=1)).chunk(4, dim=1)
        i = torch.sigmoid(i + self.wci * c)
        f = torch.sigmoid(f + self.wcf * c)
        c = f * c + i * torch.tanh(g)
        o = torch.sigmoid(o + self.wco * c)
        return o * torch.tanh(c), c


class EncoderForecaster(nn.Module):
    hidden, sizes = (64, 192, 192), (SIZE // 2, SIZE // 4, SIZE // 8)

    def __init__(self):
        super().__init__()
        act, (a, b, c) = nn.LeakyReLU(0.2), self.hidden
        self.down = nn.ModuleList(nn.Sequential(nn.Conv2d(*s, 3, 2, 1), act) for s in [(1, 16), (a, a), (b, b)])
        self.enc = nn.ModuleList(ConvLSTMCell(i, h, s) for i, h, s in zip((16, a, b), self.hidden, self.sizes))
        self.dec = nn.ModuleList(ConvLSTMCell(i, h, s) for i, h, s in zip((b, c, c), self.hidden, self.sizes))
        ups = [(a, 16), (b, b), (c, c)]
        self.up = nn.ModuleList(nn.Sequential(nn.ConvTranspose2d(*s, 4, 2, 1), act) for s in ups)
        self.final = nn.Sequential(nn.Conv2d(16, 16, 3, padding=1), act, nn.Conv2d(16, 1, 1))

    def forward(self, x):
        n = x.size(0)
        state = [2 * [x.new_zeros(n, h, s, s)] for h, s in zip(self.hidden, self.sizes)]
        for t in range(IN):
            y = x[:, t]
            for k in range(3):
                state[k] = self.enc[k](self.down[k](y), *state[k])
                y = state[k][0]
        for h, c in state:
            h.register_hook(lambda g: g.clamp(-50, 50))
        frames = []
        for t in range(OUT):
            y = x.new_zeros(n, self.hidden[2], self.sizes[2], self.sizes[2])
            for k in (2, 1, 0):
                state[k] = self.dec[k](y, *state[k])
                y = self.up[k](state[k][0])
            frames.append(self.final(y))
        return torch.stack(frames, dim=1)


def rain_loss(pred, target):
    weights = torch.ones_like(target)
    for threshold, w in [(0.3, 2.0), (0.45, 5.0), (0.6, 10.0), (0.8, 30.0)]:
        weights = torch.where(target > threshold, w, weights)
    diff = pred - target
    return (weights * diff**2).mean() + (weights * diff.abs()).mean()


loader = DataLoader(Radar(), batch_size=BATCH, shuffle=True, num_workers=4, pin_memory=True)
model = EncoderForecaster().cuda()
for cell in [*model.enc, *model.dec]:
    cell.compile()
optimizer = torch.optim.Adam(model.parameters(), lr=1e-4, betas=(0.5, 0.999))
running = 0.0
for step, (past, future) in zip(steps(), loader):
    past, future = past.cuda(non_blocking=True), future.cuda(non_blocking=True)
    with torch.autocast("cuda", dtype=torch.bfloat16):
        pred = model(past)
    loss = rain_loss(pred.float(), future)
    optimizer.zero_grad()
    loss.backward()
    nn.utils.clip_grad_value_(model.parameters(), 50.0)
    optimizer.step()
    running += loss.item()
