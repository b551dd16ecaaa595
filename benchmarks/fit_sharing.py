"""What kernels and collectives cost each other, fitted to what was measured on two H200s.

    python benchmarks/fit_sharing.py [--jobs FOLDER] [--write src/torchledger/planning/sharing.json]

``data/h200/contention_torch2.11.json`` holds collectives alone, beside products and beside copies: beside a kind of
kernel one takes ``collective`` times as long and ``delay_us`` more, until multiprocessors are free. What copies lose
stands there too. What products lose is read from recorded jobs (``--jobs``: folders of ``benchmarks/job_cuda.py``),
launches at least half beside a collective over those without one.
"""

from __future__ import annotations

import argparse
import json
import statistics
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path

from torchledger.jobs.read import read_job
from torchledger.nouns import Launch
from torchledger.planning.sharing import OTHER, PRODUCT, sharing_of
from torchledger.store import open_ledger

NEEDS: tuple[str, ...] = ()
RUNS: tuple[tuple[str, ...], ...] = ((),)

ROOT = Path(__file__).resolve().parents[1]
MEASURED = ROOT / "data/h200/contention_torch2.11.json"
LEAST_US = 40.0
"""Shorter kernels wait for a multiprocessor rather than being slowed."""


def of_collectives(beside: str) -> tuple[float, float]:
    """Factor and delay of collectives beside a kind of kernel: least squares of relative errors."""
    rows = json.loads(MEASURED.read_text())["rows"]
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


def of_copies() -> float:
    """How many times as long copies take beside collectives that last."""
    rows = json.loads(MEASURED.read_text())["rows"]
    return statistics.median(
        row["within_us"] / row["apart_us"]
        for row in rows
        if row["beside"] == "copies" and row["bytes"] >= 2**26 and row.get("within_us") and row.get("apart_us")
    )


def of_kernels(jobs: Sequence[Path]) -> dict[str, list[float]]:
    """Beside over alone, of each launch of compiled graphs that ran both ways."""
    found: dict[str, list[float]] = defaultdict(list)
    for path in jobs:
        with open_ledger(path / "rank0.ledger") as ledger:
            category = {launch.launch_id: launch.category for launch in ledger.read(Launch)}
        for each in read_job(path).contention:
            if each.alone_us >= LEAST_US and min(each.launches_alone, each.launches_beside) >= 5:
                if each.entry in category:
                    kind = sharing_of(category[each.entry])
                elif each.entry.startswith("aten::"):
                    kind = sharing_of(each.entry)
                else:
                    continue
                found[kind].append(each.beside_us / each.alone_us)
    return found


def main() -> None:
    """Fit, print, and write where asked."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--jobs", type=Path)
    parser.add_argument("--write", type=Path)
    options = parser.parse_args()
    factors: dict[str, dict[str, float]] = {PRODUCT: {}, OTHER: {}}
    for kind, beside in ((PRODUCT, "products"), (OTHER, "copies")):
        slope, delay_us = of_collectives(beside)
        factors[kind] = {"collective": round(slope, 3), "delay_us": round(delay_us, 1)}
    kernels = of_kernels(sorted(options.jobs.glob("*.job"))) if options.jobs else {}
    factors[OTHER]["kernel"] = round(of_copies(), 3)
    for kind, ratios in kernels.items():
        if kind == PRODUCT:
            factors[kind]["kernel"] = round(statistics.median(ratios), 3)
        shown = " ".join(f"{each:.2f}" for each in statistics.quantiles(ratios, n=4))
        print(f"{kind}: {len(ratios)} launches, quartiles of beside over alone {shown}")
    print(json.dumps(factors, indent=1))
    if options.write:
        options.write.write_text(json.dumps({"H200": factors}, indent=1) + "\n")


if __name__ == "__main__":
    main()
