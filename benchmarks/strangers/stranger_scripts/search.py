import torch, torch.nn as nn, torch.nn.functional as F
from tick import steps

enc = (
    nn.Sequential(
        nn.Embedding(30000, 512),
        nn.TransformerEncoder(
            nn.TransformerEncoderLayer(512, 8, 2048, batch_first=True, norm_first=True, activation="gelu"),
            4,
            enable_nested_tensor=False,
        ),
    )
    .to("cuda", torch.bfloat16)
    .eval()
)
proj = nn.Linear(512, 256).to("cuda", torch.bfloat16)
rer = nn.Sequential(nn.Linear(512, 512), nn.ReLU(), nn.Linear(512, 1)).cuda().half()
bank = F.normalize(torch.randn(1 << 20, 256, device="cuda"), dim=-1).half()


@torch.compile
def embed(i):
    return F.normalize(proj(enc(i).mean(1)).float(), dim=-1).half()


@torch.compile
def rerank(q, c):
    return rer(torch.cat([q[:, None].expand_as(c), c], -1)).squeeze(-1)


with torch.inference_mode():
    for i in steps(count=6):
        q = embed(torch.randint(0, 30000, (512, 48), device="cuda"))
        vs, ix = [], []
        for k in range(8):
            s = q @ bank[k << 17 : (k + 1) << 17].t()
            v, j = s.topk(100)
            vs.append(v)
            ix.append(j + (k << 17))
        v, ix = torch.cat(vs, 1), torch.cat(ix, 1)
        v, j = v.topk(100)
        ix = ix.gather(1, j)
        best = rerank(q, bank[ix]).argmax(1)
        ids = ix.gather(1, best[:, None])
