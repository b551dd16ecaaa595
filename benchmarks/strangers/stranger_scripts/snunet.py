import argparse
import logging

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, Dataset

from tick import steps

logging.basicConfig(level=logging.INFO, format="%(asctime)s %(message)s")
log = logging.getLogger("change-detection")


def get_args():
    parser = argparse.ArgumentParser(description="SNUNet-ECAM: changes between two satellite pictures")
    parser.add_argument("--batch-size", type=int, default=8)
    parser.add_argument("--patch-size", type=int, default=512)
    parser.add_argument("--width", type=int, default=32)
    parser.add_argument("--lr", type=float, default=1e-3)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--log-every", type=int, default=10)
    return parser.parse_args()


class ConvBlock(nn.Module):
    """Two convolutions around a shortcut, as in the published code."""

    def __init__(self, in_ch, mid_ch, out_ch):
        super().__init__()
        self.activation = nn.ReLU(inplace=True)
        self.conv1 = nn.Conv2d(in_ch, mid_ch, kernel_size=3, padding=1, bias=True)
        self.bn1 = nn.BatchNorm2d(mid_ch)
        self.conv2 = nn.Conv2d(mid_ch, out_ch, kernel_size=3, padding=1, bias=True)
        self.bn2 = nn.BatchNorm2d(out_ch)

    def forward(self, x):
        x = self.conv1(x)
        identity = x
        x = self.activation(self.bn1(x))
        x = self.bn2(self.conv2(x))
        return self.activation(x + identity)


class Up(nn.Module):
    def __init__(self, ch):
        super().__init__()
        self.up = nn.ConvTranspose2d(ch, ch, 2, stride=2)

    def forward(self, x):
        return self.up(x)


class ChannelAttention(nn.Module):
    def __init__(self, ch, ratio):
        super().__init__()
        self.fc1 = nn.Conv2d(ch, ch // ratio, 1, bias=False)
        self.fc2 = nn.Conv2d(ch // ratio, ch, 1, bias=False)

    def forward(self, x):
        avg = self.fc2(F.relu(self.fc1(F.adaptive_avg_pool2d(x, 1))))
        top = self.fc2(F.relu(self.fc1(F.adaptive_max_pool2d(x, 1))))
        return torch.sigmoid(avg + top)


class SNUNet(nn.Module):
    def __init__(self, in_ch=3, classes=2, n1=32):
        super().__init__()
        f = [n1, n1 * 2, n1 * 4, n1 * 8, n1 * 16]
        self.pool = nn.MaxPool2d(2, 2)
        self.encoder = nn.ModuleList([ConvBlock(a, b, b) for a, b in zip([in_ch, *f], f)])
        self.ups = nn.ModuleDict()
        self.nodes = nn.ModuleDict()
        for j in range(1, 5):
            for i in range(5 - j):
                self.ups[f"{i + 1}_{j - 1}"] = Up(f[i + 1])
                self.nodes[f"{i}_{j}"] = ConvBlock(f[i] * (j + 1) + f[i + 1], f[i], f[i])
        self.ca = ChannelAttention(n1 * 4, 16)
        self.ca1 = ChannelAttention(n1, 4)
        self.final = nn.Conv2d(n1 * 4, classes, 1)
        for m in self.modules():
            if isinstance(m, nn.Conv2d):
                nn.init.kaiming_normal_(m.weight, mode="fan_out", nonlinearity="relu")

    def encode(self, x):
        out = []
        for i, block in enumerate(self.encoder):
            x = block(x if i == 0 else self.pool(x))
            out.append(x)
        return out

    def forward(self, before, after):
        a, b = self.encode(before), self.encode(after)
        row = {(i, 0): torch.cat([a[i], b[i]], 1) for i in range(4)}
        deep = {(i, 0): b[i] for i in range(5)}
        for j in range(1, 5):
            for i in range(5 - j):
                skips = [row[i, 0]] + [deep[i, k] for k in range(1, j)]
                up = self.ups[f"{i + 1}_{j - 1}"](deep[i + 1, j - 1])
                deep[i, j] = self.nodes[f"{i}_{j}"](torch.cat([*skips, up], 1))
        levels = [deep[0, j] for j in range(1, 5)]
        out = torch.cat(levels, 1)
        intra = torch.stack(levels).sum(0)
        out = self.ca(out) * (out + self.ca1(intra).repeat(1, 4, 1, 1))
        return self.final(out)


def dice_loss(logits, target, eps=1e-7):
    prob = logits.softmax(1)
    one_hot = F.one_hot(target, logits.shape[1]).permute(0, 3, 1, 2).to(prob.dtype)
    inter = (prob * one_hot).sum((0, 2, 3))
    union = (prob + one_hot).sum((0, 2, 3))
    return 1 - (2 * inter / (union + eps)).mean()


def hybrid_loss(logits, target, gamma=2.0):
    logits = logits.float()
    logp = F.log_softmax(logits, 1).gather(1, target[:, None]).squeeze(1)
    focal = -((1 - logp.exp()) ** gamma * logp).mean()
    return focal + dice_loss(logits, target)


class Pairs(Dataset):
    def __init__(self, size, scenes=12):
        self.pictures = torch.randint(0, 256, (scenes, 2, 3, size, size), dtype=torch.uint8)
        coarse = (torch.rand(scenes, 1, size // 16, size // 16) > 0.9).float()
        self.labels = F.interpolate(coarse, size=size)[:, 0].to(torch.uint8)

    def __len__(self):
        return 4096

    def __getitem__(self, idx):
        i = idx % len(self.pictures)
        return self.pictures[i, 0], self.pictures[i, 1], self.labels[i]


def forever(loader):
    while True:
        yield from loader


def main():
    args = get_args()
    torch.backends.cudnn.benchmark = True
    loader = DataLoader(Pairs(args.patch_size), args.batch_size, shuffle=True, num_workers=0, drop_last=True)
    net = SNUNet(n1=args.width).to(args.device, memory_format=torch.channels_last)
    model = torch.compile(net)
    optimizer = torch.optim.AdamW(net.parameters(), lr=args.lr, foreach=True)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, step_size=8, gamma=0.5)
    scaler = torch.amp.GradScaler(args.device)
    confusion = torch.zeros(4, dtype=torch.long, device=args.device)
    for step, (before, after, label) in zip(steps(), forever(loader)):
        before, after = (
            (t.to(args.device).float() / 127.5 - 1).contiguous(memory_format=torch.channels_last)
            for t in (before, after)
        )
        label = label.to(args.device).long()
        optimizer.zero_grad(set_to_none=True)
        with torch.autocast(args.device, dtype=torch.float16):
            logits = model(before, after)
            loss = hybrid_loss(logits, label)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        confusion += torch.bincount(label.flatten() * 2 + logits.argmax(1).flatten(), minlength=4)
        if step % args.log_every == args.log_every - 1:
            tn, fp, fn, tp = confusion.tolist()
            log.info("step %d loss %.4f f1 %.4f", step, loss.item(), 2 * tp / max(2 * tp + fp + fn, 1))
            confusion.zero_()
            scheduler.step()


if __name__ == "__main__":
    main()
