"""Ordinary scripts, each with another way to spend a step: ``steps_drawn.py`` draws of them and records them.

They know nothing of torchledger. Each takes a number of steps and a file; ``tick(KIND)`` ends a step of the script's
own count. At its end a script has written the kind, the moment and the FLOPs so far of each to that file; the FLOPs
are 0 unless somebody runs it with a ``counted`` in its globals. What a script prints follows from its seed alone.
"""

from __future__ import annotations

HEAD = """
import atexit, json, sys, time
import torch
from torch import nn
from torch.nn import functional as F

steps, own_file = int(sys.argv[1]), sys.argv[2]
counted = globals().get("counted", lambda: 0)
moments = []
def tick(kind="step"):
    moments.append((kind, time.perf_counter(), int(counted())))
if __name__ == "__main__":
    atexit.register(lambda: json.dump(moments, open(own_file, "w")))
torch.manual_seed(0)
"""

_MLP = """
def mlp(*widths):
    pairs = list(zip(widths, widths[1:]))
    layers = [layer for a, b in pairs for layer in (nn.Linear(a, b), nn.GELU())]
    return nn.Sequential(*layers[:-1])
"""

_BLOCK = """
class Block(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.first, self.second = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.feed = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))
    def forward(self, x, causal=True):
        batch, length, width = x.shape
        q, k, v = self.qkv(self.first(x)).view(batch, length, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        x = x + self.out(F.scaled_dot_product_attention(q, k, v, is_causal=causal).transpose(1, 2).flatten(2))
        return x + self.feed(self.second(x))
"""

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
    "contrastive with a queue": _MLP
    + """
import copy
query, queue, at = mlp(64, 128, 32), F.normalize(torch.randn(256, 32)), 0
key = copy.deepcopy(query).requires_grad_(False)
of_query, of_key = torch.compile(query), torch.compile(key)
optimizer = torch.optim.SGD(query.parameters(), lr=0.03, momentum=0.9, weight_decay=1e-4)
for step in range(steps):
    x = torch.randn(32, 64)
    q = F.normalize(of_query(x + 0.1 * torch.randn_like(x)), dim=1)
    with torch.no_grad():
        for mine, theirs in zip(key.parameters(), query.parameters()):
            mine.mul_(0.99).add_(theirs, alpha=0.01)
        k = F.normalize(of_key(x + 0.1 * torch.randn_like(x)), dim=1)
    logits = torch.cat([(q * k).sum(1, keepdim=True), q @ queue.T], 1) / 0.1
    loss = F.cross_entropy(logits, torch.zeros(32, dtype=torch.long))
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    queue[at:at + 32] = k
    at = (at + 32) % 256
    tick()
print(f"{loss.item():.3f}")
""",
    "rollout and updates": _MLP
    + """
policy, value = mlp(8, 64, 4), mlp(8, 64, 1)
act, judge = torch.compile(policy), torch.compile(value)
optimizer = torch.optim.Adam([*policy.parameters(), *value.parameters()], lr=3e-4)
state = torch.randn(16, 8)
turn = torch.linalg.qr(torch.randn(8, 8))[0]
for step in range(steps // 2):
    states, actions, rewards, old = [], [], [], []
    with torch.no_grad():
        for _ in range(6):
            chosen = torch.distributions.Categorical(logits=act(state))
            action = chosen.sample()
            states.append(state), actions.append(action), old.append(chosen.log_prob(action))
            state = state @ turn + 0.1 * action[:, None]
            rewards.append(-state.square().mean(1))
    states, actions, old, rewards = torch.cat(states), torch.cat(actions), torch.cat(old), torch.cat(rewards)
    for update in range(2):
        chosen = torch.distributions.Categorical(logits=act(states))
        gain = rewards - judge(states)[:, 0]
        ratio = (chosen.log_prob(actions) - old).exp()
        clipped = ratio.clamp(0.8, 1.2) * gain.detach()
        loss = -torch.minimum(ratio * gain.detach(), clipped).mean() + gain.square().mean()
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(policy.parameters(), 0.5)
        optimizer.step()
        tick("second update" if update else "rollout and update")
print(f"{loss.item():.3f}")
""",
    "vae": _MLP
    + """
encode, decode = mlp(196, 128, 32), mlp(16, 128, 196)
@torch.compile
def elbo(x, noise):
    mean, log_variance = encode(x).chunk(2, -1)
    shown = decode(mean + (0.5 * log_variance).exp() * noise)
    apart = -0.5 * (1 + log_variance - mean.square() - log_variance.exp()).sum(-1)
    return F.binary_cross_entropy_with_logits(shown, x, reduction="none").sum(-1), apart
optimizer = torch.optim.RMSprop([*encode.parameters(), *decode.parameters()], lr=1e-4)
for step in range(steps):
    x = torch.rand(64, 196)
    shown, apart = elbo(x, torch.randn(64, 16))
    loss = (shown + min(1, step / 10) * apart).mean()
    optimizer.zero_grad(set_to_none=False)
    loss.backward()
    optimizer.step()
    tick()
print(f"{loss.item():.2f}")
""",
    "distillation": _MLP
    + """
teacher, student = mlp(64, 512, 512, 10).eval(), mlp(64, 64, 10)
teach, learn = torch.compile(teacher), torch.compile(student)
optimizer = torch.optim.AdamW(student.parameters(), fused=True)
scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps)
for step in range(steps):
    x, y = torch.randn(32, 64), torch.randint(0, 10, (32,))
    with torch.inference_mode():
        soft = F.softmax(teach(x) / 2, -1)
    logits = learn(x)
    loss = F.kl_div(F.log_softmax(logits / 2, -1), soft.clone(), reduction="batchmean") + F.cross_entropy(logits, y)
    loss.backward()
    optimizer.step()
    scheduler.step()
    optimizer.zero_grad()
    tick()
print(f"{loss.item():.3f}")
""",
    "maml": _MLP
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
    "critic with a penalty": _MLP
    + """
make, critic = mlp(8, 64, 32), mlp(32, 64, 1)
compiled = torch.compile(make)
of_make, of_critic = (torch.optim.Adam(each.parameters(), lr=1e-4, betas=(0.0, 0.9)) for each in (make, critic))
for step in range(steps):
    for _ in range(3):
        real, fake = torch.randn(16, 32), compiled(torch.randn(16, 8)).detach()
        between = torch.lerp(real, fake, torch.rand(16, 1)).requires_grad_()
        slope, = torch.autograd.grad(critic(between).sum(), between, create_graph=True)
        loss = critic(fake).mean() - critic(real).mean() + 10 * (slope.norm(dim=1) - 1).square().mean()
        of_critic.zero_grad()
        loss.backward()
        of_critic.step()
    of_make.zero_grad()
    (-critic(compiled(torch.randn(16, 8))).mean()).backward()
    of_make.step()
    tick()
print(f"{loss.item():.3f}")
""",
    "ema": _MLP
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
    "sam": _MLP
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
    "l-bfgs with a closure": _MLP
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
    "sampling with a static cache": """
import os
os.environ.setdefault("HF_HUB_OFFLINE", "1")
from transformers import LlamaConfig, LlamaForCausalLM, StaticCache
config = LlamaConfig(vocab_size=128, hidden_size=64, intermediate_size=128, num_hidden_layers=2,
                     num_attention_heads=4, num_key_value_heads=2, max_position_embeddings=64)
model = LlamaForCausalLM(config).eval()
decode = torch.compile(model)
with torch.no_grad():
    for step in range(steps // 4):
        cache = StaticCache(config=config, max_cache_len=32)
        tokens = torch.randint(0, 128, (2, 8))
        out = model(tokens, past_key_values=cache, use_cache=True)
        tick("prompt")
        for at in range(8, 14):
            likely, which = (out.logits[:, -1] / 0.8).topk(20)
            token = which.gather(1, torch.multinomial(likely.softmax(-1), 1))
            tokens = torch.cat([tokens, token], 1)
            out = decode(token, past_key_values=cache, use_cache=True, position_ids=torch.tensor([[at], [at]]))
            tick("token")
print(tuple(tokens.shape))
""",
    "buckets of lengths": _BLOCK
    + """
embed, block, head = nn.Embedding(64, 48), Block(48, 4), nn.Linear(48, 64)
model = torch.compile(lambda tokens: head(block(embed(tokens))), dynamic=False)
optimizer = torch.optim.AdamW([*embed.parameters(), *block.parameters(), *head.parameters()])
for step in range(steps):
    length = (16, 32, 48)[(step * 7 // 3) % 3]
    tokens = torch.randint(0, 64, (4, length))
    loss = F.cross_entropy(model(tokens).flatten(0, 1), tokens.flatten())
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    tick(f"length {length}")
print(f"{loss.item():.3f}")
""",
    "a length of its own each step": _BLOCK
    + """
embed, block, head = nn.Embedding(64, 48), Block(48, 4), nn.Linear(48, 64)
model = torch.compile(lambda tokens: head(block(embed(tokens))), dynamic=True)
optimizer = torch.optim.AdamW([*embed.parameters(), *block.parameters(), *head.parameters()])
for step in range(steps):
    length = 16 + 3 * (step * step % 11)
    tokens = torch.randint(0, 64, (4, length))
    loss = F.cross_entropy(model(tokens).flatten(0, 1), tokens.flatten())
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    tick(f"length {length}")
print(f"{loss.item():.3f}")
""",
    "curriculum": """
body, pool = nn.Sequential(nn.Conv2d(3, 16, 3, padding=1), nn.ReLU(), nn.Conv2d(16, 16, 3, padding=1)), nn.Linear(16, 5)
compiled = torch.compile(lambda x: pool(body(x).mean((2, 3))))
optimizer = torch.optim.SGD([*body.parameters(), *pool.parameters()], lr=0.01)
for step in range(steps):
    size = 16 + 8 * min(step // 12, 2)
    x, y = torch.randn(4, 3, size, size), torch.randint(0, 5, (4,))
    loss = F.cross_entropy(compiled(x), y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    tick(f"size {size}")
print(f"{loss.item():.3f}")
""",
    "skipped steps": _MLP
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
    "compiled autograd": _MLP
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
    "checkpointing inside and outside": _BLOCK
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
    "a compiled loss alone": _MLP
    + """
model = mlp(64, 256, 100)
@torch.compile
def loss_of(logits, y):
    sure = F.log_softmax(logits, -1).gather(1, y[:, None])[:, 0]
    return -((1 - sure.exp()) ** 2 * sure).mean()
optimizer = torch.optim.Adagrad(model.parameters())
for step in range(steps):
    loss = loss_of(model(torch.randn(32, 64)), torch.randint(0, 100, (32,)))
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
    "evaluation between epochs": """
model = nn.Sequential(nn.Conv2d(1, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.Flatten(), nn.Dropout(0.1),
                      nn.Linear(1152, 10))
compiled = torch.compile(model)
optimizer = torch.optim.AdamW(model.parameters())
for epoch in range(steps // 6):
    model.train()
    for _ in range(6):
        loss = F.cross_entropy(compiled(torch.randn(16, 1, 14, 14)), torch.randint(0, 10, (16,)))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        tick()
    model.eval()
    right = 0
    with torch.no_grad():
        for _ in range(4):
            right += (compiled(torch.randn(32, 1, 14, 14)).argmax(1) == torch.randint(0, 10, (32,))).sum().item()
            tick("evaluation")
    print(epoch, right > 0)
""",
    "DataLoader workers and a collate": _MLP
    + """
from torch.utils.data import DataLoader, Dataset
class Points(Dataset):
    def __len__(self):
        return 16 * steps
    def __getitem__(self, at):
        generator = torch.Generator().manual_seed(at)
        return torch.randn(64, generator=generator), at % 10
def collate(rows):
    return torch.stack([x for x, _ in rows]), torch.tensor([y for _, y in rows])
def main():
    model = mlp(64, 256, 10)
    compiled = torch.compile(model)
    optimizer = torch.optim.AdamW(model.parameters(), foreach=True)
    for x, y in DataLoader(Points(), batch_size=16, num_workers=2, collate_fn=collate):
        loss = F.cross_entropy(compiled(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        tick()
    print(f"{loss.item():.3f}")
if __name__ == "__main__":
    main()
""",
    "a step that raises": _MLP
    + """
model = mlp(64, 256, 10)
compiled = torch.compile(model)
optimizer = torch.optim.AdamW(model.parameters())
class Unlucky(RuntimeError):
    pass
def train(step):
    loss = F.cross_entropy(compiled(torch.randn(32, 64)), torch.randint(0, 10, (32,)))
    if step % 7 == 5:
        raise Unlucky(f"batch {step} is damaged")
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    return loss
for step in range(steps):
    try:
        loss = train(step)
    except Unlucky as error:
        print(error)
    tick("raised" if step % 7 == 5 else "after" if step % 7 == 6 else "step")
print(f"{loss.item():.3f}")
""",
    "a spawned helper": _MLP
    + """
import multiprocessing
def summarize(queue, done):
    while (item := queue.get()) is not None:
        done.put(sum(item) / len(item))
def main():
    context = multiprocessing.get_context("spawn")
    queue, done = context.Queue(), context.Queue()
    helper = context.Process(target=summarize, args=(queue, done))
    helper.start()
    model = mlp(64, 256, 10)
    compiled = torch.compile(model)
    optimizer = torch.optim.Adamax(model.parameters())
    losses = []
    for step in range(steps):
        loss = F.cross_entropy(compiled(torch.randn(32, 64)), torch.randint(0, 10, (32,)))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
        if step % 10 == 9:
            queue.put(losses[-10:])
        tick()
    queue.put(None)
    helper.join()
    print(f"{done.get():.3f}")
if __name__ == "__main__":
    main()
""",
    "an exit code of 3": _MLP
    + """
model = mlp(64, 256, 10)
compiled = torch.compile(model)
optimizer = torch.optim.Adam(model.parameters())
for step in range(steps):
    loss = F.cross_entropy(compiled(torch.randn(32, 64)), torch.randint(0, 10, (32,)))
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    tick()
print(f"{loss.item():.3f} did not fall", file=sys.stderr)
sys.exit(3)
""",
    "a warm-up of another kind": _MLP
    + """
body, back, head = mlp(64, 128, 32), mlp(32, 128, 64), nn.Linear(32, 10)
see, draw = torch.compile(body), torch.compile(back)
first = torch.optim.Adam([*body.parameters(), *back.parameters()])
for step in range(4):
    x = torch.randn(32, 64)
    loss = F.mse_loss(draw(see(x)), x)
    first.zero_grad()
    loss.backward()
    first.step()
    tick("warm-up")
second = torch.optim.SGD([*body.parameters(), *head.parameters()], lr=0.01)
for step in range(steps):
    loss = F.cross_entropy(head(see(torch.randn(32, 64))), torch.randint(0, 10, (32,)))
    second.zero_grad()
    loss.backward()
    second.step()
    tick()
print(f"{loss.item():.3f}")
""",
    "a long warm-up of another kind": _MLP
    + """
body, back, head = mlp(64, 128, 32), mlp(32, 128, 64), nn.Linear(32, 10)
see, draw = torch.compile(body), torch.compile(back)
first = torch.optim.Adam([*body.parameters(), *back.parameters()])
second = torch.optim.SGD([*body.parameters(), *head.parameters()], lr=0.01)
for step in range(steps):
    x = torch.randn(32, 64)
    is_first = step < steps // 2
    optimizer = first if is_first else second
    loss = F.mse_loss(draw(see(x)), x) if is_first else F.cross_entropy(head(see(x)), torch.randint(0, 10, (32,)))
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    tick("warm-up" if is_first else "step")
print(f"{loss.item():.3f}")
""",
    "Trainer with evaluation": """
import os, tempfile
os.environ.setdefault("HF_HUB_OFFLINE", "1")
from transformers import (BertConfig, BertForSequenceClassification, PrinterCallback, Trainer, TrainerCallback,
                          TrainingArguments)
model = BertForSequenceClassification(BertConfig(vocab_size=96, hidden_size=32, num_hidden_layers=2, num_labels=3,
    num_attention_heads=2, intermediate_size=64, hidden_dropout_prob=0, attention_probs_dropout_prob=0))
class Timer(TrainerCallback):
    def on_step_end(self, *_, **__):
        tick()
    def on_evaluate(self, *_, **__):
        tick("evaluation")
rows = [{"input_ids": torch.randint(0, 96, (16,)).tolist(), "labels": at % 3} for at in range(8 * steps)]
with tempfile.TemporaryDirectory() as folder:
    arguments = TrainingArguments(folder, per_device_train_batch_size=8, max_steps=steps, torch_compile=True,
        eval_strategy="steps", eval_steps=15, per_device_eval_batch_size=8, report_to=[], save_strategy="no",
        logging_steps=1000, disable_tqdm=True, use_cpu=True)
    trainer = Trainer(model, arguments, train_dataset=rows, eval_dataset=rows[:32], callbacks=[Timer()])
    trainer.remove_callback(PrinterCallback)  # what it prints are times
    print(trainer.train().global_step)
""",
    "accelerate": _MLP
    + """
from accelerate import Accelerator
from torch.utils.data import DataLoader, TensorDataset
accelerator = Accelerator(cpu=True, gradient_accumulation_steps=2)
model = mlp(64, 256, 10)
optimizer = torch.optim.AdamW(model.parameters())
scheduler = torch.optim.lr_scheduler.OneCycleLR(optimizer, 1e-2, total_steps=2 * steps)
data = DataLoader(TensorDataset(torch.randn(32 * steps, 64), torch.randint(0, 10, (32 * steps,))), 16)
model, optimizer, data, scheduler = accelerator.prepare(torch.compile(model), optimizer, data, scheduler)
for x, y in data:
    with accelerator.accumulate(model):
        loss = F.cross_entropy(model(x), y)
        accelerator.backward(loss)
        if accelerator.sync_gradients:
            accelerator.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        scheduler.step()
        optimizer.zero_grad()
    if accelerator.sync_gradients:
        tick()
print(f"{loss.item():.3f}")
""",
    "accumulation with a remainder": _MLP
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
    "a sparse matrix": _MLP
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
    "derivatives by vmap": _MLP
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
    "diffusion, then samples": _MLP
    + """
model = mlp(66, 128, 128, 64)
compiled = torch.compile(model)
optimizer = torch.optim.AdamW(model.parameters())
kept = torch.cumprod(1 - torch.linspace(1e-4, 0.2, 20), 0)
def tell(x, at):
    return compiled(torch.cat([x, kept[at][:, None], (1 - kept[at])[:, None]], 1))
for step in range(steps):
    x, noise, at = torch.randn(32, 64), torch.randn(32, 64), torch.randint(0, 20, (32,))
    mixed = kept[at].sqrt()[:, None] * x + (1 - kept[at]).sqrt()[:, None] * noise
    loss = F.mse_loss(tell(mixed, at), noise)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    tick()
x = torch.randn(32, 64)
with torch.no_grad():
    for at in reversed(range(20)):
        x = x - 0.05 * tell(x, torch.full((32,), at))
print(f"{loss.item():.3f} {x.std().item():.2f}")
""",
    "mixture of experts": _MLP
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
    "recommender with sparse gradients": _MLP
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
    "a scripted module beside": _MLP
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
    "updates by hand": _MLP
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
    "an optimizer for each parameter": _MLP
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
    "a model of many inputs at inference": _MLP
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
    "two critics and one actor": _MLP
    + """
import copy
actor, critics = mlp(6, 64, 2), nn.ModuleList(mlp(8, 64, 1) for _ in range(2))
targets = copy.deepcopy(critics).requires_grad_(False)
act, judge = torch.compile(actor), [torch.compile(each) for each in critics]
judge_target = [torch.compile(each) for each in targets]
of_actor, of_critics = torch.optim.Adam(actor.parameters()), torch.optim.Adam(critics.parameters())
for step in range(steps):
    s, a, r, after = torch.randn(32, 6), torch.randn(32, 2), torch.randn(32, 1), torch.randn(32, 6)
    with torch.no_grad():
        best = torch.cat([after, act(after) + 0.1 * torch.randn(32, 2)], 1)
        goal = r + 0.99 * torch.minimum(*(each(best) for each in judge_target))
    loss = sum(F.mse_loss(each(torch.cat([s, a], 1)), goal) for each in judge)
    of_critics.zero_grad()
    loss.backward()
    of_critics.step()
    if step % 2:
        of_actor.zero_grad()
        (-judge[0](torch.cat([s, act(s)], 1)).mean()).backward()
        of_actor.step()
        for mine, theirs in zip(targets.parameters(), critics.parameters()):
            mine.data.lerp_(theirs.data, 0.005)
        tick("both")
    else:
        tick("critics")
print(f"{loss.item():.3f}")
""",
    "ends in its second step": _MLP
    + """
model = mlp(64, 256, 10)
compiled = torch.compile(model)
optimizer = torch.optim.Adam(model.parameters())
for step in range(2):
    loss = F.cross_entropy(compiled(torch.randn(32, 64)), torch.randint(0, 10, (32,)))
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    tick()
print(f"{loss.item():.3f}")
""",
    "calls without a period": _MLP
    + """
import random
random.seed(3)
parts = [torch.compile(mlp(32, width, 32)) for width in (32, 64, 96, 128)]
x = torch.randn(16, 32)
with torch.no_grad():
    for part in parts:
        part(x)
    for step in range(steps):
        x = F.normalize(random.choice(parts)(x))
        tick()
print(tuple(x.shape))
""",
    "a closure in a loop class": _MLP
    + """
class Loop:
    def __init__(self, module, callbacks):
        self.module, self.callbacks = module, callbacks
        self.optimizer, self.scheduler = module.configure()
    def call(self, hook, *given):
        for callback in self.callbacks:
            getattr(callback, hook, lambda *_: None)(*given)
    def closure(self):
        self.optimizer.zero_grad()
        self.loss = self.module.training_step(self.batch)
        self.loss.backward()
        nn.utils.clip_grad_value_(self.module.parameters(), 0.5)
        return self.loss
    def fit(self, batches, check_every):
        for number, self.batch in enumerate(batches):
            self.module.train()
            self.optimizer.step(self.closure)
            self.scheduler.step()
            self.call("on_train_batch_end", self.loss.detach())
            tick()
            if number % check_every == check_every - 1:
                self.module.eval()
                with torch.no_grad():
                    self.call("on_validation_end", self.module.validation_step(self.batch))
                tick("validation")
class Classifier(nn.Module):
    def __init__(self):
        super().__init__()
        net = nn.Sequential(mlp(64, 128, 64), nn.BatchNorm1d(64), nn.Dropout(0.1), nn.Linear(64, 10))
        self.net = torch.compile(net)
    def configure(self):
        optimizer = torch.optim.Adam(self.parameters())
        return optimizer, torch.optim.lr_scheduler.StepLR(optimizer, 10)
    def training_step(self, batch):
        return F.cross_entropy(self.net(batch[0]), batch[1])
    def validation_step(self, batch):
        return (self.net(batch[0]).argmax(1) == batch[1]).float().mean()
class History:
    def __init__(self):
        self.losses, self.scores = [], []
    def on_train_batch_end(self, loss):
        self.losses.append(loss)
    def on_validation_end(self, score):
        self.scores.append(score.item())
history = History()
batches = ((torch.randn(32, 64), torch.randint(0, 10, (32,))) for _ in range(steps))
Loop(Classifier(), [history]).fit(batches, 8)
print(f"{torch.stack(history.losses)[-1].item():.3f} {len(history.scores)}")
""",
    "generate of transformers": """
import os
os.environ.setdefault("HF_HUB_OFFLINE", "1")
from transformers import LlamaConfig, LlamaForCausalLM
from transformers.generation.streamers import BaseStreamer
class Ticks(BaseStreamer):
    def __init__(self):
        self.kind = None
    def put(self, value):
        if self.kind:
            tick(self.kind)
        self.kind = "token" if self.kind else "prompt"
    def end(self):
        self.kind = None
config = LlamaConfig(vocab_size=128, hidden_size=64, intermediate_size=128, num_hidden_layers=2, eos_token_id=None,
                     num_attention_heads=4, num_key_value_heads=2, max_position_embeddings=128, pad_token_id=0)
model = LlamaForCausalLM(config).eval()
model.forward = torch.compile(model.forward, dynamic=False)
for step in range(steps // 8):
    out = model.generate(torch.randint(1, 128, (2, 8)), max_new_tokens=12, min_new_tokens=12, do_sample=True, top_k=20,
                         temperature=0.8, cache_implementation="static", streamer=Ticks())
print(tuple(out.shape))
""",
    "diffusion with guidance and an average": """
class Denoiser(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.time, self.label = nn.Sequential(nn.Linear(16, width), nn.SiLU()), nn.Embedding(5, width)
        self.enter, self.leave = nn.Conv2d(1, width, 3, padding=1), nn.Conv2d(width, 1, 3, padding=1)
        self.norms = nn.ModuleList(nn.GroupNorm(4, width) for _ in range(2))
        self.layers = nn.ModuleList(nn.Conv2d(width, width, 3, padding=1) for _ in range(2))
    def forward(self, x, at, label):
        waves = at[:, None] * 2.0 ** torch.arange(8)
        told = self.time(torch.cat([waves.sin(), waves.cos()], 1)) + self.label(label)
        x = self.enter(x)
        for norm, layer in zip(self.norms, self.layers):
            x = x + layer(F.silu(norm(x) + told[:, :, None, None]))
        return self.leave(x)
import copy
model = Denoiser(16)
average = copy.deepcopy(model).eval().requires_grad_(False)
train, sample = torch.compile(model), torch.compile(average)
optimizer = torch.optim.AdamW(model.parameters(), lr=2e-4)
def guided(x, at, label, scale=3.0):
    with_label, without = sample(torch.cat([x, x]), torch.cat([at, at]), torch.cat([label, 0 * label])).chunk(2)
    return without + scale * (with_label - without)
for step in range(steps):
    x, label = torch.randn(8, 1, 16, 16), torch.randint(1, 5, (8,))
    label = torch.where(torch.rand(8) < 0.1, 0, label)
    at, noise = torch.rand(8), torch.randn(8, 1, 16, 16)
    mixed = torch.lerp(x, noise, at[:, None, None, None])
    loss = F.mse_loss(train(mixed, at, label), noise - x)
    optimizer.zero_grad(set_to_none=True)
    loss.backward()
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    with torch.no_grad():
        torch._foreach_lerp_(list(average.parameters()), list(model.parameters()), 0.01)
    tick()
    if step % 16 == 15:
        with torch.no_grad():
            x = torch.randn(4, 1, 16, 16)
            for at in torch.linspace(1, 0.25, 4):
                x = x - 0.25 * guided(x, at.expand(4), torch.arange(1, 5))
        tick("samples")
print(f"{loss.item():.3f} {x.std().item():.1f}")
""",
    "preferences against a reference": _BLOCK
    + """
import copy
class Speaker(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed, self.place = nn.Embedding(64, 32), nn.Embedding(16, 32)
        self.blocks = nn.ModuleList(Block(32, 2) for _ in range(2))
        self.head = nn.Linear(32, 64, bias=False)
        self.head.weight = self.embed.weight
    def forward(self, tokens):
        x = self.embed(tokens) + self.place.weight[: tokens.shape[1]]
        for block in self.blocks:
            x = block(x)
        return self.head(x)
policy = Speaker()
reference = copy.deepcopy(policy).eval().requires_grad_(False)
speak, refer = torch.compile(policy), torch.compile(reference)
def likelihood(model, tokens):
    each = torch.log_softmax(model(tokens[:, :-1]), -1).gather(-1, tokens[:, 1:, None])[..., 0]
    return each[:, 4:].sum(-1)
optimizer = torch.optim.RMSprop(policy.parameters(), lr=1e-4)
for step in range(steps // 2):
    for micro in range(2):
        tokens = torch.randint(0, 64, (8, 16))
        with torch.no_grad():
            better, worse = likelihood(refer, tokens).chunk(2)
        chosen, rejected = likelihood(speak, tokens).chunk(2)
        loss = -F.logsigmoid(0.1 * ((chosen - better) - (rejected - worse))).mean() / 2
        loss.backward()
    nn.utils.clip_grad_norm_(policy.parameters(), 1.0)
    optimizer.step()
    optimizer.zero_grad()
    tick()
print(f"{loss.item():.3f}")
""",
    "a penalty every fourth step": """
from torch.nn.utils.parametrizations import spectral_norm
make = nn.Sequential(nn.Linear(16, 64 * 16), nn.Unflatten(1, (64, 4, 4)), nn.ConvTranspose2d(64, 16, 4, 2, 1),
                     nn.BatchNorm2d(16), nn.ReLU(), nn.ConvTranspose2d(16, 1, 4, 2, 1), nn.Tanh())
judge = nn.Sequential(spectral_norm(nn.Conv2d(1, 16, 4, 2, 1)), nn.LeakyReLU(0.2),
                      spectral_norm(nn.Conv2d(16, 32, 4, 2, 1)), nn.LeakyReLU(0.2), nn.Flatten(), nn.Linear(512, 1))
draw, tell = torch.compile(make), torch.compile(judge)
of_make, of_judge = (torch.optim.Adam(each.parameters(), 2e-4, (0.5, 0.99)) for each in (make, judge))
for step in range(steps):
    real, noise = torch.rand(8, 1, 16, 16) * 2 - 1, torch.randn(8, 16)
    fake = draw(noise)
    loss = F.softplus(tell(fake.detach())).mean() + F.softplus(-tell(real)).mean()
    if step % 4 == 0:
        real = real.requires_grad_()
        slope, = torch.autograd.grad(judge(real).sum(), real, create_graph=True)
        loss = loss + 4 * 5 * slope.square().sum((1, 2, 3)).mean()
    of_judge.zero_grad()
    loss.backward()
    of_judge.step()
    judge.requires_grad_(False)
    of_make.zero_grad()
    F.softplus(-tell(fake)).mean().backward()
    of_make.step()
    judge.requires_grad_(True)
    tick("penalty" if step % 4 == 0 else "step")
print(f"{loss.item():.2f}")
""",
    "a router loss": _MLP
    + """
class Routed(nn.Module):
    def __init__(self, width, experts, capacity):
        super().__init__()
        self.gate, self.capacity = nn.Linear(width, experts, bias=False), capacity
        self.up = nn.Parameter(torch.randn(experts, width, 2 * width) / width**0.5)
        self.down = nn.Parameter(torch.randn(experts, 2 * width, width) / width**0.5)
        self.loss = None
    def forward(self, x):
        logits = self.gate(x + 0.01 * torch.randn_like(x)) if self.training else self.gate(x)
        share, chosen = logits.softmax(-1).max(-1)
        taken = F.one_hot(chosen, self.gate.out_features)
        place = (taken.cumsum(0) * taken).sum(-1) - 1
        sent = taken[..., None] * F.one_hot(place.clamp(max=self.capacity), self.capacity + 1)[:, None, :]
        sent = sent[..., : self.capacity].to(x.dtype)
        inner = F.gelu(torch.bmm(torch.einsum("tec,td->ecd", sent, x), self.up))
        self.loss = (taken.float().mean(0) * logits.softmax(-1).mean(0)).sum() * taken.shape[-1]
        return x + share[:, None] * torch.einsum("tec,ecd->td", sent, torch.bmm(inner, self.down))
layers, head = nn.ModuleList(Routed(32, 4, 24) for _ in range(2)), nn.Linear(32, 10)
for layer in layers:
    layer.compile()
optimizer = torch.optim.AdamW([*layers.parameters(), *head.parameters()], amsgrad=True)
for step in range(steps):
    x = torch.randn(64, 32)
    for layer in layers:
        x = layer(x)
    loss = F.cross_entropy(head(x), torch.randint(0, 10, (64,))) + 0.01 * sum(layer.loss for layer in layers)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    tick()
print(f"{loss.item():.3f}")
""",
    "layer-wise rates and mixup": _BLOCK
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
    "private gradients of each sample": _MLP
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
    "two towers, one of lengths": _BLOCK
    + """
image = nn.Sequential(nn.Conv2d(3, 16, 4, 4), nn.GELU(), nn.Conv2d(16, 32, 2, 2), nn.Flatten(2))
embed, block, scale = nn.Embedding(64, 32), Block(32, 2), nn.Parameter(torch.tensor(2.0))
see = torch.compile(image, mode="reduce-overhead")
read = torch.compile(lambda tokens: block(embed(tokens)), dynamic=True)
optimizer = torch.optim.AdamW([*image.parameters(), *embed.parameters(), *block.parameters(), scale])
for step in range(steps):
    length = 8 + 4 * (step % 2)
    a = F.normalize(see(torch.randn(8, 3, 16, 16)).mean(-1), dim=-1)
    b = F.normalize(read(torch.randint(0, 64, (8, length))).mean(1), dim=-1)
    logits, same = scale.exp() * a @ b.T, torch.arange(8)
    loss = (F.cross_entropy(logits, same) + F.cross_entropy(logits.T, same)) / 2
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    with torch.no_grad():
        scale.clamp_(0, 4.6)
    tick(f"length {length}")
print(f"{loss.item():.3f}")
""",
    "one rank of ddp without sync": _MLP
    + """
import contextlib, tempfile
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
store = tempfile.NamedTemporaryFile()
dist.init_process_group("gloo", init_method=f"file://{store.name}", rank=0, world_size=1)
model = DistributedDataParallel(mlp(64, 256, 256, 10))
compiled = torch.compile(model)
optimizer = torch.optim.AdamW(model.parameters())
for step in range(steps // 2):
    for micro in range(4):
        x, y = torch.randn(16, 64), torch.randint(0, 10, (16,))
        with model.no_sync() if micro < 3 else contextlib.nullcontext():
            loss = F.cross_entropy(compiled(x), y) / 4
            loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    shown = loss.detach().clone()
    dist.all_reduce(shown)
    tick()
print(f"{shown.item():.3f}")
dist.destroy_process_group()
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
    "low rank by hooks": _BLOCK
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
    "a whole step without an optimizer": _MLP
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
    "two tasks, projected": _MLP
    + """
body, heads = mlp(32, 64, 32), nn.ModuleList(nn.Linear(32, n) for n in (4, 1))
compiled = torch.compile(body)
optimizer = torch.optim.Adam([*body.parameters(), *heads.parameters()])
for step in range(steps):
    x = compiled(torch.randn(32, 32))
    losses = [F.cross_entropy(heads[0](x), torch.randint(0, 4, (32,))), F.mse_loss(heads[1](x), torch.randn(32, 1))]
    shared, slopes = list(body.parameters()), []
    optimizer.zero_grad()
    for at, loss in enumerate(losses):
        found = torch.autograd.grad(loss, [*shared, *heads[at].parameters()], retain_graph=True)
        slopes.append(torch.cat([slope.flatten() for slope in found[: len(shared)]]))
        for parameter, slope in zip(heads[at].parameters(), found[len(shared):]):
            parameter.grad = slope
    a, b = slopes
    if (between := a @ b) < 0:
        a, b = a - between / b.square().sum() * b, b - between / a.square().sum() * a
    for parameter, slope in zip(shared, (a + b).split([p.numel() for p in shared])):
        parameter.grad = slope.view_as(parameter)
    optimizer.step()
    tick("apart" if between < 0 else "together")
print(f"{losses[0].item():.3f} {losses[1].item():.3f}")
""",
    "iterated to a fixed point": _MLP
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
    "a trainer of one's own": _MLP
    + """
import io
class Loop:
    def __init__(self, model, optimizer, scheduler, every):
        self.model, self.optimizer, self.scheduler, self.every = model, optimizer, scheduler, every
        self.best, self.history, self.saved = float("inf"), [], io.BytesIO()
        self.model.forward = torch.compile(self.model.forward)
    @torch.compile
    def loss(self, logits, y):
        logits = logits.float()
        return F.cross_entropy(logits, y, label_smoothing=0.1) + 1e-4 * logits.logsumexp(-1).square().mean()
    def train_step(self, x, y):
        self.model.train()
        with torch.autocast("cpu", torch.bfloat16):
            logits = self.model(x)
        loss = self.loss(logits, y)
        self.optimizer.zero_grad(set_to_none=True)
        loss.backward()
        nn.utils.clip_grad_value_(self.model.parameters(), 0.5)
        self.optimizer.step()
        self.scheduler.step()
        return loss.detach()
    @torch.no_grad()
    def validate(self, batches):
        self.model.eval()
        total = sum(F.cross_entropy(self.model(x), y).item() for x, y in batches) / len(batches)
        if total < self.best:
            self.best = total
            self.saved.seek(0)
            torch.save({"model": self.model.state_dict(), "optimizer": self.optimizer.state_dict()}, self.saved)
        return total
    def fit(self, steps):
        held_out = [(torch.randn(32, 64), torch.randint(0, 10, (32,))) for _ in range(3)]
        for step in range(steps):
            self.history.append(self.train_step(torch.randn(32, 64), torch.randint(0, 10, (32,))))
            if (step + 1) % self.every == 0:
                self.validate(held_out)
                tick("step and validation")
            else:
                tick("step")
model = nn.Sequential(mlp(64, 256), nn.LayerNorm(256), nn.Dropout(0.0), mlp(256, 256, 10))
optimizer = torch.optim.RAdam(model.parameters(), lr=1e-3)
loop = Loop(model, optimizer, torch.optim.lr_scheduler.StepLR(optimizer, 10), 6)
loop.fit(steps)
print(len(loop.history), loop.best < 10)
""",
    "lightning": _MLP
    + """
import logging, tempfile, warnings
warnings.filterwarnings("ignore")
logging.getLogger("pytorch_lightning").setLevel(logging.ERROR)
import pytorch_lightning as lightning
from torch.utils.data import DataLoader, TensorDataset
class Classifier(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.body = mlp(64, 256, 10)
    def training_step(self, batch, number):
        x, y = batch
        return F.cross_entropy(self.body(x), y)
    def configure_optimizers(self):
        optimizer = torch.optim.AdamW(self.parameters(), lr=1e-3)
        return {"optimizer": optimizer, "lr_scheduler": torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.9)}
    def on_train_batch_end(self, *_):
        tick()
data = DataLoader(TensorDataset(torch.randn(16 * steps, 64), torch.randint(0, 10, (16 * steps,))), 16)
model = Classifier()
model.compile()
with tempfile.TemporaryDirectory() as folder:
    trainer = lightning.Trainer(max_epochs=1, accelerator="cpu", logger=False, enable_checkpointing=False,
        enable_progress_bar=False, enable_model_summary=False, gradient_clip_val=1.0, default_root_dir=folder)
    trainer.fit(model, data)
print(trainer.global_step)
""",
    "muon": _BLOCK
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
    "eager first, compiled later": _BLOCK
    + """
import copy
class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed, self.block, self.head = nn.Embedding(64, 32), Block(32, 4), nn.Linear(32, 64)
    def forward(self, tokens):
        return self.head(self.block(self.embed(tokens)))
def batches(count):
    for at in range(count):
        yield torch.randint(0, 64, (4, (12, 12, 12, 20)[at % 4]))
model = Model()
slow = copy.deepcopy(model).requires_grad_(False)
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
for step, tokens in enumerate(batches(steps)):
    if step == 12:
        model.compile(dynamic=True)
    loss = F.cross_entropy(model(tokens).flatten(0, 1), tokens.flatten())
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    with torch.no_grad():
        torch._foreach_lerp_(list(slow.parameters()), list(model.parameters()), 0.01)
    tick(f"length {tokens.shape[1]}")
print(f"{loss.item():.3f}")
""",
    "ctc with packed lengths": """
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence, pad_sequence
from torch.utils.data import DataLoader, Dataset
class Speech(Dataset):
    def __len__(self):
        return 4 * steps
    def __getitem__(self, at):
        length = 20 + 4 * (at % 4)
        source = torch.Generator().manual_seed(at)
        return torch.randn(length, 20, generator=source), torch.randint(1, 12, (3 + at % 3,), generator=source)
def collate(rows):
    rows = sorted(rows, key=lambda row: -len(row[0]))
    sounds, texts = zip(*rows)
    return (pad_sequence(sounds, batch_first=True), torch.tensor([len(s) for s in sounds]), torch.cat(texts),
            torch.tensor([len(t) for t in texts]))
front = nn.Sequential(nn.Linear(20, 48), nn.ReLU(), nn.LayerNorm(48))
recur, head = nn.GRU(48, 32, batch_first=True, bidirectional=True), nn.Linear(64, 12)
see = torch.compile(front)
parameters = [p for part in (front, recur, head) for p in part.parameters()]
optimizer = torch.optim.Adadelta(parameters)
for sounds, lengths, texts, text_lengths in DataLoader(Speech(), 4, collate_fn=collate):
    packed = pack_padded_sequence(see(sounds), lengths, batch_first=True)
    hidden, _ = pad_packed_sequence(recur(packed)[0], batch_first=True)
    likely = head(hidden).log_softmax(-1).transpose(0, 1)
    loss = F.ctc_loss(likely, texts, lengths, text_lengths)
    optimizer.zero_grad()
    loss.backward()
    nn.utils.clip_grad_norm_(parameters, 5.0)
    optimizer.step()
    tick()
print(f"{loss.item():.2f}")
""",
    "a transducer": """
width, vocabulary = 32, 16
encode, predict = nn.Conv1d(8, width, 3, padding=1), nn.Embedding(vocabulary, width)
cell, join = nn.GRUCell(width, width), nn.Sequential(nn.Tanh(), nn.Linear(width, vocabulary))
see = torch.compile(lambda x: encode(x).transpose(1, 2))
tell = torch.compile(lambda a, b: join(a[:, :, None] + b[:, None]).log_softmax(-1))
parameters = [p for part in (encode, predict, cell, join) for p in part.parameters()]
optimizer = torch.optim.Adam(parameters, lr=1e-3)
for step in range(steps):
    x, y = torch.randn(4, 8, 10), torch.randint(1, vocabulary, (4, 4))
    hidden, states = torch.zeros(4, width), []
    for token in [torch.zeros(4, dtype=torch.long), *y.unbind(1)]:
        hidden = cell(predict(token), hidden)
        states.append(hidden)
    likely = tell(see(x), torch.stack(states, 1))
    blank, emit = likely[..., 0], likely[:, :, :-1].gather(-1, y[:, None, :, None].expand(-1, 10, -1, 1))[..., 0]
    rows = [torch.cat([torch.zeros(4, 1), emit[:, 0].cumsum(1)], 1)]
    for at in range(1, 10):
        row = [rows[-1][:, 0] + blank[:, at - 1, 0]]
        for u in range(1, 5):
            row.append(torch.logaddexp(rows[-1][:, u] + blank[:, at - 1, u], row[-1] + emit[:, at, u - 1]))
        rows.append(torch.stack(row, 1))
    loss = -(rows[-1][:, -1] + blank[:, -1, -1]).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    tick()
print(f"{loss.item():.3f}")
""",
    "q-learning": _MLP
    + """
import copy, random
from collections import deque
random.seed(0)
judge = mlp(6, 64, 64, 3)
target = copy.deepcopy(judge).requires_grad_(False)
act, value, later = torch.compile(judge), torch.compile(judge), torch.compile(target)
optimizer = torch.optim.RMSprop(judge.parameters(), lr=1e-3, centered=True)
memory, state, turn = deque(maxlen=500), torch.randn(6), torch.linalg.qr(torch.randn(6, 6))[0]
for moment in range(4 * steps + 32):
    with torch.no_grad():
        greedy = act(state[None]).argmax(-1).item()
    action = random.randrange(3) if random.random() < 0.2 else greedy
    after = turn @ state + 0.1 * action
    memory.append((state, action, -after.square().mean().item(), after))
    state = after if moment % 50 else torch.randn(6)
    if moment < 32 or moment % 4:
        continue
    states, actions, rewards, others = zip(*random.sample(memory, 32))
    with torch.no_grad():
        best = judge(torch.stack(others)).argmax(-1, keepdim=True)
        goal = torch.tensor(rewards) + 0.95 * later(torch.stack(others)).gather(1, best)[:, 0]
    chosen = value(torch.stack(states)).gather(1, torch.tensor(actions)[:, None])[:, 0]
    loss = F.smooth_l1_loss(chosen, goal)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if moment % 40 == 0:
        target.load_state_dict(judge.state_dict())
    tick("copied" if moment % 40 == 0 else "step")
print(f"{loss.item():.3f}")
""",
    "an energy sampled by its slope": _MLP
    + """
energy = mlp(16, 64, 64, 1)
compiled = torch.compile(energy)
optimizer = torch.optim.Adam(energy.parameters(), lr=1e-4, betas=(0.0, 0.999))
kept = torch.randn(128, 16)
for step in range(steps):
    which = torch.randint(0, 128, (32,))
    x = kept[which].clone().requires_grad_()
    energy.requires_grad_(False)
    for _ in range(5):
        slope, = torch.autograd.grad(compiled(x).sum(), x)
        x = (x - 0.1 * slope + 0.05 * torch.randn_like(x)).detach().requires_grad_()
    energy.requires_grad_(True)
    x = x.detach()
    kept[which] = x
    real = torch.randn(32, 16) * 0.5
    low, high = compiled(real), compiled(x)
    loss = (low - high).mean() + 0.1 * (low.square() + high.square()).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    tick()
print(f"{loss.item():.3f}")
""",
    "a flow along an ode": _MLP
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
    "an ensemble by vmap": _MLP
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
    "an exported program, tuned": _MLP
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
    "several backends": _MLP
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
    "drafted and verified": _BLOCK
    + """
class Speaker(nn.Module):
    def __init__(self, width, depth):
        super().__init__()
        self.embed, self.head = nn.Embedding(32, width), nn.Linear(width, 32)
        self.blocks = nn.ModuleList(Block(width, 4) for _ in range(depth))
    def forward(self, tokens):
        x = self.embed(tokens)
        for block in self.blocks:
            x = block(x)
        return self.head(x)
large, small = Speaker(64, 3).eval(), Speaker(16, 1).eval()
verify, draft = torch.compile(large, dynamic=True), torch.compile(small, dynamic=True)
tokens = torch.randint(0, 32, (1, 8))
with torch.inference_mode():
    for step in range(steps):
        if tokens.shape[1] > 40:
            tokens = tokens[:, -8:]
        tried = tokens
        for _ in range(3):
            tried = torch.cat([tried, draft(tried)[:, -1:].argmax(-1)], 1)
        said = verify(tried)[:, tokens.shape[1] - 1:].argmax(-1)
        same = (said[:, :-1] == tried[:, tokens.shape[1]:]).long().cumprod(1).sum().item()
        tokens = torch.cat([tokens, said[:, : same + 1]], 1)
        tick("step")
print(tokens.shape[0])
""",
    "sound with spectral losses": """
from torch.nn.utils.parametrizations import weight_norm
make = nn.Sequential(weight_norm(nn.Conv1d(4, 16, 7, padding=3)), nn.LeakyReLU(0.1),
                     weight_norm(nn.ConvTranspose1d(16, 8, 8, 4, 2)), nn.LeakyReLU(0.1),
                     nn.Conv1d(8, 1, 7, padding=3), nn.Tanh())
judges = nn.ModuleList(nn.Sequential(nn.Conv1d(1, 8, 15, 1, 7), nn.LeakyReLU(0.1),
                                     nn.Conv1d(8, 16, 21, 4, 10, groups=4), nn.LeakyReLU(0.1),
                                     nn.Conv1d(16, 1, 3, 1, 1)) for _ in range(2))
draw = torch.compile(make)
for judge in judges:
    judge.compile()
windows = {n: torch.hann_window(n) for n in (32, 64)}
of_make, of_judge = torch.optim.AdamW(make.parameters(), 2e-4), torch.optim.AdamW(judges.parameters(), 2e-4)
def spectrum(x, n):
    return torch.stft(x[:, 0], n, n // 4, window=windows[n], return_complex=True).abs().clamp(min=1e-5)
for step in range(steps):
    seen, real = torch.randn(4, 4, 64), torch.rand(4, 1, 256) * 2 - 1
    fake = draw(seen)
    lower = F.avg_pool1d
    scales = ((real, fake), (lower(real, 2), lower(fake, 2)))
    loss = sum((judge(r) - 1).square().mean() for judge, (r, _) in zip(judges, scales))
    loss = loss + sum(judge(f.detach()).square().mean() for judge, (_, f) in zip(judges, scales))
    of_judge.zero_grad()
    loss.backward()
    of_judge.step()
    loss = sum((judge(f) - 1).square().mean() for judge, (_, f) in zip(judges, scales))
    for n in windows:
        a, b = spectrum(real, n), spectrum(fake, n)
        loss = loss + torch.linalg.norm(a - b) / torch.linalg.norm(a) + F.l1_loss(a.log(), b.log())
    of_make.zero_grad()
    loss.backward()
    of_make.step()
    tick()
print(f"{loss.item():.2f}")
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
    "a branch in the graph": _MLP
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
    "validation every few steps": _BLOCK
    + """
import os, tempfile
embed, blocks, head = nn.Embedding(64, 32), nn.Sequential(Block(32, 4), Block(32, 4)), nn.Linear(32, 64)
model = nn.Sequential(embed, blocks, nn.Dropout(0.1), head)
compiled = torch.compile(model)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
scheduler = torch.optim.lr_scheduler.OneCycleLR(optimizer, 1e-3, total_steps=steps)
best = float("inf")
with tempfile.TemporaryDirectory() as folder:
    for step in range(steps):
        model.train()
        tokens = torch.randint(0, 64, (8, 17))
        loss = F.cross_entropy(compiled(tokens[:, :-1]).flatten(0, 1), tokens[:, 1:].flatten())
        loss.backward()
        nn.utils.clip_grad_value_(model.parameters(), 0.5)
        optimizer.step()
        optimizer.zero_grad(set_to_none=False)
        scheduler.step()
        if step % 5 == 4:
            model.eval()
            with torch.no_grad():
                seen = 0.0
                for _ in range(3):
                    tokens = torch.randint(0, 64, (16, 17))
                    seen += F.cross_entropy(compiled(tokens[:, :-1]).flatten(0, 1), tokens[:, 1:].flatten()).item()
            if seen < best:
                best = seen
                saved = {"model": model.state_dict(), "optimizer": optimizer.state_dict()}
                torch.save(saved, os.path.join(folder, "best.pt"))
        tick("with validation" if step % 5 == 4 else "step")
print(f"{best:.2f}")
""",
    "two models in turns": _MLP
    + """
player, rival = mlp(32, 64, 8), mlp(32, 96, 8)
play, oppose = torch.compile(player), torch.compile(rival)
of_player, of_rival = torch.optim.Adam(player.parameters(), 1e-3), torch.optim.SGD(rival.parameters(), 0.05)
for step in range(steps):
    x = torch.randn(24, 32)
    turn = step // 3 % 2
    with torch.set_grad_enabled(turn == 0):
        mine = play(x)
    with torch.set_grad_enabled(turn == 1):
        theirs = oppose(x)
    gain = (mine.softmax(-1) * theirs.softmax(-1)).sum(-1).mean()
    optimizer = of_rival if turn else of_player
    optimizer.zero_grad()
    (gain if turn else -gain).backward()
    optimizer.step()
    tick("rival" if turn else "player")
print(f"{gain.item():.3f}")
""",
    "nearest points": """
class Edge(nn.Module):
    def __init__(self, a, b, k=8):
        super().__init__()
        self.k, self.mix = k, nn.Sequential(nn.Linear(2 * a, b), nn.LayerNorm(b), nn.LeakyReLU(0.2))
    def forward(self, x):
        near = torch.cdist(x, x).topk(self.k, largest=False).indices
        batch, points, width = x.shape
        theirs = x.gather(1, near.flatten(1)[..., None].expand(-1, -1, width)).view(batch, points, self.k, width)
        mine = x[:, :, None].expand_as(theirs)
        return self.mix(torch.cat([mine, theirs - mine], -1)).amax(2)
model = nn.Sequential(Edge(3, 16), Edge(16, 32), nn.Linear(32, 6))
compiled, optimizer = torch.compile(model), torch.optim.AdamW(model.parameters())
for step in range(steps):
    points = torch.randn(4, 48, 3)
    loss = F.cross_entropy(compiled(points).mean(1), torch.randint(0, 6, (4,)))
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    tick()
print(f"{loss.item():.2f}")
""",
    "encoder and decoder of transformers": """
from transformers import T5Config, T5ForConditionalGeneration
config = T5Config(vocab_size=120, d_model=32, d_kv=8, d_ff=64, num_layers=2, num_heads=4, decoder_start_token_id=0)
model = T5ForConditionalGeneration(config)
compiled = torch.compile(model)
from transformers.optimization import Adafactor
optimizer = Adafactor(model.parameters(), scale_parameter=False, relative_step=False, lr=1e-3)
for step in range(steps):
    tokens = torch.randint(1, 120, (4, 12))
    mask = torch.ones_like(tokens)
    mask[0, 8:] = 0
    loss = compiled(input_ids=tokens, attention_mask=mask, labels=tokens.flip(1)).loss
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    tick()
print(f"{loss.item():.2f}")
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
    "episodes of numpy": _MLP
    + """
import numpy
class Pole:
    def __init__(self, seed):
        self.random = numpy.random.default_rng(seed)
    def reset(self):
        self.state, self.at = self.random.normal(0, 0.05, 4), 0
        return self.state
    def step(self, action):
        push = 0.5 if action else -0.5
        self.state = self.state + 0.1 * numpy.array([self.state[1], push, self.state[3], self.state[2] - push])
        self.at += 1
        return self.state, 1.0, self.at >= 12 or abs(self.state[2]) > 1
actor, critic = mlp(4, 32, 2), mlp(4, 32, 1)
act, judge = torch.compile(actor), torch.compile(critic)
optimizer = torch.optim.Adam([*actor.parameters(), *critic.parameters()], 1e-2)
pole = Pole(0)
for step in range(steps):
    state, done, logs, values, rewards = pole.reset(), False, [], [], []
    while not done:
        seen = torch.as_tensor(state, dtype=torch.float32)
        chosen = torch.distributions.Categorical(logits=act(seen))
        action = chosen.sample()
        logs.append(chosen.log_prob(action)), values.append(judge(seen)[0])
        state, reward, done = pole.step(action.item())
        rewards.append(reward)
    gains, total = [], 0.0
    for reward in reversed(rewards):
        total = reward + 0.99 * total
        gains.insert(0, total)
    gains, values = torch.tensor(gains), torch.stack(values)
    loss = -(torch.stack(logs) * (gains - values.detach())).sum() + F.smooth_l1_loss(values, gains)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    tick(f"{len(rewards)} moves")
print(len(moments))
""",
    "layers dropped at random": _BLOCK
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
    "saved tensors packed": _BLOCK
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
    "a subclass of tensors": _MLP
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
}
"""By name; each is put behind ``HEAD``."""
