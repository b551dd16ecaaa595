"""``transformers.Trainer`` over a tiny GPT-2, compiled by the Trainer itself."""

import itertools
import os
import sys
import tempfile
import time

os.environ.setdefault("HF_HUB_OFFLINE", "1")

import torch
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainerCallback, TrainingArguments

steps = int(sys.argv[1]) if len(sys.argv) > 1 else 12
torch.manual_seed(0)
model = GPT2LMHeadModel(
    GPT2Config(vocab_size=96, n_positions=32, n_embd=32, n_layer=2, n_head=2, resid_pdrop=0, embd_pdrop=0, attn_pdrop=0)
)


moments: list[float] = []


class Timer(TrainerCallback):
    def on_step_end(self, *_: object, **__: object) -> None:
        moments.append(time.perf_counter())


examples = [{"input_ids": torch.randint(0, 96, (16,)).tolist()} for _ in range(4 * steps)]
examples = [example | {"labels": example["input_ids"]} for example in examples]
with tempfile.TemporaryDirectory() as folder:
    arguments = TrainingArguments(
        folder,
        per_device_train_batch_size=4,
        max_steps=steps,
        torch_compile=os.environ.get("TORCHDYNAMO_DISABLE") != "1",
        report_to=[],
        save_strategy="no",
        logging_steps=1000,
        disable_tqdm=True,
        use_cpu=True,
    )
    Trainer(model, arguments, train_dataset=examples, callbacks=[Timer()]).train()
times = [after - before for before, after in itertools.pairwise(moments)]
print(f"STEPS {steps} MS {' '.join(f'{1e3 * each:.4f}' for each in times)}")
