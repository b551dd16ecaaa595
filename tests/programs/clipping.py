"""A hand-written loop with a compiled model, gradient clipping, a scheduler and a loss that is read each step."""

import sys
import time

import torch
from torch import nn

torch.manual_seed(0)
steps = int(sys.argv[1]) if len(sys.argv) > 1 else 12
model = torch.compile(nn.Sequential(nn.Conv2d(3, 8, 3, padding=1), nn.ReLU(), nn.Flatten(), nn.Linear(8 * 64, 10)))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=100)
images, labels = torch.randn(8, 3, 8, 8), torch.randint(0, 10, (8,))
total, times = 0.0, []
for _ in range(steps):
    begin = time.perf_counter()
    loss = nn.functional.cross_entropy(model(images), labels)
    loss.backward()
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    scheduler.step()
    optimizer.zero_grad()
    total += loss.item()
    times.append(time.perf_counter() - begin)
print(f"STEPS {steps} MS {' '.join(f'{1e3 * each:.4f}' for each in times)}")
