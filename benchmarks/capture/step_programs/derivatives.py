"""How a derivative comes about: functions of one's own, ``torch.func``, checkpoints, hooks, subclasses."""

from __future__ import annotations

from benchmarks.capture.step_programs.pieces import BLOCK, MLP

PROGRAMS: dict[str, str] = {
    "maml": MLP
    + """
from torch.func import functional_call, grad
model = mlp(1, 64, 64, 1)
outer = torch.optim.Adam(model.parameters(), lr=1e-3)
def inner_loss(weights, x, y):
    return F.mse_loss(functional_call(model, weights, (x,)), y)
@torch.compile
def task_loss(weights, x, y, other_x, other_y):
    found = grad(inner_loss)(weights, x, y)
    return inner_loss({name: weights[name] - 0.01 * found[name] for name in weights}, other_x, other_y)
for step in range(steps):
    weights = dict(model.named_parameters())
    loss = 0
    for task in range(3):
        x, shift = torch.rand(2, 20, 1), torch.rand(1)
        y = torch.sin(6 * x + shift)
        loss = loss + task_loss(weights, x[0], y[0], x[1], y[1]) / 3
    outer.zero_grad()
    loss.backward()
    outer.step()
    tick()
print(f"{loss.item():.3f}")
""",
    "compiled autograd": MLP
    + """
torch._dynamo.config.compiled_autograd = True
model = mlp(64, 256, 10)
optimizer = torch.optim.Adam(model.parameters())
@torch.compile
def train(x, y):
    loss = F.cross_entropy(model(x), y)
    loss.backward()
    return loss
for step in range(steps):
    loss = train(torch.randn(32, 64), torch.randint(0, 10, (32,)))
    optimizer.step()
    optimizer.zero_grad()
    tick()
print(f"{loss.item():.3f}")
""",
    "checkpointing inside and outside": BLOCK
    + """
from torch.utils.checkpoint import checkpoint
blocks = nn.ModuleList(Block(48, 4) for _ in range(3))
inside = torch.compile(lambda x: checkpoint(blocks[0], x, use_reentrant=False))
outside = torch.compile(blocks[1])
optimizer = torch.optim.Adam(blocks.parameters())
for step in range(steps):
    x = torch.randn(4, 24, 48)
    y = checkpoint(blocks[2], checkpoint(outside, inside(x), use_reentrant=False), use_reentrant=True)
    loss = y.square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    tick()
print(f"{loss.item():.3f}")
""",
    "checkpointing of transformers": """
import os
os.environ.setdefault("HF_HUB_OFFLINE", "1")
from transformers import GPT2Config, GPT2LMHeadModel, get_cosine_schedule_with_warmup
model = GPT2LMHeadModel(GPT2Config(vocab_size=128, n_positions=64, n_embd=48, n_layer=3, n_head=4, resid_pdrop=0.0,
                                   embd_pdrop=0.0, attn_pdrop=0.0))
model.gradient_checkpointing_enable()
model.config.use_cache = False
model.train()
model.forward = torch.compile(model.forward)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
scheduler = get_cosine_schedule_with_warmup(optimizer, 5, steps)
for step in range(steps):
    tokens = torch.randint(0, 128, (4, 32))
    loss = model(input_ids=tokens, labels=tokens).loss
    loss.backward()
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    scheduler.step()
    model.zero_grad()
    tick()
print(f"{loss.item():.3f}")
""",
    "operators of torch.library": """
@torch.library.custom_op("drawn::smooth", mutates_args=())
def smooth(x: torch.Tensor, by: float) -> torch.Tensor:
    return torch.logaddexp(x * by, torch.zeros_like(x)) / by
@smooth.register_fake
def _(x, by):
    return torch.empty_like(x)
@torch.library.custom_op("drawn::smooth_backward", mutates_args=())
def smooth_backward(g: torch.Tensor, x: torch.Tensor, by: float) -> torch.Tensor:
    return g * torch.sigmoid(x * by)
@smooth_backward.register_fake
def _(g, x, by):
    return torch.empty_like(x)
def keep(ctx, inputs, output):
    ctx.save_for_backward(inputs[0])
    ctx.by = inputs[1]
smooth.register_autograd(lambda ctx, g: (smooth_backward(g, *ctx.saved_tensors, ctx.by), None), setup_context=keep)
first, second = nn.Linear(64, 128), nn.Linear(128, 10)
@torch.compile(fullgraph=True)
def forward(x):
    return second(smooth(first(x), 2.0))
optimizer = torch.optim.Adam([*first.parameters(), *second.parameters()])
for step in range(steps):
    loss = F.cross_entropy(forward(torch.randn(32, 64)), torch.randint(0, 10, (32,)))
    loss = loss + 1e-3 * smooth(first.weight, 1.0).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    tick()
print(f"{loss.item():.3f}")
""",
    "autograd.Function": """
class Straight(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, weight):
        ctx.save_for_backward(x, weight)
        return x @ weight.sign().T
    @staticmethod
    def backward(ctx, g):
        x, weight = ctx.saved_tensors
        return g @ weight.sign(), (g.T @ x) * (weight.abs() < 1)
class Binary(nn.Linear):
    def forward(self, x):
        return Straight.apply(x, self.weight) + self.bias
inside, outside, head = Binary(64, 96), Binary(96, 96), nn.Linear(96, 10)
compiled = torch.compile(lambda x: F.hardtanh(inside(x)))
optimizer = torch.optim.Adam([*inside.parameters(), *outside.parameters(), *head.parameters()])
for step in range(steps):
    loss = F.cross_entropy(head(outside(compiled(torch.randn(32, 64)))), torch.randint(0, 10, (32,)))
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    tick()
print(f"{loss.item():.3f}")
""",
    "derivatives by vmap": MLP
    + """
from torch.func import functional_call, hessian, vmap
model = mlp(2, 32, 32, 1)
def field(weights, point):
    return functional_call(model, weights, (point,))[0]
def residual(weights, points):
    curve = vmap(hessian(field, argnums=1), (None, 0))(weights, points)
    return (curve[:, 0, 0] + curve[:, 1, 1] + torch.sin(points).prod(1)).square().mean()
compiled = torch.compile(model)
optimizer = torch.optim.Adam(model.parameters())
for step in range(steps):
    edge = torch.rand(32, 2).round(decimals=0)
    loss = residual(dict(model.named_parameters()), torch.rand(64, 2)) + compiled(edge).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    tick()
print(f"{loss.item():.3f}")
""",
    "an ensemble by vmap": MLP
    + """
from torch.func import functional_call, grad_and_value, stack_module_state, vmap
models = [mlp(16, 64, 64, 4) for _ in range(5)]
weights, buffers = stack_module_state(models)
base = mlp(16, 64, 64, 4).to("meta")
weights = {name: p.detach().requires_grad_() for name, p in weights.items()}
optimizer = torch.optim.SGD(weights.values(), lr=0.1, momentum=0.9)
def loss_of(own, x, y):
    return F.cross_entropy(functional_call(base, own, (x,)), y)
each = vmap(grad_and_value(loss_of), (0, 0, None), randomness="different")
judge = torch.compile(vmap(lambda own, x: functional_call(base, own, (x,)).softmax(-1), (0, None)))
for step in range(steps):
    x, y = torch.randn(5, 32, 16), torch.randint(0, 4, (32,))
    slopes, losses = each({name: p.detach() for name, p in weights.items()}, x, y)
    for name, slope in slopes.items():
        weights[name].grad = slope
    optimizer.step()
    with torch.no_grad():
        sure = judge({name: p.detach() for name, p in weights.items()}, x[0]).mean(0).amax(-1).mean()
    tick()
print(f"{losses.mean().item():.3f} {sure.item():.2f}")
""",
    "private gradients of each sample": MLP
    + """
from torch.func import functional_call, grad, vmap
model = mlp(32, 64, 64, 5)
names = [name for name, _ in model.named_parameters()]
def loss_of(weights, x, y):
    return F.cross_entropy(functional_call(model, weights, (x[None],)), y[None])
each = torch.compile(vmap(grad(loss_of), (None, 0, 0)))
optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
for step in range(steps):
    x, y = torch.randn(16, 32), torch.randint(0, 5, (16,))
    slopes = each({name: p.detach() for name, p in model.named_parameters()}, x, y)
    norms = torch.stack([slope.flatten(1).norm(dim=1) for slope in slopes.values()]).norm(dim=0)
    scale = (1.0 / norms.clamp(min=1e-6)).clamp(max=1.0)
    for name, parameter in model.named_parameters():
        clipped = torch.einsum("b,b...->...", scale, slopes[name])
        parameter.grad = (clipped + 0.1 * torch.randn_like(parameter)) / 16
    optimizer.step()
    optimizer.zero_grad()
    tick()
print(f"{norms.mean().item():.2f}")
""",
    "iterated to a fixed point": MLP
    + """
class Cell(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.inner, self.outer = nn.Linear(width, width), nn.Linear(width, width)
    def forward(self, z, x):
        return torch.tanh(0.5 * self.inner(z) + self.outer(x))
cell, head = Cell(48), nn.Linear(48, 10)
compiled = torch.compile(cell)
optimizer = torch.optim.Adam([*cell.parameters(), *head.parameters()], maximize=False, capturable=False)
for step in range(steps):
    x = torch.randn(16, 48)
    z = torch.zeros(16, 48)
    with torch.no_grad():
        for rounds in range(1, 30):
            after = compiled(z, x)
            z, moved = after, (after - z).norm() / after.norm()
            if moved < 1e-3:
                break
    loss = F.cross_entropy(head(compiled(z, x)), torch.randint(0, 10, (16,)))
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    tick(f"{rounds} rounds")
print(f"{loss.item():.3f}")
""",
    "a flow along an ode": MLP
    + """
field = mlp(9, 48, 48, 8)
@torch.compile
def move(x, at):
    return field(torch.cat([x, at.expand(len(x), 1)], 1))
def moved(x, at, noise):
    with torch.enable_grad():
        x = x.requires_grad_() if not x.requires_grad else x
        speed = field(torch.cat([x, at.expand(len(x), 1)], 1))
        push, = torch.autograd.grad(speed, x, noise, create_graph=True)
    return speed, (push * noise).sum(1)
optimizer = torch.optim.AdamW(field.parameters(), lr=1e-3)
for step in range(steps):
    x, noise, volume, h = torch.randn(32, 8), torch.randn(32, 8), torch.zeros(32), 0.25
    for at in torch.arange(0, 1, h):
        a, first = moved(x, at, noise)
        b = move(x + h / 2 * a, at + h / 2)
        c = move(x + h / 2 * b, at + h / 2)
        d, last = moved(x + h * c, at + h, noise)
        x, volume = x + h / 6 * (a + 2 * b + 2 * c + d), volume + h / 2 * (first + last)
    loss = (0.5 * x.square().sum(1) - volume).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    tick()
print(f"{loss.item():.3f}")
""",
    "a whole step without an optimizer": MLP
    + """
from torch.func import functional_call, grad_and_value
model = mlp(16, 64, 64, 1)
def loss_of(weights, x, y):
    return F.mse_loss(functional_call(model, weights, (x,)), y)
@torch.compile
def train(weights, speeds, x, y):
    slopes, loss = grad_and_value(loss_of)(weights, x, y)
    speeds = {name: 0.9 * speeds[name] + slopes[name] for name in speeds}
    return {name: weights[name] - 0.01 * speeds[name] for name in weights}, speeds, loss
weights = {name: p.detach().clone() for name, p in model.named_parameters()}
speeds = {name: torch.zeros_like(p) for name, p in weights.items()}
for step in range(steps):
    x = torch.randn(64, 16)
    weights, speeds, loss = train(weights, speeds, x, x.prod(1, keepdim=True).sign())
    tick()
print(f"{loss.item():.3f}")
""",
    "second derivatives of a field": """
class Sine(nn.Module):
    def __init__(self, a, b):
        super().__init__()
        self.linear = nn.Linear(a, b)
    def forward(self, x):
        return torch.sin(3 * self.linear(x))
field = nn.Sequential(Sine(2, 32), Sine(32, 32), nn.Linear(32, 1))
edge = torch.compile(lambda x: field(x).square().mean())
optimizer = torch.optim.Adam(field.parameters(), 1e-3)
for step in range(steps):
    x = torch.rand(64, 2, requires_grad=True)
    u = field(x)
    slope, = torch.autograd.grad(u.sum(), x, create_graph=True)
    bend = sum(torch.autograd.grad(slope[:, i].sum(), x, create_graph=True)[0][:, i] for i in range(2))
    loss = (bend + 1).square().mean() + 10 * edge(torch.rand(32, 2).round())
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    tick()
print(f"{loss.item():.1f}")
""",
    "saved tensors packed": BLOCK
    + """
def pack(x):
    return (x.to(torch.bfloat16), x.dtype) if x.is_floating_point() else (x, x.dtype)
def unpack(saved):
    return saved[0].to(saved[1])
first, second, head = Block(32, 4), Block(32, 4), nn.Linear(32, 8)
run = torch.compile(second)
optimizer = torch.optim.Adam([*first.parameters(), *second.parameters(), *head.parameters()], amsgrad=True)
for step in range(steps):
    x = torch.randn(4, 16, 32)
    with torch.autograd.graph.saved_tensors_hooks(pack, unpack):
        x = first(x)
    x = run(x)
    with torch.autograd.graph.save_on_cpu():
        loss = F.cross_entropy(head(x.mean(1)), torch.randint(0, 8, (4,)))
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    tick()
print(f"{loss.item():.2f}")
""",
    "a subclass of tensors": MLP
    + """
class Logged(torch.Tensor):
    seen = 0
    @classmethod
    def __torch_function__(cls, function, types, arguments=(), keywords=None):
        cls.seen += 1
        return super().__torch_function__(function, types, arguments, keywords or {})
model = mlp(32, 64, 4)
judge = torch.compile(lambda logits, y: F.cross_entropy(logits, y))
optimizer = torch.optim.SGD(model.parameters(), 0.1)
for step in range(steps):
    x = torch.randn(16, 32).as_subclass(Logged)
    logits = model(x).as_subclass(torch.Tensor)
    loss = judge(logits, torch.randint(0, 4, (16,)))
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    tick()
print(f"{loss.item():.2f}", Logged.seen)
""",
    "a branch in the graph": MLP
    + """
class Gated(nn.Module):
    def __init__(self):
        super().__init__()
        self.near, self.far, self.head = nn.Linear(32, 32), nn.Linear(32, 32), nn.Linear(32, 4)
    def forward(self, x):
        x = torch.cond(x.mean() > 0, lambda x: self.near(x).relu(), lambda x: self.far(x).tanh(), (x,))
        return self.head(x)
model = Gated()
compiled = torch.compile(model)
optimizer = torch.optim.Adam(model.parameters())
for step in range(steps):
    sign = 1 if step % 2 else -1
    loss = F.cross_entropy(compiled(torch.randn(32, 32) + sign), torch.randint(0, 4, (32,)))
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    tick("near" if step % 2 else "far")
print(f"{loss.item():.3f}")
""",
    "a while loop in the graph": """
from torch._higher_order_ops.while_loop import while_loop
cell, head = nn.Linear(32, 32), nn.Linear(32, 4)
@torch.compile
def settle(x):
    def goes_on(at, h):
        return at < 5
    def body(at, h):
        return at + 1, torch.tanh(cell(h) + x)
    _, h = while_loop(goes_on, body, (torch.tensor(0), torch.zeros_like(x)))
    return head(h)
for step in range(steps):
    with torch.no_grad():
        y = settle(torch.randn(8, 32))
    tick()
print(f"{y.sum().item():.3f}")
""",
    "complex weights": """
class Complex(nn.Module):
    def __init__(self, a, b):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(a, b, dtype=torch.cfloat) / a)
    def forward(self, z):
        return z @ self.weight
first, second = Complex(33, 33), Complex(33, 33)
head = nn.Linear(64, 5)
run = torch.compile(head)
optimizer = torch.optim.Adam([*first.parameters(), *second.parameters(), *head.parameters()], lr=1e-3)
for step in range(steps):
    x = torch.randn(16, 64)
    z = first(torch.fft.rfft(x))
    z = second(torch.polar(F.relu(z.abs() - 0.1), z.angle()))
    loss = F.cross_entropy(run(torch.fft.irfft(z, n=64)), (x[:, 0] > 0).long())
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    tick()
print(f"{loss.item():.3f}")
""",
    "products inside operators of its own": """
@torch.library.custom_op("mine::project", mutates_args=())
def project(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    return (x @ weight.T).relu()
@project.register_fake
def _(x, weight):
    return x.new_empty(x.shape[0], weight.shape[0])
def backward(ctx, g):
    x, weight, y = ctx.saved_tensors
    g = g * (y > 0)
    return g @ weight, g.T @ x
project.register_autograd(
    backward, setup_context=lambda ctx, inputs, output: ctx.save_for_backward(*inputs, output))
@torch.library.custom_op("mine::blend", mutates_args=("state",))
def blend(state: torch.Tensor, x: torch.Tensor) -> None:
    state.mul_(0.9).add_(x.T @ x, alpha=0.1)
@blend.register_fake
def _(state, x):
    return None
@torch.library.custom_op("mine::by_numpy", mutates_args=())
def by_numpy(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return torch.from_numpy(x.numpy() @ y.numpy())
@by_numpy.register_fake
def _(x, y):
    return x.new_empty(x.shape[0], y.shape[1])
from torch.utils.flop_counter import register_flop_formula
@register_flop_formula(torch.ops.mine.by_numpy)
def _(x_shape, y_shape, *args, out_shape=None, **kwargs):
    return 2 * x_shape[0] * x_shape[1] * y_shape[1]
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(32, 64), nn.Linear(64, 10)
        self.weight = nn.Parameter(torch.randn(64, 64) / 8)
        self.register_buffer("state", torch.zeros(64, 64))
    def forward(self, x):
        x = project(self.first(x), self.weight)
        blend(self.state, x.detach())
        return self.second(x + 0.01 * by_numpy(x.detach(), self.state.detach()))
net = Net()
compiled = torch.compile(net)
optimizer = torch.optim.AdamW(net.parameters(), 1e-3)
for step in range(steps):
    x, target = torch.randn(16, 32), torch.randint(0, 10, (16,))
    loss = F.cross_entropy(compiled(x), target)
    own = project(torch.randn(8, 64), net.weight).mean() + by_numpy(x, x.T.contiguous()).mean()
    optimizer.zero_grad()
    (loss + 0.1 * own).backward()
    optimizer.step()
    tick()
print(f"{loss.item():.3f}")
""",
}
