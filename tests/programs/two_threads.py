"""Inference through one compiled function from two threads at once."""

import sys
import threading
import time

import torch
from torch import nn

torch.manual_seed(0)
steps = int(sys.argv[1]) if len(sys.argv) > 1 else 16
model = nn.Sequential(nn.Linear(32, 64), nn.GELU(), nn.Linear(64, 32)).eval()
serve = torch.compile(model)
with torch.no_grad():
    serve(torch.randn(8, 32))
times: list[float] = []


def work(is_timed: bool) -> None:
    with torch.no_grad():
        while len(times) < steps:
            begin = time.perf_counter()
            serve(torch.randn(8, 32)).softmax(-1).sum()
            if is_timed:
                times.append(time.perf_counter() - begin)


threads = [threading.Thread(target=work, args=(number == 0,)) for number in range(2)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
print(f"STEPS {steps} MS {' '.join(f'{1e3 * each:.4f}' for each in times)}")
