"""Differentially private training of WRN-16-4 (group norm, standardised weights), per-example gradients by vmap."""

import torch
import torch.nn.functional as F
from torch import nn
from torch.func import functional_call, grad_and_value, vmap
from tick import steps

BATCH, CHUNK, CLIP, SIGMA, LR, EMA_DECAY = 128, 64, 1.0, 3.0, 2.0, 0.999
DEVICE = "cuda"
torch.backends.cudnn.conv.fp32_precision = "tf32"
torch.backends.cuda.matmul.fp32_precision = "tf32"


class WSConv2d(nn.Conv2d):
    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self.gain = nn.Parameter(torch.ones(self.out_channels, 1, 1, 1))

    def forward(self, x):
        fan_in = self.weight[0].numel()
        var, mean = torch.var_mean(self.weight, dim=(1, 2, 3), keepdim=True)
        w = (self.weight - mean) * torch.rsqrt(torch.clamp(var * fan_in, min=1e-4)) * self.gain
        return F.conv2d(x, w, self.bias, self.stride, self.padding)


class Block(nn.Module):
    def __init__(self, cin, cout, stride):
        super().__init__()
        self.n1, self.n2 = nn.GroupNorm(16, cin), nn.GroupNorm(16, cout)
        self.c1 = WSConv2d(cin, cout, 3, stride, 1)
        self.c2 = WSConv2d(cout, cout, 3, 1, 1)
        self.proj = WSConv2d(cin, cout, 1, stride) if cin != cout else None

    def forward(self, x):
        y = F.relu(self.n1(x))
        skip = x if self.proj is None else self.proj(y)
        return skip + self.c2(F.relu(self.n2(self.c1(y))))


def wide_resnet(depth=16, width=4, classes=10):
    n = (depth - 4) // 6
    layers, cin = [WSConv2d(3, 16, 3, 1, 1)], 16
    for group in range(3):
        cout = 16 * width * 2**group
        for j in range(n):
            layers.append(Block(cin, cout, 2 if group and not j else 1))
            cin = cout
    layers += [nn.GroupNorm(16, cin), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(cin, classes)]
    return nn.Sequential(*layers)


net = wide_resnet().to(DEVICE)
params = {k: v.detach().clone() for k, v in net.named_parameters()}
ema = {k: v.clone() for k, v in params.items()}


def example_loss(params, x, y):
    logits = functional_call(net, params, (x[None],))
    return F.cross_entropy(logits, y[None])


per_example = vmap(grad_and_value(example_loss), in_dims=(None, 0, 0))


def clipped_sum(params, x, y):
    grads, losses = per_example(params, x, y)
    norms = torch.stack([g.flatten(1).norm(dim=1) for g in grads.values()]).norm(dim=0)
    factor = (CLIP / (norms + 1e-6)).clamp(max=1.0)
    return {k: torch.einsum("b,b...->...", factor, g) for k, g in grads.items()}, losses.sum(), norms


images, labels = torch.randn(4096, 3, 32, 32, device=DEVICE), torch.randint(0, 10, (4096,), device=DEVICE)
history = []
for step in steps():
    pick = torch.randint(0, len(images), (BATCH,), device=DEVICE)
    total, loss_sum, clipped = None, 0.0, 0.0
    for part in pick.split(CHUNK):
        g, loss, norms = clipped_sum(params, images[part], labels[part])
        total = g if total is None else {k: total[k] + g[k] for k in g}
        loss_sum, clipped = loss_sum + loss, clipped + (norms > CLIP).sum()
    for k, p in params.items():
        noisy = total[k] + SIGMA * CLIP * torch.randn_like(p)
        p.sub_(noisy, alpha=LR / BATCH)
    torch._foreach_lerp_(list(ema.values()), list(params.values()), 1 - min(EMA_DECAY, (1 + step) / (10 + step)))
    history.append((loss_sum.item() / BATCH, clipped.item() / BATCH))
