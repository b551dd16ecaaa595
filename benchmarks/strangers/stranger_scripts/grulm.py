import argparse

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.checkpoint import checkpoint

from tick import steps


def get_args():
    p = argparse.ArgumentParser(description="Word-level GRU language model with a large vocabulary")
    p.add_argument("--vocab", type=int, default=128000)
    p.add_argument("--emsize", type=int, default=1024)
    p.add_argument("--nlayers", type=int, default=3)
    p.add_argument("--bptt", type=int, default=128)
    p.add_argument("--batch_size", type=int, default=64)
    p.add_argument("--chunk", type=int, default=1024)
    p.add_argument("--smoothing", type=float, default=0.1)
    p.add_argument("--dropout", type=float, default=0.3)
    p.add_argument("--clip", type=float, default=0.25)
    p.add_argument("--lr", type=float, default=1e-3)
    return p.parse_args()


class LockedDropout(nn.Module):
    def __init__(self, p):
        super().__init__()
        self.p = p

    def forward(self, x):
        if not self.training:
            return x
        mask = x.new_empty(1, x.size(1), x.size(2)).bernoulli_(1 - self.p) / (1 - self.p)
        return x * mask


class RNNModel(nn.Module):
    def __init__(self, args):
        super().__init__()
        self.encoder = nn.Embedding(args.vocab, args.emsize)
        self.lock = LockedDropout(args.dropout)
        self.rnn = nn.GRU(args.emsize, args.emsize, args.nlayers, dropout=args.dropout)
        self.bias = nn.Parameter(torch.zeros(args.vocab))
        nn.init.uniform_(self.encoder.weight, -0.1, 0.1)

    def forward(self, ids, hidden):
        out, hidden = self.rnn(self.lock(self.encoder(ids)), hidden)
        return self.lock(out), hidden


def smoothed_nll(h, weight, bias, target, eps):
    logits = F.linear(h, weight, bias)
    lse = torch.logsumexp(logits, dim=-1)
    right = logits.gather(1, target[:, None]).squeeze(1)
    nll = lse - right
    uniform = lse - logits.mean(-1)
    return ((1 - eps) * nll + eps * uniform).sum(), nll.detach().sum()


def chunked_loss(h, weight, bias, target, eps, chunk):
    total, plain = 0.0, 0.0
    for a, t in zip(h.split(chunk), target.split(chunk)):
        loss, nll = checkpoint(smoothed_nll, a, weight, bias, t, eps, use_reentrant=False)
        total, plain = total + loss, plain + nll
    return total / len(h), plain / len(h)


def batchify(data, bsz):
    nbatch = data.size(0) // bsz
    return data[: nbatch * bsz].view(bsz, -1).t().contiguous()


def main():
    args = get_args()
    torch.set_float32_matmul_precision("high")
    device = torch.device("cuda")
    corpus = batchify(torch.randint(0, args.vocab, (args.batch_size * (args.bptt * 100 + 1),)), args.batch_size)
    corpus = corpus.to(device)
    model = RNNModel(args).to(device)
    model.train()
    optimizer = torch.optim.Adam(model.parameters(), lr=args.lr, betas=(0.9, 0.99), foreach=True)
    hidden = torch.zeros(args.nlayers, args.batch_size, args.emsize, device=device)
    running = torch.zeros((), device=device)
    for i in steps():
        at = (i % 100) * args.bptt
        data, target = corpus[at : at + args.bptt], corpus[at + 1 : at + 1 + args.bptt]
        optimizer.zero_grad()
        output, hidden = model(data, hidden.detach())
        loss, nll = chunked_loss(
            output.flatten(0, 1), model.encoder.weight, model.bias, target.flatten(), args.smoothing, args.chunk
        )
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), args.clip)
        optimizer.step()
        running += nll
        if (i + 1) % 10 == 0:
            print(f"| {i + 1:5d} batches | nll {running.item() / 10:5.2f}")
            running.zero_()


if __name__ == "__main__":
    main()
