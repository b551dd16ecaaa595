import torch, torch.nn as nn
from vector_quantize_pytorch import VectorQuantize

enc = nn.Sequential(
    nn.Conv2d(1, 32, 3, padding=1), nn.MaxPool2d(2), nn.GELU(), nn.Conv2d(32, 64, 3, padding=1), nn.MaxPool2d(2)
).cuda()
vq = VectorQuantize(dim=64, codebook_size=256, accept_image_fmap=True).cuda()
dec = nn.Sequential(
    nn.Upsample(scale_factor=2),
    nn.Conv2d(64, 32, 3, padding=1),
    nn.GELU(),
    nn.Upsample(scale_factor=2),
    nn.Conv2d(32, 1, 3, padding=1),
).cuda()
opt = torch.optim.AdamW([*enc.parameters(), *vq.parameters(), *dec.parameters()], lr=3e-4)
for i in range(300):
    x = torch.rand(256, 1, 28, 28, device="cuda")
    z, idx, cmt = vq(enc(x))
    out = dec(z).clamp(-1, 1)
    loss = (out - x).abs().mean() + 10 * cmt.mean()
    opt.zero_grad()
    loss.backward()
    opt.step()
    if i % 10 == 0:
        print(loss.item(), idx.unique().numel() / 256 * 100)
