"""Fourier neural operator (rfft2, complex weights, complex einsum), DataLoader with workers/pin_memory, side stream prefetcher, SWA, eval each epoch."""

import argparse, time
import torch, torch.nn as nn, torch.nn.functional as F
from torch.utils.data import DataLoader, TensorDataset

p = argparse.ArgumentParser()
p.add_argument("--batch", type=int, default=8)
p.add_argument("--ch", type=int, default=16)
p.add_argument("--n", type=int, default=64)
p.add_argument("--modes", type=int, default=12)
p.add_argument("--samples", type=int, default=60)
p.add_argument("--epochs", type=int, default=3)
p.add_argument("--workers", type=int, default=2)
p.add_argument("--steps", type=int, default=0)
a = p.parse_args()


class Spec(nn.Module):
    def __init__(self, c, m):
        super().__init__()
        self.m = m
        self.w1 = nn.Parameter(torch.randn(c, c, m, m, dtype=torch.cfloat) / c**2)
        self.w2 = nn.Parameter(torch.randn(c, c, m, m, dtype=torch.cfloat) / c**2)

    def forward(self, x):
        k = torch.fft.rfft2(x)
        o = torch.zeros_like(k)
        m = self.m
        o[:, :, :m, :m] = torch.einsum("bixy,ioxy->boxy", k[:, :, :m, :m], self.w1)
        o[:, :, -m:, :m] = torch.einsum("bixy,ioxy->boxy", k[:, :, -m:, :m], self.w2)
        return torch.fft.irfft2(o, s=x.shape[-2:])


class FNO(nn.Module):
    def __init__(self):
        super().__init__()
        c = a.ch
        self.i = nn.Conv2d(1, c, 1)
        self.s = nn.ModuleList(Spec(c, a.modes) for _ in range(3))
        self.w = nn.ModuleList(nn.Conv2d(c, c, 1) for _ in range(3))
        self.o = nn.Conv2d(c, 1, 1)

    def forward(self, x):
        x = self.i(x)
        for s, w in zip(self.s, self.w):
            x = F.gelu(s(x) + w(x))
        return self.o(x)


class Prefetcher:
    def __init__(self, loader, dev):
        self.l, self.dev, self.s = loader, dev, torch.cuda.Stream() if dev == "cuda" else None

    def __iter__(self):
        nxt = None
        for b in self.l:
            if self.s:
                with torch.cuda.stream(self.s):
                    b = [t.to(self.dev, non_blocking=True) for t in b]
            if nxt is not None:
                yield self.sync(nxt)
            nxt = b
        yield self.sync(nxt)

    def sync(self, b):
        if self.s:
            torch.cuda.current_stream().wait_stream(self.s)
            for t in b:
                t.record_stream(torch.cuda.current_stream())
        return b


def main():
    dev = "cuda" if torch.cuda.is_available() else "cpu"
    ds = TensorDataset(torch.randn(a.samples, 1, a.n, a.n), torch.randn(a.samples, 1, a.n, a.n))
    dl = DataLoader(
        ds, a.batch, shuffle=True, num_workers=a.workers, pin_memory=dev == "cuda", persistent_workers=a.workers > 0
    )
    m = FNO().to(dev)
    c = torch.compile(m)
    opt = torch.optim.Adam(m.parameters(), 1e-3)
    n = 0
    swa = torch.optim.swa_utils.AveragedModel(m)
    for e in range(a.epochs):
        m.train()
        t = time.perf_counter()
        for x, y in Prefetcher(dl, dev):
            loss = F.mse_loss(c(x), y)
            opt.zero_grad()
            loss.backward()
            opt.step()
            n += 1
            print(f"step {n} loss {loss.item():.4f} {1e3 * (time.perf_counter() - t):.2f} ms", flush=True)
            t = time.perf_counter()
            if a.steps and n >= a.steps:
                return
        swa.update_parameters(m)
        m.eval()
        with torch.no_grad():
            print("eval", sum(F.mse_loss(c(x), y).item() for x, y in Prefetcher(dl, dev)))


if __name__ == "__main__":
    main()
