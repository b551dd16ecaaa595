import torch, torch.nn as nn, torch.nn.functional as F
from tick import steps

torch.backends.cudnn.benchmark = True
torch.backends.cuda.matmul.allow_tf32 = True
BATCH, JOINTS, H, W, WIDTHS = 64, 17, 64, 48, [32, 64, 128, 256]


def conv_bn(cin, cout, k=3, stride=1, relu=True):
    layers = [nn.Conv2d(cin, cout, k, stride, k // 2, bias=False), nn.BatchNorm2d(cout, momentum=0.1)]
    return nn.Sequential(*layers, nn.ReLU(inplace=True)) if relu else nn.Sequential(*layers)


class Residual(nn.Module):
    def __init__(self, body, skip=None):
        super().__init__()
        self.body, self.skip, self.relu = body, skip or nn.Identity(), nn.ReLU(inplace=True)

    def forward(self, x):
        return self.relu(self.body(x) + self.skip(x))


def basic(c):
    return Residual(nn.Sequential(conv_bn(c, c), conv_bn(c, c, relu=False)))


def bottleneck(cin, mid=64):
    body = nn.Sequential(conv_bn(cin, mid, 1), conv_bn(mid, mid), conv_bn(mid, 4 * mid, 1, relu=False))
    return Residual(body, None if cin == 4 * mid else conv_bn(cin, 4 * mid, 1, relu=False))


class HRModule(nn.Module):
    def __init__(self, n, outs):
        super().__init__()
        self.branches = nn.ModuleList(nn.Sequential(*[basic(WIDTHS[i]) for _ in range(4)]) for i in range(n))
        self.fuse = nn.ModuleList(nn.ModuleList(self.path(j, i) for j in range(n)) for i in range(outs))

    def path(self, j, i):
        if j == i:
            return nn.Identity()
        if j > i:
            return nn.Sequential(conv_bn(WIDTHS[j], WIDTHS[i], 1, relu=False), nn.Upsample(scale_factor=2 ** (j - i)))
        down = [conv_bn(WIDTHS[j], WIDTHS[j], 3, 2) for _ in range(i - j - 1)]
        return nn.Sequential(*down, conv_bn(WIDTHS[j], WIDTHS[i], 3, 2, relu=False))

    def forward(self, xs):
        xs = [branch(x) for branch, x in zip(self.branches, xs)]
        return [F.relu(sum(path(x) for path, x in zip(paths, xs))) for paths in self.fuse]


class PoseHRNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.stem = nn.Sequential(conv_bn(3, 64, 3, 2), conv_bn(64, 64, 3, 2))
        self.layer1 = nn.Sequential(bottleneck(64), *[bottleneck(256) for _ in range(3)])
        self.transition1 = nn.ModuleList([conv_bn(256, 32), conv_bn(256, 64, 3, 2)])
        self.transition2, self.transition3 = conv_bn(64, 128, 3, 2), conv_bn(128, 256, 3, 2)
        self.stage2 = HRModule(2, 2)
        self.stage3 = nn.Sequential(*[HRModule(3, 3) for _ in range(4)])
        self.stage4 = nn.Sequential(HRModule(4, 4), HRModule(4, 4), HRModule(4, 1))
        self.final = nn.Conv2d(32, JOINTS, 1)

    def forward(self, x):
        x = self.layer1(self.stem(x))
        xs = self.stage2([t(x) for t in self.transition1])
        xs = self.stage3([*xs, self.transition2(xs[-1])])
        return self.final(self.stage4([*xs, self.transition3(xs[-1])])[0])


@torch.compile
def joints_loss(output, joints, visible, sigma=2.0, topk=8):
    ys, xs = torch.arange(H, device=output.device), torch.arange(W, device=output.device)
    dx = (xs - joints[..., :1]).square()[:, :, None, :]
    dy = (ys - joints[..., 1:]).square()[:, :, :, None]
    target = torch.exp(-(dx + dy) / (2 * sigma**2))
    loss = 0.5 * ((output - target).square() * visible[:, :, None, None]).mean((2, 3))
    return loss.topk(topk, dim=1).values.mean()


model = PoseHRNet().cuda()
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
total = 0.0
for i in steps():
    images = torch.randn(BATCH, 3, 4 * H, 4 * W, device="cuda")
    joints = torch.rand(BATCH, JOINTS, 2, device="cuda") * torch.tensor([W, H], device="cuda")
    visible = (torch.rand(BATCH, JOINTS, device="cuda") > 0.2).float()
    output = model(images)
    loss = joints_loss(output, joints, visible)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    total += loss.item() * BATCH
