"""Loops written by themes of the manuals: derivatives, ways to compile, data, precision, libraries, ends of a run."""

from __future__ import annotations

from benchmarks.capture.step_programs.pieces import BLOCK, MLP

PROGRAMS: dict[str, str] = {
    "a step function, compiled whole": MLP
    + """
model = mlp(24, 64, 6)
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
@torch.compile
def train_step(x, y):
    loss = F.cross_entropy(model(x), y)
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    return loss
for step in range(steps):
    loss = train_step(torch.randn(16, 24), torch.randint(0, 6, (16,)))
    tick()
print(f"{loss.item():.2f}")
""",
    "gradients asked for in a compiled function": MLP
    + """
model = mlp(16, 48, 48, 1)
parameters = dict(model.named_parameters())
@torch.compile
def value_and_slopes(parameters, x, y):
    def loss(parameters):
        return F.mse_loss(torch.func.functional_call(model, parameters, (x,)), y)
    slopes, value = torch.func.grad_and_value(loss)(parameters)
    return value, slopes
speed = {name: torch.zeros_like(p) for name, p in parameters.items()}
with torch.no_grad():
    for step in range(steps):
        x = torch.randn(32, 16)
        now = {n: p.detach() for n, p in parameters.items()}
        value, slopes = value_and_slopes(now, x, x.sum(1, keepdim=True).tanh())
        for name, p in parameters.items():
            speed[name].mul_(0.9).add_(slopes[name])
            p.sub_(speed[name], alpha=0.01)
        tick()
print(f"{value.item():.3f}")
""",
    "every block compiled in place": BLOCK
    + """
class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed, self.head = nn.Embedding(80, 32), nn.Linear(32, 80, bias=False)
        self.blocks = nn.ModuleList([Block(32, 4) for _ in range(4)])
        self.head.weight = self.embed.weight
    def forward(self, tokens):
        x = self.embed(tokens)
        for block in self.blocks:
            x = block(x)
        return self.head(F.rms_norm(x, (32,)))
model = Model()
for block in model.blocks:
    block.compile(fullgraph=True)
optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4, betas=(0.9, 0.95), foreach=True)
warm = torch.optim.lr_scheduler.LinearLR(optimizer, 0.1, total_iters=5)
flat = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 40)
schedule = torch.optim.lr_scheduler.SequentialLR(optimizer, [warm, flat], [5])
history = []
for step in range(steps):
    for micro in range(2):
        tokens = torch.randint(0, 80, (2, 17))
        loss = F.cross_entropy(model(tokens[:, :-1]).flatten(0, 1), tokens[:, 1:].flatten()) / 2
        loss.backward()
        history.append(loss.item())
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    schedule.step()
    optimizer.zero_grad(set_to_none=True)
    tick()
print(f"{sum(history[-4:]):.2f}")
""",
    "marked dynamic": BLOCK
    + """
block, head = Block(32, 4), nn.Linear(32, 10)
compiled = torch.compile(lambda x: head(block(x).mean(1)))
optimizer = torch.optim.Adadelta([*block.parameters(), *head.parameters()])
for step in range(steps):
    x = torch.randn(4 + step % 3, 16, 32)
    torch._dynamo.mark_dynamic(x, 0, min=2, max=64)
    loss = F.cross_entropy(compiled(x), torch.randint(0, 10, (len(x),)))
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    tick(f"{len(x)} rows")
print(f"{loss.item():.2f}")
""",
    "an operator with its derivative": """
from torch import Tensor
@torch.library.custom_op("mine::soft_threshold", mutates_args=())
def soft_threshold(x: Tensor, by: float) -> Tensor:
    return x.sign() * (x.abs() - by).clamp(min=0)
@soft_threshold.register_fake
def _(x, by):
    return torch.empty_like(x)
def backward(ctx, gradient):
    return gradient * (ctx.saved_tensors[0].abs() > ctx.by), None
def keep(ctx, inputs, output):
    ctx.save_for_backward(inputs[0])
    ctx.by = inputs[1]
soft_threshold.register_autograd(backward, setup_context=keep)
class Shrinkage(nn.Module):
    def __init__(self, inputs, atoms, rounds):
        super().__init__()
        self.encode, self.again, self.rounds = nn.Linear(inputs, atoms), nn.Linear(atoms, atoms, bias=False), rounds
        self.decode = nn.Linear(atoms, inputs, bias=False)
    def forward(self, x):
        start = self.encode(x)
        code = soft_threshold(start, 0.1)
        for _ in range(self.rounds):
            code = soft_threshold(start + self.again(code), 0.1)
        return self.decode(code)
model = Shrinkage(32, 64, 3)
compiled = torch.compile(model, fullgraph=True)
optimizer = torch.optim.SGD(model.parameters(), 0.05)
for step in range(steps):
    x = torch.randn(16, 32)
    loss = F.mse_loss(compiled(x), x)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    tick()
print(f"{loss.item():.2f}")
""",
    "reversible blocks": MLP
    + """
class Coupling(torch.autograd.Function):
    @staticmethod
    def forward(context, a, b, f, g, *parameters):
        with torch.no_grad():
            c = a + f(b)
            d = b + g(c)
        context.save_for_backward(c, d)
        context.f, context.g = f, g
        return c, d
    @staticmethod
    def backward(context, of_c, of_d):
        c, d = context.saved_tensors
        f, g = context.f, context.g
        with torch.enable_grad():
            c = c.detach().requires_grad_()
            at_g = g(c)
        g_slopes = torch.autograd.grad(at_g, [c, *g.parameters()], of_d)
        of_c = of_c + g_slopes[0]
        b = (d - at_g).detach().requires_grad_()
        with torch.enable_grad():
            at_f = f(b)
        f_slopes = torch.autograd.grad(at_f, [b, *f.parameters()], of_c)
        return of_c, of_d + f_slopes[0], None, None, *f_slopes[1:], *g_slopes[1:]
halves = nn.ModuleList([mlp(16, 32, 16) for _ in range(6)])
head = nn.Linear(32, 5)
judge = torch.compile(lambda a, b, y: F.cross_entropy(head(torch.cat([a, b], 1)), y))
optimizer = torch.optim.Adam([*halves.parameters(), *head.parameters()])
for step in range(steps):
    a, b = torch.randn(24, 16, requires_grad=True), torch.randn(24, 16, requires_grad=True)
    for f, g in zip(halves[::2], halves[1::2]):
        a, b = Coupling.apply(a, b, f, g, *f.parameters(), *g.parameters())
    loss = judge(a, b, torch.randint(0, 5, (24,)))
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    tick()
print(f"{loss.item():.2f}")
""",
    "an average by swa_utils": """
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn, update_bn
model = nn.Sequential(nn.Conv2d(1, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(), nn.AdaptiveAvgPool2d(2),
                      nn.Flatten(), nn.Linear(32, 4))
average = AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(0.99), use_buffers=False)
compiled = torch.compile(model)
optimizer = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9, weight_decay=5e-4)
for step in range(steps):
    x, y = torch.randn(8, 1, 12, 12), torch.randint(0, 4, (8,))
    loss = F.cross_entropy(compiled(x), y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    average.update_parameters(model)
    tick()
update_bn([torch.randn(8, 1, 12, 12) for _ in range(3)], average)
with torch.no_grad():
    print(f"{loss.item():.2f} {average(x).sum().item():.1f}")
""",
    "checkpoints in a sequence": BLOCK
    + """
from torch.utils.checkpoint import checkpoint_sequential
blocks = nn.Sequential(*[Block(32, 4) for _ in range(6)])
head = torch.compile(nn.Linear(32, 12))
optimizer = torch.optim.AdamW([*blocks.parameters(), *head.parameters()])
for step in range(steps):
    x = checkpoint_sequential(blocks, 3, torch.randn(4, 16, 32), use_reentrant=False)
    loss = F.cross_entropy(head(x.mean(1)), torch.randint(0, 12, (4,)))
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    tick()
print(f"{loss.item():.2f}")
""",
    "orthogonal weights": """
from torch.nn.utils.parametrizations import orthogonal, weight_norm
cell, out = orthogonal(nn.Linear(24, 24, bias=False)), weight_norm(nn.Linear(24, 4))
into = nn.Linear(6, 24)
tell = torch.compile(lambda h: out(h))
optimizer = torch.optim.RMSprop([*cell.parameters(), *into.parameters(), *out.parameters()], lr=1e-3, centered=True)
for step in range(steps):
    x = torch.randn(10, 8, 6)
    h = torch.zeros(8, 24)
    with torch.nn.utils.parametrize.cached():
        for now in x:
            h = torch.tanh(cell(h) + into(now))
        loss = F.cross_entropy(tell(h), torch.randint(0, 4, (8,)))
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    tick()
print(f"{loss.item():.2f}")
""",
    "updated within the backward": MLP
    + """
model = mlp(32, 64, 64, 8)
compiled = torch.compile(model)
own = {p: torch.optim.Adam([p], lr=1e-3) for p in model.parameters()}
def update(p):
    own[p].step()
    own[p].zero_grad()
for p in model.parameters():
    p.register_post_accumulate_grad_hook(update)
for step in range(steps):
    loss = F.cross_entropy(compiled(torch.randn(16, 32)), torch.randint(0, 8, (16,)))
    loss.backward()
    tick()
print(f"{loss.item():.2f}")
""",
    "arguments, settings and patience": MLP
    + """
import argparse
from dataclasses import asdict, dataclass, field
from torch.utils.data import DataLoader, TensorDataset, WeightedRandomSampler, random_split
@dataclass
class Settings:
    widths: list = field(default_factory=lambda: [20, 48, 3])
    rate: float = 1e-2
    batch: int = 16
    patience: int = 50
def evaluate(model, loader):
    model.eval()
    with torch.inference_mode():
        found = [(model(x).argmax(1) == y).float().mean() for x, y in loader]
    model.train()
    return torch.stack(found).mean().item()
def main(settings, most):
    x = torch.randn(200, 20)
    data, held_out = random_split(TensorDataset(x, x[:, :3].argmax(1)), [168, 32])
    sampler = WeightedRandomSampler(torch.rand(168), 12 * settings.batch)
    loader = DataLoader(data, settings.batch, sampler=sampler)
    model = torch.compile(mlp(*settings.widths))
    optimizer = torch.optim.Adam(model.parameters(), lr=settings.rate, amsgrad=True)
    plateau = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, "max", patience=2)
    done, best, worse = 0, 0.0, 0
    while done < most and worse < settings.patience:
        for a, b in loader:
            loss = nn.functional.cross_entropy(model(a), b)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            done += 1
            tick()
        right = evaluate(model, DataLoader(held_out, 32))
        plateau.step(right)
        worse = 0 if right > best else worse + 1
        best = max(best, right)
        tick("evaluation")
    print(asdict(settings), f"{loss.item():.2f} {best:.2f}")
if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("steps", type=int)
    parser.add_argument("own")
    parser.add_argument("--rate", type=float, default=1e-2)
    given = parser.parse_args()
    main(Settings(rate=given.rate), given.steps)
""",
    "stopped by a signal": MLP
    + """
import os, signal
model = mlp(16, 32, 4)
compiled = torch.compile(model)
optimizer = torch.optim.Adam(model.parameters())
wanted = []
signal.signal(signal.SIGUSR1, lambda number, frame: wanted.append(number))
for step in range(10 * steps):
    loss = F.cross_entropy(compiled(torch.randn(8, 16)), torch.randint(0, 4, (8,)))
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    tick()
    if step == steps - 1:
        os.kill(os.getpid(), signal.SIGUSR1)
    if wanted:
        print("saved", sorted(model.state_dict())[0], step)
        sys.exit(7)
""",
    "scaled gradients on a cpu": MLP
    + """
model = mlp(32, 96, 10)
compiled = torch.compile(model)
optimizer = torch.optim.SGD(model.parameters(), 0.1)
scaler = torch.amp.GradScaler("cpu", init_scale=2.0**8, growth_interval=6)
for step in range(steps):
    with torch.autocast("cpu", dtype=torch.float16):
        loss = F.cross_entropy(compiled(torch.randn(16, 32)), torch.randint(0, 10, (16,)))
    optimizer.zero_grad()
    scaler.scale(loss).backward()
    scaler.unscale_(optimizer)
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    scaler.step(optimizer)
    scaler.update()
    tick()
print(f"{loss.item():.2f} {scaler.get_scale():.0f}")
""",
    "saved, loaded and compiled again": MLP
    + """
import io
def build():
    model = mlp(16, 40, 4)
    optimizer = torch.optim.AdamW(model.parameters())
    return model, optimizer, torch.optim.lr_scheduler.OneCycleLR(optimizer, 1e-2, total_steps=steps + 1)
def train(parts, number):
    model, optimizer, schedule = parts
    compiled = torch.compile(model)
    for _ in range(number):
        loss = F.cross_entropy(compiled(torch.randn(8, 16)), torch.randint(0, 4, (8,)))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()
        tick()
    return loss.item()
first = build()
train(first, steps // 3)
file = io.BytesIO()
torch.save([part.state_dict() for part in first], file)
file.seek(0)
second = build()
for part, state in zip(second, torch.load(file)):
    part.load_state_dict(state)
print(f"{train(second, steps - steps // 3):.2f}")
""",
    "a search over widths": MLP
    + """
best = None
for width in (16, 32, 64):
    torch.manual_seed(width)
    model = mlp(8, width, 2)
    compiled = torch.compile(model)
    optimizer = torch.optim.ASGD(model.parameters(), 0.1)
    for step in range(steps // 3):
        x = torch.randn(16, 8)
        loss = F.cross_entropy(compiled(x), (x.sum(1) > 0).long())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        tick(f"width {width}")
    best = min(best or (9.0, 0), (loss.item(), width))
print(f"{best[0]:.2f}")
""",
    "batches from a thread and a queue": MLP
    + """
import queue, threading
batches = queue.Queue(2)
def produce():
    numbers = torch.Generator().manual_seed(3)
    for _ in range(steps):
        x = torch.randn(32, 16, generator=numbers)
        batches.put((x, (x @ x.new_ones(16, 1)).sign()))
    batches.put(None)
threading.Thread(target=produce, daemon=True).start()
model = mlp(16, 64, 1)
compiled = torch.compile(model)
optimizer = torch.optim.Adam(model.parameters())
while (batch := batches.get()) is not None:
    x, y = batch
    loss = F.soft_margin_loss(compiled(x), y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    tick()
print(f"{loss.item():.2f}")
""",
    "pruned on the way": MLP
    + """
from torch.nn.utils import prune
model = mlp(24, 48, 48, 6)
layers = [m for m in model if isinstance(m, nn.Linear)]
for layer in layers:
    prune.l1_unstructured(layer, "weight", 0.1)
compiled = torch.compile(model)
optimizer = torch.optim.SGD(model.parameters(), 0.1)
for step in range(steps):
    loss = F.cross_entropy(compiled(torch.randn(16, 24)), torch.randint(0, 6, (16,)))
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 12 == 11:
        for layer in layers:
            prune.l1_unstructured(layer, "weight", 0.1)
    tick()
print(f"{loss.item():.2f} {sum(int((layer.weight == 0).sum()) for layer in layers)}")
""",
    "a compiled optimizer with a rate that is a tensor": MLP
    + """
model = mlp(24, 48, 6)
compiled = torch.compile(model)
optimizer = torch.optim.Adam(model.parameters(), lr=torch.tensor(1e-3), capturable=False)
schedule = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.98)
@torch.compile(fullgraph=False)
def update():
    optimizer.step()
    schedule.step()
for step in range(steps):
    loss = F.cross_entropy(compiled(torch.randn(16, 24)), torch.randint(0, 6, (16,)))
    optimizer.zero_grad()
    loss.backward()
    update()
    tick()
print(f"{loss.item():.2f}")
""",
    "a part that is never compiled": MLP
    + """
class Routed(nn.Module):
    def __init__(self):
        super().__init__()
        self.before, self.after = mlp(24, 32), mlp(32, 32, 4)
        self.keys = nn.Parameter(torch.randn(8, 32))
    @torch.compiler.disable
    def nearest(self, x):
        return self.keys[torch.cdist(x, self.keys).argmin(1)]
    def forward(self, x):
        x = self.before(x)
        return self.after(x + (self.nearest(x) - x).detach())
model = Routed()
compiled = torch.compile(model)
optimizer = torch.optim.Adam(model.parameters())
for step in range(steps):
    with torch.compiler.set_stance("default" if step != 5 else "force_eager"):
        loss = F.cross_entropy(compiled(torch.randn(16, 24)), torch.randint(0, 4, (16,)))
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    tick()
print(f"{loss.item():.2f}")
""",
}
