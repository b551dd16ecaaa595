"""What kernels draw at full clocks, beside the rows that it is fitted to.

    python -m benchmarks.models.fit_power [ROWS]

``--into MODEL.tlmodel`` keeps it in the model of the device that was measured, where its generation's do not stand for
it; ``--beside NAME`` where that file takes entries from a model that is shipped (``save_model``).

``torchledger fit-constants ROWS`` fits it (``fitting/power_costs.py``). Printed for each row of ``power_cuda.py``: how
much longer it took than in its first 30 ms, as measured and by the fit.
"""

from __future__ import annotations

import argparse
from dataclasses import replace
from pathlib import Path

from benchmarks.shared.places import ROOT
from torchledger.fitting.power_costs import fit_power, read_power
from torchledger.predicting.model_file import load_model, save_model

NEEDS: tuple[str, ...] = ()
RUNS: tuple[tuple[str, ...], ...] = ((),)

ROWS = ROOT / "data/h200/power_torch2.11.json"


def main() -> None:
    """Fit and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("rows", nargs="?", type=Path, default=ROWS)
    parser.add_argument("--into", type=Path, metavar="MODEL")
    parser.add_argument("--beside", metavar="NAME")
    options = parser.parse_args()
    data = read_power(options.rows)
    costs = fit_power(data)
    print(costs)
    if options.into is not None:
        model = load_model(options.into)
        known = model.machine.constants.power
        if not costs.collective_w and known is not None:  # no tensor parallel step brought it to its limit
            costs = replace(costs, collective_w=known.collective_w)
        model = replace(model, machine=replace(model.machine, own_power=costs))
        save_model(model, options.into, force=True, beside=options.beside)
    for name, row in data.rows.items():
        for kernel, cold_us in row.cold.items():
            share = row.sm_mhz / data.most_mhz
            said = max(1.0, costs.product_clock / share) if kernel in ("mm", "convolution") else 1 / share
            print(
                f"{name:24s} {kernel:10s} {row.watts:.0f} W of {data.limit_w:.0f} at {row.sm_mhz:.0f} MHz: "
                f"{row.hot[kernel] / cold_us:.3f} times as long, by the clock {said:.3f}"
            )


if __name__ == "__main__":
    main()
