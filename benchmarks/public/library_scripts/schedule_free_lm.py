import torch, torch.nn as nn, schedulefree


class LM(nn.Module):
    def __init__(self, v=8000, d=512, n=6):
        super().__init__()
        self.emb, self.pos = nn.Embedding(v, d), nn.Embedding(512, d)
        self.layers = nn.ModuleList(
            [nn.TransformerEncoderLayer(d, 8, 4 * d, 0.1, "gelu", batch_first=True, norm_first=True) for _ in range(n)]
        )
        self.out = nn.Linear(d, v, bias=False)
        self.out.weight = self.emb.weight

    def forward(self, x):
        h = self.emb(x) + self.pos(torch.arange(x.shape[1], device=x.device))
        m = nn.Transformer.generate_square_subsequent_mask(x.shape[1], device=x.device)
        for layer in self.layers:
            h = layer(h, src_mask=m, is_causal=True)
        return self.out(h)


model = torch.compile(LM().cuda())
opt = schedulefree.AdamWScheduleFree(model.parameters(), lr=1e-3, warmup_steps=10)
model.train()
opt.train()
for step in range(300):
    x = torch.randint(0, 8000, (16, 257), device="cuda")
    with torch.autocast("cuda", torch.bfloat16):
        loss = nn.functional.cross_entropy(model(x[:, :-1]).flatten(0, 1), x[:, 1:].flatten())
    loss.backward()
    opt.step()
    opt.zero_grad()
print(loss.item())
