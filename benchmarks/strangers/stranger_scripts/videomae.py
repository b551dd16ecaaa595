import math
import numpy as np
import torch
from torch.utils.data import DataLoader, Dataset
from transformers import VideoMAEConfig, VideoMAEForPreTraining
from tick import steps

torch.backends.cuda.matmul.allow_tf32 = True


class TubeMaskingGenerator:
    def __init__(self, frames=8, size=14, ratio=0.9):
        self.frames, self.patches = frames, size * size
        self.masked = int(ratio * self.patches)

    def __call__(self):
        mask = np.hstack([np.zeros(self.patches - self.masked), np.ones(self.masked)])
        np.random.shuffle(mask)
        return np.tile(mask, (self.frames, 1)).flatten()


class Clips(Dataset):
    def __init__(self):
        self.video = torch.randint(0, 256, (8, 48, 3, 240, 320), dtype=torch.uint8)
        self.mask = TubeMaskingGenerator()

    def __len__(self):
        return 16384

    def __getitem__(self, idx):
        t, y, x = np.random.randint(16), np.random.randint(16), np.random.randint(96)
        clip = self.video[idx % 8, t : t + 32 : 2, :, y : y + 224, x : x + 224]
        return clip, torch.from_numpy(self.mask()).bool()


config = VideoMAEConfig(
    hidden_size=768,
    num_hidden_layers=8,
    num_attention_heads=12,
    intermediate_size=3072,
    decoder_hidden_size=384,
    decoder_num_attention_heads=6,
    decoder_num_hidden_layers=4,
    decoder_intermediate_size=1536,
    norm_pix_loss=True,
)
model = VideoMAEForPreTraining(config).cuda()
compiled = torch.compile(model)
decay = [p for p in model.parameters() if p.ndim > 1]
no_decay = [p for p in model.parameters() if p.ndim <= 1]
optimizer = torch.optim.AdamW(
    [{"params": decay, "weight_decay": 0.05}, {"params": no_decay, "weight_decay": 0.0}], lr=1.5e-4, betas=(0.9, 0.95)
)
mean = torch.tensor([0.485, 0.456, 0.406], device="cuda").view(1, 1, 3, 1, 1)
std = torch.tensor([0.229, 0.224, 0.225], device="cuda").view(1, 1, 3, 1, 1)
loader = iter(DataLoader(Clips(), batch_size=40, num_workers=8, pin_memory=True, drop_last=True, shuffle=True))
for step in steps():
    for group in optimizer.param_groups:
        group["lr"] = 1.5e-4 * 0.5 * (1 + math.cos(math.pi * step / 1000))
    video, mask = next(loader)
    video = video.cuda(non_blocking=True)
    mask = mask.cuda(non_blocking=True)
    video = (video.float() / 255 - mean) / std
    with torch.autocast("cuda", dtype=torch.bfloat16):
        loss = compiled(video, bool_masked_pos=mask).loss
    if not math.isfinite(loss.item()):
        break
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
