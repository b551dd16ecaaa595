"""How far convolutions of held out programs are off.

    python -m benchmarks.operators.convolution_programs [--before]

A quarter of all configurations and programs of ``data/h200`` is held out at a time, whole, and asked by what the rest
teaches: errors of launches by where they come from, and of the sums of each drawn program. ``--before`` leaves out the
networks of single passes, as models had it before there were any.
"""

from __future__ import annotations

import argparse
from dataclasses import replace
from typing import Any

import numpy as np

from benchmarks.models.fit_strangers import measured
from torchledger.expecting.launch_convolutions import ALONE
from torchledger.expecting.launch_features import baseline_column
from torchledger.fitting.launches import (
    LaunchTable,
    align_columns,
    build_launch_tables,
    fit_launch_table,
    join_launch_tables,
)
from torchledger.fitting.learning import Options
from torchledger.predicting.devices import find_model

NEEDS: tuple[str, ...] = ()
RUNS: tuple[tuple[str, ...], ...] = ((), ("--before",))

_FOLDS = 4
_FAMILIES = tuple(f"launch:convolution/{direction}" for direction in ("forward", "backward", "weight"))


def tables(families: tuple[str, ...]) -> dict[str, LaunchTable]:
    """All measured convolutions by family; programs of drawn configurations are named ``convolution-...``."""
    machine = find_model("H200").machine
    found: dict[str, LaunchTable] = {}
    for names, rounded in (
        (("drawn_convolutions",), True),
        (("fused",), True),
        (("models",), True),
        (("programs_tf32",), True),
        (("drawn_exact_convolutions",), False),
        (("programs",), False),
    ):
        own, _ = build_launch_tables(measured(*names), machine, convolution_tf32=rounded, allow_tf32=False)
        for family in families:
            if family not in own:
                continue
            named = np.char.add(f"{names[0]} ", own[family].programs)
            table = replace(own[family], programs=named)
            found[family] = join_launch_tables(found[family], table) if family in found else table
    return found


def held_out(table: LaunchTable) -> Any:
    """Logarithms of what is said over what was measured, each row asked of a model that did not see its program."""
    programs, code = np.unique(table.programs, return_inverse=True)
    fold = (np.random.default_rng(0).permutation(len(programs)) % _FOLDS)[code]
    off = np.zeros(len(code))
    for part in range(_FOLDS):
        entry = fit_launch_table(_some(table, fold != part), Options(hyper_rows=160))
        asked = _some(table, fold == part)
        residual, _, _ = entry.predict(align_columns(asked.values, asked.names, entry.feature_names))
        off[fold == part] = asked.log_baseline_of(entry.feature_names) + residual - np.log(asked.times_us)
    return off


def _some(table: LaunchTable, which: Any) -> LaunchTable:
    names = ("values", "log_baseline", "roofline_us", "inductor_us", "times_us", "programs")
    return replace(table, **{name: getattr(table, name)[which] for name in names})


def _without_networks(table: LaunchTable) -> LaunchTable:
    kept = tuple(name for name in table.names if name != ALONE)
    return replace(table, names=kept, values=align_columns(table.values, table.names, kept))


def _report(told: str, error: Any) -> None:
    size = 100 * np.abs(error)
    print(f"  {told}: {len(size):,}, mean error {size.mean():.1f} %, median {np.median(size):.1f}", flush=True)


def main() -> None:
    """Hold out, ask, print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--before", action="store_true", help="without the networks of single passes")
    arguments = parser.parse_args()
    for family, table in tables(_FAMILIES).items():
        if arguments.before:
            table = _without_networks(table)
        print(f"{family}, beside {baseline_column(family, table.names) or 'the expected time'}")
        off = held_out(table)
        source = np.array([name.split(" ")[0] for name in table.programs])
        of_programs = np.char.startswith(source, "programs")
        for told, rows in (
            ("drawn configurations", np.char.startswith(source, "drawn")),
            ("random programs", source == "fused"),
            ("models", source == "models"),
            ("drawn programs", of_programs),
        ):
            if rows.any():
                _report(told, np.expm1(off[rows]))
        said, times = np.exp(off) * table.times_us, table.times_us
        sums = [
            said[table.programs == name].sum() / times[table.programs == name].sum() - 1
            for name in np.unique(table.programs[of_programs])
        ]
        _report("sums of drawn programs", np.array(sums))


if __name__ == "__main__":
    main()
