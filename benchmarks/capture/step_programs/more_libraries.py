"""Loops of ``transformers`` and Lightning, and steps by ``torch.func``, as their manuals have them."""

from __future__ import annotations

from benchmarks.capture.step_programs.pieces import MLP

PROGRAMS: dict[str, str] = {
    "Trainer, four at a time": """
import os, tempfile
os.environ.setdefault("HF_HUB_OFFLINE", "1")
from transformers import (BertConfig, BertForSequenceClassification, PrinterCallback, Trainer, TrainerCallback,
                          TrainingArguments)
config = BertConfig(vocab_size=60, hidden_size=32, num_hidden_layers=2, num_attention_heads=4, intermediate_size=64,
                    max_position_embeddings=32, num_labels=3, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0)
model = BertForSequenceClassification(config)
class Texts(torch.utils.data.Dataset):
    def __len__(self):
        return 4 * 4 * steps
    def __getitem__(self, at):
        tokens = torch.randint(3, 60, (12,), generator=torch.Generator().manual_seed(at))
        return {"input_ids": tokens, "attention_mask": torch.ones(12, dtype=torch.long), "labels": tokens[0] % 3}
class Ticks(TrainerCallback):
    def on_step_end(self, *arguments, **keywords):
        tick()
with tempfile.TemporaryDirectory() as folder:
    arguments = TrainingArguments(folder, per_device_train_batch_size=4, gradient_accumulation_steps=4, max_steps=steps,
                                  torch_compile=True, report_to=[], logging_strategy="no", save_strategy="no",
                                  disable_tqdm=True, use_cpu=True, label_smoothing_factor=0.1,
                                  lr_scheduler_type="cosine")
    trainer = Trainer(model, arguments, train_dataset=Texts(), callbacks=[Ticks()])
    trainer.remove_callback(PrinterCallback)
    done = trainer.train()
print(done.global_step, f"{done.training_loss:.1f}")
""",
    "generate with a static cache": """
import os
os.environ.setdefault("HF_HUB_OFFLINE", "1")
from transformers import LogitsProcessor, LogitsProcessorList, Qwen2Config, Qwen2ForCausalLM
model = Qwen2ForCausalLM(Qwen2Config(vocab_size=96, hidden_size=48, intermediate_size=96, num_hidden_layers=2,
                                     num_attention_heads=4, num_key_value_heads=2, max_position_embeddings=64)).eval()
model.generation_config.pad_token_id = 0
model.forward = torch.compile(model.forward, dynamic=False)
class Ticks(LogitsProcessor):
    def __call__(self, tokens, scores):
        tick("token" if tokens.shape[1] > 8 else "prompt")
        return scores
for _ in range(max(2, steps // 12)):
    tokens = model.generate(torch.randint(1, 96, (2, 8)), max_new_tokens=12, min_new_tokens=12, do_sample=False,
                            cache_implementation="static", logits_processor=LogitsProcessorList([Ticks()]))
print(tuple(tokens.shape))
""",
    "lightning by hand, two optimizers": MLP
    + """
import logging, warnings
warnings.filterwarnings("ignore")
logging.getLogger("pytorch_lightning").setLevel(logging.ERROR)
import pytorch_lightning as lightning
class Game(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.automatic_optimization = False
        self.maker, self.judge = mlp(8, 32, 16), mlp(16, 32, 1)
    def configure_optimizers(self):
        return torch.optim.Adam(self.maker.parameters(), 1e-3), torch.optim.Adam(self.judge.parameters(), 1e-3)
    def training_step(self, batch, number):
        of_maker, of_judge = self.optimizers()
        real = batch[0]
        fake = self.maker(torch.randn(len(real), 8))
        self.toggle_optimizer(of_judge)
        loss = F.softplus(-self.judge(real)).mean() + F.softplus(self.judge(fake.detach())).mean()
        of_judge.zero_grad()
        self.manual_backward(loss)
        of_judge.step()
        self.untoggle_optimizer(of_judge)
        self.toggle_optimizer(of_maker)
        loss = F.softplus(-self.judge(fake)).mean()
        of_maker.zero_grad()
        self.manual_backward(loss)
        of_maker.step()
        self.untoggle_optimizer(of_maker)
        self.log("loss", loss)
        tick()
game = Game()
game.maker.compile()
game.judge.compile()
data = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(torch.randn(16 * steps, 16)), 16)
trainer = lightning.Trainer(max_epochs=1, accelerator="cpu", logger=False, enable_checkpointing=False,
                            enable_progress_bar=False, enable_model_summary=False)
trainer.fit(game, data)
print(trainer.global_step)
""",
    "curvature by products": MLP
    + """
from torch.func import functional_call, grad, vjp
model = mlp(10, 32, 1)
weights = {name: p.detach() for name, p in model.named_parameters()}
@torch.compile
def loss(weights, x, y):
    return F.mse_loss(functional_call(model, weights, (x,)), y)
def plain(weights, x, y):
    return F.mse_loss(functional_call(model, weights, (x,)), y)
for step in range(steps):
    x = torch.randn(24, 10)
    y = x[:, :1] * x[:, 1:2]
    slopes = grad(plain)(weights, x, y)
    way = {name: -each for name, each in slopes.items()}
    for _ in range(2):
        curved, = vjp(lambda w: grad(plain)(w, x, y), weights)[1](way)
        up = sum((slopes[n] * way[n]).sum() for n in way)
        down = sum((curved[n] * way[n]).sum() for n in way).abs() + 1e-3
        way = {n: 0.9 * way[n] for n in way}
    rate = (-up / down).clamp(0, 0.1)
    weights = {n: w + rate * way[n] for n, w in weights.items()}
    with torch.no_grad():
        now = loss(weights, x, y).item()
    tick()
print(f"{now:.2f}")
""",
    "weights by a network of their own": """
class Hyper(nn.Module):
    def __init__(self):
        super().__init__()
        self.tasks = nn.Embedding(5, 12)
        self.make = nn.Sequential(nn.Linear(12, 48), nn.ReLU(), nn.Linear(48, 8 * 16 + 16 * 2))
    def forward(self, task, x):
        made = self.make(self.tasks(task))
        first, second = made[:, :128].view(-1, 8, 16), made[:, 128:].view(-1, 16, 2)
        return torch.baddbmm(x.new_zeros(1), F.silu(torch.bmm(x, first)), second)
model = Hyper()
compiled = torch.compile(model)
optimizer = torch.optim.SGD([{"params": [p], "lr": 0.1 / p.numel() ** 0.5} for p in model.parameters()])
for step in range(steps):
    task, x = torch.randint(0, 5, (4,)), torch.randn(4, 10, 8)
    loss = F.mse_loss(compiled(task, x), x[..., :2] * task[:, None, None])
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    tick()
print(f"{loss.item():.2f}")
""",
    "only the inputs' slopes": MLP
    + """
model = mlp(16, 48, 48, 4)
scorer = torch.compile(model)
x = torch.randn(32, 16)
y = torch.randint(0, 4, (32,))
for step in range(steps):
    moved = x.clone().requires_grad_()
    slope, = torch.autograd.grad(F.cross_entropy(scorer(moved), y), moved)
    x = (moved + 0.05 * slope.sign()).detach().clamp(-3, 3)
    tick()
print(f"{x.mean().item():.2f}")
""",
    "a way taken by the graph": MLP
    + """
small, large = mlp(16, 24, 16), mlp(16, 96, 16)
@torch.compile
def route(x):
    return torch.cond(x.mean() > 0, lambda x: small(x), lambda x: large(x), (x,))
total = 0.0
with torch.no_grad():
    for step in range(steps):
        total += route(torch.randn(8, 16) + (1.0 if step % 4 else -1.0)).sum().item()
        tick("small" if step % 4 else "large")
print(f"{total:.1f}")
""",
}
