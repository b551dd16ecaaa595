"""Calls of other libraries, learned into a second device's model.

    python -m benchmarks.models.fit_library MODEL -o NEW

From ``data/h100/drawn_library_torch2.11.launches`` (``drawn_library.py`` on that device; every fourth draw is held out)
and from what the H200's model learned of such calls. NEW is written beside the H200's model, and errors over what is
held out are printed: of MODEL, of the H200's entry, of one that learned from this device alone, and of NEW's.
"""

from __future__ import annotations

import argparse
from dataclasses import replace
from pathlib import Path

from benchmarks.models.fit_strangers import options_for, report, tables
from benchmarks.shared.places import ROOT
from torchledger.fitting.launches import LaunchTable, fit_launch_table, join_launch_tables
from torchledger.fitting.time_model import Entry
from torchledger.predicting.devices import find_model
from torchledger.predicting.model_file import save_model
from torchledger.store.launch_file import MeasuredLaunch, read_launches

DATA = ROOT / "data"
FAMILY = "launch:library/other"


def launches(folder: str, *names: str) -> list[MeasuredLaunch]:
    """Measured launches of a device's files."""
    return [item for name in names for item in read_launches(DATA / folder / f"{name}_torch2.11.launches").launches]


def learned(table: LaunchTable) -> Entry:
    """The entry of a table."""
    return fit_launch_table(table, options_for(table))


def main() -> None:
    """Fit, print the errors, write the model."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("-o", "--output", type=Path, required=True)
    parser.add_argument("--folder", default="h100", help="of data/")
    arguments = parser.parse_args()
    model, first = find_model(arguments.model), find_model("H200")
    drawn = launches(arguments.folder, "drawn_library")
    held = set(sorted({item.program for item in drawn})[::4])
    asked = tables([item for item in drawn if item.program in held], model.machine)[FAMILY]
    own = tables([item for item in drawn if item.program not in held], model.machine)[FAMILY]
    of_first = tables(launches("h200", "drawn_library", "library", "fused", "models"), first.machine)[FAMILY]
    found = {
        "as it is": model.entries[FAMILY],
        "the H200's": first.entries[FAMILY],
        "this device alone": learned(own),
        "both": learned(join_launch_tables(own, of_first)),
    }
    for name, entry in found.items():
        print(f"{name}: {report(entry, asked)}", flush=True)
    entries = {**model.entries, FAMILY: found["both"]}
    save_model(replace(model, entries=entries), arguments.output, force=True, beside="NVIDIA_H200")


if __name__ == "__main__":
    main()
