import torch, torch.nn as nn
from tick import steps


class PatchTST(nn.Module):
    def __init__(self, d=128, p=16, s=8, n=42):
        super().__init__()
        self.p, self.s = p, s
        self.emb, self.pos = nn.Linear(p, d), nn.Parameter(torch.zeros(n, d))
        layer = nn.TransformerEncoderLayer(d, 8, 256, 0.2, "gelu", batch_first=True, norm_first=True)
        self.enc = nn.TransformerEncoder(layer, 3, enable_nested_tensor=False)
        self.head = nn.Sequential(nn.Flatten(-2), nn.Dropout(0.1), nn.Linear(n * d, 96))

    def forward(self, x):
        mu, sd = x.mean(1, keepdim=True), x.std(1, keepdim=True) + 1e-5
        z = ((x - mu) / sd).transpose(1, 2)
        z = nn.functional.pad(z, (0, self.s), mode="replicate").unfold(-1, self.p, self.s)
        b, c = z.shape[:2]
        h = self.enc((self.emb(z) + self.pos).flatten(0, 1))
        return self.head(h.view(b, c, *h.shape[1:])).transpose(1, 2) * sd + mu


m = PatchTST().cuda()
c = torch.compile(m)
opt = torch.optim.Adam(m.parameters(), 1e-4)
data = torch.randn(20000, 64).pin_memory()
for i in steps():
    at = torch.randint(0, 19000, (32,)).tolist()
    x = torch.stack([data[j : j + 336] for j in at]).cuda(non_blocking=True)
    y = torch.stack([data[j + 336 : j + 432] for j in at]).cuda(non_blocking=True)
    loss = nn.functional.huber_loss(c(x), y)
    opt.zero_grad()
    loss.backward()
    opt.step()
