"""A small GPT-like model, compiled; its loss is computed outside, the optimizer is eager."""

import sys
import time

import torch
from torch import nn

torch.manual_seed(0)
steps = int(sys.argv[1]) if len(sys.argv) > 1 else 12
model = nn.Sequential(
    nn.Embedding(128, 64), nn.TransformerEncoderLayer(64, 4, 128, 0.0, batch_first=True), nn.Linear(64, 128)
)
compiled = torch.compile(model)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
tokens = torch.randint(0, 128, (4, 32))
times = []
for _ in range(steps):
    begin = time.perf_counter()
    logits = compiled(tokens)
    loss = nn.functional.cross_entropy(logits[:, :-1].reshape(-1, 128), tokens[:, 1:].reshape(-1))
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    times.append(time.perf_counter() - begin)
print(f"STEPS {steps} MS {' '.join(f'{1e3 * each:.4f}' for each in times)}")
