"""Two models in a step: the discriminator is updated, then the generator, each by its own optimizer."""

import sys
import time

import torch
from torch import nn

torch.manual_seed(0)
steps = int(sys.argv[1]) if len(sys.argv) > 1 else 12
generator = nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 16))
discriminator = nn.Sequential(nn.Linear(16, 32), nn.LeakyReLU(0.2), nn.Linear(32, 1))
make, judge = torch.compile(generator), torch.compile(discriminator)
of_generator = torch.optim.Adam(generator.parameters(), lr=2e-4)
of_discriminator = torch.optim.Adam(discriminator.parameters(), lr=2e-4)
real = torch.randn(24, 16)
loss_of = nn.functional.binary_cross_entropy_with_logits
times = []
for _ in range(steps):
    begin = time.perf_counter()
    fake = make(torch.randn(24, 8))
    of_discriminator.zero_grad()
    loss = loss_of(judge(real), torch.ones(24, 1)) + loss_of(judge(fake.detach()), torch.zeros(24, 1))
    loss.backward()
    of_discriminator.step()
    of_generator.zero_grad()
    loss_of(judge(fake), torch.ones(24, 1)).backward()
    of_generator.step()
    times.append(time.perf_counter() - begin)
print(f"STEPS {steps} MS {' '.join(f'{1e3 * each:.4f}' for each in times)}")
