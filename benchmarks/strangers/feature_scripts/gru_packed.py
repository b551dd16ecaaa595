"""Seq2seq: packed GRU encoder, attention decoder with GRUCell loop, teacher forcing; train and eval alternate each step."""

import argparse, time
import torch, torch.nn as nn, torch.nn.functional as F
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

p = argparse.ArgumentParser()
p.add_argument("--batch", type=int, default=16)
p.add_argument("--hid", type=int, default=128)
p.add_argument("--src", type=int, default=24)
p.add_argument("--tgt", type=int, default=8)
p.add_argument("--eval-every", type=int, default=4)
p.add_argument("--steps", type=int, default=16)
a = p.parse_args()
dev = "cuda" if torch.cuda.is_available() else "cpu"
V = 500


class S2S(nn.Module):
    def __init__(self):
        super().__init__()
        h = a.hid
        self.es = nn.Embedding(V, h, padding_idx=0)
        self.et = nn.Embedding(V, h)
        self.enc = nn.GRU(h, h, 2, batch_first=True, bidirectional=True)
        self.br = nn.Linear(2 * h, h)
        self.cell = nn.GRUCell(2 * h, h)
        self.at = nn.Linear(h, 2 * h)
        self.ctx = nn.Linear(2 * h, h)
        self.out = nn.Linear(h, V)

    def forward(self, src, lens, tgt):
        o, _ = self.enc(pack_padded_sequence(self.es(src), lens, batch_first=True, enforce_sorted=False))
        mem, _ = pad_packed_sequence(o, batch_first=True, total_length=src.shape[1])
        mask = torch.arange(src.shape[1], device=src.device)[None] >= lens.to(src.device)[:, None]
        h = torch.tanh(self.br(mem.mean(1)))
        outs = []
        for t in range(tgt.shape[1]):
            w = torch.einsum("bd,bsd->bs", self.at(h), mem).masked_fill(mask, -1e9).softmax(-1)
            c = self.ctx(torch.einsum("bs,bsd->bd", w, mem))
            h = self.cell(torch.cat([self.et(tgt[:, t]), c], -1), h)
            outs.append(self.out(h))
        return torch.stack(outs, 1)


m = S2S().to(dev)
opt = torch.optim.Adam(m.parameters())
for i in range(a.steps):
    lens = torch.randint(4, a.src + 1, (a.batch,))
    lens[0] = a.src
    src = torch.randint(1, V, (a.batch, a.src), device=dev)
    tgt = torch.randint(1, V, (a.batch, a.tgt + 1), device=dev)
    m.train()
    t = time.perf_counter()
    loss = F.cross_entropy(m(src, lens, tgt[:, :-1]).flatten(0, 1), tgt[:, 1:].flatten())
    opt.zero_grad()
    loss.backward()
    nn.utils.clip_grad_value_(m.parameters(), 1.0)
    opt.step()
    print(f"step {i} loss {loss.item():.4f} {1e3 * (time.perf_counter() - t):.2f} ms", flush=True)
    if (i + 1) % a.eval_every == 0:
        m.eval()
        with torch.no_grad():
            print("eval", F.cross_entropy(m(src, lens, tgt[:, :-1]).flatten(0, 1), tgt[:, 1:].flatten()).item())
