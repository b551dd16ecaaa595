"""A transformers Trainer whose steps torchledger knows: python examples/transformers_train.py [LEDGER]"""

from __future__ import annotations

import sys
import tempfile

import torch
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments

from torchledger.integrations.transformers import LedgerCallback


def main(ledger: str | None = None, *, compiled: bool = True, steps: int = 16) -> None:
    model = GPT2LMHeadModel(GPT2Config(vocab_size=96, n_positions=32, n_embd=32, n_layer=1, n_head=2))
    data = [{"input_ids": torch.randint(0, 96, (16,)).tolist()} for _ in range(4 * steps)]
    data = [row | {"labels": row["input_ids"]} for row in data]
    with tempfile.TemporaryDirectory() as folder:
        arguments = TrainingArguments(
            folder,
            per_device_train_batch_size=4,
            max_steps=steps,
            torch_compile=compiled,
            report_to=[],
            save_strategy="no",
            disable_tqdm=True,
            use_cpu=True,
        )
        Trainer(model, arguments, train_dataset=data, callbacks=[LedgerCallback(ledger, force=True)]).train()


if __name__ == "__main__":
    main(*sys.argv[1:2])
