import torch, torch.nn as nn, torch.nn.functional as F
from tick import steps

torch.set_float32_matmul_precision("high")
VARIABLES, H, W, PATCH, D, BLOCKS, DEPTH, BATCH = 20, 360, 720, 8, 768, 8, 12, 3


class AFNO2D(nn.Module):
    def __init__(self, keep=1.0, sparsity=0.01):
        super().__init__()
        size = D // BLOCKS
        self.sparsity, self.keep = sparsity, keep
        self.w1 = nn.Parameter(0.02 * torch.randn(BLOCKS, size, size, dtype=torch.cfloat))
        self.b1 = nn.Parameter(0.02 * torch.randn(BLOCKS, size, dtype=torch.cfloat))
        self.w2 = nn.Parameter(0.02 * torch.randn(BLOCKS, size, size, dtype=torch.cfloat))
        self.b2 = nn.Parameter(0.02 * torch.randn(BLOCKS, size, dtype=torch.cfloat))

    @torch.compiler.disable
    def forward(self, x):
        b, h, w, d = x.shape
        z = torch.fft.rfft2(x.float(), dim=(1, 2), norm="ortho")
        z = z.view(b, h, w // 2 + 1, BLOCKS, d // BLOCKS)
        z = torch.einsum("bhwki,kio->bhwko", z, self.w1) + self.b1
        z = torch.complex(F.relu(z.real), F.relu(z.imag))
        z = torch.einsum("bhwki,kio->bhwko", z, self.w2) + self.b2
        z = torch.view_as_complex(F.softshrink(torch.view_as_real(z), self.sparsity))
        y = torch.fft.irfft2(z.reshape(b, h, w // 2 + 1, d), s=(h, w), dim=(1, 2), norm="ortho")
        return y.to(x.dtype) + x


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(D, eps=1e-6), nn.LayerNorm(D, eps=1e-6)
        self.filter = AFNO2D()
        self.mlp = nn.Sequential(nn.Linear(D, 4 * D), nn.GELU(), nn.Linear(4 * D, D))

    def forward(self, x):
        y = x + self.filter(self.norm1(x))
        y = self.mlp(self.norm2(y))
        return y + x


class AFNONet(nn.Module):
    def __init__(self):
        super().__init__()
        self.h, self.w = H // PATCH, W // PATCH
        self.patch = nn.Conv2d(VARIABLES, D, PATCH, PATCH)
        self.pos = nn.Parameter(torch.zeros(1, self.h, self.w, D))
        self.blocks = nn.ModuleList(Block() for _ in range(DEPTH))
        self.head = nn.Linear(D, VARIABLES * PATCH**2, bias=False)
        nn.init.trunc_normal_(self.pos, std=0.02)

    def forward(self, x):
        x = self.patch(x).permute(0, 2, 3, 1) + self.pos
        for block in self.blocks:
            x = block(x)
        x = self.head(x).view(-1, self.h, self.w, PATCH, PATCH, VARIABLES)
        return x.permute(0, 5, 1, 3, 2, 4).reshape(-1, VARIABLES, H, W)


model = AFNONet().cuda()
for block in model.blocks:
    block.compile()
latitude = torch.linspace(90, -90, H, device="cuda").deg2rad().cos()
weight = (latitude / latitude.mean())[None, None, :, None]
optimizer = torch.optim.AdamW(model.parameters(), lr=5e-4, betas=(0.9, 0.95))
scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=1000)
for i in steps():
    state = torch.randn(BATCH, VARIABLES, H, W, device="cuda")
    targets = [torch.randn(BATCH, VARIABLES, H, W, device="cuda") for _ in range(2)]
    optimizer.zero_grad()
    loss = 0
    for target in targets:
        state = model(state)
        loss = loss + (weight * (state - target) ** 2).mean()
    loss.backward()
    optimizer.step()
    scheduler.step()
    with torch.no_grad():
        rmse = (weight * (state - targets[-1]) ** 2).mean((2, 3)).sqrt().mean(0).cpu()
