"""Scripts of kinds that were listed first and then drawn: penalties, experts, chunks, masks, stages, what is learned
about learning."""

from __future__ import annotations

from benchmarks.capture.step_programs.pieces import BLOCK, MLP

PROGRAMS: dict[str, str] = {
    "a penalty on an eager critic beside a compiled generator": MLP
    + """
generator, critic = mlp(16, 64, 64, 32), mlp(32, 64, 64, 1)
generate = torch.compile(generator)
slow = torch.optim.Adam(generator.parameters(), lr=1e-4, betas=(0.5, 0.9))
fast = torch.optim.Adam(critic.parameters(), lr=1e-4, betas=(0.5, 0.9))
real = torch.randn(512, 32)
for step in range(steps):
    batch = real[torch.randint(0, 512, (32,))]
    with torch.no_grad():
        fake = generate(torch.randn(32, 16))
    mix = torch.rand(32, 1)
    between = (mix * batch + (1 - mix) * fake).requires_grad_()
    slope = torch.autograd.grad(critic(between).sum(), between, create_graph=True)[0]
    loss = critic(fake).mean() - critic(batch).mean() + 10 * (slope.norm(dim=1) - 1).square().mean()
    fast.zero_grad()
    loss.backward()
    fast.step()
    slow.zero_grad()
    (-critic(generate(torch.randn(32, 16))).mean()).backward()
    slow.step()
    tick()
print(f"{loss.item():.3f}")
""",
    "augmentation compiled, the model not": """
@torch.compile
def augment(images, shift, gain):
    theta = torch.zeros(images.shape[0], 2, 3)
    theta[:, 0, 0] = theta[:, 1, 1] = 1
    theta[:, :, 2] = shift
    moved = F.grid_sample(images, F.affine_grid(theta, images.shape, align_corners=False), align_corners=False)
    return (moved * gain[:, None, None, None]).clamp(0, 1)
model = nn.Sequential(nn.Conv2d(3, 16, 3, padding=1), nn.BatchNorm2d(16), nn.ReLU(), nn.MaxPool2d(2),
                      nn.Conv2d(16, 32, 3, padding=1), nn.BatchNorm2d(32), nn.ReLU(), nn.AdaptiveAvgPool2d(1),
                      nn.Flatten(), nn.Linear(32, 10))
optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9, nesterov=True, weight_decay=5e-4)
schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 0.1, total_steps=steps + 1)
for step in range(steps):
    images, labels = torch.rand(16, 3, 32, 32), torch.randint(0, 10, (16,))
    images = augment(images, 0.2 * torch.rand(16, 2) - 0.1, 0.8 + 0.4 * torch.rand(16))
    loss = F.cross_entropy(model(images), labels, label_smoothing=0.1)
    optimizer.zero_grad(set_to_none=True)
    loss.backward()
    optimizer.step()
    schedule.step()
    tick()
print(f"{loss.item():.3f}")
""",
    "a chunked loss over a large vocabulary": BLOCK
    + """
from torch.utils.checkpoint import checkpoint
vocabulary, width = 2048, 64
embedding = nn.Embedding(vocabulary, width)
blocks = nn.Sequential(Block(width, 4), Block(width, 4))
norm = nn.LayerNorm(width)
body = torch.compile(blocks)
def part(hidden, labels):
    return F.cross_entropy(F.linear(hidden, embedding.weight).float(), labels, reduction="sum")
parameters = [*embedding.parameters(), *blocks.parameters(), *norm.parameters()]
optimizer = torch.optim.AdamW(parameters, lr=3e-4)
for step in range(steps):
    tokens = torch.randint(0, vocabulary, (4, 33))
    hidden = norm(body(embedding(tokens[:, :-1]))).flatten(0, 1)
    labels = tokens[:, 1:].flatten()
    loss = sum(checkpoint(part, each, own, use_reentrant=False)
               for each, own in zip(hidden.chunk(4), labels.chunk(4))) / labels.numel()
    optimizer.zero_grad()
    loss.backward()
    nn.utils.clip_grad_norm_(parameters, 1.0)
    optimizer.step()
    tick()
print(f"{loss.item():.3f}")
""",
    "sets with masks": """
class SetAttention(nn.Module):
    def __init__(self, width, heads, points):
        super().__init__()
        self.points = nn.Parameter(torch.randn(1, points, width))
        self.gather = nn.MultiheadAttention(width, heads, batch_first=True)
        self.spread = nn.MultiheadAttention(width, heads, batch_first=True)
        self.norm, self.feed = nn.LayerNorm(width), nn.Linear(width, width)
    def forward(self, x, padding):
        points = self.points.expand(len(x), -1, -1)
        points = self.gather(points, x, x, key_padding_mask=padding, need_weights=False)[0]
        x = self.norm(x + self.spread(x, points, points, need_weights=False)[0])
        return x + F.relu(self.feed(x))
class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.inside, self.out = nn.Linear(5, 32), nn.Linear(32, 3)
        self.first, self.second = SetAttention(32, 4, 6), SetAttention(32, 4, 6)
    def forward(self, x, padding):
        x = self.second(self.first(self.inside(x), padding), padding)
        weight = (~padding).float()[..., None]
        return self.out((x * weight).sum(1) / weight.sum(1))
model = Model()
compiled = torch.compile(model)
optimizer = torch.optim.RAdam(model.parameters(), lr=1e-3)
for step in range(steps):
    sizes = torch.randint(3, 13, (16,))
    padding = torch.arange(12)[None] >= sizes[:, None]
    x = torch.randn(16, 12, 5).masked_fill(padding[..., None], 0.0)
    loss = F.cross_entropy(compiled(x, padding), (sizes % 3))
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    tick()
print(f"{loss.item():.3f}")
""",
    "two stages and micro-batches": MLP
    + """
front, back = mlp(32, 128, 64), mlp(64, 128, 10)
stages = torch.compile(front), torch.compile(back)
optimizers = [torch.optim.Adam(each.parameters(), lr=1e-3) for each in (front, back)]
for step in range(steps):
    x, y = torch.randn(32, 32), torch.randint(0, 10, (32,))
    sent, received, losses = [], [], []
    for part in x.chunk(4):
        sent.append(stages[0](part))
        received.append(sent[-1].detach().requires_grad_())
    for each, own in zip(received, y.chunk(4)):
        losses.append(F.cross_entropy(stages[1](each), own) / 4)
        losses[-1].backward()
    for each, own in zip(reversed(sent), reversed(received)):
        each.backward(own.grad)
    for optimizer in optimizers:
        optimizer.step()
        optimizer.zero_grad()
    tick()
print(f"{sum(each.item() for each in losses):.3f}")
""",
    "evaluation that loads the best weights again": MLP
    + """
import copy
model = mlp(20, 64, 64, 2)
compiled = torch.compile(model)
optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
held_x = torch.randn(64, 20); held_y = (held_x[:, :3].sum(1) > 0).long()
best, best_state, waited = float("inf"), None, 0
for step in range(steps):
    model.train()
    x = torch.randn(32, 20); y = (x[:, :3].sum(1) > 0).long()
    loss = F.cross_entropy(compiled(x), y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if (step + 1) % 6 == 0:
        model.eval()
        with torch.inference_mode():
            score = F.cross_entropy(compiled(held_x), held_y).item()
        if score < best:
            best, waited, best_state = score, 0, copy.deepcopy(model.state_dict())
        else:
            waited += 1
            if waited == 2:
                model.load_state_dict(best_state)
                for group in optimizer.param_groups:
                    group["lr"] /= 2
                waited = 0
        tick("with evaluation")
    else:
        tick()
print(f"{best:.2f}")
""",
    "training by torch.func alone": MLP
    + """
from torch.func import functional_call, grad_and_value
model = mlp(16, 64, 64, 4)
weights = {name: value.detach().clone() for name, value in model.named_parameters()}
velocity = {name: torch.zeros_like(value) for name, value in weights.items()}
def loss_of(weights, x, y):
    return F.cross_entropy(functional_call(model, weights, (x,)), y)
@torch.compile
def update(weights, velocity, x, y):
    slopes, loss = grad_and_value(loss_of)(weights, x, y)
    velocity = {name: 0.9 * velocity[name] + slopes[name] for name in weights}
    return {name: weights[name] - 0.05 * velocity[name] for name in weights}, velocity, loss
for step in range(steps):
    x = torch.randn(32, 16)
    weights, velocity, loss = update(weights, velocity, x, x[:, :4].argmax(1))
    tick()
print(f"{loss.item():.3f}")
""",
    "adapters switched by task": """
class Adapted(nn.Module):
    def __init__(self, base, rank, tasks):
        super().__init__()
        self.base = base.requires_grad_(False)
        self.down = nn.ModuleDict({task: nn.Linear(base.in_features, rank, bias=False) for task in tasks})
        self.up = nn.ModuleDict({task: nn.Linear(rank, base.out_features, bias=False) for task in tasks})
        self.task = tasks[0]
    def forward(self, x):
        return self.base(x) + self.up[self.task](self.down[self.task](x))
tasks = ["long", "short"]
model = nn.Sequential(Adapted(nn.Linear(32, 64), 4, tasks), nn.GELU(), Adapted(nn.Linear(64, 32), 4, tasks))
compiled = torch.compile(model)
optimizers = {task: torch.optim.AdamW([p for name, p in model.named_parameters() if f".{task}." in name], lr=1e-3)
              for task in tasks}
for step in range(steps):
    task = tasks[step % 2]
    for layer in model:
        if isinstance(layer, Adapted):
            layer.task = task
    x = torch.randn(64 if task == "long" else 16, 32)
    loss = F.mse_loss(compiled(x), x.flip(1) if task == "long" else -x)
    optimizers[task].zero_grad()
    loss.backward()
    optimizers[task].step()
    tick(task)
print(f"{loss.item():.3f}")
""",
    "five critic steps for one of the generator": MLP
    + """
generator, critic = mlp(8, 64, 2), mlp(2, 64, 64, 1)
generate, judge = torch.compile(generator), torch.compile(critic)
slow = torch.optim.RMSprop(generator.parameters(), lr=5e-4)
fast = torch.optim.RMSprop(critic.parameters(), lr=5e-4)
for step in range(steps):
    for _ in range(5):
        angle = 6.28 * torch.rand(32)
        real = torch.stack([angle.cos(), angle.sin()], 1)
        fake = generate(torch.randn(32, 8)).detach()
        fast.zero_grad()
        gap = judge(fake).mean() - judge(real).mean()
        gap.backward()
        fast.step()
        for weight in critic.parameters():
            weight.data.clamp_(-0.05, 0.05)
    slow.zero_grad()
    (-judge(generate(torch.randn(32, 8))).mean()).backward()
    slow.step()
    tick()
print(f"{gap.item():.3f}")
""",
    "experts by index_add with a capacity": """
class Experts(nn.Module):
    def __init__(self, width, count, capacity):
        super().__init__()
        self.route = nn.Linear(width, count, bias=False)
        self.up = nn.Parameter(torch.randn(count, width, 2 * width) / width**0.5)
        self.down = nn.Parameter(torch.randn(count, 2 * width, width) / width**0.5)
        self.capacity = capacity
    def forward(self, x):
        weights = self.route(x).softmax(-1)
        found = torch.zeros_like(x)
        for expert in range(weights.shape[1]):
            best, rows = weights[:, expert].topk(self.capacity)
            hidden = F.silu(x[rows] @ self.up[expert]) @ self.down[expert]
            found.index_add_(0, rows, best[:, None] * hidden)
        return x + found, weights
layers = nn.ModuleList(Experts(32, 4, 12) for _ in range(2))
head = nn.Linear(32, 8)
@torch.compile
def forward(x):
    balance = 0.0
    for layer in layers:
        x, weights = layer(x)
        balance = balance + weights.mean(0).square().sum()
    return head(x), balance
optimizer = torch.optim.AdamW([*layers.parameters(), *head.parameters()], lr=2e-3)
for step in range(steps):
    x = torch.randn(48, 32)
    scores, balance = forward(x)
    loss = F.cross_entropy(scores, x[:, :8].argmax(1)) + 0.01 * balance
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    tick()
print(f"{loss.item():.3f}")
""",
    "an average by foreach": MLP
    + """
model, mean = mlp(24, 96, 96, 6), mlp(24, 96, 96, 6)
mean.load_state_dict(model.state_dict())
mean.requires_grad_(False)
compiled, compiled_mean = torch.compile(model), torch.compile(mean)
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3, foreach=True)
pairs = [*mean.parameters()], [*model.parameters()]
for step in range(steps):
    x = torch.randn(32, 24)
    with torch.no_grad():
        soft = compiled_mean(x + 0.01 * torch.randn_like(x)).softmax(-1)
    scores = compiled(x)
    loss = F.cross_entropy(scores, x[:, :6].argmax(1)) + F.kl_div(scores.log_softmax(-1), soft, reduction="batchmean")
    optimizer.zero_grad(set_to_none=True)
    loss.backward()
    optimizer.step()
    with torch.no_grad():
        torch._foreach_lerp_(pairs[0], pairs[1], 0.01)
    tick()
print(f"{loss.item():.3f}")
""",
    "marked dynamic with a masked loss": BLOCK
    + """
import random
random.seed(0)
class Tagger(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding, self.block, self.out = nn.Embedding(100, 32), Block(32, 4), nn.Linear(32, 5)
    def forward(self, tokens):
        return self.out(self.block(self.embedding(tokens), causal=False))
model = Tagger()
compiled = torch.compile(model, fullgraph=True)
optimizer = torch.optim.NAdam(model.parameters(), lr=1e-3)
for step in range(steps):
    lengths = [random.randint(4, 24) for _ in range(8)]
    tokens = torch.zeros(8, max(lengths), dtype=torch.long)
    for row, length in enumerate(lengths):
        tokens[row, :length] = torch.randint(1, 100, (length,))
    torch._dynamo.mark_dynamic(tokens, 1)
    loss = F.cross_entropy(compiled(tokens).flatten(0, 1), (tokens % 5).flatten(), reduction="none")
    loss = (loss * (tokens.flatten() > 0)).sum() / (tokens > 0).sum()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    tick(f"length {max(lengths)}")
print(f"{loss.item():.3f}")
""",
    "reduced overhead and dynamic": """
class Mixer(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.gate, self.value, self.out = nn.Linear(width, width), nn.Linear(width, width), nn.Linear(width, width)
    def forward(self, x):
        return x + self.out(torch.sigmoid(self.gate(x)) * self.value(x).cumsum(-2))
model = nn.Sequential(nn.Linear(12, 48), Mixer(48), Mixer(48), nn.Linear(48, 12))
compiled = torch.compile(model, mode="reduce-overhead", dynamic=True)
optimizer = torch.optim.Adamax(model.parameters(), lr=2e-3)
for step in range(steps):
    x = torch.randn(8, (10, 20, 30)[step % 3], 12)
    loss = F.smooth_l1_loss(compiled(x[:, :-1]), x[:, 1:])
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    tick(f"length {x.shape[1]}")
print(f"{loss.item():.3f}")
""",
    "a learned learning rate": MLP
    + """
from torch.func import functional_call
model = mlp(8, 32, 1)
rates = {name: nn.Parameter(torch.full_like(value, -3.0)) for name, value in model.named_parameters()}
features = nn.Linear(8, 8)
encode = torch.compile(features)
outer = torch.optim.Adam([*rates.values(), *features.parameters()], lr=1e-2)
for step in range(steps):
    x = torch.randn(2, 32, 8)
    y = x.square().sum(-1, keepdim=True)
    weights = dict(model.named_parameters())
    seen, held = encode(x)
    loss = F.mse_loss(functional_call(model, weights, (seen,)), y[0])
    slopes = torch.autograd.grad(loss, list(weights.values()), create_graph=True)
    changed = {name: weights[name] - rates[name].exp() * slope for name, slope in zip(weights, slopes)}
    outer_loss = F.mse_loss(functional_call(model, changed, (held,)), y[1])
    outer.zero_grad()
    outer_loss.backward()
    outer.step()
    with torch.no_grad():
        for name, value in model.named_parameters():
            value.copy_(changed[name])
    tick()
print(f"{outer_loss.item():.3f}")
""",
    "a sampler that asks its network twice": MLP
    + """
net = mlp(17, 128, 128, 16)
denoise = torch.compile(net)
def slope(x, sigma):
    return (x - denoise(torch.cat([x, sigma.log().expand(len(x), 1)], 1))) / sigma
sigmas = torch.linspace(10.0, 0.1, steps + 1)
with torch.no_grad():
    x = 10 * torch.randn(32, 16)
    for step in range(steps):
        now, then = sigmas[step], sigmas[step + 1]
        first = slope(x, now)
        guess = x + (then - now) * first
        x = x + (then - now) * 0.5 * (first + slope(guess, then))
        tick()
print(f"{x.std().item():.3f}")
""",
}
