"""Kinds of networks."""

from __future__ import annotations

from benchmarks.capture.step_programs.pieces import BLOCK, MLP

PROGRAMS: dict[str, str] = {
    "lstm by hand": """
class Cell(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.gates = nn.Linear(2 * width, 4 * width)
    def forward(self, x, h, c):
        i, f, g, o = self.gates(torch.cat([x, h], -1)).chunk(4, -1)
        c = f.sigmoid() * c + i.sigmoid() * g.tanh()
        return o.sigmoid() * c.tanh(), c
width, vocabulary, length, batch = 64, 200, 12, 16
embed, cell, head = nn.Embedding(vocabulary, width), Cell(width), nn.Linear(width, vocabulary)
compiled = torch.compile(cell)
parameters = [*embed.parameters(), *cell.parameters(), *head.parameters()]
optimizer = torch.optim.SGD(parameters, lr=0.1, momentum=0.9)
for step in range(steps):
    tokens = torch.randint(0, vocabulary, (batch, length + 1))
    h = c = torch.zeros(batch, width)
    loss = 0
    for at in range(length):
        h, c = compiled(embed(tokens[:, at]), h, c)
        loss = loss + F.cross_entropy(head(h), tokens[:, at + 1])
    optimizer.zero_grad()
    loss.backward()
    nn.utils.clip_grad_norm_(parameters, 1.0)
    optimizer.step()
    tick()
print(f"{loss.item():.3f}")
""",
    "nn.LSTM": """
class Tagger(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(100, 32)
        self.lstm = nn.LSTM(32, 48, num_layers=2, batch_first=True, bidirectional=True)
        self.head = nn.Sequential(nn.Linear(96, 64), nn.ReLU(), nn.Linear(64, 9))
    def forward(self, tokens):
        return self.head(self.lstm(self.embed(tokens))[0])
model = Tagger()
compiled = torch.compile(model)
optimizer = torch.optim.Adam(model.parameters())
for step in range(steps):
    tokens, tags = torch.randint(0, 100, (8, 20)), torch.randint(0, 9, (8, 20))
    loss = F.cross_entropy(compiled(tokens).flatten(0, 1), tags.flatten())
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    tick()
print(f"{loss.item():.3f}")
""",
    "u-net under autocast": """
def double(a, b):
    return nn.Sequential(nn.Conv2d(a, b, 3, padding=1), nn.GroupNorm(4, b), nn.SiLU(), nn.Conv2d(b, b, 3, padding=1))
class UNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b, self.c = double(1, 8), double(8, 16), double(16, 32)
        self.up_b, self.up_a = nn.ConvTranspose2d(32, 16, 2, 2), nn.ConvTranspose2d(16, 8, 2, 2)
        self.of_b, self.of_a = double(32, 16), double(16, 8)
        self.head = nn.Conv2d(8, 2, 1)
    def forward(self, x):
        a = self.a(x)
        b = self.b(F.max_pool2d(a, 2))
        c = self.c(F.max_pool2d(b, 2))
        b = self.of_b(torch.cat([self.up_b(c), b], 1))
        return self.head(self.of_a(torch.cat([self.up_a(b), a], 1)))
model = UNet().to(memory_format=torch.channels_last)
compiled = torch.compile(model)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
for step in range(steps):
    images = torch.randn(2, 1, 32, 32).contiguous(memory_format=torch.channels_last)
    masks = (images[:, 0] > 0).long()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        logits = compiled(images)
        loss = F.cross_entropy(logits.float(), masks)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    tick()
print(f"{loss.item():.1f}")
""",
    "image model": """
class Mix(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.depthwise, self.norm = nn.Conv2d(width, width, 7, padding=3, groups=width), nn.LayerNorm(width)
        self.wide, self.narrow = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
        self.scale = nn.Parameter(torch.full((width,), 1e-2))
    def forward(self, x):
        y = self.norm(self.depthwise(x).permute(0, 2, 3, 1))
        return x + (self.scale * self.narrow(F.gelu(self.wide(y)))).permute(0, 3, 1, 2)
model = nn.Sequential(nn.Conv2d(3, 24, 4, 4), Mix(24), Mix(24), nn.Conv2d(24, 48, 2, 2), Mix(48),
                      nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.LayerNorm(48), nn.Linear(48, 10))
decay, rest = ([p for p in model.parameters() if (p.ndim > 1) == large] for large in (True, False))
optimizer = torch.optim.AdamW([{"params": decay}, {"params": rest, "weight_decay": 0.0}], lr=1e-3)
warm = torch.optim.lr_scheduler.LinearLR(optimizer, 0.1, total_iters=5)
compiled = torch.compile(model)
for step in range(steps):
    x, y = torch.randn(4, 3, 32, 32), F.one_hot(torch.randint(0, 10, (4,)), 10).float()
    share = torch.distributions.Beta(0.8, 0.8).sample()
    x, y = share * x + (1 - share) * x.flip(0), share * y + (1 - share) * y.flip(0)
    loss = F.cross_entropy(compiled(x), y, label_smoothing=0.1)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    warm.step()
    tick()
print(f"{loss.item():.3f}")
""",
    "graph network": """
class Convolve(nn.Module):
    def __init__(self, a, b):
        super().__init__()
        self.own, self.other = nn.Linear(a, b), nn.Linear(a, b)
    def forward(self, x, source, target):
        sums = torch.zeros_like(x).index_add(0, target, x[source])
        degree = torch.zeros(len(x)).scatter_add(0, target, torch.ones(len(target)))
        return self.own(x) + self.other(sums / degree.clamp(min=1)[:, None])
class Network(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second, self.head = Convolve(16, 64), Convolve(64, 64), nn.Linear(64, 3)
    def forward(self, x, source, target, graph):
        x = self.second(F.relu(self.first(x, source, target)), source, target)
        return self.head(torch.zeros(8, 64).scatter_reduce(0, graph[:, None].expand_as(x), x, "amax"))
model = Network()
compiled = torch.compile(model)
optimizer = torch.optim.Adam(model.parameters())
graph = torch.arange(160) // 20
for step in range(steps):
    source, target = torch.randint(0, 160, (2, 600))
    loss = F.cross_entropy(compiled(torch.randn(160, 16), source, target, graph), torch.randint(0, 3, (8,)))
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    tick()
print(f"{loss.item():.3f}")
""",
    "a sparse matrix": MLP
    + """
where = torch.randint(0, 200, (2, 1200))
adjacency = torch.sparse_coo_tensor(where, torch.rand(1200), (200, 200)).coalesce()
first, second = mlp(32, 64), mlp(64, 64, 5)
compiled = torch.compile(second)
optimizer = torch.optim.Adam([*first.parameters(), *second.parameters()])
x, y = torch.randn(200, 32), torch.randint(0, 5, (200,))
for step in range(steps):
    hidden = torch.sparse.mm(adjacency, first(x))
    loss = F.cross_entropy(compiled(torch.sparse.mm(adjacency, hidden.relu())), y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    tick()
print(f"{loss.item():.3f}")
""",
    "fourier layers": """
class Spectral(nn.Module):
    def __init__(self, width, modes):
        super().__init__()
        self.modes = modes
        self.weight = nn.Parameter(torch.randn(width, width, modes, dtype=torch.cfloat) / width)
        self.local = nn.Conv1d(width, width, 1)
    def forward(self, x):
        waves = torch.fft.rfft(x)
        mixed = torch.einsum("bim,iom->bom", waves[..., : self.modes], self.weight)
        rest = waves.shape[-1] - self.modes
        return F.gelu(torch.fft.irfft(F.pad(mixed, (0, rest)), n=x.shape[-1]) + self.local(x))
model = nn.Sequential(nn.Conv1d(2, 24, 1), Spectral(24, 8), Spectral(24, 8), nn.Conv1d(24, 1, 1))
compiled = torch.compile(model)
optimizer = torch.optim.Adam(model.parameters(), foreach=False)
for step in range(steps):
    x = torch.randn(8, 2, 64)
    loss = F.mse_loss(compiled(x)[:, 0], x[:, 0].cumsum(-1) / 8)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    tick()
print(f"{loss.item():.3f}")
""",
    "mixture of experts": MLP
    + """
class Experts(nn.Module):
    def __init__(self):
        super().__init__()
        self.gate, self.experts = nn.Linear(32, 4), nn.ModuleList(mlp(32, 64, 32) for _ in range(4))
    def forward(self, x):
        weight, chosen = self.gate(x).softmax(-1).topk(2, -1)
        out = torch.zeros_like(x)
        for number, expert in enumerate(self.experts):
            row, place = torch.where(chosen == number)
            out = out.index_add(0, row, weight[row, place, None] * expert(x[row]))
        return out
model, head = Experts(), nn.Linear(32, 10)
compiled = torch.compile(model)
optimizer = torch.optim.AdamW([*model.parameters(), *head.parameters()])
for step in range(steps):
    x = torch.randn(64, 32)
    loss = F.cross_entropy(head(x + compiled(x)), torch.randint(0, 10, (64,)))
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    tick()
print(f"{loss.item():.3f}")
""",
    "nn.Transformer": """
model = nn.Transformer(32, 4, 2, 2, 64, dropout=0.0, batch_first=True)
source, target, head = nn.Embedding(50, 32), nn.Embedding(50, 32), nn.Linear(32, 50)
compiled = torch.compile(model)
parameters = [p for part in (model, source, target, head) for p in part.parameters()]
optimizer = torch.optim.Adam(parameters, lr=1e-4)
mask = nn.Transformer.generate_square_subsequent_mask(11)
for step in range(steps):
    a, b = torch.randint(0, 50, (4, 16)), torch.randint(0, 50, (4, 12))
    shown = head(compiled(source(a), target(b[:, :-1]), tgt_mask=mask, tgt_is_causal=True))
    loss = F.cross_entropy(shown.flatten(0, 1), b[:, 1:].flatten())
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    tick()
print(f"{loss.item():.3f}")
""",
    "a scripted module beside": MLP
    + """
class Pool(nn.Module):
    def forward(self, x, lengths):
        total = torch.zeros(x.size(0), x.size(2))
        for at in range(x.size(1)):
            total = total + x[:, at] * (at < lengths).to(x.dtype)[:, None]
        return total / lengths[:, None]
embed, pool, head = nn.Embedding(100, 64), torch.jit.script(Pool()), mlp(64, 128, 2)
compiled = torch.compile(head)
optimizer = torch.optim.Adam([*embed.parameters(), *head.parameters()])
for step in range(steps):
    tokens, lengths = torch.randint(0, 100, (16, 6)), torch.randint(1, 7, (16,))
    loss = F.cross_entropy(compiled(pool(embed(tokens), lengths)), torch.randint(0, 2, (16,)))
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    tick()
print(f"{loss.item():.3f}")
""",
    "prints in the model": """
class Chatty(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(64, 64) for _ in range(4))
    def forward(self, x):
        for number, layer in enumerate(self.layers):
            x = torch.relu(layer(x))
            print("layer", number, tuple(x.shape))
        if x.mean().item() > 1e6:
            x = x / 2
        return x
model = Chatty()
compiled = torch.compile(model)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for step in range(steps):
    loss = compiled(torch.randn(32, 64)).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    tick()
print(f"{loss.item():.3f}")
""",
    "jagged tensors": """
class Attend(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.heads, self.norm, self.out = heads, nn.LayerNorm(width), nn.Linear(width, width)
        self.parts = nn.ModuleList(nn.Linear(width, width) for _ in range(3))
    def forward(self, x):
        x = self.norm(x)
        q, k, v = (part(x).unflatten(-1, [self.heads, -1]).transpose(1, 2) for part in self.parts)
        return x + self.out(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(-2))
embed, layer, head = nn.Embedding(64, 32), Attend(32, 4), nn.Linear(32, 5)
tell = torch.compile(head)
optimizer = torch.optim.AdamW([*embed.parameters(), *layer.parameters(), *head.parameters()])
for step in range(steps):
    rows = [torch.randint(0, 64, (length,)) for length in (5, 9, 7, 12)]
    tokens = torch.nested.nested_tensor(rows, layout=torch.jagged)
    x = layer(embed(tokens))
    pooled = torch.stack([row.mean(0) for row in x.unbind()])
    loss = F.cross_entropy(tell(pooled), torch.randint(0, 5, (4,)))
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    tick()
print(f"{loss.item():.3f}")
""",
    "several backends": MLP
    + """
first, second, third = mlp(64, 128, 64), mlp(64, 128, 64), mlp(64, 128, 10)
a, b, c = torch.compile(first, backend="aot_eager"), torch.compile(second, backend="eager"), torch.compile(third)
parameters = [p for part in (first, second, third) for p in part.parameters()]
optimizer = torch.optim.Adam(parameters)
for step in range(steps):
    x, y = torch.randn(32, 64), torch.randint(0, 10, (32,))
    loss = F.cross_entropy(c(b(a(x))), y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    with torch.no_grad(), torch.compiler.set_stance("force_eager"):
        right = (c(b(a(x))).argmax(-1) == y).float().mean()
    tick()
print(f"{loss.item():.3f} {right.item() <= 1}")
""",
    "an exported program, tuned": MLP
    + """
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed, self.body = nn.Embedding(50, 16), mlp(48, 128, 128, 10)
    def forward(self, tokens, scale):
        return self.body(self.embed(tokens).flatten(1)) * scale
rows = torch.export.Dim("rows", min=2, max=256)
program = torch.export.export(Net(), (torch.randint(0, 50, (8, 3)), torch.ones(())), dynamic_shapes=({0: rows}, None))
model = program.module()
head = nn.Linear(10, 5)
compiled = torch.compile(model)
optimizer = torch.optim.SGD([*model.parameters(), *head.parameters()], lr=0.05, momentum=0.9, nesterov=True)
scale = torch.tensor(0.5)
for step in range(steps):
    shown = compiled(torch.randint(0, 50, (32, 3)), scale)
    loss = F.multi_margin_loss(head(shown), torch.randint(0, 5, (32,)))
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    with torch.no_grad():
        seen = model(torch.randint(0, 50, (16, 3)), scale)
    tick()
print(f"{loss.item():.3f} {tuple(seen.shape)}")
""",
    "layers dropped at random": BLOCK
    + """
import random
random.seed(0)
blocks, head = nn.ModuleList(Block(32, 4) for _ in range(4)), nn.Linear(32, 8)
for block in blocks: block.compile()
optimizer = torch.optim.AdamW([*blocks.parameters(), *head.parameters()])
for step in range(steps):
    x, passed = torch.randn(4, 16, 32), 0
    for block in blocks:
        if random.random() < 0.8:
            x, passed = block(x), passed + 1
    loss = F.cross_entropy(head(x.mean(1)), torch.randint(0, 8, (4,)))
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    tick(f"{passed} blocks")
print(f"{loss.item():.2f}")
""",
    "detection, boxes sorted afterwards": """
model = nn.Sequential(nn.Conv2d(3, 16, 3, 2, 1), nn.BatchNorm2d(16), nn.ReLU(), nn.Conv2d(16, 32, 3, 2, 1), nn.ReLU(),
                      nn.Conv2d(32, 5, 1)).eval()
compiled = torch.compile(model)
def keep(boxes, scores):
    order, kept = scores.argsort(descending=True)[:6], []
    while len(order):
        best, order = order[0], order[1:]
        kept.append(best.item())
        low, high = torch.maximum(boxes[best, :2], boxes[order, :2]), torch.minimum(boxes[best, 2:], boxes[order, 2:])
        order = order[(high - low).clamp(min=0).prod(1) < 0.2]
    return kept
with torch.inference_mode():
    for step in range(steps):
        found = compiled(torch.randn(1, 3, 64, 64))[0].flatten(1).T
        corner = found[:, :2].sigmoid()
        kept = keep(torch.cat([corner, corner + found[:, 2:4].sigmoid()], 1), found[:, 4])
        tick()
print(len(kept) > 0)
""",
    "a model of many inputs at inference": MLP
    + """
model, ranker = mlp(32, 256, 64).eval(), mlp(64, 32, 1).eval()
embed, rank = torch.compile(model), torch.compile(ranker)
items = torch.randn(1000, 64)
with torch.no_grad():
    for step in range(steps):
        user = embed(torch.randn(1, 32))
        best = (items @ user[0]).topk(64).indices
        order = rank(items[best] * user)[:, 0].argsort()
        tick()
print(tuple(order.shape))
""",
}
