import torch, torch.nn as nn, torch.nn.functional as F
from tick import steps


class SASRec(nn.Module):
    def __init__(self, items=500000, d=128, n=100):
        super().__init__()
        self.item, self.pos = nn.Embedding(items, d, padding_idx=0), nn.Embedding(n, d)
        self.drop, self.ln = nn.Dropout(0.2), nn.LayerNorm(d)
        self.layers = nn.ModuleList(nn.TransformerEncoderLayer(d, 2, d * 2, 0.2, batch_first=True) for _ in range(2))

    def forward(self, seq):
        n = seq.shape[1]
        x = self.drop(self.item(seq) * 128**0.5 + self.pos(torch.arange(n, device=seq.device)))
        mask = torch.ones(n, n, dtype=torch.bool, device=seq.device).triu(1)
        for layer in self.layers:
            x = layer(x, src_mask=mask, is_causal=True)
        return self.ln(x)


m = SASRec().cuda()
net = torch.compile(m)
opt = torch.optim.Adam(m.parameters(), 1e-3)
for i in steps():
    seq = torch.randint(1, 500000, (128, 101), device="cuda")
    neg = torch.randint(1, 500000, (128, 100, 64), device="cuda")
    h = net(seq[:, :-1])
    pos = (h * m.item(seq[:, 1:])).sum(-1, keepdim=True)
    negs = torch.einsum("bnd,bnkd->bnk", h, m.item(neg))
    loss = F.cross_entropy(
        torch.cat([pos, negs], -1).flatten(0, 1), torch.zeros(12800, dtype=torch.long, device="cuda")
    )
    opt.zero_grad()
    loss.backward()
    opt.step()
