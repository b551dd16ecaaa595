import torch
from diffusers import DDPMPipeline, UNet2DModel, DDIMScheduler

unet = UNet2DModel(
    sample_size=64,
    in_channels=3,
    out_channels=3,
    layers_per_block=2,
    block_out_channels=(128, 256, 256, 512),
    down_block_types=("DownBlock2D", "DownBlock2D", "AttnDownBlock2D", "DownBlock2D"),
    up_block_types=("UpBlock2D", "AttnUpBlock2D", "UpBlock2D", "UpBlock2D"),
).to("cuda", torch.float16)
scheduler = DDIMScheduler(num_train_timesteps=1000)
scheduler.set_timesteps(50)
g = torch.Generator("cuda").manual_seed(0)
sample = torch.randn(8, 3, 64, 64, generator=g, device="cuda", dtype=torch.float16)
with torch.no_grad():
    for t in scheduler.timesteps:
        noise = unet(sample, t).sample
        sample = scheduler.step(noise, t, sample).prev_sample
print(sample.float().abs().mean().item())
