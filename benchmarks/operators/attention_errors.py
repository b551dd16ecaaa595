"""How far predictions of drawn attention are off: ``python -m benchmarks.operators.attention_errors ATTENTION.json``.

ATTENTION.json is what ``drawn_calls.py attention`` wrote. A cell is a backend, a direction, a head dimension and a mask
(causal, drawn, none), in both states of the cache; the worst is told of those with eight times or more.
"""

from __future__ import annotations

import argparse
import json
import statistics
from collections import defaultdict
from pathlib import Path

from benchmarks.strangers.strangers_data import attention_launches
from torchledger.predicting.devices import find_model
from torchledger.predicting.launches import predict_launches

_FEWEST = 8
Cell = tuple[str, str, int, str]


def main() -> None:
    """Print errors by backend and direction, and the worst cells."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("path", type=Path)
    parser.add_argument("--model", default="H200")
    arguments = parser.parse_args()
    rows = json.loads(arguments.path.read_text())
    measured = list(attention_launches(rows))
    found = predict_launches(find_model(arguments.model), [item.launch for item in measured])
    said = {each.subject: each for each in found}
    cells: dict[Cell, list[tuple[float, bool]]] = defaultdict(list)
    for item in measured:
        row = rows[int(item.launch.graph.rpartition("_")[2])]
        each, us = said[item.launch.launch_id], statistics.median(item.times_us)
        mask = "causal" if row["is_causal"] else "mask" if row["has_bias"] else "whole"
        cell = row["backend"], row["direction"], row["d"], mask
        cells[cell].append((each.duration_us / us - 1, each.low_us <= us <= each.high_us))
    print("| backend | direction | times | mean error, % | signed | intervals hold, % | worst cell |")
    print("|---|---|---|---|---|---|---|")
    for backend, direction in sorted({cell[:2] for cell in cells}):
        own = {cell: found for cell, found in cells.items() if cell[:2] == (backend, direction)}
        every = [each for found in own.values() for each in found]
        large = {cell: found for cell, found in own.items() if len(found) >= _FEWEST}
        worst = max(large, key=lambda cell: _error(large[cell]), default=None)
        text = "" if worst is None else f"d {worst[2]} {worst[3]}: {_error(own[worst]):.1f} ({len(own[worst])})"
        signed = 100 * statistics.mean(off for off, _ in every)
        held = 100 * statistics.mean(holds for _, holds in every)
        print(f"| {backend} | {direction} | {len(every)} | {_error(every):.1f} | {signed:+.1f} | {held:.0f} | {text} |")


def _error(found: list[tuple[float, bool]]) -> float:
    return 100 * statistics.mean(abs(off) for off, _ in found)


if __name__ == "__main__":
    main()
