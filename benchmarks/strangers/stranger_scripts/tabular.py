import torch, torch.nn as nn, torch.nn.functional as F
from tick import steps


class FT(nn.Module):
    def __init__(s, d=192, h=8, L=3):
        super().__init__()
        s.w, s.b = nn.Parameter(torch.randn(40, d) * 0.1), nn.Parameter(torch.zeros(40, d))
        s.e = nn.Embedding(20 * 100, d)
        s.register_buffer("off", torch.arange(20) * 100)
        s.cls = nn.Parameter(torch.zeros(1, 1, d))
        s.enc = nn.ModuleList(
            nn.ModuleDict(
                dict(
                    n1=nn.LayerNorm(d),
                    qkv=nn.Linear(d, 3 * d),
                    o=nn.Linear(d, d),
                    n2=nn.LayerNorm(d),
                    u=nn.Linear(d, 2 * 256),
                    dn=nn.Linear(256, d),
                )
            )
            for _ in range(L)
        )
        s.h, s.head = h, nn.Sequential(nn.LayerNorm(d), nn.ReLU(), nn.Linear(d, 1))

    def forward(s, num, cat):
        x = torch.cat([s.cls.expand(num.size(0), -1, -1), num[..., None] * s.w + s.b, s.e(cat + s.off)], 1)
        for l in s.enc:
            b, t, d = x.shape
            q, k, v = l["qkv"](l["n1"](x)).view(b, t, 3, s.h, d // s.h).permute(2, 0, 3, 1, 4)
            y = F.scaled_dot_product_attention(q, k, v, dropout_p=0.2 if s.training else 0.0)
            x = x + F.dropout(l["o"](y.transpose(1, 2).reshape(b, t, d)), 0.1, s.training)
            a, g = l["u"](l["n2"](x)).chunk(2, -1)
            x = x + l["dn"](F.dropout(a * F.relu(g), 0.1, s.training))
        return s.head(x[:, 0]).squeeze(-1)


m = FT().cuda()
opt = torch.optim.AdamW(m.parameters(), torch.tensor(1e-4), weight_decay=1e-5)


def fwd(num, cat, y):
    with torch.autocast("cuda", torch.bfloat16):
        return F.binary_cross_entropy_with_logits(m(num, cat).float(), y)


f = torch.compile(fwd)


@torch.compile
def opt_step():
    opt.step()


for i in steps():
    num, cat, y = (
        torch.randn(4096, 40, device="cuda"),
        torch.randint(0, 100, (4096, 20), device="cuda"),
        torch.rand(4096, device="cuda").round(),
    )
    f(num, cat, y).backward()
    opt_step()
    opt.zero_grad()
