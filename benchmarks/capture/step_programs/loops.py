"""How a program goes through its steps, and how it ends."""

from __future__ import annotations

from benchmarks.capture.step_programs.pieces import BLOCK, MLP

PROGRAMS: dict[str, str] = {
    "buckets of lengths": BLOCK
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
    "a length of its own each step": BLOCK
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
    "DataLoader workers and a collate": MLP
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
    "a step that raises": MLP
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
    "a spawned helper": MLP
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
    "an exit code of 3": MLP
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
    "a warm-up of another kind": MLP
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
    "a long warm-up of another kind": MLP
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
    "ends in its second step": MLP
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
    "calls without a period": MLP
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
    "two models in turns": MLP
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
    "episodes of numpy": MLP
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
    "a closure in a loop class": MLP
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
    "eager first, compiled later": BLOCK
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
    "validation every few steps": BLOCK
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
    "diffusion, then samples": MLP
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
}
