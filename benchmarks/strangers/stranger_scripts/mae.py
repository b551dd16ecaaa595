import torch, torch.nn as nn, torch.nn.functional as F
from tick import steps

B, P, S = 64, 16, 224
N, KEEP = (S // P) ** 2, 49


def layer(d, h):
    return nn.TransformerEncoderLayer(d, h, 4 * d, dropout=0.0, activation="gelu", batch_first=True, norm_first=True)


class MAE(nn.Module):
    def __init__(s):
        super().__init__()
        s.embed = nn.Conv2d(3, 768, P, P)
        s.pos = nn.Parameter(torch.randn(1, N + 1, 768) * 0.02)
        s.cls = nn.Parameter(torch.zeros(1, 1, 768))
        s.enc = nn.ModuleList(layer(768, 12) for _ in range(8))
        s.en = nn.LayerNorm(768)
        s.to_dec = nn.Linear(768, 512)
        s.mask = nn.Parameter(torch.zeros(1, 1, 512))
        s.dpos = nn.Parameter(torch.randn(1, N + 1, 512) * 0.02)
        s.dec = nn.ModuleList(layer(512, 16) for _ in range(4))
        s.dn, s.pred = nn.LayerNorm(512), nn.Linear(512, P * P * 3)

    def forward(s, img):
        x = s.embed(img).flatten(2).transpose(1, 2) + s.pos[:, 1:]
        noise = torch.rand(B, N, device=x.device)
        order = noise.argsort(1)
        restore = order.argsort(1)
        x = x.gather(1, order[:, :KEEP, None].expand(-1, -1, 768))
        x = torch.cat([(s.cls + s.pos[:, :1]).expand(B, -1, -1), x], 1)
        for l in s.enc:
            x = l(x)
        x = s.to_dec(s.en(x))
        full = torch.cat([x[:, 1:], s.mask.expand(B, N - KEEP, -1).to(x.dtype)], 1)
        full = full.gather(1, restore[..., None].expand(-1, -1, 512))
        x = torch.cat([x[:, :1], full], 1) + s.dpos
        for l in s.dec:
            x = l(x)
        pred = s.pred(s.dn(x))[:, 1:]
        target = img.reshape(B, 3, S // P, P, S // P, P).permute(0, 2, 4, 3, 5, 1).reshape(B, N, -1)
        target = (target - target.mean(-1, keepdim=True)) / (target.var(-1, keepdim=True) + 1e-6).sqrt()
        m = (restore >= KEEP).float()
        return (((pred - target) ** 2).mean(-1) * m).sum() / m.sum()


mae = MAE().cuda()
run = torch.compile(mae)
opt = torch.optim.AdamW(mae.parameters(), 1.5e-4, betas=(0.9, 0.95), weight_decay=0.05)
for i in steps():
    img = torch.randn(B, 3, S, S, device="cuda")
    with torch.autocast("cuda", dtype=torch.bfloat16):
        loss = run(img)
    loss.backward()
    opt.step()
    opt.zero_grad()
