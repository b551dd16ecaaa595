import torch, torch.nn as nn, torch.nn.functional as F
from tick import steps

B, D, H, L, V, MAXT = 8, 2048, 16, 8, 32000, 1024


class Attn(nn.Module):
    def __init__(s):
        super().__init__()
        s.wqkv, s.wo = nn.Linear(D, 3 * D, bias=False), nn.Linear(D, D, bias=False)
        s.register_buffer("k", torch.zeros(B, H, MAXT, D // H))
        s.register_buffer("v", torch.zeros(B, H, MAXT, D // H))

    def forward(s, x, pos, mask):
        q, k, v = s.wqkv(x).view(B, 1, 3, H, D // H).permute(2, 0, 3, 1, 4)
        s.k[:, :, pos] = k
        s.v[:, :, pos] = v
        y = F.scaled_dot_product_attention(q, s.k, s.v, attn_mask=mask)
        return s.wo(y.transpose(1, 2).reshape(B, 1, D))


class GPT(nn.Module):
    def __init__(s):
        super().__init__()
        s.e = nn.Embedding(V, D)
        s.a, s.n1, s.n2 = (
            nn.ModuleList(Attn() for _ in range(L)),
            nn.ModuleList(nn.RMSNorm(D) for _ in range(L)),
            nn.ModuleList(nn.RMSNorm(D) for _ in range(L)),
        )
        s.w1, s.w2 = (
            nn.ModuleList(nn.Linear(D, 2 * 5504, bias=False) for _ in range(L)),
            nn.ModuleList(nn.Linear(5504, D, bias=False) for _ in range(L)),
        )
        s.n, s.h = nn.RMSNorm(D), nn.Linear(D, V, bias=False)
        s.register_buffer("mask", torch.tril(torch.ones(MAXT, MAXT, dtype=torch.bool)))

    def forward(s, idx, pos):
        x, mask = s.e(idx), s.mask[None, None, pos]
        for a, n1, n2, w1, w2 in zip(s.a, s.n1, s.n2, s.w1, s.w2):
            x = x + a(n1(x), pos, mask)
            g, u = w1(n2(x)).chunk(2, -1)
            x = x + w2(F.silu(g) * u)
        return s.h(s.n(x))


m = GPT().to("cuda", torch.bfloat16).eval()


def sample(logits, k=50):
    v, _ = torch.topk(logits, k)
    logits = torch.where(logits < v[:, -1:], -float("inf"), logits)
    p = logits.softmax(-1)
    return (p / torch.empty_like(p).exponential_(1)).argmax(-1, keepdim=True).int()


@torch.compile(mode="reduce-overhead", fullgraph=True)
def decode_one(tok, pos):
    return sample(m(tok, pos)[:, -1].float())


with torch.inference_mode():
    for i in steps(count=8):
        tok = torch.zeros(B, 1, dtype=torch.int, device="cuda")
        pos = torch.tensor([100], device="cuda")
        out = []
        for _ in range(16):
            tok = decode_one(tok, pos).clone()
            out.append(tok)
            pos = pos + 1
        seq = torch.cat(out, 1)
