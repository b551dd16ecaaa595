"""Action chunking with transformers: four cameras, a ResNet-18, a CVAE over chunks of 100 actions."""

import math
from dataclasses import dataclass

import torch
import torch.nn as nn
import torch.nn.functional as F
from tick import steps


@dataclass
class Config:
    cameras: int = 4
    height: int = 480
    width: int = 640
    batch: int = 8
    joints: int = 14
    chunk: int = 100
    dim: int = 512
    heads: int = 8
    ff: int = 3200
    encoder: int = 4
    decoder: int = 7
    latent: int = 32
    kl: float = 10.0
    dropout: float = 0.1


class FrozenBatchNorm2d(nn.Module):
    def __init__(self, n):
        super().__init__()
        self.register_buffer("weight", torch.ones(n))
        self.register_buffer("bias", torch.zeros(n))
        self.register_buffer("running_mean", torch.zeros(n))
        self.register_buffer("running_var", torch.ones(n))

    def forward(self, x):
        w, b = self.weight.reshape(1, -1, 1, 1), self.bias.reshape(1, -1, 1, 1)
        rv, rm = self.running_var.reshape(1, -1, 1, 1), self.running_mean.reshape(1, -1, 1, 1)
        scale = w * (rv + 1e-5).rsqrt()
        return x * scale + (b - rm * scale)


class BasicBlock(nn.Module):
    def __init__(self, a, b, stride):
        super().__init__()
        self.conv1, self.bn1 = nn.Conv2d(a, b, 3, stride, 1, bias=False), FrozenBatchNorm2d(b)
        self.conv2, self.bn2 = nn.Conv2d(b, b, 3, 1, 1, bias=False), FrozenBatchNorm2d(b)
        self.down = None
        if stride > 1 or a != b:
            self.down = nn.Sequential(nn.Conv2d(a, b, 1, stride, bias=False), FrozenBatchNorm2d(b))

    def forward(self, x):
        y = self.bn2(self.conv2(F.relu(self.bn1(self.conv1(x)))))
        return F.relu(y + (x if self.down is None else self.down(x)))


def resnet18():
    layers = [nn.Conv2d(3, 64, 7, 2, 3, bias=False), FrozenBatchNorm2d(64), nn.ReLU(), nn.MaxPool2d(3, 2, 1)]
    a = 64
    for b, stride in ((64, 1), (128, 2), (256, 2), (512, 2)):
        layers += [BasicBlock(a, b, stride), BasicBlock(b, b, 1)]
        a = b
    return nn.Sequential(*layers)


class Attention(nn.Module):
    def __init__(self, cfg):
        super().__init__()
        self.heads, self.p = cfg.heads, cfg.dropout
        self.q, self.k, self.v, self.o = (nn.Linear(cfg.dim, cfg.dim) for _ in range(4))

    def forward(self, q, k, v):
        q, k, v = (
            f(x).unflatten(-1, (self.heads, -1)).transpose(1, 2) for f, x in ((self.q, q), (self.k, k), (self.v, v))
        )
        y = F.scaled_dot_product_attention(q, k, v, dropout_p=self.p if self.training else 0.0)
        return self.o(y.transpose(1, 2).flatten(2))


class EncoderLayer(nn.Module):
    def __init__(self, cfg):
        super().__init__()
        self.attn = Attention(cfg)
        self.ff = nn.Sequential(
            nn.Linear(cfg.dim, cfg.ff), nn.ReLU(), nn.Dropout(cfg.dropout), nn.Linear(cfg.ff, cfg.dim)
        )
        self.norm1, self.norm2 = nn.LayerNorm(cfg.dim), nn.LayerNorm(cfg.dim)
        self.drop = nn.Dropout(cfg.dropout)

    def forward(self, x, pos):
        x = self.norm1(x + self.drop(self.attn(x + pos, x + pos, x)))
        return self.norm2(x + self.drop(self.ff(x)))


class Encoder(nn.Module):
    def __init__(self, cfg):
        super().__init__()
        self.layers = nn.ModuleList(EncoderLayer(cfg) for _ in range(cfg.encoder))

    def forward(self, x, pos):
        for layer in self.layers:
            x = layer(x, pos)
        return x


class DecoderLayer(EncoderLayer):
    def __init__(self, cfg):
        super().__init__(cfg)
        self.cross, self.norm3 = Attention(cfg), nn.LayerNorm(cfg.dim)

    def forward(self, x, memory, pos, query):
        x = self.norm1(x + self.drop(self.attn(x + query, x + query, x)))
        x = self.norm3(x + self.drop(self.cross(x + query, memory + pos, memory)))
        return self.norm2(x + self.drop(self.ff(x)))


def sine(h, w, dim):
    y, x = torch.meshgrid(torch.linspace(0, 2 * math.pi, h), torch.linspace(0, 2 * math.pi, w), indexing="ij")
    freq = 10000 ** -(torch.arange(0, dim // 2, 2) / (dim // 2))
    y, x = y[..., None] * freq, x[..., None] * freq
    return torch.cat([y.sin(), y.cos(), x.sin(), x.cos()], -1).flatten(0, 1)


class ACT(nn.Module):
    def __init__(self, cfg):
        super().__init__()
        self.cfg = cfg
        self.backbone, self.squeeze = resnet18(), nn.Conv2d(512, cfg.dim, 1)
        self.style, self.encoder = Encoder(cfg), Encoder(cfg)
        self.decoder = nn.ModuleList(DecoderLayer(cfg) for _ in range(cfg.decoder))
        self.cls, self.query = nn.Embedding(1, cfg.dim), nn.Embedding(cfg.chunk, cfg.dim)
        self.action_in, self.joint_in = nn.Linear(cfg.joints, cfg.dim), nn.Linear(cfg.joints, cfg.dim)
        self.to_latent, self.from_latent = nn.Linear(cfg.dim, 2 * cfg.latent), nn.Linear(cfg.latent, cfg.dim)
        self.state_in, self.extra_pos = nn.Linear(cfg.joints, cfg.dim), nn.Embedding(2, cfg.dim)
        self.action, self.is_pad = nn.Linear(cfg.dim, cfg.joints), nn.Linear(cfg.dim, 1)
        pos = sine(cfg.height // 32, cfg.width // 32, cfg.dim)
        self.register_buffer("image_pos", pos.repeat(cfg.cameras, 1))
        self.register_buffer("style_pos", sine(1, cfg.chunk + 2, cfg.dim)[None])

    def source_pos(self):
        return torch.cat([self.extra_pos.weight, self.image_pos])[None]

    def forward(self, images, state, actions):
        b = len(state)
        cls = self.cls.weight.expand(b, 1, -1)
        style = torch.cat([cls, self.joint_in(state)[:, None], self.action_in(actions)], 1)
        mu, logvar = self.to_latent(self.style(style, self.style_pos)[:, 0]).chunk(2, -1)
        z = self.from_latent(mu + (logvar / 2).exp() * torch.randn_like(mu))
        feats = self.squeeze(self.backbone(images.flatten(0, 1)))
        feats = feats.flatten(2).transpose(1, 2).reshape(b, -1, self.cfg.dim)
        pos = self.source_pos()
        memory = self.encoder(torch.cat([z[:, None], self.state_in(state)[:, None], feats], 1), pos)
        query = self.query.weight[None]
        x = torch.zeros_like(query).expand(b, -1, -1)
        for layer in self.decoder:
            x = layer(x, memory, pos, query)
        return self.action(x), self.is_pad(x)[..., 0], mu, logvar


class Replay:
    def __init__(self, cfg, size=64):
        self.cfg, self.size = cfg, size
        self.images = torch.randint(0, 256, (size, cfg.cameras, cfg.height, cfg.width, 3), dtype=torch.uint8)
        self.staging = torch.empty(cfg.batch, *self.images.shape[1:], dtype=torch.uint8).pin_memory()

    def sample(self):
        index = torch.randint(0, self.size, (self.cfg.batch,))
        torch.index_select(self.images, 0, index, out=self.staging)
        images = self.staging.to("cuda", non_blocking=True)
        state = torch.randn(self.cfg.batch, self.cfg.joints).to("cuda")
        actions = torch.randn(self.cfg.batch, self.cfg.chunk, self.cfg.joints).to("cuda")
        pad = torch.arange(self.cfg.chunk) >= torch.randint(30, 400, (self.cfg.batch, 1))
        return images, state, actions, pad.to("cuda")


def augment(images):
    x = images.permute(0, 1, 4, 2, 3).float() / 255
    b, c = x.shape[:2]
    h, w = x.shape[-2:]
    top, left = int(torch.randint(0, h // 20, ())), int(torch.randint(0, w // 20, ()))
    x = x[..., top : top + h * 19 // 20, left : left + w * 19 // 20].flatten(0, 1)
    x = F.interpolate(x, size=(h, w), mode="bilinear", align_corners=False)
    bright = torch.empty(b * c, 1, 1, 1, device=x.device).uniform_(0.7, 1.3)
    saturate = torch.empty(b * c, 1, 1, 1, device=x.device).uniform_(0.5, 1.5)
    x = (x * bright).clamp(0, 1)
    grey = (x * x.new_tensor([0.299, 0.587, 0.114]).view(1, 3, 1, 1)).sum(1, keepdim=True)
    x = (grey + (x - grey) * saturate).clamp(0, 1)
    mean, std = x.new_tensor([0.485, 0.456, 0.406]), x.new_tensor([0.229, 0.224, 0.225])
    return ((x - mean.view(1, 3, 1, 1)) / std.view(1, 3, 1, 1)).unflatten(0, (b, c))


def main():
    torch.backends.cudnn.benchmark = True
    torch.backends.cuda.matmul.allow_tf32 = True
    cfg = Config()
    model = ACT(cfg).cuda().train()
    backbone = list(model.backbone.parameters())
    rest = [p for n, p in model.named_parameters() if not n.startswith("backbone")]
    optimizer = torch.optim.AdamW([{"params": rest}, {"params": backbone, "lr": 1e-5}], lr=5e-5, weight_decay=1e-4)

    tokens = 2 + cfg.cameras * (cfg.height // 32) * (cfg.width // 32)
    example = torch.randn(cfg.batch, tokens, cfg.dim, device="cuda", requires_grad=True)
    example_pos = torch.randn(1, tokens, cfg.dim, device="cuda", requires_grad=True)
    model.encoder = torch.cuda.make_graphed_callables(model.encoder, (example, example_pos))

    replay = Replay(cfg)
    for i in steps():
        images, state, actions, pad = replay.sample()
        predicted, _, mu, logvar = model(augment(images), state, actions)
        l1 = ((predicted - actions).abs() * ~pad[..., None]).mean()
        kl = (-0.5 * (1 + logvar - mu**2 - logvar.exp())).sum(1).mean()
        loss = l1 + cfg.kl * kl
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if i % 10 == 0:
            print(f"{i:5d} l1={l1.item():.4f} kl={kl.item():.4f}")


if __name__ == "__main__":
    main()
