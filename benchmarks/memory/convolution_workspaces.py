"""The memory that cuDNN works in while a convolution runs, drawn by chance, on a GPU.

``python -m benchmarks.memory.convolution_workspaces measure -o ROWS.npz [--limit S] [--seed N] [--workers 8]`` calls
the passes of drawn convolutions (``drawn_passes.py`` and ``drawn_layers.py`` in turns, and larger ones) once each and
writes what the caching allocator was asked for beside the results: nothing is timed, so that processes share the GPU.
``python -m benchmarks.memory.convolution_workspaces fit ROWS.npz... -o FILE`` teaches the network that the package
carries; of every fifth configuration nothing is learned, and the errors printed are of these.
"""

from __future__ import annotations

import argparse
import itertools
import math
import multiprocessing
import random
import time
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.operators.drawn_convolutions import ConvolutionCase
from benchmarks.operators.drawn_layers import draw_layers
from benchmarks.operators.drawn_passes import COLUMNS, case_columns, draw_passes, pass_calls
from benchmarks.operators.h200_kernels import device_record, say
from torchledger.memory.convolution_workspaces import PASSES, PRECISIONS, ROOMS, bytes_said, features, room_bytes

NEEDS: tuple[str, ...] = ("cuda",)
RUNS: tuple[tuple[str, ...], ...] = (
    ("measure", "-o", "{out}/workspaces.npz"),
    ("fit", "{out}/workspaces.npz", "-o", "{out}/network.npz"),
)
QUICK: tuple[tuple[str, ...], ...] = (("measure", "-o", "{out}/workspaces.npz", "--limit", "10", "--workers", "2"),)

_MOST_ELEMENTS = {"bfloat16": 1.2e8, "float16": 1.2e8, "float32": 6e7, "tf32": 6e7}
_EMPTIED_EVERY = 64
_ALIKE = 0.06
"""Of a pass's tensors and workspace: how far from room for some of the tensors a workspace may be and still be that."""
_WIDTH, _EPOCHS, _BATCH, _RATE, _DECAY = 128, 60, 256, 2e-3, 1e-2
_MOST_RATIO = 4.0


def draw(seed: int) -> Iterator[ConvolutionCase]:
    """Configurations without end; of every third the images are larger or more of them."""
    pick = random.Random(f"workspaces {seed}")
    drawn = zip(draw_passes(seed), draw_layers(seed), draw_layers(seed + 7919), strict=True)
    for case in itertools.chain.from_iterable(drawn):
        if pick.random() < 0.33:
            larger = replace(case, count=case.count * pick.choice((2, 3, 4, 8)))
            if max(map(math.prod, larger.shapes)) < _MOST_ELEMENTS[case.precision]:
                case = larger
        yield case


def _work(worker: int, workers: int, seed: int, limit_s: float, answers: Any) -> None:
    import torch

    end = time.monotonic() + limit_s
    rows: list[tuple[Any, ...]] = []
    torch.cuda.set_device(0)
    torch.set_num_threads(1)
    torch.set_grad_enabled(False)
    for number, case in enumerate(itertools.islice(draw(seed), worker, None, workers)):
        if time.monotonic() > end:
            break
        if number % _EMPTIED_EVERY == 0:
            torch.cuda.empty_cache()
            if worker == 0:
                say(f"{len(rows):,} passes of mine")
        for direction, call in enumerate(pass_calls(asdict(case), case.precision, None)):
            try:
                rows.append((asdict(case), case.precision, direction, _asked_bytes(call)))
            except RuntimeError as error:
                say(f"{case}, {PASSES[direction]}: {str(error).splitlines()[0][:120]}")
    answers.put(rows)


def _asked_bytes(call: Any) -> int:
    """What a call asked for beside its results, in bytes."""
    import torch

    call()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_stats()["requested_bytes.all.current"]
    results = call()
    stats = torch.cuda.memory_stats()
    made = stats["requested_bytes.all.current"] - before
    del results
    return int(stats["requested_bytes.all.peak"] - before - made)


def measure(output: Path, *, limit_s: float, seed: int, workers: int) -> None:
    """Call drawn convolutions until ``limit_s`` have passed and write what they asked for."""
    context = multiprocessing.get_context("spawn")
    answers = context.Queue()
    processes = [
        context.Process(target=_work, args=(worker, workers, seed, limit_s, answers), daemon=True)
        for worker in range(workers)
    ]
    for process in processes:
        process.start()
    rows: list[tuple[Any, ...]] = []
    for _ in processes:
        rows += answers.get(timeout=limit_s + 90)
    asked, precisions, directions, extra = zip(*rows, strict=True)
    output.parent.mkdir(parents=True, exist_ok=True)
    np.savez_compressed(
        output,
        device=device_record(),
        **case_columns(asked, precisions),
        direction=np.array(directions, np.int8),
        workspace_bytes=np.array(extra, np.int64),
    )
    say(f"{len(rows):,} passes in {limit_s:.0f} s")


def fit(paths: Sequence[Path], output: Path) -> None:
    """Teach the network of ``memory/convolution_workspaces.py`` and print its errors on what it did not learn of."""
    columns, asked = _read(paths)
    held = _held_out(columns)
    said = _Taught(columns, asked, ~held).answers(features(columns))
    _report({name: column[held] for name, column in columns.items()}, asked[held], said[held])
    _Taught(columns, asked, np.ones(len(asked), bool)).save(output)


def _read(paths: Sequence[Path]) -> tuple[dict[str, Any], Any]:
    """The columns of ``features``, and bytes."""
    found: dict[str, list[Any]] = defaultdict(list)
    for path in paths:
        with np.load(path) as rows:
            is_flat = rows["kind"] == "signal"
            for name in COLUMNS:
                found[name].append(rows[name].astype(float))
            found["height"][-1] = np.where(is_flat, 1.0, found["height"][-1])
            found["kernel_height"].append(np.where(is_flat, 1.0, rows["kernel"]))
            found["padding_height"].append(np.where(is_flat, 0.0, rows["padding"]))
            found["channels_last"].append(rows["channels_last"].astype(float))
            found["direction"].append(rows["direction"].astype(float))
            found["precision"].append(np.array([float(PRECISIONS.index(each)) for each in rows["precision"]]))
            found["bytes"].append(rows["workspace_bytes"].astype(float))
    columns = {name: np.concatenate(parts) for name, parts in found.items()}
    return columns, columns.pop("bytes")


def _held_out(columns: Mapping[str, Any]) -> Any:
    """Every fifth configuration, all its passes and precisions together."""
    sizes = np.column_stack([columns[name] for name in COLUMNS])
    _, number = np.unique(sizes, axis=0, return_inverse=True)
    return number % 5 == 0


class _Taught:
    """The network, learned of some rows."""

    def __init__(self, columns: Mapping[str, Any], asked: Any, rows: Any) -> None:
        import torch

        sizes = np.column_stack(room_bytes(columns))
        rooms = sizes @ np.array(ROOMS, float).T
        nearest = np.abs(rooms - asked[:, None]).argmin(axis=1)
        off = np.abs(rooms[np.arange(len(asked)), nearest] - asked) / (sizes.sum(axis=1) + asked)
        kinds = np.where(off < _ALIKE, nearest, len(ROOMS))
        ratio = np.log(np.clip(asked / sizes.sum(axis=1), 1e-4, _MOST_RATIO))
        seen = features(columns)
        self.center, self.scale = seen[rows].mean(axis=0), seen[rows].std(axis=0) + 1e-6
        torch.manual_seed(0)
        width = (seen.shape[1], _WIDTH, _WIDTH, len(ROOMS) + 2)
        layers = [torch.nn.Linear(*each) for each in itertools.pairwise(width)]
        self.layers = layers
        x = torch.tensor(self._scaled(seen[rows]))
        kind, goal = torch.tensor(kinds[rows]), torch.tensor(ratio[rows], dtype=torch.float32)
        optimizer = torch.optim.AdamW([p for each in layers for p in each.parameters()], lr=_RATE, weight_decay=_DECAY)
        batches = -(-len(x) // _BATCH)
        schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, _RATE, total_steps=batches * _EPOCHS)
        for _ in range(_EPOCHS):
            for some in torch.randperm(len(x)).split(_BATCH):
                said = self._run(x[some])
                other = kind[some] == len(ROOMS)
                loss = torch.nn.functional.cross_entropy(said[:, :-1], kind[some], label_smoothing=0.02)
                loss = loss + 0.3 * ((said[:, -1] - goal[some]).abs() * other).mean()
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                schedule.step()

    def _scaled(self, seen: Any) -> Any:
        return np.clip((seen - self.center) / self.scale, -4, 4).astype(np.float32)

    def _run(self, value: Any) -> Any:
        for layer in self.layers[:-1]:
            value = layer(value).relu()
        return self.layers[-1](value)

    def answers(self, seen: Any) -> Any:
        import torch

        with torch.no_grad():
            return self._run(torch.tensor(self._scaled(seen))).numpy()

    def save(self, path: Path) -> None:
        arrays: dict[str, Any] = {"center": self.center.astype(np.float32), "scale": self.scale.astype(np.float32)}
        for place, layer in enumerate(self.layers):
            arrays[f"weight {place}"] = layer.weight.detach().numpy().T.astype(np.float16)
            arrays[f"bias {place}"] = layer.bias.detach().numpy()
        np.savez_compressed(path, **arrays)


def _report(columns: Mapping[str, Any], asked: Any, said: Any) -> None:
    """Errors over a pass's tensors and its workspace, by direction and precision, beside saying nothing at all."""
    said_bytes, sizes = bytes_said(columns, said), np.column_stack(room_bytes(columns)).sum(axis=1)
    off = np.abs(said_bytes - asked) / (sizes + asked)
    without = asked / (sizes + asked)
    print("| pass | precision | passes | off, mean % | within 5 % | without, mean % |\n|---|---|---|---|---|---|")
    for direction, name in enumerate(PASSES):
        for place, precision in enumerate(PRECISIONS):
            rows = (columns["direction"] == direction) & (columns["precision"] == place)
            if rows.any():
                print(
                    f"| {name} | {precision} | {rows.sum():,} | {100 * off[rows].mean():.1f} | "
                    f"{100 * (off[rows] < 0.05).mean():.0f} % | {100 * without[rows].mean():.1f} |"
                )
    print(
        f"all: {len(off):,} passes, off by {100 * off.mean():.1f} %, within 5 % {100 * (off < 0.05).mean():.0f} %, "
        f"without {100 * without.mean():.1f} %"
    )


def main() -> None:
    """Measure, or learn of what was measured."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("measure", "fit"))
    parser.add_argument("rows", nargs="*", type=Path, help="fit: what was measured")
    parser.add_argument("-o", "--output", type=Path, required=True)
    parser.add_argument("--limit", type=float, default=120.0, help="seconds")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--workers", type=int, default=8, help="processes beside each other")
    options = parser.parse_args()
    if options.what == "fit":
        fit(options.rows, options.output)
    else:
        measure(options.output, limit_s=options.limit, seed=options.seed, workers=options.workers)


if __name__ == "__main__":
    main()
