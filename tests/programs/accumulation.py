"""Gradients are accumulated over four microsteps; a step is what ends with the optimizer."""

import sys
import time

import torch
from torch import nn

torch.manual_seed(0)
steps = int(sys.argv[1]) if len(sys.argv) > 1 else 12
model = torch.compile(nn.Sequential(nn.Linear(48, 96), nn.Tanh(), nn.Linear(96, 10)))
optimizer = torch.optim.Adam(model.parameters())
inputs, targets = torch.randn(4, 16, 48), torch.randint(0, 10, (4, 16))
times = []
for _ in range(steps):
    begin = time.perf_counter()
    for micro in range(4):
        loss = nn.functional.cross_entropy(model(inputs[micro]), targets[micro]) / 4
        loss.backward()
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)
    times.append(time.perf_counter() - begin)
print(f"STEPS {steps} MS {' '.join(f'{1e3 * each:.4f}' for each in times)}")
