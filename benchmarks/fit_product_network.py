"""Learn which kernels an H200's library takes for matrix products: the networks of ``fitting/product_network.py``.

    python benchmarks/fit_product_network.py [--data data/h200/products_torch2.11.npz] [--out FILE] [--check]

The data are what ``benchmarks/h200_kernels.py`` measured. ``--check`` holds an eighth of the products out, says the
error on them, and writes nothing.
"""

from __future__ import annotations

import argparse
import time
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from torchledger.fitting.machine import Machine
from torchledger.fitting.product_network import CLASSES, LAYOUTS, Network, product_class, product_features, to_file

ROOT = Path(__file__).resolve().parents[1]
MACHINE = Machine(
    "NVIDIA H200", 132, {"bfloat16": 7.93e8, "float16": 7.93e8, "float32": 4.57e7}, bytes_per_us=4.32e6, floor_us=1.8
)
WIDTH, HIDDEN, RATE, DECAY, BATCH = 112, 3, 3e-3, 1e-2, 256
EPOCHS = {2: 120, 4: 120, 16: 60, 0: 80}


def learn(rows: Any, goal: Any, epochs: int) -> Network:
    """A network for some rows, by mean absolute error."""
    import torch

    torch.manual_seed(0)
    torch.set_num_threads(1)
    center, scale = rows.mean(axis=0), rows.std(axis=0) + 1e-6
    unit = float(goal.std())
    x = torch.tensor((rows - center) / scale).clip(-4, 4)
    y = torch.tensor(goal / unit, dtype=torch.float32)[:, None]
    sizes = [x.shape[1], *[WIDTH] * HIDDEN]
    layers = [torch.nn.Linear(a, b) for a, b in pairwise(sizes)] + [torch.nn.Linear(WIDTH, 1)]
    parts = [part for layer in layers for part in (layer, torch.nn.SiLU())][:-1]
    network = torch.nn.Sequential(*parts)
    optimizer = torch.optim.AdamW(network.parameters(), lr=RATE, weight_decay=DECAY)
    steps = epochs * (len(x) // BATCH)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, RATE, total_steps=steps + 1)
    for _ in range(epochs):
        order = torch.randperm(len(x))
        for start in range(0, len(x) - BATCH + 1, BATCH):
            some = order[start : start + BATCH]
            loss = (network(x[some]) - y[some]).abs().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            schedule.step()
    learned = [(layer.weight.detach().numpy().T.copy(), layer.bias.detach().numpy()) for layer in layers]
    return Network(center.astype(np.float32), scale.astype(np.float32), unit, learned)


def main() -> None:
    """Fit, and write or check."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, default=ROOT / "data/h200/products_torch2.11.npz")
    parser.add_argument("--out", type=Path, default=ROOT / "src/torchledger/fitting/hopper_products.npz")
    parser.add_argument("--check", action="store_true")
    arguments = parser.parse_args()
    with np.load(arguments.data, allow_pickle=False) as found:
        layout, time_us = found["layout"], found["time_us"].astype(np.float64)
        sides = [found[name].astype(np.float64) for name in ("b", "m", "n", "k")]
        item_size = np.where(found["dtype"] == "float32", 4.0, 2.0)
    peak = np.where(item_size >= 4, MACHINE.peak("float32"), MACHINE.peak("bfloat16"))
    rows, goals, kinds = [], [], []
    for number, name in enumerate(LAYOUTS):
        some = layout == number
        own = tuple(side[some] for side in sides)
        kind = product_class(name, own, item_size[some])
        features, log_base = product_features(name, own, item_size[some], peak[some], MACHINE, kind)
        rows.append(features)
        goals.append(np.log(time_us[some]) - log_base)
        kinds.append(kind)
    features, goal, kind = np.concatenate(rows), np.concatenate(goals), np.concatenate(kinds)
    held = np.random.default_rng(0).random(len(goal)) < (0.125 if arguments.check else 0.0)
    networks = {}
    for one in CLASSES:
        some, started = (kind == one) & ~held, time.monotonic()
        networks[one] = learn(features[some], goal[some], EPOCHS[one])
        told = f"rows at {one} bytes" if one else "single precision"
        print(f"{told}: {some.sum():,} products, {time.monotonic() - started:.0f} s", flush=True)
        if arguments.check:
            test = (kind == one) & held
            error = 100 * np.abs(np.expm1(networks[one].predict(features[test]) - goal[test]))
            before = 100 * np.abs(np.expm1(-goal[test]))
            print(f"  error {error.mean():.2f} % (median {np.median(error):.2f}), tiles alone {before.mean():.2f} %")
    if not arguments.check:
        arguments.out.write_bytes(to_file(networks))
        print(f"{arguments.out}: {arguments.out.stat().st_size / 1e6:.2f} MB")


if __name__ == "__main__":
    main()
