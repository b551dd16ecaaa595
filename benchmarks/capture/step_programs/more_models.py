"""Networks and their parts, written by themes of the manuals: sequences, images, quantized and sparse ones, algebra."""

from __future__ import annotations

from benchmarks.capture.step_programs.pieces import BLOCK, MLP

PROGRAMS: dict[str, str] = {
    "jagged batches, compiled": """
class Tokens(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.embed, self.norm = nn.Embedding(64, width), nn.LayerNorm(width)
        self.feed = nn.Sequential(nn.Linear(width, 2 * width), nn.ReLU(), nn.Linear(2 * width, width))
    def forward(self, tokens):
        x = self.embed(tokens)
        return x + self.feed(self.norm(x))
model, head = Tokens(32), nn.Linear(32, 4)
compiled = torch.compile(model, dynamic=True)
optimizer = torch.optim.AdamW([*model.parameters(), *head.parameters()], lr=1e-3)
for step in range(steps):
    lengths = torch.tensor([5 + (step + 3 * i) % 7 for i in range(7)])
    rows = [torch.randint(0, 64, (int(n),)) for n in lengths]
    features = compiled(torch.nested.nested_tensor(rows, layout=torch.jagged))
    pooled = features.to_padded_tensor(0.0).sum(1) / lengths[:, None]
    loss = F.cross_entropy(head(pooled), torch.randint(0, 4, (7,)))
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    tick()
print(f"{loss.item():.2f}")
""",
    "tuned templates": BLOCK
    + """
model = nn.Sequential(Block(64, 4), Block(64, 4), nn.Linear(64, 96)).eval()
compiled = torch.compile(model, mode="max-autotune-no-cudagraphs")
total = 0.0
with torch.no_grad():
    for step in range(steps):
        total += compiled(torch.randn(4, 32, 64)).logsumexp(-1).mean().item()
        tick()
print(f"{total:.2f}")
""",
    "super resolution, channels last": """
class Residual(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.body = nn.Sequential(nn.Conv2d(width, width, 3, padding=1), nn.PReLU(),
                                  nn.Conv2d(width, width, 3, padding=1))
    def forward(self, x):
        return x + 0.2 * self.body(x)
model = nn.Sequential(nn.Conv2d(3, 16, 3, padding=1), Residual(16), Residual(16), nn.Conv2d(16, 12, 3, padding=1),
                      nn.PixelShuffle(2)).to(memory_format=torch.channels_last)
critic = nn.Sequential(nn.Conv2d(3, 8, 3, stride=2), nn.ReLU(), nn.Conv2d(8, 16, 3, stride=2)).requires_grad_(False)
compiled = torch.compile(model)
optimizer = torch.optim.RAdam(model.parameters(), lr=1e-3)
schedule = torch.optim.lr_scheduler.CosineAnnealingWarmRestarts(optimizer, 7)
for step in range(steps):
    high = torch.rand(2, 3, 32, 32).contiguous(memory_format=torch.channels_last)
    low = F.interpolate(high, scale_factor=0.5, mode="bicubic", antialias=True)
    optimizer.zero_grad(set_to_none=False)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        made = compiled(low)
        loss = F.l1_loss(made, high) + 0.1 * F.mse_loss(critic(made), critic(high))
    loss.backward()
    nn.utils.clip_grad_value_(model.parameters(), 0.5)
    optimizer.step()
    schedule.step()
    tick()
print(f"{loss.item():.2f}")
""",
    "fake quantized by observers": """
from torch.ao.quantization import FakeQuantize, MovingAverageMinMaxObserver, MovingAveragePerChannelMinMaxObserver
class Quantized(nn.Module):
    def __init__(self, inputs, outputs):
        super().__init__()
        self.inner = nn.Linear(inputs, outputs)
        self.of_input = FakeQuantize(MovingAverageMinMaxObserver, quant_min=0, quant_max=255, dtype=torch.quint8)
        self.of_weight = FakeQuantize(MovingAveragePerChannelMinMaxObserver, quant_min=-128, quant_max=127,
                                      dtype=torch.qint8, qscheme=torch.per_channel_symmetric, ch_axis=0)
    def forward(self, x):
        return F.linear(self.of_input(x), self.of_weight(self.inner.weight), self.inner.bias)
model = nn.Sequential(Quantized(32, 64), nn.ReLU(), Quantized(64, 8))
judge = torch.compile(F.cross_entropy)
optimizer = torch.optim.SGD(model.parameters(), 0.05, momentum=0.9, nesterov=True)
for step in range(steps):
    loss = judge(model(torch.randn(32, 32)), torch.randint(0, 8, (32,)))
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    tick()
print(f"{loss.item():.2f}")
""",
    "sparse coordinates": """
nodes, width = 60, 24
where = torch.randint(0, nodes, (2, 240))
adjacency = torch.sparse_coo_tensor(where, torch.rand(240), (nodes, nodes)).coalesce()
weights = nn.ParameterList([nn.Parameter(torch.randn(width, width) / 5) for _ in range(2)])
finish = torch.compile(lambda h, w: F.elu(h @ w))
optimizer = torch.optim.Rprop(weights, lr=0.01)
features, labels = torch.randn(nodes, width), torch.randint(0, width, (nodes,))
for step in range(steps):
    h = features
    for w in weights:
        h = finish(torch.sparse.mm(adjacency, h), w)
    loss = F.nll_loss(h.log_softmax(-1), labels)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    tick()
print(f"{loss.item():.2f}")
""",
    "bags with offsets and a gru": """
class Reader(nn.Module):
    def __init__(self):
        super().__init__()
        self.bag = nn.EmbeddingBag(200, 24, mode="sum")
        self.gru = nn.GRU(24, 32, num_layers=2, bidirectional=True, batch_first=True)
        self.head = nn.Linear(64, 3)
    def forward(self, words, offsets, weights):
        x = self.bag(words, offsets, per_sample_weights=weights).view(4, 6, 24)
        return self.head(self.gru(x)[0].amax(1))
model = Reader()
compiled = torch.compile(model)
optimizer = torch.optim.Adagrad(model.parameters(), lr=0.05)
for step in range(steps):
    words, offsets = torch.randint(0, 200, (72,)), torch.arange(0, 72, 3)
    loss = F.cross_entropy(compiled(words, offsets, torch.rand(72)), torch.randint(0, 3, (4,)))
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    tick()
print(f"{loss.item():.2f}")
""",
    "double precision by default": MLP
    + """
torch.set_default_dtype(torch.float64)
model = mlp(3, 48, 48, 1)
compiled = torch.compile(model)
optimizer = torch.optim.NAdam(model.parameters(), lr=2e-3)
for step in range(steps):
    x = torch.rand(64, 3)
    y = (x.prod(1, keepdim=True) * 3).sin()
    loss = F.huber_loss(compiled(x), y)
    optimizer.zero_grad()
    loss.backward()
    total = torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0, error_if_nonfinite=True)
    optimizer.step()
    tick()
print(f"{loss.item():.3f} {total.item():.2f}")
""",
    "rays through a field": """
def encode(x, bands=4):
    scaled = x[..., None] * 2.0 ** torch.arange(bands)
    return torch.cat([scaled.sin(), scaled.cos()], -1).flatten(-2)
class Field(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(24, 48), nn.ReLU(), nn.Linear(48, 48), nn.ReLU())
        self.density, self.color = nn.Linear(48, 1), nn.Linear(48, 3)
    def forward(self, points):
        h = self.body(encode(points))
        return F.softplus(self.density(h)).squeeze(-1), self.color(h).sigmoid()
field = Field()
query = torch.compile(field)
optimizer = torch.optim.Adam(field.parameters(), lr=5e-3)
def render(origin, direction, near=0.0, far=2.0, samples=16):
    depth = torch.linspace(near, far, samples) + torch.rand(len(origin), samples) * (far - near) / samples
    density, color = query(origin[:, None] + depth[..., None] * direction[:, None])
    gaps = torch.diff(depth, append=depth[:, -1:] + 1.0)
    alpha = 1 - torch.exp(-density * gaps)
    through = torch.cumprod(torch.cat([torch.ones(len(origin), 1), 1 - alpha + 1e-6], 1), 1)[:, :-1]
    return ((through * alpha)[..., None] * color).sum(1)
for step in range(steps):
    direction = F.normalize(torch.randn(32, 3), dim=-1)
    loss = F.mse_loss(render(torch.zeros(32, 3), direction), direction.abs())
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    tick()
print(f"{loss.item():.2f}")
""",
    "factors by alternating solves": """
users, items, rank = 40, 30, 6
ratings, seen = torch.rand(users, items) * 5, (torch.rand(users, items) < 0.4).float()
left, right = torch.randn(users, rank), torch.randn(items, rank)
@torch.compile
def normal_equations(factors, seen, ratings):
    weighted = seen[:, :, None] * factors
    turned = weighted.transpose(1, 2)
    return turned @ factors + 0.1 * torch.eye(factors.shape[1]), turned @ ratings[..., None]
for step in range(steps):
    left = torch.linalg.solve(*normal_equations(right, seen, ratings)).squeeze(-1)
    right = torch.cholesky_solve(*reversed([torch.linalg.cholesky(a) if i == 0 else a for i, a in enumerate(
        normal_equations(left, seen.T.contiguous(), ratings.T.contiguous()))])).squeeze(-1)
    error = ((seen * (left @ right.T - ratings)) ** 2).sum().item()
    tick()
print(f"{error:.1f}")
""",
    "a cellular automaton with a pool": """
class Automaton(nn.Module):
    def __init__(self, channels=8):
        super().__init__()
        sobel = torch.tensor([[-1.0, 0, 1], [-2, 0, 2], [-1, 0, 1]]) / 8
        alone = torch.zeros(3, 3); alone[1, 1] = 1
        self.register_buffer("seen", torch.stack([alone, sobel, sobel.T])[:, None].repeat(channels, 1, 1, 1))
        self.channels = channels
        self.rule = nn.Sequential(nn.Conv2d(3 * channels, 32, 1), nn.ReLU(), nn.Conv2d(32, channels, 1, bias=False))
        nn.init.zeros_(self.rule[-1].weight)
    def forward(self, x):
        alive = F.max_pool2d(x[:, :1], 3, 1, 1) > 0.1
        fires = (torch.rand_like(x[:, :1]) < 0.5).float()
        x = x + fires * self.rule(F.conv2d(x, self.seen, padding=1, groups=self.channels))
        return x * (alive & (F.max_pool2d(x[:, :1], 3, 1, 1) > 0.1)).float()
model = Automaton()
grow = torch.compile(model)
optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)
pool = torch.zeros(16, 8, 16, 16); pool[:, :, 8, 8] = 1
target = torch.rand(1, 4, 16, 16)
for step in range(steps):
    which = torch.randperm(16)[:4]
    x = pool[which]
    for _ in range(6):
        x = grow(x)
    loss = F.mse_loss(x[:, :4], target.expand(4, -1, -1, -1))
    optimizer.zero_grad()
    loss.backward()
    with torch.no_grad():
        for p in model.parameters():
            p.grad /= p.grad.norm() + 1e-8
    optimizer.step()
    pool[which] = x.detach()
    tick()
print(f"{loss.item():.3f}")
""",
    "linear attention in chunks": """
class Chunked(nn.Module):
    def __init__(self, width, heads, chunk):
        super().__init__()
        self.heads, self.chunk = heads, chunk
        self.qkv, self.out = nn.Linear(width, 3 * width, bias=False), nn.Linear(width, width, bias=False)
        self.register_buffer("mask", torch.ones(chunk, chunk).tril())
    def forward(self, x):
        b, n, _ = x.shape
        q, k, v = self.qkv(x).view(b, n // self.chunk, self.chunk, 3, self.heads, -1).unbind(3)
        q, k = F.elu(q) + 1, F.elu(k) + 1
        own = torch.einsum("bnihd,bnjhd->bnhij", q, k) * self.mask
        before = torch.einsum("bnjhd,bnjhe->bnhde", k, v).cumsum(1).roll(1, 1)
        before = torch.cat([torch.zeros_like(before[:, :1]), before[:, 1:]], 1)
        y = torch.einsum("bnhij,bnjhe->bnihe", own, v) + torch.einsum("bnihd,bnhde->bnihe", q, before)
        return self.out(y.reshape(b, n, -1))
layers = nn.ModuleList([Chunked(32, 4, 8) for _ in range(2)])
embed, head = nn.Embedding(50, 32), nn.Linear(32, 50)
head_and_loss = torch.compile(lambda x, y: F.cross_entropy(head(x).flatten(0, 1), y.flatten(), label_smoothing=0.1))
for layer in layers:
    layer.compile()
optimizer = torch.optim.Adamax([*embed.parameters(), *layers.parameters(), *head.parameters()])
for step in range(steps):
    tokens = torch.randint(0, 50, (3, 33))
    x = embed(tokens[:, :-1])
    for layer in layers:
        x = x + layer(F.layer_norm(x, (32,)))
    loss = head_and_loss(x, tokens[:, 1:])
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    tick()
print(f"{loss.item():.2f}")
""",
    "masked modelling with math attention": """
from torch.nn.attention import SDPBackend, sdpa_kernel
layer = nn.TransformerEncoderLayer(32, 4, 64, dropout=0.0, batch_first=True, norm_first=True, activation="gelu")
model = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
embed = nn.Embedding(40, 32)
compiled = torch.compile(model)
optimizer = torch.optim.AdamW([
    {"params": [p for p in model.parameters() if p.ndim > 1], "weight_decay": 0.1},
    {"params": [p for p in model.parameters() if p.ndim < 2], "weight_decay": 0.0},
    {"params": embed.parameters(), "lr": 1e-4}], lr=1e-3, fused=True)
for step in range(steps):
    tokens = torch.randint(1, 40, (4, 20))
    hidden = torch.rand(4, 20) < 0.15
    hidden[:, 0] = True
    padded = torch.zeros(4, 20, dtype=torch.bool)
    padded[:, 17:] = True
    with sdpa_kernel(SDPBackend.MATH):
        x = compiled(embed(tokens.masked_fill(hidden, 0)), src_key_padding_mask=padded)
        loss = F.cross_entropy(F.linear(x, embed.weight).transpose(1, 2), tokens.masked_fill(~hidden, -100))
        optimizer.zero_grad()
        loss.backward()
    optimizer.step()
    tick()
print(f"{loss.item():.2f}")
""",
    "a filter by linear algebra": """
@torch.compile
def predict(mean, spread, step, noise):
    return mean @ step.T, step @ spread @ step.mT + noise
def update(mean, spread, look, seen, noise):
    innovation = look @ spread @ look.T + noise
    gain = torch.linalg.solve(innovation, look @ spread).mT
    mean = mean + (gain @ (seen - mean @ look.T)[..., None])[..., 0]
    return mean, spread - gain @ look @ spread
step_, look = torch.eye(4) + 0.1 * torch.diag(torch.ones(2), 2), torch.eye(2, 4)
mean, spread = torch.zeros(16, 4), torch.eye(4).expand(16, 4, 4).contiguous()
for step in range(steps):
    mean, spread = predict(mean, spread, step_, 0.01 * torch.eye(4))
    mean, spread = update(mean, spread, look, torch.randn(16, 2), 0.1 * torch.eye(2))
    tick()
print(f"{mean.abs().mean().item():.3f}")
""",
}
