import copy
import math
import torch
import torch.nn as nn
import torch.nn.functional as F
from transformers import ResNetConfig, ResNetModel
from tick import steps

torch.backends.cuda.matmul.allow_tf32 = True
B, HORIZON, OBS_STEPS, ACTION, STATE, TRAIN_STEPS = 128, 16, 2, 7, 9, 100


def conv_block(i, o, k=5):
    return nn.Sequential(nn.Conv1d(i, o, k, padding=k // 2), nn.GroupNorm(8, o), nn.Mish())


class CondResBlock(nn.Module):
    def __init__(self, i, o, cond):
        super().__init__()
        self.first, self.second = conv_block(i, o), conv_block(o, o)
        self.film = nn.Sequential(nn.Mish(), nn.Linear(cond, 2 * o))
        self.skip = nn.Conv1d(i, o, 1) if i != o else nn.Identity()

    def forward(self, x, cond):
        scale, bias = self.film(cond).unsqueeze(-1).chunk(2, dim=1)
        return self.second(scale * self.first(x) + bias) + self.skip(x)


class ConditionalUnet1D(nn.Module):
    def __init__(self, cond, dims=(256, 512, 1024), step_dim=128):
        super().__init__()
        self.step_dim = step_dim
        self.step = nn.Sequential(nn.Linear(step_dim, 4 * step_dim), nn.Mish(), nn.Linear(4 * step_dim, step_dim))
        c, chain = cond + step_dim, [ACTION, *dims]
        self.downs, self.ups = nn.ModuleList(), nn.ModuleList()
        for n, (i, o) in enumerate(zip(chain, chain[1:])):
            down = nn.Conv1d(o, o, 3, 2, 1) if n < len(dims) - 1 else nn.Identity()
            self.downs.append(nn.ModuleList([CondResBlock(i, o, c), CondResBlock(o, o, c), down]))
        self.mid = nn.ModuleList([CondResBlock(dims[-1], dims[-1], c) for _ in range(2)])
        for i, o in zip(dims[:-1], dims[1:]):
            up = nn.ConvTranspose1d(i, i, 4, 2, 1)
            self.ups.insert(0, nn.ModuleList([CondResBlock(2 * o, i, c), CondResBlock(i, i, c), up]))
        self.final = nn.Sequential(conv_block(dims[0], dims[0]), nn.Conv1d(dims[0], ACTION, 1))

    def forward(self, sample, t, cond):
        freqs = torch.exp(torch.arange(self.step_dim // 2, device=t.device) * -(math.log(10000) / 63))
        angle = t[:, None] * freqs
        cond = torch.cat([self.step(torch.cat([angle.sin(), angle.cos()], -1)), cond], -1)
        x, skips = sample.transpose(1, 2), []
        for a, b, down in self.downs:
            x = b(a(x, cond), cond)
            skips.append(x)
            x = down(x)
        for block in self.mid:
            x = block(x, cond)
        for a, b, up in self.ups:
            x = up(b(a(torch.cat([x, skips.pop()], 1), cond), cond))
        return self.final(x).transpose(1, 2)


encoder = ResNetModel(ResNetConfig(hidden_sizes=[64, 128, 256, 512], depths=[2, 2, 2, 2], layer_type="basic"))
for name, bn in [(n, m) for n, m in encoder.named_modules() if isinstance(m, nn.BatchNorm2d)]:
    encoder.set_submodule(name, nn.GroupNorm(bn.num_features // 16, bn.num_features))
nets = nn.ModuleDict({"vision": encoder, "noise": ConditionalUnet1D((512 + STATE) * OBS_STEPS)}).cuda()
ema = copy.deepcopy(nets).requires_grad_(False)
predict = torch.compile(nets["noise"], mode="reduce-overhead")
grid = (torch.arange(TRAIN_STEPS + 1, device="cuda") / TRAIN_STEPS + 0.008) / 1.008
alpha_bar = (torch.cos(grid * math.pi / 2) ** 2).clamp(1e-4, 1.0)[1:]
opt = torch.optim.AdamW(nets.parameters(), lr=1e-4, betas=(0.95, 0.999), weight_decay=1e-6)
losses = []
for i in steps():
    images = torch.randint(0, 256, (B, OBS_STEPS, 3, 96, 96), device="cuda", dtype=torch.uint8)
    state = torch.randn(B, OBS_STEPS, STATE, device="cuda")
    action = torch.rand(B, HORIZON, ACTION, device="cuda") * 2 - 1
    top, left = torch.randint(0, 13, (2,)).tolist()
    crop = images[..., top : top + 84, left : left + 84].flatten(0, 1).float() / 127.5 - 1
    features = nets["vision"](crop).pooler_output.view(B, OBS_STEPS, -1)
    cond = torch.cat([features, state], -1).flatten(1)
    noise, t = torch.randn_like(action), torch.randint(0, TRAIN_STEPS, (B,), device="cuda")
    a = alpha_bar[t].view(-1, 1, 1)
    noisy = a.sqrt() * action + (1 - a).sqrt() * noise
    loss = F.mse_loss(predict(noisy, t, cond), noise)
    loss.backward()
    opt.step()
    opt.zero_grad()
    decay = min(0.9999, 1 - (1 + i) ** -0.75)
    with torch.no_grad():
        for p, q in zip(ema.parameters(), nets.parameters()):
            p.lerp_(q, 1 - decay)
    losses.append(loss.item())
