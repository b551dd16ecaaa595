"""Text generation with a key-value cache of fixed length: one prefill, then one token at a time."""

import sys
import time

import torch
from torch import nn

torch.manual_seed(0)
steps = int(sys.argv[1]) if len(sys.argv) > 1 else 16
WIDTH, LENGTH, VOCABULARY = 32, 64, 96


class Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.register_buffer("keys", torch.zeros(1, LENGTH, WIDTH))
        self.register_buffer("values", torch.zeros(1, LENGTH, WIDTH))

    def forward(self, x: torch.Tensor, position: torch.Tensor) -> torch.Tensor:
        query, key, value = self.qkv(x).chunk(3, dim=-1)
        self.keys.index_copy_(1, position, key)
        self.values.index_copy_(1, position, value)
        scores = query @ self.keys.transpose(1, 2) / WIDTH**0.5
        mask = torch.arange(LENGTH) > position[-1]
        return self.out(scores.masked_fill(mask, float("-inf")).softmax(-1) @ self.values)


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.attention = nn.Embedding(VOCABULARY, WIDTH), Attention()
        self.head = nn.Linear(WIDTH, VOCABULARY)

    def forward(self, tokens: torch.Tensor, position: torch.Tensor) -> torch.Tensor:
        return self.head(self.attention(self.embedding(tokens), position))[:, -1]


model = torch.compile(Model().eval(), dynamic=False)
times = []
with torch.no_grad():
    token = model(torch.randint(0, VOCABULARY, (1, 8)), torch.arange(8)).argmax(-1, keepdim=True)
    for place in range(8, 8 + steps):
        begin = time.perf_counter()
        logits = model(token, torch.tensor([place]))
        token = logits.argmax(-1, keepdim=True)
        times.append(time.perf_counter() - begin)
print(f"STEPS {steps} MS {' '.join(f'{1e3 * each:.4f}' for each in times)}")
