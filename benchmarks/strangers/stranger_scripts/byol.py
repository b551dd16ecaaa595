import copy
import math
import timm
import torch
import torch.nn as nn
import torch.nn.functional as F
from tick import steps


class LARS(torch.optim.Optimizer):
    def __init__(self, params, lr, weight_decay=1.5e-6, momentum=0.9, eta=0.001):
        super().__init__(params, dict(lr=lr, weight_decay=weight_decay, momentum=momentum, eta=eta))

    @torch.no_grad()
    def step(self):
        for g in self.param_groups:
            for p in g["params"]:
                if p.grad is None:
                    continue
                dp = p.grad
                if p.ndim > 1:
                    dp = dp.add(p, alpha=g["weight_decay"])
                    pn, un = torch.norm(p), torch.norm(dp)
                    one = torch.ones_like(pn)
                    q = torch.where(pn > 0.0, torch.where(un > 0, g["eta"] * pn / un, one), one)
                    dp = dp.mul(q)
                state = self.state[p]
                if "mu" not in state:
                    state["mu"] = torch.zeros_like(p)
                mu = state["mu"]
                mu.mul_(g["momentum"]).add_(dp)
                p.add_(mu, alpha=-g["lr"])


def mlp(i, hidden=4096, o=256):
    return nn.Sequential(nn.Linear(i, hidden), nn.BatchNorm1d(hidden), nn.ReLU(inplace=True), nn.Linear(hidden, o))


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.backbone = timm.create_model("resnet50", num_classes=0)
        self.projector = mlp(2048)

    def forward(self, x):
        return self.projector(self.backbone(x))


@torch.no_grad()
def augment(x):
    b = x.size(0)
    flip = torch.rand(b, 1, 1, 1, device=x.device) < 0.5
    x = torch.where(flip, x.flip(-1), x)
    x = x * (0.6 + 0.8 * torch.rand(b, 1, 1, 1, device=x.device))
    mean = x.mean((1, 2, 3), keepdim=True)
    x = (x - mean) * (0.6 + 0.8 * torch.rand(b, 1, 1, 1, device=x.device)) + mean
    gray = x.mean(1, keepdim=True).expand_as(x)
    x = torch.where(torch.rand(b, 1, 1, 1, device=x.device) < 0.2, gray, x)
    k = torch.exp(-0.5 * (torch.arange(-11, 12, device=x.device) / 1.2) ** 2)
    k = (k / k.sum()).expand(3, 1, 1, -1)
    x = F.conv2d(F.pad(x, (11, 11, 0, 0), mode="reflect"), k, groups=3)
    return F.conv2d(F.pad(x, (0, 0, 11, 11), mode="reflect"), k.transpose(2, 3), groups=3).clamp(0, 1)


def regression_loss(q, z):
    return 2 - 2 * (F.normalize(q.float(), dim=-1) * F.normalize(z.float(), dim=-1)).sum(-1)


online = Net().to("cuda", memory_format=torch.channels_last)
predictor = mlp(256).cuda()
target = copy.deepcopy(online).requires_grad_(False)
compiled = torch.compile(online)
opt = LARS([*online.parameters(), *predictor.parameters()], lr=0.2)
photos = torch.randint(0, 256, (256, 3, 224, 224), dtype=torch.uint8, device="cuda")
for i in steps():
    x = photos[torch.randint(0, 256, (128,), device="cuda")].float() / 255
    v1, v2 = (augment(x).contiguous(memory_format=torch.channels_last) for _ in range(2))
    with torch.autocast("cuda", dtype=torch.bfloat16):
        q1, q2 = predictor(compiled(v1)), predictor(compiled(v2))
        with torch.no_grad():
            z1, z2 = target(v1), target(v2)
    loss = (regression_loss(q1, z2) + regression_loss(q2, z1)).mean()
    opt.zero_grad()
    loss.backward()
    opt.step()
    tau = 1 - (1 - 0.996) * (math.cos(math.pi * i / 1000) + 1) / 2
    for po, pt in zip(online.parameters(), target.parameters()):
        pt.data = pt.data * tau + po.data * (1.0 - tau)
