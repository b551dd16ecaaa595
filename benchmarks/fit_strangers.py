"""What drawn programs run, learned into a model: ``python benchmarks/fit_strangers.py MODEL -o NEW``.

From ``data/h200``: fused kernels, products, attention and convolutions of random programs, of models and of drawn
programs; products of a sweep; drawn configurations of attention, convolutions, rounded products and calls of other
libraries; and eager calls inside steps.
Every fourth configuration and drawn program is held out and its errors are printed, unless ``--all`` is given. All
other families stay as they are in MODEL. ``--largest SHARE`` writes nothing: it learns fused kernels but for that share
of them, those that move most, and prints the errors over these. ``--constants FILE`` does another thing: it fits what
the schedules of attention cost to the configurations that are not held out, and writes the constants of the device's
generation with them (``src/torchledger/fitting/generations``).
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from torchledger.fitting.attention_times import attention_us, fit_attention
from torchledger.fitting.call_costs import fit_call_costs, read_calls
from torchledger.fitting.constants import write_constants
from torchledger.fitting.data import read_operator_samples
from torchledger.fitting.launch_families import family_of
from torchledger.fitting.launch_library import attention_call
from torchledger.fitting.launches import LaunchTable, align_columns, build_launch_tables, fit_launch_table
from torchledger.fitting.learning import Options
from torchledger.fitting.machine import Machine
from torchledger.fitting.rounded_products import ROUNDED
from torchledger.fitting.sample_launches import launches_of_samples
from torchledger.fitting.time_model import Entry
from torchledger.predicting.devices import find_model
from torchledger.predicting.model_file import save_model
from torchledger.store.launch_file import MeasuredLaunch, read_launches

DATA = Path(__file__).resolve().parent.parent / "data" / "h200"


FAMILIES = ("launch:attention", "launch:library", "launch:convolution", "launch:fused", "launch:gemm/any", ROUNDED)


def tables(
    launches: list[MeasuredLaunch],
    machine: Machine,
    exact: Sequence[MeasuredLaunch] = (),
    rounded: Sequence[MeasuredLaunch] = (),
) -> dict[str, LaunchTable]:
    """The ``FAMILIES`` among measured launches; convolutions of float32 were not rounded in ``exact`` ones, products of
    it were in ``rounded`` ones."""
    found, _ = build_launch_tables(launches, machine)
    others = (
        build_launch_tables(rounded, machine, allow_tf32=True)[0],
        build_launch_tables(exact, machine, convolution_tf32=False)[0],
    )
    for family, table in (pair for tables_of_others in others for pair in tables_of_others.items()):
        found[family] = joined(found[family], table) if family in found else table
    return {family: table for family, table in found.items() if family.startswith(FAMILIES)}


def joined(one: LaunchTable, other: LaunchTable) -> LaunchTable:
    """The rows of both."""
    stacked = {
        name: np.concatenate([getattr(one, name), getattr(other, name)])
        for name in ("log_baseline", "roofline_us", "inductor_us", "times_us", "programs")
    }
    values = np.concatenate([one.values, align_columns(other.values, other.names, one.names)])
    return replace(one, values=values, **stacked)


def report(entry: Entry, table: LaunchTable) -> str:
    """Errors of an entry on a table."""
    residual, width, _ = entry.predict(align_columns(table.values, table.names, entry.feature_names))
    off = table.log_baseline_of(entry.feature_names) + residual - np.log(table.times_us)
    size = np.abs(np.exp(off) - 1)
    sums = np.exp(off) * table.times_us
    lines = [
        f"{entry.key}: {len(off)} held out, mean error {size.mean():.1%}, median {np.median(size):.1%}, worst "
        f"{size.max():.0%}, sum {sums.sum() / table.times_us.sum() - 1:+.1%}, intervals hold "
        f"{np.mean(np.abs(off) <= width):.0%}"
    ]
    if "attention" not in entry.key:
        return lines[0]
    for library in ("cudnn", "flash", "efficient"):
        own = table.values[:, table.names.index(f"is {library}")] > 0
        for causal in (False, True):
            cell = own & ((table.values[:, table.names.index("causal")] > 0) == causal)
            if cell.any():
                name = f"{library}, {'causal' if causal else 'whole'}"
                lines.append(
                    f"    {name}: {cell.sum()}, mean {size[cell].mean():.1%}, median {np.median(size[cell]):.1%}"
                )
    return "\n".join(lines)


def hold_out_largest(found: dict[str, LaunchTable], share: float) -> None:
    """Learn fused kernels but for the largest, and print the errors over these."""
    for family, table in found.items():
        if family.startswith("launch:fused"):
            is_large = table.roofline_us > np.quantile(table.roofline_us, 1 - share)
            print(report(fit_launch_table(rows_of(table, ~is_large)), rows_of(table, is_large)), flush=True)


def rows_of(table: LaunchTable, rows: NDArray[np.bool_]) -> LaunchTable:
    """Some rows of a table."""
    names = ("values", "log_baseline", "roofline_us", "inductor_us", "times_us", "programs")
    return replace(table, **{name: getattr(table, name)[rows] for name in names})


def write_schedules(machine: Machine, launches: list[MeasuredLaunch], path: Path) -> None:
    """Write constants with costs of attention's schedules fitted to these launches."""
    of_attention = [item for item in launches if (family_of(item.launch) or "").startswith("launch:attention")]
    found = [(attention_call(item.launch), item.duration_us) for item in of_attention]
    known = [(call, time_us) for call, time_us in found if call is not None and time_us is not None]
    costs = fit_attention([call for call, _ in known], [time_us for _, time_us in known], machine)
    constants = replace(machine.constants, attention=costs)
    write_constants(constants, path, force=True)
    for kind, own in costs.items():
        mine = replace(machine, own_constants=constants)
        off = [(attention_us(call, mine) or 0.0) / time_us - 1 for call, time_us in known if call.kind == kind]
        print(f"{kind}: {len(off)} launches, mean error {np.mean(np.abs(off)):.1%}: {own}", flush=True)


def measured(*names: str) -> list[MeasuredLaunch]:
    """The launches of these files of the H200."""
    return [item for name in names for item in read_launches(DATA / f"{name}_torch2.11.launches").launches]


def products_of_a_sweep() -> list[MeasuredLaunch]:
    """Samples of products as the launches that they are."""
    samples = read_operator_samples([DATA / "operators_torch2.11.parquet"])
    return [item for item in launches_of_samples(samples) if family_of(item.launch) == "launch:gemm/any"]


def main() -> None:
    """Fit, print the errors, write the model."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("-o", "--output", type=Path, required=True)
    parser.add_argument("--constants", type=Path)
    parser.add_argument("--families", nargs="*", default=FAMILIES, help="which are learned anew")
    parser.add_argument("--all", action="store_true", help="hold nothing out")
    parser.add_argument("--largest", type=float, metavar="SHARE")
    arguments = parser.parse_args()
    model = find_model(arguments.model)
    drawn = measured("attention", "library", "drawn_library", "drawn_convolutions")
    exact = measured("drawn_exact_convolutions", "programs")
    rounded = measured("rounded_products", "programs_tf32")
    held = (
        set()
        if arguments.all or arguments.largest is not None
        else set(sorted({item.program for item in [*drawn, *exact, *rounded]})[::4])
    )
    learned = [item for item in drawn if item.program not in held] + measured("fused", "models") + products_of_a_sweep()
    if arguments.constants is not None:
        write_schedules(model.machine, learned, arguments.constants)
        return
    if arguments.largest is not None:
        hold_out_largest(tables(learned, model.machine, exact, rounded), arguments.largest)
        return
    asked = tables(
        [item for item in drawn if item.program in held],
        model.machine,
        [item for item in exact if item.program in held],
        [item for item in rounded if item.program in held],
    )
    entries, extras = dict(model.entries), dict(model.extras)
    exact = [item for item in exact if item.program not in held]
    rounded = [item for item in rounded if item.program not in held]
    for family, table in tables(learned, model.machine, exact, rounded).items():
        if not family.startswith(tuple(arguments.families)):
            continue
        options = None if family.startswith("launch:fused") else Options(hyper_rows=160)
        entries[family] = fit_launch_table(table, options)
        # What widened the intervals were programs that are among the learned now.
        extras.pop(f"{family} interval", None)
        print(report(entries[family], asked[family]) if family in asked else family, flush=True)
    costs = fit_call_costs(read_calls(DATA / "calls_torch2.11.json.gz"), model.machine.bytes_per_us)
    # What a cost no longer has is not left over from the fit before.
    extras = {name: value for name, value in extras.items() if not name.endswith((" chunk us", " kernels"))}
    save_model(replace(model, entries=entries, extras={**extras, **costs}), arguments.output, force=True)
    print(f"{sum(name.endswith(' slowness') for name in costs)} kinds of eager calls")


if __name__ == "__main__":
    main()
