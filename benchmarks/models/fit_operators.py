"""Entries of operators of the shipped H200 model, learned anew.

    python -m benchmarks.models.fit_operators H200 -o NEW linear bmm guide.baddbmm linear_fp8

Learns the named operators from the ``train`` group of ``data/h200/operators_torch2.11.parquet`` and puts them into the
model; nothing else in it changes. ``torchledger fit`` learns all of them so, but for forwards of ``conv2d``: a network
of their baseline has seen three quarters of the labels (``fit_conv2d_networks.py``), and they learn from the others.
``--loops FILE...`` are rows of ``operator_loops.py``: what their directions took when repeated teaches as well.
"""

from __future__ import annotations

import argparse
import sys
import time
import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from benchmarks.operators.operator_loops import read_rows
from benchmarks.shared.places import ROOT
from torchledger.expecting.machine import LATEST_NETWORKS
from torchledger.fitting.fit import fit_entry
from torchledger.fitting.learning import Options
from torchledger.fitting.tables import build_tables, pool_tables
from torchledger.nouns import Sample
from torchledger.predicting.devices import find_model
from torchledger.predicting.model_file import save_model
from torchledger.sampling.dataset import read_samples

NEEDS: tuple[str, ...] = ()
RUNS: tuple[tuple[str, ...], ...] = (("H200", "-o", "{out}/new.tlmodel", "conv2d"),)
QUICK: tuple[tuple[str, ...], ...] = (("H200", "-o", "{out}/new.tlmodel", "conv2d"),)

LABELS = ROOT / "data/h200/operators_torch2.11.parquet"
_LITTLE_LEFT = Options(trees=12, members=("trees",))
"""Beside the network, few rows teach next to nothing: more trees err more on shapes held out (14.6 % where 14.2)."""
_PRODUCTS = ("linear", "bmm", "guide.baddbmm", "linear_fp8")
_BOTH = (*_PRODUCTS, "conv2d")
_ANEW = {
    2: _BOTH,
    3: ("conv2d",),
    4: _PRODUCTS,
    5: _BOTH,
    6: ("conv2d",),
    7: _PRODUCTS,
    12: ("conv2d",),
    13: ("conv2d",),
}
"""Which operators' networks are others since each number of ``Machine.networks``."""
_LEFT = 4
"""One shape of conv2d in so many teaches its entry; the others teach networks."""


def is_taught(parameters: Mapping[str, NDArray[np.int64]]) -> NDArray[np.bool_]:
    """Whether networks learn from a shape of conv2d, by its sizes alone: both directions and all types of element of a
    shape are on one side."""
    columns = [np.asarray(parameters[name], dtype=np.int64) for name in sorted(parameters)]
    rows = np.ascontiguousarray(np.stack(columns, axis=1))
    return np.array([zlib.crc32(row.tobytes()) % _LEFT != 0 for row in rows], dtype=np.bool_)


def samples_of_loops(paths: Sequence[Path], device: str) -> Iterator[Sample]:
    """What operators took when repeated, of files of ``operator_loops.py``, as the samples that they are."""
    for path in paths:
        for place, row in enumerate(read_rows(path)):
            for direction, times_us in row.get("repeated", {}).items():
                yield Sample(
                    point_id=f"{path.name}/{place}",
                    operator=row["operator"],
                    parameters=row["parameters"],
                    direction=direction,
                    dtype=row["dtype"],
                    device=device,
                    status="ok",
                    times_us=tuple(times_us),
                )


def main() -> None:
    """Learn, say the errors held out, and write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("operators", nargs="+")
    parser.add_argument("-o", "--output", type=Path, required=True)
    parser.add_argument("--loops", type=Path, nargs="+", default=())
    arguments = parser.parse_args()
    model = find_model(arguments.model)
    samples = [sample for sample in read_samples(LABELS) if sample.group == "train" and sample.device == model.device]
    samples += samples_of_loops(arguments.loops, model.device)
    tables, _ = pool_tables(build_tables(samples)[0])
    wanted = {key: table for key, table in tables.items() if table.operator in arguments.operators}
    if missing := set(arguments.operators) - {table.operator for table in wanted.values()}:
        sys.exit(f"no labels of {', '.join(sorted(missing))}; there are {', '.join(sorted(tables))}")
    newer = {name for networks, names in _ANEW.items() if model.machine.networks < networks for name in names}
    if left := newer - set(arguments.operators):
        sys.exit(f"{arguments.model} learned beside older networks: name {', '.join(sorted(left))} too")
    model = replace(model, machine=replace(model.machine, networks=LATEST_NETWORKS))
    entries = dict(model.entries)
    for key, table in sorted(wanted.items()):
        started = time.monotonic()
        own, options = table, None
        if key == "conv2d/forward":
            own, options = table.select(~is_taught(table.parameters)), _LITTLE_LEFT
        before = entries[key].mape if key in entries else None
        entries[key] = fit_entry(own, model.machine, options)
        told = "none before" if before is None else f"{before:.2f} before"
        seconds = time.monotonic() - started
        print(f"{key}: {len(own):,} labels, {entries[key].mape:.2f} % held out ({told}), {seconds:.0f} s")
    size = save_model(replace(model, entries=entries), arguments.output, force=True)
    print(f"{arguments.output}: {size / 1e6:.2f} MB")


if __name__ == "__main__":
    main()
