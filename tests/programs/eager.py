"""A training loop in which nothing is compiled."""

import sys
import time

import torch
from torch import nn

torch.manual_seed(0)
steps = int(sys.argv[1]) if len(sys.argv) > 1 else 16
model = nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 8))
optimizer = torch.optim.AdamW(model.parameters())
inputs, labels = torch.randn(16, 32), torch.randint(0, 8, (16,))
times = []
for _ in range(steps):
    begin = time.perf_counter()
    optimizer.zero_grad()
    nn.functional.cross_entropy(model(inputs), labels).backward()
    optimizer.step()
    times.append(time.perf_counter() - begin)
print(f"STEPS {steps} MS {' '.join(f'{1e3 * each:.4f}' for each in times)}")
