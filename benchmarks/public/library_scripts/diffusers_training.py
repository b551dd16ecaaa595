import torch, torch.nn.functional as F
from accelerate import Accelerator
from diffusers import UNet2DModel, DDPMScheduler
from diffusers.optimization import get_cosine_schedule_with_warmup
from torchvision import transforms, datasets

model = UNet2DModel(
    sample_size=128,
    in_channels=3,
    out_channels=3,
    layers_per_block=2,
    block_out_channels=(128, 128, 256, 256, 512, 512),
    down_block_types=("DownBlock2D",) * 4 + ("AttnDownBlock2D", "DownBlock2D"),
    up_block_types=("UpBlock2D", "AttnUpBlock2D") + ("UpBlock2D",) * 4,
)
noise_scheduler = DDPMScheduler(num_train_timesteps=1000)
data = datasets.FakeData(
    256, (3, 128, 128), transform=transforms.Compose([transforms.ToTensor(), transforms.Normalize([0.5], [0.5])])
)
loader = torch.utils.data.DataLoader(data, batch_size=16, shuffle=True)
optimizer = torch.optim.AdamW(model.parameters(), lr=0.0001)
sched = get_cosine_schedule_with_warmup(optimizer, 500, 1000)
acc = Accelerator(mixed_precision="fp16", gradient_accumulation_steps=1)
model, optimizer, loader, sched = acc.prepare(model, optimizer, loader, sched)
for epoch in range(3):
    for step, (clean, _) in enumerate(loader):
        noise = torch.randn(clean.shape, device=clean.device)
        t = torch.randint(
            0, noise_scheduler.config.num_train_timesteps, (clean.shape[0],), device=clean.device, dtype=torch.int64
        )
        noisy = noise_scheduler.add_noise(clean, noise, t)
        with acc.accumulate(model):
            pred = model(noisy, t, return_dict=False)[0]
            loss = F.mse_loss(pred, noise)
            acc.backward(loss)
            if acc.sync_gradients:
                acc.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            sched.step()
            optimizer.zero_grad()
        print(loss.detach().item(), sched.get_last_lr()[0])
