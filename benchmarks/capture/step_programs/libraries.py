"""Loops of other libraries, and generation of tokens."""

from __future__ import annotations

from benchmarks.capture.step_programs.pieces import BLOCK, MLP

PROGRAMS: dict[str, str] = {
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
    "accelerate": MLP
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
    "lightning": MLP
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
    "one rank of ddp without sync": MLP
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
    "a trainer of one's own": MLP
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
    "drafted and verified": BLOCK
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
}
