"""What collectives and kernels cost each other, fitted to what was measured on two of a kind.

    python -m benchmarks.models.fit_sharing [--write src/torchledger/planning/sharing.json]

Of each device, in its folder of ``data``, ``contention_torch2.11.json`` holds collectives alone, beside products and
beside copies: beside a kind of kernel one takes ``collective`` times as long and ``delay_us`` more, until
multiprocessors are free.
``beside_torch2.11.json`` there holds what drawn kernels of each kind lose (``kernel``), and how many
``multiprocessors`` a collective holds. What a product loses by its rounds of tiles is no fit; it is printed how well
the rule does (``planning/sharing.py``).
"""

from __future__ import annotations

import argparse
import json
import statistics
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.shared.places import ROOT
from torchledger.expecting.product_times import count_tiles
from torchledger.planning.sharing import ATTENTION, OTHER, PRODUCT, rounds_beside
from torchledger.predicting.devices import find_model

NEEDS: tuple[str, ...] = ()
RUNS: tuple[tuple[str, ...], ...] = ((),)

DEVICES = ("H200", "H100")
"""The first is what a device has that nobody measured."""
KINDS = {"mm": PRODUCT, "attention": ATTENTION}
WAITS = "late"
"""A collective that moves nothing yet."""


def rows_of(device: str, what: str) -> dict[str, Any]:
    """What was measured on two of a device."""
    found: dict[str, Any] = json.loads((ROOT / f"data/{device.lower()}/{what}_torch2.11.json").read_text())
    return found


def of_collectives(device: str, beside: str) -> tuple[float, float]:
    """Factor and delay of collectives beside a kind of kernel: least squares of relative errors."""
    rows = rows_of(device, "contention")["rows"]
    alone = {(row["collective"], row["bytes"]): row["duration_us"] for row in rows if row["beside"] == "nothing"}
    pairs = [
        (alone[row["collective"], row["bytes"]], row["duration_us"])
        for row in rows
        if row["beside"] == beside and row["collective"] != "p2p"
    ]
    # t = f a + d, each row weighted by 1 / t.
    aa = sum((a / t) ** 2 for a, t in pairs)
    ab = sum(a / t**2 for a, t in pairs)
    bb = sum(1 / t**2 for _, t in pairs)
    ya, yb = sum(a / t for a, t in pairs), sum(1 / t for _, t in pairs)
    determinant = aa * bb - ab * ab
    return (ya * bb - yb * ab) / determinant, (yb * aa - ya * ab) / determinant


def of_kernels(device: str, kind: str) -> float:
    """How many times as long kernels of a kind take beside a collective that moves: the median."""
    return statistics.median(
        row["beside_us"] / row["alone_us"]
        for row in rows_of(device, "beside")["rows"]
        if KINDS.get(row["kind"], OTHER) == kind and row["collective"] != WAITS
    )


def of_rounds(device: str) -> dict[str, Any]:
    """Errors of ``rounds_beside`` with the tiles that the model chooses, over drawn products."""
    measured = rows_of(device, "beside")
    taken = max(measured["collective_blocks"].values())
    machine = find_model(device).machine
    rows = [row for row in measured["rows"] if row["kind"] == "mm"]
    m, n, k = np.array([row["shape"] for row in rows], dtype=float).T
    ones = np.ones(len(rows))
    tiles = count_tiles((ones, m, n, k), 16 * ones, 2 * ones, machine.peak("bfloat16") * ones, machine)
    errors = [
        rounds_beside(int(count), machine.num_multiprocessors, taken).slowdown * row["alone_us"] / row["beside_us"] - 1
        for count, row in zip(tiles, rows, strict=True)
    ]
    usual = of_kernels(device, PRODUCT)
    return {
        "products": len({(*row["shape"], row["layout"]) for row in rows}),
        "mean_error": statistics.mean(abs(error) for error in errors),
        "worst_error": max(errors, key=abs),
        "mean_error_of_one_factor": statistics.mean(abs(usual * r["alone_us"] / r["beside_us"] - 1) for r in rows),
    }


def main() -> None:
    """Fit, print, and write where asked."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--write", type=Path)
    options = parser.parse_args()
    found: dict[str, Any] = {}
    for device in DEVICES:
        kinds: dict[str, dict[str, float]] = {}
        for kind, beside in ((PRODUCT, "products"), (ATTENTION, "products"), (OTHER, "copies")):
            slope, delay_us = of_collectives(device, beside)
            kinds[kind] = {
                "collective": round(slope, 3),
                "delay_us": round(delay_us, 1),
                "kernel": round(of_kernels(device, kind), 3),
            }
        taken = max(rows_of(device, "beside")["collective_blocks"].values())
        found[device] = {"multiprocessors": taken, "kinds": kinds}
        print(device, json.dumps(of_rounds(device), indent=1))
    print(json.dumps(found, indent=1))
    if options.write:
        options.write.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
