import torch
import torch.nn as nn
import torch.nn.functional as F
from tick import steps


class Residual(nn.Module):
    def __init__(self, fn):
        super().__init__()
        self.fn = fn

    def forward(self, x):
        return self.fn(x) + x


def ConvMixer(dim, depth, kernel_size=9, patch_size=7, n_classes=1000):
    return nn.Sequential(
        nn.Conv2d(3, dim, kernel_size=patch_size, stride=patch_size),
        nn.GELU(),
        nn.BatchNorm2d(dim),
        *[
            nn.Sequential(
                Residual(
                    nn.Sequential(
                        nn.Conv2d(dim, dim, kernel_size, groups=dim, padding="same"), nn.GELU(), nn.BatchNorm2d(dim)
                    )
                ),
                nn.Conv2d(dim, dim, kernel_size=1),
                nn.GELU(),
                nn.BatchNorm2d(dim),
            )
            for i in range(depth)
        ],
        nn.AdaptiveAvgPool2d((1, 1)),
        nn.Flatten(),
        nn.Linear(dim, n_classes),
    )


torch.backends.cuda.matmul.allow_tf32 = True
torch.backends.cudnn.benchmark = True

batch_size = 32
net = ConvMixer(768, 32, kernel_size=7).cuda().to(memory_format=torch.channels_last)
model = torch.compile(net, mode="max-autotune-no-cudagraphs")
opt = torch.optim.AdamW(net.parameters(), lr=0.01, weight_decay=2e-5, eps=1e-3, fused=True)
sched = torch.optim.lr_scheduler.OneCycleLR(opt, max_lr=0.01, total_steps=5000, pct_start=0.2)

images = torch.randn(256, 3, 224, 224, device="cuda").contiguous(memory_format=torch.channels_last)
labels = torch.randint(0, 1000, (256,), device="cuda")
for i in steps():
    pick = torch.randint(0, 256, (batch_size,), device="cuda")
    x = images[pick].contiguous(memory_format=torch.channels_last)
    y = F.one_hot(labels[pick], 1000).float()
    lam = float(torch.distributions.Beta(0.5, 0.5).sample())
    x, y = torch.lerp(x.flip(0), x, lam), torch.lerp(y.flip(0), y, lam)
    with torch.autocast("cuda", dtype=torch.bfloat16):
        out = model(x)
    loss = F.cross_entropy(out.float(), y)
    loss.backward()
    nn.utils.clip_grad_norm_(net.parameters(), 1.0)
    opt.step()
    opt.zero_grad()
    sched.step()
