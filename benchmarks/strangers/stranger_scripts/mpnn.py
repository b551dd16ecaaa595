import random
import torch, torch.nn as nn, torch.nn.functional as F
from tick import steps

K, D, TOKENS = 48, 128, 8000


def gather_nodes(nodes, idx):
    return torch.gather(nodes, 1, idx.flatten(1)[:, :, None].expand(-1, -1, nodes.size(2))).view(*idx.shape, -1)


def cat_neighbours(nodes, edges, idx):
    return torch.cat([edges, gather_nodes(nodes, idx)], -1)


def mlp(i):
    return nn.Sequential(nn.Linear(i, D), nn.GELU(), nn.Linear(D, D), nn.GELU(), nn.Linear(D, D))


class Layer(nn.Module):
    def __init__(self, inputs, edges):
        super().__init__()
        self.message, self.n1, self.n2 = mlp(D + inputs), nn.LayerNorm(D), nn.LayerNorm(D)
        self.ffn = nn.Sequential(nn.Linear(D, 4 * D), nn.GELU(), nn.Linear(4 * D, D))
        self.drop = nn.Dropout(0.1)
        if edges:
            self.edge, self.n3 = mlp(D + inputs), nn.LayerNorm(D)

    def update(self, h, e, mask, mask_attend):
        m = self.message(torch.cat([h[:, :, None].expand(-1, -1, K, -1), e], -1))
        h = self.n1(h + self.drop((m * mask_attend[..., None]).sum(2) / 30))
        return self.n2(h + self.drop(self.ffn(h))) * mask[..., None]

    def forward(self, h, e, idx, mask, mask_attend):
        h = self.update(h, cat_neighbours(h, e, idx), mask, mask_attend)
        full = torch.cat([h[:, :, None].expand(-1, -1, K, -1), cat_neighbours(h, e, idx)], -1)
        return h, self.n3(e + self.drop(self.edge(full)))


class ProteinMPNN(nn.Module):
    def __init__(self):
        super().__init__()
        self.pos, self.edge, self.norm = nn.Embedding(66, 16), nn.Linear(16 + 16 * 16, D, bias=False), nn.LayerNorm(D)
        self.ws, self.out = nn.Embedding(21, D), nn.Linear(D, 21)
        self.encoder = nn.ModuleList(Layer(2 * D, True) for _ in range(3))
        self.decoder = nn.ModuleList(Layer(3 * D, False) for _ in range(3))

    def features(self, x, mask):
        x = x + 0.02 * torch.randn_like(x)
        ca, n = x[:, :, 1], torch.arange(x.size(1), device=x.device)
        d = torch.cdist(ca, ca) + (1 - mask[:, :, None] * mask[:, None, :]) * 1e4
        idx = d.topk(K, -1, largest=False).indices
        near = gather_nodes(x.flatten(2), idx).unflatten(-1, (4, 3))
        dist = ((x[:, :, None, :, None] - near[:, :, :, None]) ** 2).sum(-1).add(1e-6).sqrt().flatten(3)
        rbf = torch.exp(-(((dist[..., None] - torch.linspace(2, 22, 16, device=x.device)) / 1.25) ** 2)).flatten(3)
        return self.norm(self.edge(torch.cat([self.pos((n[:, None] - idx + 32).clamp(0, 64)), rbf], -1))), idx

    def forward(self, x, s, mask):
        e, idx = self.features(x, mask)
        h = torch.zeros(*s.shape, D, device=x.device)
        attend = mask[..., None] * gather_nodes(mask[..., None], idx).squeeze(-1)
        for layer in self.encoder:
            h, e = layer(h, e, idx, mask, attend)
        rank = torch.rand(s.shape, device=x.device).argsort(-1).argsort(-1)
        before = (gather_nodes(rank[..., None], idx) < rank[:, :, None, None]).float()
        es = cat_neighbours(self.ws(s), e, idx)
        fixed = cat_neighbours(h, cat_neighbours(torch.zeros_like(h), e, idx), idx) * (1 - before)
        for layer in self.decoder:
            h = layer.update(h, before * cat_neighbours(h, es, idx) + fixed, mask, attend)
        return F.log_softmax(self.out(h), -1)


model = ProteinMPNN().cuda()
run = torch.compile(model, dynamic=True)
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
scaler = torch.amp.GradScaler("cuda")
for i in steps():
    longest = random.randrange(160, 480)
    lengths = torch.randint(longest * 4 // 5, longest + 1, (TOKENS // longest,))
    lengths[0] = longest
    mask = (torch.arange(longest) < lengths[:, None]).float().cuda()
    x = (torch.randn(len(lengths), longest, 4, 3) * 10).cuda()
    s = torch.randint(0, 20, (len(lengths), longest)).cuda()
    optimizer.zero_grad()
    with torch.autocast("cuda", dtype=torch.float16):
        log_probs = run(x, s, mask)
    loss = (-((F.one_hot(s, 21) + 0.1 / 21) / 1.1 * log_probs).sum(-1) * mask).sum() / 2000
    scaler.scale(loss).backward()
    scaler.step(optimizer)
    scaler.update()
    accuracy = ((log_probs.argmax(-1) == s).float() * mask).sum().item() / mask.sum().item()
