"""A transformer writes the weights of a small MLP per picture (Trans-INR), pixels are then read from the MLP."""

import math
import torch
from torch import nn
from torch.func import functional_call, vmap
from tick import steps

torch.set_float32_matmul_precision("high")

SIDE, PATCH, DIM, DEPTH, HEADS = 180, 9, 768, 6, 12
HIDDEN, INR_LAYERS, FEATURES, GROUPS = 256, 5, 256, 64
BATCH, PIXELS = 32, 8100


class INR(nn.Module):
    def __init__(self):
        super().__init__()
        widths = [FEATURES] + [HIDDEN] * (INR_LAYERS - 1) + [3]
        self.layers = nn.ModuleList(nn.Linear(a, b) for a, b in zip(widths, widths[1:]))
        self.register_buffer("freq", torch.randn(2, FEATURES // 2) * 8)

    def forward(self, xy):
        f = math.pi * xy @ self.freq
        x = torch.cat([f.sin(), f.cos()], -1)
        for layer in self.layers[:-1]:
            x = torch.relu(layer(x))
        return self.layers[-1](x) + 0.5


class HyperNetwork(nn.Module):
    """One token for each group of columns of every matrix of the INR, next to tokens of the picture's patches."""

    def __init__(self, inr):
        super().__init__()
        self.patchify = nn.Conv2d(3, DIM, PATCH, PATCH)
        self.pos = nn.Parameter(torch.randn(1, (SIDE // PATCH) ** 2, DIM) * 0.02)
        layer = nn.TransformerEncoderLayer(DIM, HEADS, 4 * DIM, 0.0, "gelu", batch_first=True, norm_first=True)
        self.encoder = nn.TransformerEncoder(layer, DEPTH, enable_nested_tensor=False)
        self.sizes = {n: p.shape for n, p in inr.named_parameters() if n.endswith("weight")}
        self.groups = {n: min(GROUPS, s[0]) for n, s in self.sizes.items()}
        self.queries = nn.Parameter(torch.randn(1, sum(self.groups.values()), DIM) * 0.02)
        self.heads = nn.ModuleDict(
            {n.replace(".", "_"): nn.Sequential(nn.LayerNorm(DIM), nn.Linear(DIM, s[1])) for n, s in self.sizes.items()}
        )

    def forward(self, images, base):
        x = self.patchify(images).flatten(2).transpose(1, 2) + self.pos
        x = self.encoder(torch.cat([x, self.queries.expand(len(x), -1, -1)], 1))[:, x.shape[1] :]
        weights, at = {}, 0
        for name, size in self.sizes.items():
            tokens = x[:, at : at + self.groups[name]]
            at += self.groups[name]
            m = self.heads[name.replace(".", "_")](tokens).repeat_interleave(size[0] // self.groups[name], 1)
            weights[name] = nn.functional.normalize(base[name] * (1 + m), dim=-1) * math.sqrt(2)
        return weights


inr = INR().to("cuda")
net = HyperNetwork(inr).to("cuda")
base = dict(inr.named_parameters())
buffers = dict(inr.named_buffers())
biases = {n: p for n, p in base.items() if n.endswith("bias")}


def render(weights, xy):
    return functional_call(inr, (weights, biases, buffers), (xy,))


@torch.compile
def loss_fn(images, xy, rgb):
    weights = net(images, base)
    return (vmap(render)(weights, xy) - rgb).pow(2).flatten(1).mean(1).mean()


everything = [*net.parameters(), *base.values()]
axis = (torch.arange(SIDE, device="cuda") + 0.5) / SIDE * 2 - 1
grid = torch.stack(torch.meshgrid(axis, axis, indexing="ij"), -1).view(-1, 2)
faces = torch.rand(1024, 3, SIDE, SIDE, device="cuda")

peak, running = 1e-2, None
for it in steps():
    images = faces[torch.randint(0, len(faces), (BATCH,), device="cuda")]
    picks = torch.randint(0, SIDE * SIDE, (BATCH, PIXELS), device="cuda")
    rgb = images.flatten(2).gather(2, picks[:, None].expand(-1, 3, -1)).transpose(1, 2)
    loss = loss_fn(images, grid[picks], rgb)
    loss.backward()
    lr = peak * min(1, (it + 1) / 50)
    with torch.no_grad():
        for p in everything:
            p -= lr * p.grad
            p.grad = None
    running = loss.detach() if running is None else running.lerp(loss.detach(), 0.05)
    if it % 25 == 0:
        print(f"iter {it}: psnr {-10 * math.log10(running.item()):.2f}")
