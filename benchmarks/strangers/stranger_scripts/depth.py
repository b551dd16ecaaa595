import timm, torch, torch.nn as nn, torch.nn.functional as F
from tick import steps

torch.set_float32_matmul_precision("high")


class Depth(nn.Module):
    def __init__(self):
        super().__init__()
        self.enc = timm.create_model("vit_small_patch16_224", img_size=320, num_classes=0)
        self.p = nn.ModuleList(nn.Conv2d(384, 128, 1) for _ in range(3))
        self.f = nn.ModuleList(
            nn.Sequential(nn.Conv2d(128, 128, 3, padding=1), nn.GroupNorm(16, 128), nn.ReLU()) for _ in range(3)
        )
        self.out = nn.Sequential(nn.Conv2d(128, 64, 3, padding=1), nn.ReLU(), nn.Conv2d(64, 1, 1), nn.Softplus())

    def forward(self, x):
        fs = self.enc.forward_intermediates(x, indices=[3, 7, 11], intermediates_only=True)
        y = 0
        for f, p, c in zip(reversed(fs), self.p, self.f):
            y = c(p(f) + y)
        y = F.interpolate(y, scale_factor=4, mode="bilinear", align_corners=True)
        return F.interpolate(self.out(y), size=x.shape[-2:], mode="bilinear", align_corners=True)


m = Depth().cuda()
net = torch.compile(m, mode="reduce-overhead")
opt = torch.optim.AdamW(m.parameters(), 1e-4, fused=True)
for i in steps():
    x, d = torch.randn(16, 3, 320, 320, device="cuda"), torch.rand(16, 1, 320, 320, device="cuda") + 0.1
    with torch.autocast("cuda", torch.bfloat16):
        y = net(x)
    g = torch.log(y.float() + 1e-3) - torch.log(d)
    loss = (g.square().mean() - 0.5 * g.mean() ** 2).sqrt()
    opt.zero_grad()
    loss.backward()
    opt.step()
