"""Speculative decoding: draft proposes k tokens, target verifies, accept a prefix (data dependent). Greedy. No optimizer."""

import argparse, time
import torch, torch.nn as nn, torch.nn.functional as F

p = argparse.ArgumentParser()
p.add_argument("--k", type=int, default=4)
p.add_argument("--dim", type=int, default=256)
p.add_argument("--max-new", type=int, default=40)
p.add_argument("--mode", default=None)
a = p.parse_args()
dev = "cuda" if torch.cuda.is_available() else "cpu"
V, MAX = 256, 512


class LM(nn.Module):
    def __init__(self, d, n):
        super().__init__()
        self.e = nn.Embedding(V, d)
        self.l = nn.ModuleList(
            nn.TransformerEncoderLayer(d, 4, 4 * d, 0.0, batch_first=True, norm_first=True) for _ in range(n)
        )
        self.h = nn.Linear(d, V)

    def forward(self, ids):
        m = torch.full((ids.shape[1],) * 2, float("-inf"), device=ids.device).triu(1)
        x = self.e(ids)
        for l in self.l:
            x = l(x, src_mask=m)
        return self.h(x)


target, draft = LM(a.dim, 4).to(dev).train(False), LM(a.dim // 4, 1).to(dev).train(False)
ct = torch.compile(target, dynamic=True, mode=a.mode)
cd = torch.compile(draft, dynamic=True, mode=a.mode)


@torch.no_grad()
def generate(ids):
    n0 = ids.shape[1]
    rounds = 0
    acc = 0
    while ids.shape[1] < n0 + a.max_new:
        t = time.perf_counter()
        cur = ids
        for _ in range(a.k):
            cur = torch.cat([cur, cd(cur)[:, -1:].argmax(-1)], 1)
        want = ct(cur)[:, ids.shape[1] - 1 :].argmax(-1)
        ok = (want[:, :-1] == cur[:, ids.shape[1] :])[0]
        n = int(ok.long().cumprod(0).sum())
        ids = torch.cat([cur[:, : ids.shape[1] + n], want[:, n : n + 1]], 1)
        rounds += 1
        acc += n
        print(f"round {rounds} accepted {n} len {ids.shape[1]} {1e3 * (time.perf_counter() - t):.2f} ms", flush=True)
    return ids


for i in range(2):
    generate(torch.randint(V, (1, 32), device=dev))
