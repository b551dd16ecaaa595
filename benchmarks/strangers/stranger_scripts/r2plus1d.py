"""R(2+1)D-18, taught by a frozen R(2+1)D-34, on clips of 16 frames."""

import torch
from torch import nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, Dataset

from tick import steps

torch.backends.cudnn.benchmark = True
MICRO, ACCUMULATE, FRAMES, CROP, CLASSES = 12, 2, 16, 112, 400


class Clips(Dataset):
    def __init__(self, n=96):
        self.frames = torch.randint(0, 256, (n, 3, FRAMES, 128, 128), dtype=torch.uint8)
        self.labels = torch.randint(0, CLASSES, (n,))

    def __len__(self):
        return len(self.labels)

    def __getitem__(self, i):
        y, x = torch.randint(0, 128 - CROP + 1, (2,)).tolist()
        return self.frames[i, :, :, y : y + CROP, x : x + CROP], self.labels[i]


class Conv2Plus1D(nn.Sequential):
    def __init__(self, c_in, c_out, stride=1):
        mid = (c_in * c_out * 27) // (c_in * 9 + 3 * c_out)
        super().__init__(
            nn.Conv3d(c_in, mid, (1, 3, 3), (1, stride, stride), (0, 1, 1), bias=False),
            nn.BatchNorm3d(mid),
            nn.ReLU(inplace=True),
            nn.Conv3d(mid, c_out, (3, 1, 1), (stride, 1, 1), (1, 0, 0), bias=False),
        )


class BasicBlock(nn.Module):
    def __init__(self, c_in, c_out, stride):
        super().__init__()
        self.conv1 = nn.Sequential(Conv2Plus1D(c_in, c_out, stride), nn.BatchNorm3d(c_out), nn.ReLU(inplace=True))
        self.conv2 = nn.Sequential(Conv2Plus1D(c_out, c_out), nn.BatchNorm3d(c_out))
        self.relu = nn.ReLU(inplace=True)
        self.downsample = None
        if stride != 1 or c_in != c_out:
            self.downsample = nn.Sequential(nn.Conv3d(c_in, c_out, 1, stride=stride, bias=False), nn.BatchNorm3d(c_out))

    def forward(self, x):
        skip = x if self.downsample is None else self.downsample(x)
        return self.relu(self.conv2(self.conv1(x)) + skip)


class VideoResNet(nn.Module):
    def __init__(self, depths):
        super().__init__()
        self.stem = nn.Sequential(
            nn.Conv3d(3, 45, (1, 7, 7), (1, 2, 2), (0, 3, 3), bias=False),
            nn.BatchNorm3d(45),
            nn.ReLU(inplace=True),
            nn.Conv3d(45, 64, (3, 1, 1), 1, (1, 0, 0), bias=False),
            nn.BatchNorm3d(64),
            nn.ReLU(inplace=True),
        )
        layers, c = [], 64
        for i, n in enumerate(depths):
            width = 64 * 2**i
            for j in range(n):
                layers.append(BasicBlock(c, width, 2 if i and j == 0 else 1))
                c = width
        self.layers = nn.Sequential(*layers)
        self.fc = nn.Linear(512, CLASSES)
        for m in self.modules():
            if isinstance(m, nn.Conv3d):
                nn.init.kaiming_normal_(m.weight, mode="fan_out", nonlinearity="relu")

    def forward(self, x):
        return self.fc(self.layers(self.stem(x)).mean((2, 3, 4)))


class Trainer:
    def __init__(self, temperature=4.0, alpha=0.7):
        self.student = VideoResNet((2, 2, 2, 2)).cuda().to(memory_format=torch.channels_last_3d)
        self.teacher = VideoResNet((3, 4, 6, 3)).cuda().to(memory_format=torch.channels_last_3d).eval()
        self.teacher.requires_grad_(False)
        self.optimizer = torch.optim.SGD(
            self.student.parameters(), lr=0.01, momentum=0.9, nesterov=True, weight_decay=1e-4
        )
        self.scheduler = torch.optim.lr_scheduler.LinearLR(self.optimizer, 0.1, 1.0, 1000)
        self.scaler = torch.amp.GradScaler("cuda")
        self.temperature, self.alpha = temperature, alpha
        self.loader = DataLoader(Clips(), batch_size=MICRO, shuffle=True, num_workers=0, pin_memory=True)
        self.batches = self.endless()
        self.mean = torch.tensor([0.432, 0.395, 0.377], device="cuda").view(1, 3, 1, 1, 1)
        self.std = torch.tensor([0.228, 0.221, 0.217], device="cuda").view(1, 3, 1, 1, 1)

    def endless(self):
        while True:
            yield from self.loader

    def prepare(self, clips):
        clips = clips.cuda(non_blocking=True).float().div_(255)
        clips = (clips - self.mean) / self.std
        return clips.contiguous(memory_format=torch.channels_last_3d)

    def step(self):
        correct = 0
        for _ in range(ACCUMULATE):
            clips, labels = next(self.batches)
            clips, labels = self.prepare(clips), labels.cuda(non_blocking=True)
            with torch.autocast("cuda", dtype=torch.float16):
                with torch.no_grad():
                    taught = self.teacher(clips)
                logits = self.student(clips)
            t = self.temperature
            soft = F.kl_div(
                F.log_softmax(logits.float() / t, -1), F.softmax(taught.float() / t, -1), reduction="batchmean"
            )
            hard = F.cross_entropy(logits.float(), labels)
            loss = (self.alpha * t * t * soft + (1 - self.alpha) * hard) / ACCUMULATE
            self.scaler.scale(loss).backward()
            correct += (logits.argmax(-1) == labels).sum()
        self.scaler.unscale_(self.optimizer)
        nn.utils.clip_grad_norm_(self.student.parameters(), 40.0)
        self.scaler.step(self.optimizer)
        self.scaler.update()
        self.optimizer.zero_grad(set_to_none=True)
        self.scheduler.step()
        return correct


trainer = Trainer()
seen = 0
for i in steps():
    seen += trainer.step()
