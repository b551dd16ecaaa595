"""Learning the small networks that the package carries: a few large ones learn from what was measured, and one small
network learns to answer as their mean does, on as many questions as one likes to ask."""

from __future__ import annotations

import argparse
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import torch

from benchmarks.shared.places import ROOT
from torchledger.expecting.constants import constants_of_package
from torchledger.expecting.machine import Machine
from torchledger.expecting.networks import FARTHEST, Network, to_file

REFERENCE = constants_of_package("hopper").reference
MACHINE = Machine(
    REFERENCE.device,
    {
        "bfloat16": REFERENCE.half_flops_per_us,
        "float16": REFERENCE.half_flops_per_us,
        "float32": REFERENCE.single_flops_per_us,
    },
    bytes_per_us=REFERENCE.bytes_per_us,
    floor_us=1.8,
)

RATE, DECAY, BATCH, DROPPED = 3e-3, 1e-2, 256, 0.1
LARGER = 2
"""Batches of rectified networks, and the rate at which they learn."""
HELD_OUT = 0.125
RARE = 30
"""Kernels seen less often than this are one class."""
OF_A_DTYPE = re.compile(r"__nv_bfloat16|__half|c10::BFloat16|c10::Half|bf16|f16")
_HELPERS = re.compile(r"Memset|nchwToNhwc|nhwcToNchw|tensorTransform|AddPadding|SliceC|init_device|convertTensor")
_MOST_RESIDUAL = 1.5


def kernel_classes(names: Sequence[str]) -> np.ndarray:
    """A number for each call by its kernels' names (joined by ``" + "``), whatever the dtype; 0 for rare ones."""
    short = [_short(name) for name in names]
    often = [name for name, count in Counter(short).most_common() if count >= RARE]
    number = {name: place for place, name in enumerate(often, start=1)}
    return np.array([number.get(name, 0) for name in short])


def _short(names: str) -> str:
    kept = []
    for name in OF_A_DTYPE.sub("H", names).split(" + "):
        if "split" in name.lower() and "reduc" in name.lower():
            kept.append("+")
        elif not _HELPERS.search(name):
            inner = re.search(r"<(cutlass_\w+)>", name)
            tile = re.search(r"(sm\d+_xmma_\w+?)_H.*?(tilesize\d+x\d+)", name)
            plain = f"{tile[1]} {tile[2]}" if tile else inner[1] if inner else re.sub(r"[<(].*", "", name)
            kept.append(re.sub(r"_align\d+", "", plain))
    return "|".join(kept)


class Teacher:
    """Several networks that guess which kernels are taken, and for each kind of kernel by how much the time is off."""

    def __init__(
        self, rows: Any, goal: Any, classes: Any, each: Any = None, *, members: int, width: int, epochs: int
    ) -> None:
        """``each`` is a first guess of the goal by each kind of kernel, [rows, kinds]."""
        self.center, self.scale = rows.mean(axis=0), rows.std(axis=0) + 1e-6
        self.unit = float(goal.std())
        x, y = scaled(rows, self.center, self.scale), torch.tensor(goal, dtype=torch.float32)
        kinds, first = torch.tensor(classes), self._first(each, len(rows))
        self.members = [self._learn(seed, x, y, kinds, first, width, epochs) for seed in range(members)]

    def answer(self, rows: Any, each: Any = None) -> Any:
        """The mean of what the members say, [rows]."""
        with torch.no_grad():
            parts = zip(
                scaled(rows, self.center, self.scale).split(8192), self._first(each, len(rows)).split(8192), strict=True
            )
            said = [
                np.mean([self._say(*member, *part)[0].numpy() for member in self.members], axis=0) for part in parts
            ]
        return np.concatenate(said)

    def _first(self, each: Any, count: int) -> Any:
        return torch.zeros((count, 1)) if each is None else torch.tensor(each, dtype=torch.float32)

    def _say(self, body: Any, gate: Any, off: Any, x: Any, first: Any) -> tuple[Any, Any]:
        hidden = body(x)
        guess = gate(hidden)
        each = first + residual(off(hidden), self.unit)
        return (guess.softmax(dim=1) * each).sum(dim=1), guess

    def _learn(self, seed: int, x: Any, y: Any, kinds: Any, first: Any, width: int, epochs: int) -> Any:
        torch.manual_seed(seed)
        torch.set_num_threads(1)
        body, count = body_of(x.shape[1], width), int(kinds.max()) + 1
        gate, off = torch.nn.Linear(width, count), torch.nn.Linear(width, count)
        parameters = [*body.parameters(), *gate.parameters(), *off.parameters()]
        for some, rate in batches(len(x), epochs, parameters):
            value, guess = self._say(body, gate, off, x[some], first[some])
            away = value - y[some]
            # Half by logarithm, half by the relative error: where two kernels are likely, the shorter time errs less.
            relative = torch.expm1(away.clamp(-3, 1.5)).abs()
            loss = 0.5 * (away.abs() + relative).mean() / self.unit
            loss = loss + 0.1 * torch.nn.functional.cross_entropy(guess, kinds[some])
            rate(loss)
        return body.eval(), gate, off


def scaled(rows: Any, center: Any, scale: Any) -> Any:
    """Features as networks see them, [rows, features]: in standard deviations, as far as these say anything."""
    return torch.tensor((rows - center) / scale, dtype=torch.float32).clip(-FARTHEST, FARTHEST)


def body_of(columns: int, width: int) -> Any:
    """Three layers of a large network, whose outputs are learned beside it."""
    parts = [
        part
        for a, b in pairwise([columns, width, width, width])
        for part in (torch.nn.Linear(a, b), torch.nn.SiLU(), torch.nn.Dropout(DROPPED))
    ]
    return torch.nn.Sequential(*parts)


def residual(said: Any, unit: float) -> Any:
    """An output as a logarithm over what is expected, within bounds."""
    return torch.tanh(said * unit) * _MOST_RESIDUAL


def learn(
    rows: Any, goal: Any, width: int, hidden: int, epochs: int, *, is_rectified: bool = False, seed: int = 0
) -> Network:
    """A network for some rows, by mean absolute error; rectified ones half by logarithm, half by the relative error."""
    torch.manual_seed(seed)
    torch.set_num_threads(1)
    center, scale = rows.mean(axis=0), rows.std(axis=0) + 1e-6
    unit = float(goal.std())
    x = scaled(rows, center, scale)
    y = torch.tensor(goal / unit, dtype=torch.float32)[:, None]
    sizes = [x.shape[1], *[width] * hidden]
    bend = torch.nn.ReLU if is_rectified else torch.nn.SiLU
    layers = [torch.nn.Linear(a, b) for a, b in pairwise(sizes)] + [torch.nn.Linear(width, 1)]
    network = torch.nn.Sequential(*[part for layer in layers for part in (layer, bend())][:-1])
    larger = LARGER if is_rectified else 1
    for some, step in batches(len(x), epochs, list(network.parameters()), BATCH * larger, RATE * larger):
        away = network(x[some]) - y[some]
        loss = away.abs().mean()
        if is_rectified:
            relative = torch.expm1((away * unit).clamp(-3, 1.5)).abs() / unit
            loss = 0.5 * (loss + relative.mean())
        step(loss)
    learned = [(layer.weight.detach().numpy().T.copy(), layer.bias.detach().numpy()) for layer in layers]
    return Network(center.astype(np.float32), scale.astype(np.float32), unit, learned, is_rectified)


def batches(count: int, epochs: int, parameters: list[Any], batch: int = BATCH, rate: float = RATE) -> Any:
    """Random batches, each with a function that takes a step down its loss."""
    optimizer = torch.optim.AdamW(parameters, lr=rate, weight_decay=DECAY, fused=True)
    steps = max(epochs * (count // batch), 1)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, rate, total_steps=steps + 1)

    def step(loss: Any) -> None:
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()

    for _ in range(epochs):
        order = torch.randperm(count)
        for start in range(0, count - batch + 1, batch):
            yield order[start : start + batch], step


def parsed(description: str | None, name: str) -> argparse.Namespace:
    """The command line of both scripts; ``name`` is that of the data and of the networks."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, default=ROOT / f"data/h200/{name}_torch2.11.npz")
    parser.add_argument("--out", type=Path, default=ROOT / f"src/torchledger/expecting/generations/hopper_{name}.npz")
    parser.add_argument("--check", action="store_true")
    parser.add_argument("--quick", action="store_true", help="few rows and one pass, to see that this runs")
    return parser.parse_args()


def held_out(columns: Sequence[Any], share: float) -> np.ndarray:
    """Which rows are held out: all those of a share of the shapes that ``columns`` tell apart."""
    _, shape = np.unique(np.stack(columns), axis=1, return_inverse=True)
    return (np.random.default_rng(0).random(shape.max() + 1) < share)[shape.ravel()]


def write_networks(networks: Mapping[str, Network], path: Path) -> None:
    """Write the file that the package carries."""
    path.write_bytes(to_file(networks))
    print(f"{path}: {path.stat().st_size / 1e6:.2f} MB")


def report_errors(told: str, said: Any, goal: Any) -> None:
    """Print the mean and median relative error of logarithms."""
    error = 100 * np.abs(np.expm1(said - goal))
    print(f"  {told}: error {error.mean():.2f} % (median {np.median(error):.2f})", flush=True)
