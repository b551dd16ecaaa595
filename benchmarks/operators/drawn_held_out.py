"""How far drawn calls of a kind are off that were not learned.

    python -m benchmarks.operators.drawn_held_out FAMILY FILE...

FILES are launches of drawn configurations, each described for the device that measured it. Of each family whose name
begins with FAMILY a quarter of the configurations is held out; printed are the errors of what the family stands beside,
and of what the others teach.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np

from benchmarks.models.fit_strangers import options_for, report, rows_of, tables_beside
from torchledger.fitting.launches import fit_launch_table

NEEDS: tuple[str, ...] = ()
RUNS: tuple[tuple[str, ...], ...] = (("launch:library/adaptive", "data/h100/adaptive_pools_torch2.11.launches"),)


def main() -> None:
    """Learn and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("family")
    parser.add_argument("files", type=Path, nargs="+")
    arguments = parser.parse_args()
    for family, table in tables_beside(arguments.files).items():
        if not family.startswith(arguments.family):
            continue
        programs = np.unique(table.programs)
        np.random.default_rng(0).shuffle(programs)
        held = np.isin(table.programs, programs[::4])
        beside = np.abs(np.exp(table.log_baseline[held]) / table.times_us[held] - 1)
        print(f"{family}: beside, mean error {beside.mean():.1%}, median {np.median(beside):.1%}", flush=True)
        entry = fit_launch_table(rows_of(table, ~held), options_for(table))
        print(report(entry, rows_of(table, held)), flush=True)


if __name__ == "__main__":
    main()
