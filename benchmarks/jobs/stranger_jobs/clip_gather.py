"""CLIP of transformers: image and text features of all ranks gathered with their gradients, DDP, autocast."""

import os

import torch
import torch.distributed as dist
import torch.distributed.nn
import torch.nn as nn
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel as DDP
from tock import steps
from transformers import CLIPConfig, CLIPTextModelWithProjection, CLIPVisionModelWithProjection

BATCH, CONTEXT, EMBED = 160, 77, 512


class CLIP(nn.Module):
    def __init__(self):
        super().__init__()
        config = CLIPConfig(
            projection_dim=EMBED,
            text_config={"hidden_size": 512, "num_hidden_layers": 12, "num_attention_heads": 8, "vocab_size": 49408},
            vision_config={"hidden_size": 768, "num_hidden_layers": 12, "image_size": 224, "patch_size": 16},
        )
        config.text_config.projection_dim = config.vision_config.projection_dim = EMBED
        self.visual = CLIPVisionModelWithProjection(config.vision_config)
        self.text = CLIPTextModelWithProjection(config.text_config)
        self.logit_scale = nn.Parameter(torch.tensor(2.6593))

    def forward(self, images, texts):
        image_features = F.normalize(self.visual(pixel_values=images).image_embeds, dim=-1)
        text_features = F.normalize(self.text(input_ids=texts).text_embeds, dim=-1)
        return image_features, text_features, self.logit_scale.exp()


class ClipLoss(nn.Module):
    def __init__(self, rank, world_size):
        super().__init__()
        self.rank, self.world_size = rank, world_size

    def forward(self, image_features, text_features, logit_scale):
        all_images = torch.cat(torch.distributed.nn.all_gather(image_features), dim=0)
        all_texts = torch.cat(torch.distributed.nn.all_gather(text_features), dim=0)
        per_image = logit_scale * image_features @ all_texts.T
        per_text = logit_scale * text_features @ all_images.T
        n = per_image.shape[0]
        labels = torch.arange(n, device=per_image.device) + n * self.rank
        return (F.cross_entropy(per_image, labels) + F.cross_entropy(per_text, labels)) / 2


def main():
    local_rank = int(os.environ["LOCAL_RANK"])
    torch.cuda.set_device(local_rank)
    dist.init_process_group("nccl")
    torch.manual_seed(dist.get_rank())
    torch.backends.cuda.matmul.allow_tf32 = True
    model = CLIP().cuda()
    model = DDP(model, device_ids=[local_rank])
    criterion = ClipLoss(dist.get_rank(), dist.get_world_size())
    exclude = lambda n, p: p.ndim < 2 or "norm" in n or "logit_scale" in n
    named = list(model.named_parameters())
    optimizer = torch.optim.AdamW(
        [
            {"params": [p for n, p in named if exclude(n, p)], "weight_decay": 0.0},
            {"params": [p for n, p in named if not exclude(n, p)], "weight_decay": 0.2},
        ],
        lr=5e-4,
        betas=(0.9, 0.98),
        eps=1e-6,
    )
    model.train()
    for _ in steps():
        images = torch.randn(BATCH, 3, 224, 224, device="cuda")
        texts = torch.randint(1, 49405, (BATCH, CONTEXT), device="cuda")
        texts[:, -1] = 49407
        optimizer.zero_grad()
        with torch.autocast("cuda", dtype=torch.bfloat16):
            image_features, text_features, logit_scale = model(images, texts)
            loss = criterion(image_features, text_features, logit_scale)
        loss.backward()
        optimizer.step()
        with torch.no_grad():
            model.module.logit_scale.clamp_(0, 4.6052)


if __name__ == "__main__":
    main()
