"""The rest of the list that ``further`` was drawn from, what goes deepest into torch: regions, checkpoints of both
sorts, closures, codebooks, gradients inside a graph."""

from __future__ import annotations

from benchmarks.capture.step_programs.pieces import BLOCK, MLP

PROGRAMS: dict[str, str] = {
    "a region compiled once for all blocks": BLOCK
    + """
class Stack(nn.Module):
    def __init__(self):
        super().__init__()
        self.blocks = nn.ModuleList(Block(32, 4) for _ in range(4))
        self.out = nn.Linear(32, 10)
    @staticmethod
    @torch.compiler.nested_compile_region
    def once(block, x):
        return block(x)
    def forward(self, x):
        for block in self.blocks:
            x = self.once(block, x)
        return self.out(x.mean(1))
model = Stack()
compiled = torch.compile(model, fullgraph=True)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
for step in range(steps):
    loss = F.cross_entropy(compiled(torch.randn(8, 12, 32)), torch.randint(0, 10, (8,)))
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    tick()
print(f"{loss.item():.3f}")
""",
    "checkpoints of both sorts, every second block": BLOCK
    + """
from torch.utils.checkpoint import checkpoint
blocks = nn.ModuleList(Block(32, 4) for _ in range(6))
head = nn.Linear(32, 10)
compiled = [torch.compile(block) if number < 4 else block for number, block in enumerate(blocks)]
optimizer = torch.optim.Adam([*blocks.parameters(), *head.parameters()], lr=1e-3)
for step in range(steps):
    x = torch.randn(8, 12, 32, requires_grad=True)
    for number, block in enumerate(compiled):
        x = checkpoint(block, x, use_reentrant=number % 4 == 1) if number % 2 else block(x)
    loss = F.cross_entropy(head(x.mean(1)), torch.randint(0, 10, (8,)))
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    tick()
print(f"{loss.item():.3f}")
""",
    "a codebook with straight-through and its own average": """
class Codebook(nn.Module):
    def __init__(self, codes, width):
        super().__init__()
        self.register_buffer("codes", torch.randn(codes, width))
        self.register_buffer("counts", torch.ones(codes))
        self.register_buffer("sums", self.codes.clone())
    def forward(self, x):
        flat = x.reshape(-1, x.shape[-1])
        nearest = torch.cdist(flat, self.codes).argmin(1)
        if self.training:
            with torch.no_grad():
                hot = F.one_hot(nearest, len(self.codes)).type_as(flat)
                self.counts.mul_(0.99).add_(hot.sum(0), alpha=0.01)
                self.sums.mul_(0.99).add_(hot.T @ flat, alpha=0.01)
                self.codes.copy_(self.sums / self.counts.clamp(min=1e-3)[:, None])
        found = F.embedding(nearest, self.codes).view_as(x)
        return x + (found - x).detach(), F.mse_loss(x, found.detach())
encoder = nn.Sequential(nn.Conv1d(4, 32, 4, 2, 1), nn.ReLU(), nn.Conv1d(32, 16, 3, 1, 1))
decoder = nn.Sequential(nn.Conv1d(16, 32, 3, 1, 1), nn.ReLU(), nn.ConvTranspose1d(32, 4, 4, 2, 1))
codebook = Codebook(64, 16)
@torch.compile
def forward(x):
    code, apart = codebook(encoder(x).transpose(1, 2))
    return decoder(code.transpose(1, 2)), apart
optimizer = torch.optim.Adam([*encoder.parameters(), *decoder.parameters()], lr=1e-3)
for step in range(steps):
    x = torch.randn(8, 4, 64).cumsum(-1) / 8
    made, apart = forward(x)
    loss = F.mse_loss(made, x) + 0.25 * apart
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    tick()
print(f"{loss.item():.3f}")
""",
    "gradients of each sample in the graph": MLP
    + """
from torch.func import functional_call, grad, vmap
model = mlp(12, 48, 3)
def loss_of(weights, x, y):
    return F.cross_entropy(functional_call(model, weights, (x[None],)), y[None])
@torch.compile
def slopes_of(weights, x, y):
    return vmap(grad(loss_of), (None, 0, 0))(weights, x, y)
optimizer = torch.optim.SGD(model.parameters(), lr=0.2)
for step in range(steps):
    x = torch.randn(24, 12)
    each = slopes_of({name: value.detach() for name, value in model.named_parameters()}, x, x[:, :3].argmax(1))
    size = sum(slope.flatten(1).square().sum(1) for slope in each.values()).sqrt()
    for name, value in model.named_parameters():
        kept = each[name] * (1 / size.clamp(min=1.0)).view(-1, *[1] * value.dim())
        value.grad = kept.mean(0) + 0.01 * torch.randn_like(value)
    optimizer.step()
    tick()
print(f"{size.mean().item():.2f}")
""",
    "adaptation at test time": """
body = nn.Sequential(nn.Conv2d(3, 16, 3, 2, 1), nn.BatchNorm2d(16), nn.ReLU(), nn.Conv2d(16, 32, 3, 2, 1),
                     nn.BatchNorm2d(32), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(32, 6))
norms = [p for layer in body if isinstance(layer, nn.BatchNorm2d) for p in layer.parameters()]
body.requires_grad_(False)
for weight in norms:
    weight.requires_grad_(True)
compiled = torch.compile(body)
optimizer = torch.optim.Adam(norms, lr=1e-3)
found = []
for step in range(steps):
    images = torch.rand(8, 3, 32, 32) * (1 + step / steps)
    for _ in range(2):
        scores = compiled(images).log_softmax(-1)
        loss = -(scores.exp() * scores).sum(-1).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    with torch.no_grad():
        found.append(compiled(images).argmax(-1))
    tick()
print(f"{loss.item():.3f}")
""",
    "a forward algorithm, trained": """
class Chain(nn.Module):
    def __init__(self, states, symbols):
        super().__init__()
        self.start, self.move = nn.Parameter(torch.randn(states)), nn.Parameter(torch.randn(states, states))
        self.emit = nn.Parameter(torch.randn(states, symbols))
    def forward(self, seen):
        move, emit = self.move.log_softmax(1), self.emit.log_softmax(1)
        alpha = self.start.log_softmax(0) + emit[:, seen[:, 0]].T
        for time in range(1, seen.shape[1]):
            alpha = torch.logsumexp(alpha[:, :, None] + move, 1) + emit[:, seen[:, time]].T
        return alpha.logsumexp(1)
model = Chain(6, 10)
compiled = torch.compile(model)
optimizer = torch.optim.Adam(model.parameters(), lr=0.05)
for step in range(steps):
    seen = torch.randint(0, 10, (16, 1)) + torch.arange(12)[None]
    loss = -compiled(seen % 10).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    tick()
print(f"{loss.item():.3f}")
""",
    "a compiled optimizer step with a closure": MLP
    + """
model = mlp(10, 64, 64, 1)
compiled = torch.compile(model)
optimizer = torch.optim.SGD(model.parameters(), lr=0.02, momentum=0.9)
inputs = torch.randn(64, 10); wanted = inputs.square().mean(1, keepdim=True)
@torch.compile
def advance():
    optimizer.step()
def closure():
    optimizer.zero_grad()
    loss = F.mse_loss(compiled(inputs + 0.01 * torch.randn_like(inputs)), wanted)
    loss.backward()
    return loss
for step in range(steps):
    loss = closure()
    advance()
    tick()
print(f"{loss.item():.4f}")
""",
}
