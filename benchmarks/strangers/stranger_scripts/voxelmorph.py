import torch, torch.nn as nn, torch.nn.functional as F
from tick import steps

SHAPE = (128, 160, 128)
ENC, DEC = [16, 32, 32, 32], [32, 32, 32, 32, 32, 16, 16]


def conv_block(cin, cout):
    return nn.Sequential(nn.Conv3d(cin, cout, 3, 1, 1), nn.LeakyReLU(0.2))


class Unet(nn.Module):
    def __init__(self):
        super().__init__()
        self.pool = nn.MaxPool3d(2)
        self.upsample = nn.Upsample(scale_factor=2, mode="nearest")
        widths = [2, *ENC]
        self.encoder = nn.ModuleList(conv_block(a, b) for a, b in zip(widths, ENC))
        inputs = [ENC[-1]] + [a + b for a, b in zip(DEC, widths[-2::-1])]
        self.decoder = nn.ModuleList(conv_block(a, b) for a, b in zip(inputs, DEC[:4]))
        inputs = [inputs[4], *DEC[4:]]
        self.remaining = nn.Sequential(*[conv_block(a, b) for a, b in zip(inputs, DEC[4:])])

    def forward(self, x):
        history = [x]
        for layer in self.encoder:
            x = self.pool(layer(x))
            history.append(x)
        x = history.pop()
        for layer in self.decoder:
            x = torch.cat([self.upsample(layer(x)), history.pop()], dim=1)
        return self.remaining(x)


class SpatialTransformer(nn.Module):
    def __init__(self, size):
        super().__init__()
        grid = torch.stack(torch.meshgrid([torch.arange(s) for s in size], indexing="ij"))
        self.register_buffer("grid", grid[None].float(), persistent=False)

    def forward(self, src, flow):
        locs = self.grid + flow
        shape = flow.shape[2:]
        for i in range(len(shape)):
            locs[:, i, ...] = 2 * (locs[:, i, ...] / (shape[i] - 1) - 0.5)
        locs = locs.permute(0, 2, 3, 4, 1)[..., [2, 1, 0]]
        return F.grid_sample(src, locs, align_corners=True, mode="bilinear")


class VxmDense(nn.Module):
    def __init__(self, int_steps=7):
        super().__init__()
        self.unet, self.int_steps = Unet(), int_steps
        self.flow = nn.Conv3d(DEC[-1], 3, 3, padding=1)
        nn.init.normal_(self.flow.weight, 0, 1e-5)
        self.integrate = SpatialTransformer([s // 2 for s in SHAPE])
        self.transformer = SpatialTransformer(SHAPE)

    def forward(self, source, target):
        flow = self.flow(self.unet(torch.cat([source, target], dim=1)))
        pos = 0.5 * F.interpolate(flow, scale_factor=0.5, mode="trilinear", align_corners=True)
        vec = pos / 2**self.int_steps
        for _ in range(self.int_steps):
            vec = vec + self.integrate(vec, vec)
        vec = F.interpolate(2 * vec, scale_factor=2, mode="trilinear", align_corners=True)
        return self.transformer(source, vec), pos


def ncc(I, J, win=9):
    filt = torch.ones(1, 1, win, win, win, device=I.device)
    sums = [F.conv3d(v, filt, padding=win // 2) for v in (I, J, I * I, J * J, I * J)]
    n = win**3
    u_I, u_J = sums[0] / n, sums[1] / n
    cross = sums[4] - u_J * sums[0] - u_I * sums[1] + u_I * u_J * n
    I_var = sums[2] - 2 * u_I * sums[0] + u_I * u_I * n
    J_var = sums[3] - 2 * u_J * sums[1] + u_J * u_J * n
    return -torch.mean(cross * cross / (I_var * J_var + 1e-5))


def grad_loss(v):
    return sum(torch.mean(torch.diff(v, dim=d) ** 2) for d in (2, 3, 4)) / 3


model = VxmDense().cuda()
optimizer = torch.optim.Adam(model.parameters(), lr=1e-4)
scans = [torch.rand(1, 1, *SHAPE) for _ in range(4)]
history = []
for step in steps(count=6):
    moving, fixed = scans[step % 4].to("cuda"), scans[(step + 1) % 4].to("cuda")
    moved, flow = model(moving, fixed)
    loss = ncc(fixed, moved) + 0.01 * grad_loss(flow)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    history.append(loss.item())
