import torch
import torch.nn as nn
import torch.nn.functional as F
from tick import steps

BATCH, HEIGHT, WIDTH, MAX_DISP, GROUPS = 2, 256, 512, 192, 40
WEIGHTS = (0.5, 0.7, 1.0)
device = torch.device("cuda")
torch.backends.cudnn.benchmark = True


def convbn(i, o, k, s=1, p=1, d=1):
    return nn.Sequential(nn.Conv2d(i, o, k, s, d if d > 1 else p, d, bias=False), nn.BatchNorm2d(o))


def convbn_3d(i, o, k, s=1, p=1):
    return nn.Sequential(nn.Conv3d(i, o, k, s, p, bias=False), nn.BatchNorm3d(o))


class BasicBlock(nn.Module):
    def __init__(self, i, o, stride, downsample, pad, dilation):
        super().__init__()
        self.conv1 = nn.Sequential(convbn(i, o, 3, stride, pad, dilation), nn.ReLU(inplace=True))
        self.conv2 = convbn(o, o, 3, 1, pad, dilation)
        self.downsample = downsample

    def forward(self, x):
        out = self.conv2(self.conv1(x))
        if self.downsample is not None:
            x = self.downsample(x)
        return out + x


class Features(nn.Module):
    def __init__(self):
        super().__init__()
        self.inplanes = 32
        self.first = nn.Sequential(
            convbn(3, 32, 3, 2),
            nn.ReLU(inplace=True),
            convbn(32, 32, 3),
            nn.ReLU(inplace=True),
            convbn(32, 32, 3),
            nn.ReLU(inplace=True),
        )
        self.layer1 = self.stage(32, 3, 1, 1, 1)
        self.layer2 = self.stage(64, 16, 2, 1, 1)
        self.layer3 = self.stage(128, 3, 1, 1, 1)
        self.layer4 = self.stage(128, 3, 1, 1, 2)

    def stage(self, planes, blocks, stride, pad, dilation):
        down = None
        if stride != 1 or self.inplanes != planes:
            down = nn.Sequential(nn.Conv2d(self.inplanes, planes, 1, stride, bias=False), nn.BatchNorm2d(planes))
        layers = [BasicBlock(self.inplanes, planes, stride, down, pad, dilation)]
        self.inplanes = planes
        layers += [BasicBlock(planes, planes, 1, None, pad, dilation) for _ in range(1, blocks)]
        return nn.Sequential(*layers)

    def forward(self, x):
        l2 = self.layer2(self.layer1(self.first(x)))
        l3 = self.layer3(l2)
        return torch.cat((l2, l3, self.layer4(l3)), dim=1)


@torch.compile
def groupwise_volume(left, right, disparities, groups):
    b, c, h, w = left.shape
    shifted = F.pad(right, (disparities - 1, 0)).unfold(3, w, 1).flip(3)
    shifted = shifted.reshape(b, groups, c // groups, h, disparities, w)
    left = left.view(b, groups, c // groups, h, 1, w)
    return (left * shifted).mean(2).transpose(2, 3).contiguous()


class Hourglass(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.conv1 = nn.Sequential(convbn_3d(c, c * 2, 3, 2), nn.ReLU(inplace=True))
        self.conv2 = nn.Sequential(convbn_3d(c * 2, c * 2, 3), nn.ReLU(inplace=True))
        self.conv3 = nn.Sequential(convbn_3d(c * 2, c * 4, 3, 2), nn.ReLU(inplace=True))
        self.conv4 = nn.Sequential(convbn_3d(c * 4, c * 4, 3), nn.ReLU(inplace=True))
        self.conv5 = nn.Sequential(
            nn.ConvTranspose3d(c * 4, c * 2, 3, 2, 1, output_padding=1, bias=False), nn.BatchNorm3d(c * 2)
        )
        self.conv6 = nn.Sequential(
            nn.ConvTranspose3d(c * 2, c, 3, 2, 1, output_padding=1, bias=False), nn.BatchNorm3d(c)
        )
        self.redir1, self.redir2 = convbn_3d(c, c, 1, 1, 0), convbn_3d(c * 2, c * 2, 1, 1, 0)

    def forward(self, x):
        c2 = self.conv2(self.conv1(x))
        c4 = self.conv4(self.conv3(c2))
        c5 = F.relu(self.conv5(c4) + self.redir2(c2))
        return F.relu(self.conv6(c5) + self.redir1(x))


class Head(nn.Sequential):
    def __init__(self, c):
        super().__init__(convbn_3d(c, c, 3), nn.ReLU(inplace=True), nn.Conv3d(c, 1, 3, padding=1, bias=False))


class GwcNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.features = Features()
        self.dres0 = nn.Sequential(
            convbn_3d(GROUPS, 32, 3), nn.ReLU(inplace=True), convbn_3d(32, 32, 3), nn.ReLU(inplace=True)
        )
        self.dres1 = nn.Sequential(convbn_3d(32, 32, 3), nn.ReLU(inplace=True), convbn_3d(32, 32, 3))
        self.hourglasses = nn.ModuleList(Hourglass(32) for _ in range(2))
        self.heads = nn.ModuleList(Head(32) for _ in range(3))
        self.register_buffer("disparities", torch.arange(MAX_DISP, dtype=torch.float32).view(1, -1, 1, 1))

    @torch.compile
    def regress(self, cost, size):
        cost = F.interpolate(cost, [MAX_DISP, *size], mode="trilinear", align_corners=False).squeeze(1)
        return (cost.softmax(1) * self.disparities).sum(1)

    def forward(self, left, right):
        size = left.shape[-2:]
        both = self.features(torch.cat([left, right]))
        volume = groupwise_volume(*both.chunk(2), MAX_DISP // 4, GROUPS)
        x = self.dres0(volume)
        x = self.dres1(x) + x
        stages = [x]
        for hourglass in self.hourglasses:
            stages.append(hourglass(stages[-1]))
        return [self.regress(head(s), size) for head, s in zip(self.heads, stages)]


@torch.no_grad()
def metrics(pred, gt):
    error = (pred - gt).abs()
    return {"epe": error.mean().item(), "d1": ((error > 3) & (error / gt > 0.05)).float().mean().item()}


torch.manual_seed(0)
model = GwcNet().to(device)
for m in model.modules():
    if isinstance(m, (nn.Conv2d, nn.Conv3d)):
        nn.init.kaiming_normal_(m.weight, mode="fan_out")
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3, betas=(0.9, 0.999))
scheduler = torch.optim.lr_scheduler.MultiStepLR(optimizer, [40, 60], gamma=0.5)

for i in steps():
    model.train()
    left = torch.randn(BATCH, 3, HEIGHT, WIDTH, device=device)
    right = left.roll(-int(torch.randint(1, 40, ())), dims=-1) + 0.05 * torch.randn_like(left)
    truth = F.interpolate(torch.rand(BATCH, 1, 8, 16, device=device) * 230, [HEIGHT, WIDTH], mode="bilinear").squeeze(1)
    valid = (truth < MAX_DISP) & (truth > 1)
    optimizer.zero_grad()
    predictions = model(left, right)
    loss = sum(w * F.smooth_l1_loss(p[valid], truth[valid]) for w, p in zip(WEIGHTS, predictions))
    loss.backward()
    optimizer.step()
    scheduler.step()
    scores = metrics(predictions[-1].masked_select(valid), truth[valid])
    if i % 10 == 0:
        print(f"{i} loss {loss.item():.3f} {scores}")
