import math
import numbers

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, Dataset

from tick import steps

opt = {
    "network": {"dim": 48, "num_blocks": [4, 6, 6, 8], "num_refinement_blocks": 4, "heads": [1, 2, 4, 8]},
    "ffn_expansion_factor": 2.66,
    "patch": 128,
    "batch": 8,
    "lr": 3e-4,
    "eta_min": 1e-6,
    "total_iter": 300000,
    "sigma": 25,
    "mixup_beta": 1.2,
    "grad_clip": 0.01,
}


class BiasFree_LayerNorm(nn.Module):
    def __init__(self, normalized_shape):
        super().__init__()
        if isinstance(normalized_shape, numbers.Integral):
            normalized_shape = (normalized_shape,)
        self.weight = nn.Parameter(torch.ones(normalized_shape))

    def forward(self, x):
        sigma = x.var(-1, keepdim=True, unbiased=False)
        return x / torch.sqrt(sigma + 1e-5) * self.weight


class LayerNorm(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.body = BiasFree_LayerNorm(dim)

    def forward(self, x):
        b, c, h, w = x.shape
        y = self.body(x.flatten(2).transpose(1, 2))
        return y.transpose(1, 2).reshape(b, c, h, w)


class FeedForward(nn.Module):
    """Gated-Dconv feed-forward network."""

    def __init__(self, dim, factor):
        super().__init__()
        hidden = int(dim * factor)
        self.project_in = nn.Conv2d(dim, hidden * 2, 1, bias=False)
        self.dwconv = nn.Conv2d(hidden * 2, hidden * 2, 3, padding=1, groups=hidden * 2, bias=False)
        self.project_out = nn.Conv2d(hidden, dim, 1, bias=False)

    def forward(self, x):
        x1, x2 = self.dwconv(self.project_in(x)).chunk(2, dim=1)
        return self.project_out(F.gelu(x1) * x2)


class Attention(nn.Module):
    """Multi-Dconv head transposed self-attention."""

    def __init__(self, dim, num_heads):
        super().__init__()
        self.num_heads = num_heads
        self.temperature = nn.Parameter(torch.ones(num_heads, 1, 1))
        self.qkv = nn.Conv2d(dim, dim * 3, 1, bias=False)
        self.qkv_dwconv = nn.Conv2d(dim * 3, dim * 3, 3, padding=1, groups=dim * 3, bias=False)
        self.project_out = nn.Conv2d(dim, dim, 1, bias=False)

    def forward(self, x):
        b, c, h, w = x.shape
        q, k, v = self.qkv_dwconv(self.qkv(x)).chunk(3, dim=1)
        q, k, v = (t.reshape(b, self.num_heads, c // self.num_heads, h * w) for t in (q, k, v))
        q = F.normalize(q, dim=-1)
        k = F.normalize(k, dim=-1)
        attn = (q @ k.transpose(-2, -1)) * self.temperature
        attn = attn.softmax(dim=-1)
        out = (attn @ v).reshape(b, c, h, w)
        return self.project_out(out)


class TransformerBlock(nn.Module):
    def __init__(self, dim, num_heads, factor):
        super().__init__()
        self.norm1 = LayerNorm(dim)
        self.attn = Attention(dim, num_heads)
        self.norm2 = LayerNorm(dim)
        self.ffn = FeedForward(dim, factor)

    def forward(self, x):
        x = x + self.attn(self.norm1(x))
        return x + self.ffn(self.norm2(x))


def downsample(n):
    return nn.Sequential(nn.Conv2d(n, n // 2, 3, padding=1, bias=False), nn.PixelUnshuffle(2))


def upsample(n):
    return nn.Sequential(nn.Conv2d(n, n * 2, 3, padding=1, bias=False), nn.PixelShuffle(2))


class Restormer(nn.Module):
    def __init__(self, dim, num_blocks, num_refinement_blocks, heads, factor):
        super().__init__()

        def stage(d, n, h):
            return nn.Sequential(*[TransformerBlock(d, h, factor) for _ in range(n)])

        self.patch_embed = nn.Conv2d(3, dim, 3, padding=1, bias=False)
        self.encoder_level1 = stage(dim, num_blocks[0], heads[0])
        self.down1_2 = downsample(dim)
        self.encoder_level2 = stage(dim * 2, num_blocks[1], heads[1])
        self.down2_3 = downsample(dim * 2)
        self.encoder_level3 = stage(dim * 4, num_blocks[2], heads[2])
        self.down3_4 = downsample(dim * 4)
        self.latent = stage(dim * 8, num_blocks[3], heads[3])
        self.up4_3 = upsample(dim * 8)
        self.reduce_chan_level3 = nn.Conv2d(dim * 8, dim * 4, 1, bias=False)
        self.decoder_level3 = stage(dim * 4, num_blocks[2], heads[2])
        self.up3_2 = upsample(dim * 4)
        self.reduce_chan_level2 = nn.Conv2d(dim * 4, dim * 2, 1, bias=False)
        self.decoder_level2 = stage(dim * 2, num_blocks[1], heads[1])
        self.up2_1 = upsample(dim * 2)
        self.decoder_level1 = stage(dim * 2, num_blocks[0], heads[0])
        self.refinement = stage(dim * 2, num_refinement_blocks, heads[0])
        self.output = nn.Conv2d(dim * 2, 3, 3, padding=1, bias=False)

    def forward(self, img):
        e1 = self.encoder_level1(self.patch_embed(img))
        e2 = self.encoder_level2(self.down1_2(e1))
        e3 = self.encoder_level3(self.down2_3(e2))
        latent = self.latent(self.down3_4(e3))
        d3 = self.reduce_chan_level3(torch.cat([self.up4_3(latent), e3], 1))
        d3 = self.decoder_level3(d3)
        d2 = self.reduce_chan_level2(torch.cat([self.up3_2(d3), e2], 1))
        d2 = self.decoder_level2(d2)
        d1 = self.decoder_level1(torch.cat([self.up2_1(d2), e1], 1))
        return self.output(self.refinement(d1)) + img


class DenoisingPatches(Dataset):
    def __init__(self, images=64, size=320, patch=128, sigma=25):
        self.images = torch.rand(images, 3, size, size)
        self.size, self.patch, self.sigma = size, patch, sigma

    def __len__(self):
        return 100000

    def __getitem__(self, index):
        top, left = torch.randint(0, self.size - self.patch, (2,)).tolist()
        gt = self.images[index % len(self.images), :, top : top + self.patch, left : left + self.patch]
        return {"gt": gt, "lq": gt + torch.randn_like(gt) * self.sigma / 255.0}


class ImageCleanModel:
    def __init__(self, opt, device):
        self.opt, self.device = opt, device
        self.net_g = Restormer(factor=opt["ffn_expansion_factor"], **opt["network"]).to(device)
        self.optimizer_g = torch.optim.AdamW(self.net_g.parameters(), lr=opt["lr"], weight_decay=1e-4)
        self.scaler = torch.amp.GradScaler("cuda")
        self.mix = torch.distributions.beta.Beta(torch.tensor(opt["mixup_beta"]), torch.tensor(opt["mixup_beta"]))
        self.net_g.train()

    def update_learning_rate(self, current_iter):
        fraction = 0.5 * (1 + math.cos(math.pi * current_iter / self.opt["total_iter"]))
        for group in self.optimizer_g.param_groups:
            group["lr"] = self.opt["eta_min"] + (self.opt["lr"] - self.opt["eta_min"]) * fraction

    def feed_train_data(self, data):
        self.lq, self.gt = data["lq"].to(self.device), data["gt"].to(self.device)
        lam = self.mix.rsample((1,)).item()
        perm = torch.randperm(self.gt.size(0)).to(self.device)
        self.gt = lam * self.gt + (1 - lam) * self.gt[perm]
        self.lq = lam * self.lq + (1 - lam) * self.lq[perm]

    def optimize_parameters(self):
        self.optimizer_g.zero_grad()
        with torch.autocast("cuda", dtype=torch.float16):
            self.output = self.net_g(self.lq)
        l_pix = F.l1_loss(self.output.float(), self.gt)
        self.scaler.scale(l_pix).backward()
        self.scaler.unscale_(self.optimizer_g)
        torch.nn.utils.clip_grad_norm_(self.net_g.parameters(), self.opt["grad_clip"])
        self.scaler.step(self.optimizer_g)
        self.scaler.update()
        self.log_dict = {"l_pix": l_pix.detach()}


if __name__ == "__main__":
    torch.backends.cudnn.benchmark = True
    dataset = DenoisingPatches(patch=opt["patch"], sigma=opt["sigma"])
    loader = DataLoader(dataset, batch_size=opt["batch"], shuffle=True, num_workers=0, drop_last=True)
    model = ImageCleanModel(opt, torch.device("cuda"))
    data = iter(loader)
    for current_iter in steps():
        model.update_learning_rate(current_iter)
        model.feed_train_data(next(data))
        model.optimize_parameters()
