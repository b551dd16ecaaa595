import torch, torch.nn as nn, torch.nn.functional as F
from torch.utils.data import DataLoader, Dataset
from tick import steps

CHARS, HEIGHT, WIDTH, BATCH = 96, 32, 192, 384


class Lines(Dataset):
    def __len__(self):
        return 200 * BATCH

    def __getitem__(self, k):
        g = torch.Generator().manual_seed(k)
        image = torch.randint(0, 256, (1, HEIGHT, WIDTH), dtype=torch.uint8, generator=g)
        label = torch.randint(1, CHARS, (int(torch.randint(5, 21, (), generator=g)),), generator=g)
        return image, label, k % 2


def collate(batch):
    images, labels, domains = zip(*batch)
    return torch.stack(images), torch.cat(labels), torch.tensor([len(x) for x in labels]), torch.tensor(domains)


class Reverse(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, strength):
        ctx.strength = strength
        return x.view_as(x)

    @staticmethod
    def backward(ctx, grad):
        return -ctx.strength * grad, None


def conv(i, o, k=3, p=1):
    return nn.Sequential(nn.Conv2d(i, o, k, padding=p, bias=False), nn.BatchNorm2d(o), nn.ReLU(inplace=True))


class CRNN(nn.Module):
    def __init__(self):
        super().__init__()
        self.cnn = nn.Sequential(
            conv(1, 64),
            nn.MaxPool2d(2),
            conv(64, 128),
            nn.MaxPool2d(2),
            conv(128, 256),
            conv(256, 256),
            nn.MaxPool2d((2, 1)),
            conv(256, 512),
            conv(512, 512),
            nn.MaxPool2d((2, 1)),
            conv(512, 512, 2, 0),
        )
        self.rnn = nn.LSTM(512, 256, num_layers=2, bidirectional=True, dropout=0.1)
        self.out = nn.Linear(512, CHARS)
        self.domain = nn.Sequential(nn.Linear(512, 128), nn.ReLU(), nn.Linear(128, 2))

    def forward(self, x, strength):
        x = self.cnn(x).squeeze(2)
        domain = self.domain(Reverse.apply(x.mean(2), strength))
        x, _ = self.rnn(x.permute(2, 0, 1))
        return self.out(x), domain


model = CRNN().cuda()
ctc = nn.CTCLoss(blank=0, zero_infinity=True)
optimizer = torch.optim.RMSprop(model.parameters(), lr=1e-4)
scaler = torch.amp.GradScaler("cuda")
loader = iter(
    DataLoader(Lines(), BATCH, shuffle=True, num_workers=8, collate_fn=collate, pin_memory=True, drop_last=True)
)
running = 0.0
for i in steps():
    images, labels, lengths, domains = next(loader)
    images = images.cuda(non_blocking=True).float().div_(127.5).sub_(1)
    labels, domains = labels.cuda(non_blocking=True), domains.cuda(non_blocking=True)
    with torch.autocast("cuda", dtype=torch.float16):
        logits, domain = model(images, min(1.0, i / 50))
    log_probs = F.log_softmax(logits.float(), dim=2)
    sizes = torch.full((BATCH,), logits.size(0), dtype=torch.long)
    loss = ctc(log_probs, labels, sizes, lengths) + 0.1 * F.cross_entropy(domain.float(), domains)
    optimizer.zero_grad()
    scaler.scale(loss).backward()
    scaler.unscale_(optimizer)
    nn.utils.clip_grad_norm_(model.parameters(), 5.0)
    scaler.step(optimizer)
    scaler.update()
    running = 0.95 * running + 0.05 * loss.item()
