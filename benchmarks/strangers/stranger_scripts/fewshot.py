"""Second-order MAML on pictures of 84 x 84: torch.func grad inside vmap over tasks, functional_call, learned inner rates."""

import torch, torch.nn as nn, torch.nn.functional as F
from torch.func import functional_call, grad_and_value, vmap
from tick import steps

TASKS, WAYS, SHOTS, QUERIES, INNER, CH = 4, 5, 5, 15, 3, 48


def block(i):
    return nn.Sequential(nn.Conv2d(i, CH, 3, padding=1), nn.GroupNorm(8, CH), nn.ReLU(), nn.MaxPool2d(2))


net = nn.Sequential(block(3), block(CH), block(CH), block(CH), nn.Flatten(), nn.Linear(CH * 25, WAYS)).cuda()
params = {k: v.detach().clone().requires_grad_() for k, v in net.named_parameters()}
rates = {k: torch.full((), 0.01, device="cuda", requires_grad=True) for k in params}
opt = torch.optim.Adam([*params.values(), *rates.values()], 1e-3)


def loss_of(p, x, y):
    out = functional_call(net, p, (x,))
    return F.cross_entropy(out, y), out


def task(p, r, xs, ys, xq, yq):
    for _ in range(INNER):
        g, _ = grad_and_value(loss_of, has_aux=True)(p, xs, ys)
        p = {k: p[k] - r[k] * g[k] for k in p}
    loss, out = loss_of(p, xq, yq)
    return loss, (out.argmax(-1) == yq).float().mean()


ys = torch.arange(WAYS, device="cuda").repeat_interleave(SHOTS).expand(TASKS, -1)
yq = torch.arange(WAYS, device="cuda").repeat_interleave(QUERIES).expand(TASKS, -1)
accuracy = 0.0
for i in steps(count=4):
    pictures = torch.randn(TASKS, WAYS, SHOTS + QUERIES, 3, 84, 84, device="cuda")
    xs, xq = pictures[:, :, :SHOTS].flatten(1, 2), pictures[:, :, SHOTS:].flatten(1, 2)
    losses, hits = vmap(task, in_dims=(None, None, 0, 0, 0, 0))(params, rates, xs, ys, xq, yq)
    opt.zero_grad()
    losses.mean().backward()
    torch.nn.utils.clip_grad_value_(params.values(), 10.0)
    opt.step()
    accuracy = 0.9 * accuracy + 0.1 * hits.mean().item()
