import torch, torch.nn as nn, torch.nn.functional as F
from tick import steps

BATCH, SIZE, EMB, SLICE, SHUFFLES = 128, 224, 32, 64, 4


def conv_bn(a, b, k, s=1):
    return [nn.Conv2d(a, b, k, s, k // 2, bias=False), nn.BatchNorm2d(b)]


class Block(nn.Module):
    def __init__(self, a, w, s):
        super().__init__()
        relu = nn.ReLU(inplace=True)
        self.f = nn.Sequential(*conv_bn(a, w, 1), relu, *conv_bn(w, w, 3, s), relu, *conv_bn(w, 4 * w, 1))
        self.g = nn.Sequential(*conv_bn(a, 4 * w, 1, s)) if s > 1 or a != 4 * w else nn.Identity()

    def forward(self, x):
        return torch.relu_(self.f(x) + self.g(x))


def resnet50():
    layers = [*conv_bn(3, 64, 7, 2), nn.ReLU(inplace=True), nn.MaxPool2d(3, 2, 1)]
    a = 64
    for w, n, s in [(64, 3, 1), (128, 4, 2), (256, 6, 2), (512, 3, 2)]:
        for i in range(n):
            layers.append(Block(a, w, s if i == 0 else 1))
            a = 4 * w
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten())


def head():
    return nn.Sequential(nn.Linear(2048, 1024), nn.BatchNorm1d(1024), nn.ReLU(), nn.Linear(1024, EMB))


def whiten(z, eps=1e-3):
    """Cholesky whitening of every slice of the batch: z is (slices, rows, channels)."""
    z = z - z.mean(1, keepdim=True)
    cov = z.transpose(1, 2) @ z / (z.shape[1] - 1)
    eye = torch.eye(EMB, device=z.device)
    chol = torch.linalg.cholesky((1 - eps) * cov + eps * eye)
    return torch.linalg.solve_triangular(chol, z.transpose(1, 2), upper=False).transpose(1, 2)


def w_mse(a, b):
    loss = 0
    for _ in range(SHUFFLES):
        order = torch.randperm(BATCH, device=a.device)
        wa, wb = (whiten(z[order].view(-1, SLICE, EMB)) for z in (a, b))
        loss = loss + (2 - 2 * F.cosine_similarity(wa, wb, dim=-1)).mean()
    return loss / SHUFFLES


def augment(x):
    if torch.rand(()) < 0.5:
        x = x.flip(-1)
    gain = torch.empty(len(x), 3, 1, 1, device=x.device).uniform_(0.6, 1.4)
    return ((x - 0.5) * gain + 0.02 * torch.randn_like(x)).to(memory_format=torch.channels_last)


encoder = resnet50().to("cuda", memory_format=torch.channels_last)
projector = head().to("cuda")
params = [*encoder.parameters(), *projector.parameters()]
optimizer = torch.optim.Adam(params, lr=2e-3, weight_decay=1e-6, foreach=True)
warm = torch.optim.lr_scheduler.LinearLR(optimizer, 0.01, 1.0, 500)
step_down = torch.optim.lr_scheduler.MultiStepLR(optimizer, [40000, 45000], gamma=0.2)
scheduler = torch.optim.lr_scheduler.SequentialLR(optimizer, [warm, step_down], [500])
images = torch.rand(512, 3, SIZE, SIZE, device="cuda")


def train_step():
    x = images[torch.randint(0, len(images), (BATCH,), device="cuda")]
    views = torch.cat([augment(x), augment(x)])
    with torch.autocast("cuda", dtype=torch.bfloat16):
        z = projector(encoder(views))
    a, b = z.float().chunk(2)
    loss = w_mse(a, b)
    optimizer.zero_grad(set_to_none=True)
    loss.backward()
    optimizer.step()
    scheduler.step()
    return loss.detach()


for i in steps():
    loss = train_step()
