"""What a step is made for: losses, several models, tasks and optimizers."""

from __future__ import annotations

from benchmarks.capture.step_programs.pieces import BLOCK, MLP

PROGRAMS: dict[str, str] = {
    "contrastive with a queue": MLP
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
    "rollout and updates": MLP
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
    "vae": MLP
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
    "distillation": MLP
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
    "critic with a penalty": MLP
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
    "two critics and one actor": MLP
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
    "a router loss": MLP
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
    "two tasks, projected": MLP
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
    "preferences against a reference": BLOCK
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
    "q-learning": MLP
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
    "an energy sampled by its slope": MLP
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
    "two towers, one of lengths": BLOCK
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
    "a compiled loss alone": MLP
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
}
