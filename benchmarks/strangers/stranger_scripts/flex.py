import torch, torch.nn as nn, torch.nn.functional as F
from torch.nn.attention.flex_attention import flex_attention, create_block_mask
from tick import steps

B, T, D, H, L, W, V = 4, 4096, 1024, 16, 6, 512, 32000
slopes = torch.exp2(-torch.arange(1, H + 1, device="cuda") * 0.5)


def mask_mod(b, h, q, k):
    return (q >= k) & (q - k < W)


def alibi(score, b, h, q, k):
    return score + slopes[h] * (k - q)


block_mask = create_block_mask(mask_mod, None, None, T, T, device="cuda")


class Blk(nn.Module):
    def __init__(s):
        super().__init__()
        s.n1, s.n2, s.qkv, s.o = nn.LayerNorm(D), nn.LayerNorm(D), nn.Linear(D, 3 * D), nn.Linear(D, D)
        s.m = nn.Sequential(nn.Linear(D, 4 * D), nn.GELU(), nn.Linear(4 * D, D))

    def forward(s, x):
        q, k, v = s.qkv(s.n1(x)).view(B, T, 3, H, D // H).permute(2, 0, 3, 1, 4).unbind(0)
        y = flex_attention(q, k, v, score_mod=alibi, block_mask=block_mask)
        x = x + s.o(y.transpose(1, 2).reshape(B, T, D))
        return x + s.m(s.n2(x))


class M(nn.Module):
    def __init__(s):
        super().__init__()
        s.e, s.b, s.n, s.h = (
            nn.Embedding(V, D),
            nn.Sequential(*[Blk() for _ in range(L)]),
            nn.LayerNorm(D),
            nn.Linear(D, V, bias=False),
        )

    def forward(s, x):
        return s.h(s.n(s.b(s.e(x))))


m = M().cuda()
c = torch.compile(m)
o = torch.optim.AdamW(m.parameters(), 3e-4, fused=True)
for i in steps():
    x = torch.randint(0, V, (B, T + 1), device="cuda")
    with torch.autocast("cuda", torch.bfloat16):
        loss = F.cross_entropy(c(x[:, :-1]).view(-1, V).float(), x[:, 1:].reshape(-1))
    loss.backward()
    o.step()
    o.zero_grad(set_to_none=True)
