"""Beam search with a GRU decoder and early stop on EOS; no optimizer; a data-dependent end."""

import argparse, time
import torch, torch.nn as nn

p = argparse.ArgumentParser()
p.add_argument("--beams", type=int, default=5)
p.add_argument("--h", type=int, default=256)
p.add_argument("--max", type=int, default=30)
p.add_argument("--requests", type=int, default=14)
a = p.parse_args()
dev = "cuda" if torch.cuda.is_available() else "cpu"
V, EOS = 1000, 2


class D(nn.Module):
    def __init__(self):
        super().__init__()
        self.e = nn.Embedding(V, a.h)
        self.c = nn.GRUCell(a.h, a.h)
        self.o = nn.Linear(a.h, V)

    def forward(self, tok, h):
        h = self.c(self.e(tok), h)
        return self.o(h).log_softmax(-1), h


d = D().to(dev).eval()
step = torch.compile(d)


@torch.inference_mode()
def search(h):
    h = h.expand(a.beams, -1).contiguous()
    tok = torch.ones(a.beams, dtype=torch.long, device=dev)
    score = torch.full((a.beams,), -1e9, device=dev)
    score[0] = 0
    seqs = tok[:, None]
    done = torch.zeros(a.beams, dtype=torch.bool, device=dev)
    for n in range(a.max):
        lp, h = step(tok, h)
        lp = lp.masked_fill(done[:, None], -1e9)
        lp[done, EOS] = 0.0
        score, ix = (score[:, None] + lp).flatten().topk(a.beams)
        src = ix // V
        tok = ix % V
        h = h[src]
        seqs = torch.cat([seqs[src], tok[:, None]], 1)
        done = done[src] | (tok == EOS)
        if done.all():
            break
    return seqs[score.argmax()].tolist()


for r in range(a.requests):
    t = time.perf_counter()
    s = search(torch.randn(1, a.h, device=dev))
    print(f"request {r} len {len(s)} {1e3 * (time.perf_counter() - t):.2f} ms", flush=True)
