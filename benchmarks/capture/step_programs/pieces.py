"""What scripts begin with: ``HEAD``, and two models that several of them use."""

from __future__ import annotations

HEAD = """
import atexit, json, sys, time
import torch
from torch import nn
from torch.nn import functional as F

steps, own_file = int(sys.argv[1]), sys.argv[2]
counted = globals().get("counted", lambda: 0)
moments = []
def tick(kind="step"):
    moments.append((kind, time.perf_counter(), int(counted())))
if __name__ == "__main__":
    atexit.register(lambda: json.dump(moments, open(own_file, "w")))
torch.manual_seed(0)
"""

MLP = """
def mlp(*widths):
    pairs = list(zip(widths, widths[1:]))
    layers = [layer for a, b in pairs for layer in (nn.Linear(a, b), nn.GELU())]
    return nn.Sequential(*layers[:-1])
"""

BLOCK = """
class Block(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.first, self.second = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.feed = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))
    def forward(self, x, causal=True):
        batch, length, width = x.shape
        q, k, v = self.qkv(self.first(x)).view(batch, length, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        x = x + self.out(F.scaled_dot_product_attention(q, k, v, is_causal=causal).transpose(1, 2).flatten(2))
        return x + self.feed(self.second(x))
"""
