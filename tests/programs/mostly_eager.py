"""A recommender: one compiled tower, everything else eager, embeddings with a dense optimizer."""

import sys
import time

import torch
from torch import nn

torch.manual_seed(0)
steps = int(sys.argv[1]) if len(sys.argv) > 1 else 12


class Recommender(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.users = nn.Embedding(500, 16)
        self.items = nn.EmbeddingBag(700, 16, mode="sum")
        self.tower = nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 16))
        self.bias = nn.Parameter(torch.zeros(1))

    def forward(self, user: torch.Tensor, items: torch.Tensor) -> torch.Tensor:
        users, bags = self.users(user), self.items(items)
        mixed = self.tower(torch.cat([users, bags], dim=1))
        return torch.einsum("bd,bd->b", mixed, bags) + self.bias


model = Recommender()
model.tower = torch.compile(model.tower)
optimizer = torch.optim.Adagrad(model.parameters(), lr=0.05)
user, items = torch.randint(0, 500, (32,)), torch.randint(0, 700, (32, 5))
clicked = torch.rand(32).round()
times = []
for _ in range(steps):
    begin = time.perf_counter()
    loss = nn.functional.binary_cross_entropy_with_logits(model(user, items), clicked)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    times.append(time.perf_counter() - begin)
print(f"STEPS {steps} MS {' '.join(f'{1e3 * each:.4f}' for each in times)}")
