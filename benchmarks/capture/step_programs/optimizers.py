"""How weights move: optimizers, averages, rates, few weights of many, low precision."""

from __future__ import annotations

from benchmarks.capture.step_programs.pieces import BLOCK, MLP

PROGRAMS: dict[str, str] = {
    "ema": MLP
    + """
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn
model = mlp(64, 256, 10)
average = AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(0.99))
model.compile()
optimizer = torch.optim.NAdam(model.parameters())
for step in range(steps):
    loss = F.cross_entropy(model(torch.randn(32, 64)), torch.randint(0, 10, (32,)))
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    average.update_parameters(model)
    tick()
print(f"{loss.item():.3f}")
""",
    "sam": MLP
    + """
model = mlp(64, 256, 10)
compiled = torch.compile(lambda x, y: F.cross_entropy(model(x), y))
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
for step in range(steps):
    x, y = torch.randn(32, 64), torch.randint(0, 10, (32,))
    compiled(x, y).backward()
    with torch.no_grad():
        norm = torch.stack([p.grad.norm() for p in model.parameters()]).norm() + 1e-12
        moved = [p.grad * (0.05 / norm) for p in model.parameters()]
        for p, by in zip(model.parameters(), moved):
            p.add_(by)
    optimizer.zero_grad()
    loss = compiled(x, y)
    loss.backward()
    with torch.no_grad():
        for p, by in zip(model.parameters(), moved):
            p.sub_(by)
    optimizer.step()
    optimizer.zero_grad()
    tick()
print(f"{loss.item():.3f}")
""",
    "l-bfgs with a closure": MLP
    + """
model = mlp(2, 64, 64, 1)
compiled = torch.compile(model)
optimizer = torch.optim.LBFGS(model.parameters(), lr=0.1, max_iter=4, tolerance_grad=0, tolerance_change=0)
x = torch.rand(128, 2)
y = torch.sin(4 * x).sum(1, keepdim=True)
def closure():
    optimizer.zero_grad()
    loss = F.mse_loss(compiled(x), y)
    loss.backward()
    return loss
for step in range(steps):
    loss = optimizer.step(closure)
    tick()
print(f"{loss.item():.2f}")
""",
    "lora": """
import os
os.environ.setdefault("HF_HUB_OFFLINE", "1")
from transformers import LlamaConfig, LlamaForCausalLM
class Lora(nn.Module):
    def __init__(self, base, rank=4):
        super().__init__()
        self.base = base.requires_grad_(False)
        self.down, self.up = nn.Linear(base.in_features, rank, False), nn.Linear(rank, base.out_features, False)
        nn.init.zeros_(self.up.weight)
    def forward(self, x):
        return self.base(x) + self.up(self.down(x))
model = LlamaForCausalLM(LlamaConfig(vocab_size=128, hidden_size=64, intermediate_size=128, num_hidden_layers=2,
                                     num_attention_heads=4, num_key_value_heads=2, max_position_embeddings=64))
model.requires_grad_(False)
for layer in model.model.layers:
    layer.self_attn.q_proj, layer.self_attn.v_proj = Lora(layer.self_attn.q_proj), Lora(layer.self_attn.v_proj)
optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=1e-3)
compiled = torch.compile(model)
for step in range(steps):
    tokens = torch.randint(0, 128, (4, 24))
    loss = compiled(input_ids=tokens, labels=tokens).loss
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    tick()
print(f"{loss.item():.3f}")
""",
    "updates by hand": MLP
    + """
model = mlp(64, 256, 10)
compiled = torch.compile(model)
for step in range(steps):
    loss = F.cross_entropy(compiled(torch.randn(32, 64)), torch.randint(0, 10, (32,)))
    for parameter, slope in zip(model.parameters(), torch.autograd.grad(loss, list(model.parameters()))):
        with torch.no_grad():
            parameter -= 0.01 * slope
    tick()
print(f"{loss.item():.3f}")
""",
    "an optimizer for each parameter": MLP
    + """
model = mlp(64, 256, 256, 10)
compiled = torch.compile(model)
optimizers = {p: torch.optim.Adam([p], foreach=False) for p in model.parameters()}
def update(parameter):
    optimizers[parameter].step()
    optimizers[parameter].zero_grad()
for parameter in model.parameters():
    parameter.register_post_accumulate_grad_hook(update)
for step in range(steps):
    loss = F.cross_entropy(compiled(torch.randn(32, 64)), torch.randint(0, 10, (32,)))
    loss.backward()
    tick()
print(f"{loss.item():.3f}")
""",
    "layer-wise rates and mixup": BLOCK
    + """
import copy
class Vision(nn.Module):
    def __init__(self, width, depth, drop=0.1):
        super().__init__()
        self.patch, self.cls = nn.Conv2d(3, width, 4, 4), nn.Parameter(torch.zeros(1, 1, width))
        self.place = nn.Parameter(0.02 * torch.randn(1, 17, width))
        self.blocks, self.drop = nn.ModuleList(Block(width, 4) for _ in range(depth)), drop
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, 10)
    def forward(self, x):
        x = self.patch(x).flatten(2).mT
        x = torch.cat([self.cls.expand(len(x), -1, -1), x], 1) + self.place
        for block in self.blocks:
            y = block(x, causal=False)
            if self.training:
                kept = (torch.rand(len(x), 1, 1) > self.drop).to(x.dtype) / (1 - self.drop)
                y = x + kept * (y - x)
            x = y
        return self.head(self.norm(x[:, 0]))
model = Vision(32, 3)
average = copy.deepcopy(model)
groups = [{"params": block.parameters(), "lr": 1e-3 * 0.65 ** (3 - at)} for at, block in enumerate(model.blocks)]
others = [p for name, p in model.named_parameters() if not name.startswith("blocks")]
optimizer = torch.optim.AdamW([*groups, {"params": others, "lr": 1e-3, "weight_decay": 0.0}], weight_decay=0.05)
compiled = torch.compile(model)
for step in range(steps):
    for group in optimizer.param_groups:
        group["lr"] *= 0.99
    x, y = torch.randn(8, 3, 16, 16), F.one_hot(torch.randint(0, 10, (8,)), 10).float()
    share, order = torch.distributions.Beta(0.8, 0.8).sample(), torch.randperm(8)
    x, y = share * x + (1 - share) * x[order], share * y + (1 - share) * y[order]
    with torch.autocast("cpu", dtype=torch.bfloat16):
        loss = torch.sum(-y * F.log_softmax(compiled(x).float(), -1), -1).mean()
    optimizer.zero_grad()
    loss.backward()
    norm = nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    if norm.isfinite():
        optimizer.step()
    with torch.no_grad():
        for mine, theirs in zip(average.state_dict().values(), model.state_dict().values()):
            mine.copy_(0.99 * mine + 0.01 * theirs)
    tick()
print(f"{loss.item():.1f}")
""",
    "weights averaged at the end": """
from torch.optim.swa_utils import SWALR, AveragedModel, update_bn
model = nn.Sequential(nn.Conv2d(1, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.Flatten(), nn.Linear(1152, 10))
compiled = torch.compile(model)
average, optimizer = AveragedModel(model), torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, nesterov=True)
scheduler, late = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps), SWALR(optimizer, swa_lr=0.05)
for step in range(steps):
    loss = F.cross_entropy(compiled(torch.randn(16, 1, 14, 14)), torch.randint(0, 10, (16,)))
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step >= steps * 3 // 4:
        average.update_parameters(model)
        late.step()
    else:
        scheduler.step()
    tick("averaged" if step >= steps * 3 // 4 else "step")
update_bn([torch.randn(16, 1, 14, 14) for _ in range(4)], average)
print(f"{loss.item():.2f}")
""",
    "low rank by hooks": BLOCK
    + """
blocks, head = nn.ModuleList(Block(48, 4) for _ in range(2)).requires_grad_(False), nn.Linear(48, 16)
adapters = nn.ModuleDict()
def attach(name, module):
    adapter = nn.Sequential(nn.Linear(module.in_features, 4, False), nn.Linear(4, module.out_features, False))
    nn.init.zeros_(adapter[1].weight)
    adapters[name.replace(".", "_")] = adapter
    module.register_forward_hook(lambda _, given, out: out + adapter(given[0]))
for name, module in blocks.named_modules():
    if name.endswith(("qkv", "out")):
        attach(name, module)
optimizer = torch.optim.AdamW([*adapters.parameters(), *head.parameters()], lr=1e-3)
compiled = [torch.compile(block) for block in blocks]
slopes = []
head.weight.register_hook(lambda slope: slopes.append(slope.norm()))
for step in range(steps):
    x = torch.randn(4, 16, 48)
    for block in compiled:
        x = block(x)
    loss = F.cross_entropy(head(x).flatten(0, 1), torch.randint(0, 16, (64,)))
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    tick()
print(f"{loss.item():.3f} {len(slopes)}")
""",
    "trained for eight bits": """
from torch.ao.quantization import FakeQuantize, MovingAverageMinMaxObserver
def fake(**given):
    return FakeQuantize(observer=MovingAverageMinMaxObserver, **given)
class Linear(nn.Linear):
    def __init__(self, a, b):
        super().__init__(a, b)
        self.of_weight = fake(quant_min=-128, quant_max=127, dtype=torch.qint8, qscheme=torch.per_tensor_symmetric)
        self.of_output = fake(quant_min=0, quant_max=255, dtype=torch.quint8)
    def forward(self, x):
        return self.of_output(F.linear(x, self.of_weight(self.weight), self.bias))
model = nn.Sequential(Linear(64, 128), nn.ReLU(), Linear(128, 128), nn.ReLU(), Linear(128, 10))
compiled = torch.compile(model)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
for step in range(steps):
    loss = F.cross_entropy(compiled(torch.randn(32, 64)), torch.randint(0, 10, (32,)))
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    tick()
print(f"{loss.item():.2f}")
""",
    "muon": BLOCK
    + """
@torch.compile
def orthogonal(g, rounds=3):
    x = g.bfloat16()
    is_tall = x.shape[0] > x.shape[1]
    x = x.T if is_tall else x
    x = x / (x.norm() + 1e-7)
    for _ in range(rounds):
        a = x @ x.T
        x = 3.4445 * x + (-4.775 * a + 2.0315 * a @ a) @ x
    return (x.T if is_tall else x).float()
class Muon(torch.optim.Optimizer):
    def __init__(self, parameters, lr=0.02, momentum=0.95):
        super().__init__(parameters, {"lr": lr, "momentum": momentum})
    @torch.no_grad()
    def step(self):
        for group in self.param_groups:
            for p in group["params"]:
                kept = self.state[p].setdefault("momentum", torch.zeros_like(p))
                kept.lerp_(p.grad, 1 - group["momentum"])
                p.add_(orthogonal(p.grad.lerp(kept, group["momentum"])), alpha=-group["lr"])
embed, blocks, head = nn.Embedding(64, 32), nn.ModuleList(Block(32, 4) for _ in range(2)), nn.Linear(32, 64, bias=False)
head.weight = embed.weight
matrices = [p for p in blocks.parameters() if p.ndim == 2]
others = [p for p in blocks.parameters() if p.ndim < 2]
optimizers = [Muon(matrices), torch.optim.AdamW([*others, embed.weight], lr=1e-3, fused=True)]
@torch.compile
def loss_of(tokens):
    x = embed(tokens[:, :-1])
    for block in blocks:
        x = block(x)
    return F.cross_entropy(15 * torch.tanh(head(x) / 15).flatten(0, 1), tokens[:, 1:].flatten())
for step in range(steps):
    loss = loss_of(torch.randint(0, 64, (4, 17)))
    loss.backward()
    for optimizer in optimizers:
        optimizer.step()
    for optimizer in optimizers:
        optimizer.zero_grad(set_to_none=True)
    tick()
print(f"{loss.item():.2f}")
""",
    "skipped steps": MLP
    + """
model = mlp(64, 256, 10)
compiled = torch.compile(model)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
scaler = torch.amp.GradScaler("cpu", init_scale=8.0, growth_interval=5)
for step in range(steps):
    x = torch.randn(32, 64)
    if step % 5 == 4:
        x = x * float("inf")
    loss = F.cross_entropy(compiled(x), torch.randint(0, 10, (32,)))
    optimizer.zero_grad()
    scaler.scale(loss).backward()
    scaler.step(optimizer)
    scaler.update()
    tick("skipped" if step % 5 == 4 else "step")
print(f"{scaler.get_scale():.3f}")
""",
    "accumulation with a remainder": MLP
    + """
model = mlp(64, 256, 10)
compiled = torch.compile(model)
optimizer = torch.optim.AdamW(model.parameters())
for epoch in range(steps // 3):
    for number in range(10):
        loss = F.cross_entropy(compiled(torch.randn(32, 64)), torch.randint(0, 10, (32,))) / 4
        loss.backward()
        if number % 4 == 3 or number == 9:
            optimizer.step()
            optimizer.zero_grad()
            tick("remainder" if number == 9 else "step")
print(f"{loss.item():.3f}")
""",
    "recommender with sparse gradients": MLP
    + """
bags = nn.ModuleList(nn.EmbeddingBag(500, 16, mode="sum", sparse=True) for _ in range(3))
bottom, top = mlp(8, 32, 16), mlp(22, 64, 1)
compiled = torch.compile(top)
dense = torch.optim.Adam([*bottom.parameters(), *top.parameters()])
sparse = torch.optim.SparseAdam(list(bags.parameters()), lr=1e-3)
pairs = torch.triu_indices(4, 4, 1)
for step in range(steps):
    parts = [bottom(torch.randn(32, 8)), *(bag(torch.randint(0, 500, (32, 5))) for bag in bags)]
    parts = torch.stack(parts, 1)
    dots = (parts @ parts.mT)[:, pairs[0], pairs[1]]
    shown = compiled(torch.cat([parts[:, 0], dots], 1))[:, 0]
    loss = F.binary_cross_entropy_with_logits(shown, torch.randint(0, 2, (32,)).float())
    dense.zero_grad(), sparse.zero_grad()
    loss.backward()
    dense.step(), sparse.step()
    tick()
print(f"{loss.item():.3f}")
""",
    "a knowledge graph, sparse rows": """
entities, relations = nn.Embedding(400, 32, sparse=True), nn.Embedding(12, 32, sparse=True)
score = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 32))
join = torch.compile(score)
rows = torch.optim.SparseAdam([*entities.parameters(), *relations.parameters()], lr=1e-2)
dense = torch.optim.SGD(score.parameters(), lr=1e-2)
for step in range(steps):
    head, tail, relation = torch.randint(0, 400, (64,)), torch.randint(0, 400, (64,)), torch.randint(0, 12, (64,))
    wrong = torch.randint(0, 400, (64, 4))
    goal = join(torch.cat([entities(head), relations(relation)], 1))
    near = -(goal - entities(tail)).norm(dim=1)
    far = -(goal[:, None] - entities(wrong)).norm(dim=2)
    loss = F.relu(1 - near[:, None] + far).mean()
    rows.zero_grad(), dense.zero_grad()
    loss.backward()
    rows.step(), dense.step()
    tick()
print(f"{loss.item():.3f}")
""",
    "int8 weights": """
class Quantized(nn.Module):
    def __init__(self, a, b):
        super().__init__()
        weight = torch.randn(b, a)
        scale = weight.abs().amax(1, keepdim=True) / 127
        self.register_buffer("weight", (weight / scale).round().to(torch.int8))
        self.register_buffer("scale", scale)
    def forward(self, x):
        return F.linear(x, self.weight.to(x.dtype) * self.scale.to(x.dtype))
model = nn.Sequential(Quantized(64, 256), nn.ReLU(), Quantized(256, 64)).bfloat16()
for layer in (model[0], model[2]):
    layer.weight = layer.weight.to(torch.int8)
compiled = torch.compile(model)
with torch.inference_mode():
    for step in range(steps):
        y = compiled(torch.randn(16, 64, dtype=torch.bfloat16))
        tick()
print(tuple(y.shape))
""",
    "weight and spectral norm": """
from torch.nn.utils.parametrizations import spectral_norm, weight_norm
class Temporal(nn.Module):
    def __init__(self, width, dilation):
        super().__init__()
        self.a = weight_norm(nn.Conv1d(width, width, 3, dilation=dilation, padding=2 * dilation))
        self.b = nn.Conv1d(width, width, 1)
        self.dilation = dilation
    def forward(self, x):
        return x + self.b(F.relu(self.a(x)[..., :-2 * self.dilation]))
model = nn.Sequential(nn.Conv1d(4, 16, 1), Temporal(16, 1), Temporal(16, 2), Temporal(16, 4))
judge = nn.Sequential(spectral_norm(nn.Linear(16, 32)), nn.LeakyReLU(0.2), spectral_norm(nn.Linear(32, 1)))
run, score = torch.compile(model), torch.compile(judge)
optimizer = torch.optim.RMSprop([*model.parameters(), *judge.parameters()], lr=1e-3)
for step in range(steps):
    x = torch.randn(4, 4, 60)
    loss = F.softplus(-score(run(x)[..., -1])).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    tick()
print(f"{loss.item():.3f}")
""",
}
