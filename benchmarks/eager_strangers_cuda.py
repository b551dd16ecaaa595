"""Eager calls that a seed draws, forward and backward: a script to record, and how far their prices are off.

    torchledger run --profile -o EAGER.ledger benchmarks/eager_strangers_cuda.py [--seed 1] [--count 600] [--along]
    python benchmarks/eager_strangers_cuda.py --judge EAGER.ledger [--model H200] [--each]
    python benchmarks/eager_strangers_cuda.py --data EAGER.ledger... -o data/h200/eager_torch2.11.json.gz

Library calls and element-wise ones at drawn shapes, dtypes and layouts, none compiled (``eager_calls_drawn.py``). Calls
that a device refuses are left out and named. ``--along`` draws calls that work along dimensions
(``eager_calls_along.py``) in their stead. ``--judge`` says for each operator what was measured and what its price
is, and how many intervals hold; ``--data`` writes the calls with their times for a fit to learn from.
"""

from __future__ import annotations

import argparse
import gzip
import json
import statistics
import sys
import time
from collections import defaultdict
from pathlib import Path

NEEDS: tuple[str, ...] = ("cuda",)
RUNS: tuple[tuple[str, ...], ...] = (
    ("--tiny", "--device", "cpu", "--count", "6", "--steps", "2"),
    ("--tiny", "--device", "cpu", "--count", "8", "--steps", "2", "--along"),
)

Row = tuple[float, float, bool]


def run(seed: int, count: int, steps: int, device: str, *, tiny: bool, along: bool = False) -> None:
    """Each step makes every call, forward and backward, and ends with a small compiled loss and an optimizer's step."""
    import torch
    from eager_calls_along import DrawnAlong
    from eager_calls_drawn import Drawn, Pool, draw

    weight = torch.nn.Parameter(torch.ones(8, device=device))
    optimizer = torch.optim.SGD([weight], lr=1e-3)
    loss = torch.compile(lambda weight: (weight * weight).sum())
    pool = Pool(device, 2**26 if tiny else 2**30, seed)
    drawing = DrawnAlong if along else Drawn
    calls, refused = draw(seed, count, pool, most_elements=2**12 if tiny else 2**27, drawing=drawing), set()
    for step in range(steps):
        for number, (name, call, tensors) in enumerate(calls):
            if number in refused:
                continue
            for tensor in tensors:
                tensor.grad = None
            is_timed = along and step == 1
            began = _now(device) if is_timed else 0.0
            try:
                result = call(*tensors)
                if result.requires_grad:
                    result.backward(pool.take(result.dtype, tuple(result.shape), number))
            except Exception as error:  # a call that cannot be made is named, the others are measured
                refused.add(number)
                print(f"{name}: {type(error).__name__}: {str(error)[:160]!r}")
            finally:
                result = None
            if is_timed and _now(device) - began > _LONGEST_S:
                refused.add(number)
                print(f"{name}: takes over {_LONGEST_S:g} s")
        loss(weight).backward()
        optimizer.step()
        optimizer.zero_grad()
    print(f"{len(calls) - len(refused)} of {len(calls)} calls ran {steps} times")


_LONGEST_S = 0.005
"""Calls along dimensions may take a hundred times what others of their size do; few of those fill a recording."""


def _now(device: str) -> float:
    import torch

    if device.startswith("cuda"):
        torch.cuda.synchronize()
    return time.perf_counter()


def judge(path: Path, model_name: str, *, each: bool) -> None:
    """Print what each operator took and was said to take; with ``each``, every call, the worst first."""
    from torchledger.nouns import StepCall
    from torchledger.predicting.devices import find_model
    from torchledger.predicting.step_calls import price_calls
    from torchledger.store import open_ledger

    with open_ledger(path) as reader:
        calls = reader.read(StepCall)
    rows: dict[str, list[Row]] = defaultdict(list)
    texts: list[tuple[float, str]] = []
    for call, priced in price_calls(find_model(model_name), calls, ran_on_cpu=False):
        if call.samples_us:
            us = statistics.median(call.samples_us)
            rows[call.name].append((us, priced.duration_us, priced.low_us <= us <= priced.high_us))
            given = " ".join(f"{tuple(one.shape)} {one.stride} {one.dtype}" for one in call.arguments[:3])
            text = f"{call.name:44s} {us:8.1f} us, said {priced.duration_us:8.1f} {priced.model[:30]:30s} {given}"
            texts.append((abs(priced.duration_us - us), text[:230]))
    if each:
        print("\n".join(text for _, text in sorted(texts, reverse=True)))
    print("| operator | calls | measured, us | said | in sum | mean error | intervals hold |")
    print("|---|---|---|---|---|---|---|")
    for name, found in sorted(rows.items(), key=lambda row: -sum(us for us, _, _ in row[1])):
        _print_row(name, found)
    _print_row("all", [each for found in rows.values() for each in found])


def _print_row(name: str, found: list[Row]) -> None:
    measured, said = (sum(row[place] for row in found) for place in (0, 1))
    in_sum = said / measured - 1 if measured else 0.0
    error = statistics.mean([abs(priced / us - 1) for us, priced, _ in found if us] or [0.0])
    held = sum(holds for _, _, holds in found)
    print(f"| {name} | {len(found)} | {measured:.0f} | {said:.0f} | {in_sum:+.1%} | {error:.1%} | {held} |")


def write_data(ledgers: list[Path], target: Path) -> None:
    """The calls of ledgers with their times, as ``fit_call_costs`` reads them."""
    from strangers_data import calls_of

    rows = [row for path in ledgers for row in calls_of(path)]
    target.write_bytes(gzip.compress(json.dumps(rows, separators=(",", ":")).encode(), mtime=0))
    print(f"{len(rows):,} calls of {len({row['name'] for row in rows})} operators")


def main() -> None:
    """Run the drawn calls, judge their ledger, or keep what it says."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--count", type=int, default=600)
    parser.add_argument("--steps", type=int, default=24)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--tiny", action="store_true", help="small sizes: to try the script itself")
    parser.add_argument("--along", action="store_true", help="calls that work along dimensions alone")
    parser.add_argument("--judge", type=Path, metavar="LEDGER", help="a ledger of this script")
    parser.add_argument("--each", action="store_true", help="with --judge: every call, the worst first")
    parser.add_argument("--model", default="H200")
    parser.add_argument("--data", nargs="*", type=Path, default=[], metavar="LEDGER")
    parser.add_argument("-o", "--output", type=Path)
    options = parser.parse_args()
    sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "src"))
    if options.judge is not None:
        judge(options.judge, options.model, each=options.each)
    elif options.data:
        if options.output is None:
            parser.error("--data wants -o FILE")
        write_data(options.data, options.output)
    else:
        run(options.seed, options.count, options.steps, options.device, tiny=options.tiny, along=options.along)


if __name__ == "__main__":
    main()
