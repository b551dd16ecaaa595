"""Latent diffusion: a compiled UNet under DDP, buckets as gradients; text and image encoders frozen."""

import os

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel as DDP
from tock import steps
from transformers import CLIPTextConfig, CLIPTextModel

BATCH, IMAGE, CONTEXT, WIDTHS, TIME = 96, 256, 768, (320, 640, 1280), 1280


class ResBlock(nn.Module):
    def __init__(self, cin, cout):
        super().__init__()
        self.norm1, self.conv1 = nn.GroupNorm(32, cin), nn.Conv2d(cin, cout, 3, padding=1)
        self.norm2, self.conv2 = nn.GroupNorm(32, cout), nn.Conv2d(cout, cout, 3, padding=1)
        self.time = nn.Linear(TIME, cout)
        self.skip = nn.Conv2d(cin, cout, 1) if cin != cout else nn.Identity()

    def forward(self, x, t):
        h = self.conv1(F.silu(self.norm1(x))) + self.time(F.silu(t))[:, :, None, None]
        return self.skip(x) + self.conv2(F.silu(self.norm2(h)))


class CrossBlock(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.norms = nn.ModuleList(nn.LayerNorm(dim) for _ in range(3))
        self.attn = nn.MultiheadAttention(dim, dim // 64, batch_first=True)
        self.cross = nn.MultiheadAttention(dim, dim // 64, kdim=CONTEXT, vdim=CONTEXT, batch_first=True)
        self.mlp = nn.Sequential(nn.Linear(dim, 4 * dim), nn.GELU(), nn.Linear(4 * dim, dim))

    def forward(self, x, context):
        h = x.flatten(2).transpose(1, 2)
        n = self.norms[0](h)
        h = h + self.attn(n, n, n, need_weights=False)[0]
        h = h + self.cross(self.norms[1](h), context, context, need_weights=False)[0]
        h = h + self.mlp(self.norms[2](h))
        return h.transpose(1, 2).reshape(x.shape)


class UNet(nn.Module):
    def __init__(self):
        super().__init__()
        a, b, c = WIDTHS
        self.time = nn.Sequential(nn.Linear(a, TIME), nn.SiLU(), nn.Linear(TIME, TIME))
        self.stem = nn.Conv2d(4, a, 3, padding=1)
        self.down = nn.ModuleList([ResBlock(a, a), ResBlock(a, b), ResBlock(b, c)])
        self.pool = nn.ModuleList(nn.Conv2d(w, w, 3, stride=2, padding=1) for w in (a, b))
        self.up = nn.ModuleList([ResBlock(2 * a, a), ResBlock(2 * b, a), ResBlock(2 * c, b)])
        self.down_attn, self.up_attn = (nn.ModuleList(map(CrossBlock, widths)) for widths in ((b, c), (a, b)))
        self.mid = nn.ModuleList([ResBlock(c, c), ResBlock(c, c)])
        self.head = nn.Sequential(nn.GroupNorm(32, a), nn.SiLU(), nn.Conv2d(a, 4, 3, padding=1))

    def forward(self, x, t, context):
        angles = t[:, None] * torch.exp(torch.linspace(0, -9.21, WIDTHS[0] // 2, device=x.device))
        t = self.time(torch.cat((angles.sin(), angles.cos()), dim=-1))
        x, skips = self.stem(x), []
        for i in range(3):
            x = self.down[i](x, t)
            x = self.down_attn[i - 1](x, context) if i > 0 else x
            skips.append(x)
            x = self.pool[i](x) if i < 2 else x
        x = self.mid[1](self.mid[0](x, t), t)
        for i in (2, 1, 0):
            x = self.up[i](torch.cat((x, skips[i]), dim=1), t)
            if i > 0:
                x = F.interpolate(self.up_attn[i - 1](x, context), scale_factor=2.0)
        return self.head(x)


def image_encoder():
    layers = [nn.Conv2d(3, 128, 3, padding=1)]
    for cin, cout in ((128, 128), (128, 256), (256, 512)):
        layers += [nn.GroupNorm(32, cin), nn.SiLU(), nn.Conv2d(cin, cout, 3, stride=2, padding=1)]
        layers += [nn.GroupNorm(32, cout), nn.SiLU(), nn.Conv2d(cout, cout, 3, padding=1)]
    return nn.Sequential(*layers, nn.Conv2d(512, 4, 1))


def main():
    dist.init_process_group("nccl")
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
    torch.cuda.set_device(device)
    torch.manual_seed(dist.get_rank())

    config = CLIPTextConfig(hidden_size=CONTEXT, intermediate_size=3072, num_attention_heads=12)
    text_encoder = CLIPTextModel(config).to(device, torch.bfloat16).requires_grad_(False).eval()
    vae = image_encoder().to(device, torch.bfloat16, memory_format=torch.channels_last).requires_grad_(False)
    unet = UNet().to(device, memory_format=torch.channels_last)
    unet = DDP(unet, device_ids=[device.index], gradient_as_bucket_view=True)
    compiled = torch.compile(unet)
    optimizer = torch.optim.AdamW(unet.parameters(), lr=1e-4, weight_decay=0.01, fused=True)
    alphas = torch.cumprod(1 - torch.linspace(0.00085**0.5, 0.012**0.5, 1000, device=device) ** 2, dim=0)

    for _ in steps():
        images = torch.rand(BATCH, 3, IMAGE, IMAGE, device=device) * 2 - 1
        captions = torch.randint(0, config.vocab_size, (BATCH, 77), device=device)
        with torch.no_grad():
            context = text_encoder(captions).last_hidden_state
            latents = 0.18215 * vae(images.to(torch.bfloat16, memory_format=torch.channels_last)).float()
            noise = torch.randn_like(latents)
            t = torch.randint(0, 1000, (BATCH,), device=device)
            alpha = alphas[t].view(-1, 1, 1, 1)
            noisy = alpha.sqrt() * latents + (1 - alpha).sqrt() * noise
        with torch.autocast("cuda", torch.bfloat16):
            loss = F.mse_loss(compiled(noisy, t, context).float(), noise)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=False)


if __name__ == "__main__":
    main()
