"""What kernels draw at full clocks, fitted to ``benchmarks/power_cuda.py``'s rows.

    python benchmarks/fit_power.py [--rows data/h200/power_torch2.11.json] [--write GENERATION.json]

Idle watts follow from products with pauses, whose mean power is a line in the share of the time that they run. Watts of
a kernel that the limit slows are brought to full clocks in proportion to the clock. Printed beside it: how much longer
each row took than in its first 30 ms, as measured and by the fit.
"""

from __future__ import annotations

import argparse
import json
import statistics
from dataclasses import replace
from pathlib import Path
from typing import Any

from torchledger.fitting.constants import PowerCosts, read_constants, write_constants

NEEDS: tuple[str, ...] = ()
RUNS: tuple[tuple[str, ...], ...] = ((),)

ROOT = Path(__file__).resolve().parents[1]
FLOPS = {
    "float16 4096": 2 * 4096**3,
    "convolution": 2 * 64 * 56 * 56 * 256 * 256 * 9,
}


def flops_of(name: str) -> float | None:
    """Of one call of a row's product in half precision."""
    if name == "convolution":
        return float(FLOPS[name])
    words = name.split()
    if words[0] != "mm" or "float32" in name:
        return None
    if words[1:] == ["float16", "4096"]:
        return float(FLOPS["float16 4096"])
    m, n, k = (int(word) for word in words[1:])
    return 2.0 * m * n * k


def main() -> None:
    """Fit, print, and write where asked."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=Path, default=ROOT / "data/h200/power_torch2.11.json")
    parser.add_argument("--write", type=Path)
    options = parser.parse_args()
    measured = json.loads(options.rows.read_text())
    limit_w, most_mhz = (float(part) for part in measured["limits"].split(","))
    rows: dict[str, Any] = measured["rows"]
    low, high = (rows[f"mm and pause {share}"]["watts"] for share in (0.25, 0.5))
    idle_w = low - (high - low)

    def above_idle_w(name: str) -> float:
        return (rows[name]["watts"] - idle_w) * most_mhz / rows[name]["sm_mhz"]

    joules, clocks, attention_w, other_w = [], [], [], []
    for name, row in rows.items():
        if " and " in name or name.startswith("step"):
            continue
        (kernel,) = row["cold"]
        if (flops := flops_of(name)) is not None:
            joules.append(above_idle_w(name) / (flops / 1e6 / row["cold"][kernel]))
            if row["sm_mhz"] < 0.85 * most_mhz:
                clocks.append(row["hot"][kernel] / row["cold"][kernel] * row["sm_mhz"] / most_mhz)
        elif kernel == "attention":
            attention_w.append(above_idle_w(name))
        else:
            other_w.append(above_idle_w(name))
    costs = PowerCosts(
        *(
            round(value, 3)
            for value in (
                idle_w,
                statistics.median(joules),
                statistics.median(attention_w),
                statistics.median(other_w),
                statistics.median(clocks),
                statistics.median(row["watts"] for row in rows.values() if row["sm_mhz"] < 0.95 * most_mhz) / limit_w,
            )
        )
    )
    print(costs)
    for name, row in rows.items():
        for kernel, cold_us in row.get("cold", {}).items():
            share = row["sm_mhz"] / most_mhz
            said = max(1.0, costs.product_clock / share) if kernel in ("mm", "convolution") else 1 / share
            print(
                f"{name:24s} {kernel:10s} {row['watts']:.0f} W of {limit_w:.0f} at {row['sm_mhz']:.0f} MHz: "
                f"{row['hot'][kernel] / cold_us:.3f} times as long, by the clock {said:.3f}"
            )
    if options.write:
        write_constants(replace(read_constants(options.write), power=costs), options.write, force=True)


if __name__ == "__main__":
    main()
