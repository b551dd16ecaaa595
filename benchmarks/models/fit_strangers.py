"""What drawn programs run, learned into a model: ``python -m benchmarks.models.fit_strangers MODEL -o NEW``.

From ``data/h200``: fused kernels, products, attention and convolutions of random programs, of models and of drawn
programs; products of a sweep; drawn configurations of attention, convolutions, rounded products and calls of other
libraries; and eager calls inside steps.
Every fourth configuration and drawn program is held out and its errors are printed, unless ``--all`` is given. All
other families stay as they are in MODEL. ``--largest SHARE`` writes nothing: it learns fused kernels but for that share
of them, those that move most, and prints the errors over these. ``--constants FILE`` does another thing: it fits what
attention's kernels cost to the configurations that are not held out, and writes the constants of the device's
generation with them (``expecting/generations``). ``--fold N`` and ``--seed S`` hold another quarter out:
every fourth from the Nth on, of an order that S shuffles. ``--own-constants FILE`` asks with these constants.
``--beside FILE...`` are launches that another device of the generation measured: described for that one, they teach as
well, all of them.
"""

from __future__ import annotations

import argparse
import random
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from benchmarks.models.fit_eager import MEASURED as EAGER
from benchmarks.models.fit_eager import call_of, with_eager_costs
from benchmarks.models.fit_eager import measured as measured_calls
from benchmarks.operators.drawn_launches import clips_as_no_model_does
from benchmarks.shared.places import ROOT
from torchledger.errors import FitError
from torchledger.expecting.attention_schedules import TimedCall, fit_attention_kernels, scheduled_us
from torchledger.expecting.constants import read_constants, write_constants
from torchledger.expecting.launch_attention import attention_call
from torchledger.expecting.launch_families import family_of
from torchledger.expecting.launch_features import features_of_launches
from torchledger.expecting.machine import LATEST_NETWORKS, Machine
from torchledger.expecting.rounded_products import ROUNDED
from torchledger.fitting.data import read_operator_samples
from torchledger.fitting.launches import (
    LaunchTable,
    align_columns,
    build_launch_tables,
    fit_launch_table,
    join_families,
    usual_options,
)
from torchledger.fitting.learning import COVERAGE, Options
from torchledger.fitting.sample_launches import launches_of_samples
from torchledger.fitting.time_model import Entry
from torchledger.fitting.transfer import SPREAD_WITHIN_GENERATION
from torchledger.predicting.devices import find_model
from torchledger.predicting.eager_launches import launch_of
from torchledger.predicting.model_file import save_model
from torchledger.store.launch_file import MeasuredLaunch, read_launches

DATA = ROOT / "data" / "h200"


FITTED_BASELINES = ("launch:attention",)
"""Families whose baseline's constants were fitted to rows that teach: a split of these does not tell how far strangers
are off. With ``--all`` their intervals are widened by a quarter that neither saw."""

FAMILIES = ("launch:attention", "launch:library", "launch:convolution", "launch:fused", "launch:gemm/any", ROUNDED)


def tables(
    launches: list[MeasuredLaunch],
    machine: Machine,
    exact: Sequence[MeasuredLaunch] = (),
    rounded: Sequence[MeasuredLaunch] = (),
) -> dict[str, LaunchTable]:
    """The ``FAMILIES`` among measured launches; convolutions of float32 were not rounded in ``exact`` ones, products of
    it were in ``rounded`` ones."""
    found = join_families(
        build_launch_tables(launches, machine)[0],
        build_launch_tables(rounded, machine, allow_tf32=True)[0],
        build_launch_tables(exact, machine, convolution_tf32=False)[0],
    )
    return {family: table for family, table in found.items() if family.startswith(FAMILIES)}


def tables_beside(paths: Sequence[Path]) -> dict[str, LaunchTable]:
    """What other devices measured, each described for its own machine; those of ``exact`` convolutions of float32."""
    found = []
    for path in paths:
        read = read_launches(path)
        machine = replace(find_model(read.device).machine, networks=LATEST_NETWORKS)
        found.append(build_launch_tables(read.launches, machine, convolution_tf32="exact" not in path.name)[0])
    return join_families(*found)


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


def options_for(table: LaunchTable) -> Options:
    """How a table of launches is learned here: of calls of a library fewer rows say as much of its lengths."""
    options = usual_options(table.family, len(table.times_us))
    return options if table.family.startswith("launch:fused") else replace(options, hyper_rows=160)


def widening(entry: Entry, table: LaunchTable) -> float:
    """How much wider an entry's intervals must be to hold ``COVERAGE`` of a table that it has not seen; 1 at least."""
    residual, width, _ = entry.predict(align_columns(table.values, table.names, entry.feature_names))
    off = np.abs(table.log_baseline_of(entry.feature_names) + residual - np.log(table.times_us))
    return max(1.0, float(np.quantile(off / width, COVERAGE)))


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
    """Write constants with the costs of attention's kernels fitted to these launches."""
    of_attention = [item for item in launches if (family_of(item.launch) or "").startswith("launch:attention")]
    timed = timed_calls(of_attention, machine)
    costs = fit_attention_kernels(timed, machine)
    made_of = {
        **machine.constants.made_of,
        "attention_kernels": f"fitted to {len(timed):,} calls of {machine.device.name}",
    }
    constants = replace(machine.constants, attention_kernels=costs, made_of=made_of)
    write_constants(constants, path, force=True)
    mine, off = replace(machine, own_constants=constants), defaultdict(list)
    for each in timed:
        said = scheduled_us(each.call, mine, cold_bytes=each.cold_bytes, read_bytes=each.read_bytes) or 0.0
        off[each.call.kind, each.call.is_causal].append(abs(said / each.time_us - 1))
    for (kind, is_causal), errors in sorted(off.items()):
        name = "causal" if is_causal else "whole"
        print(f"{kind}, {name}: {len(errors)} launches, mean error {np.mean(errors):.1%}", flush=True)


def timed_calls(launches: Sequence[MeasuredLaunch], machine: Machine) -> list[TimedCall]:
    """Calls of attention with their times, and how much of what they read the cache does not hold."""
    described = features_of_launches(
        [item.launch for item in launches], machine, traffic=[item.traffic for item in launches]
    )
    found = []
    for item, features in zip(launches, described, strict=True):
        call = attention_call(item.launch)
        if call is not None and features is not None and item.duration_us:
            read, warm = item.launch.bytes_read or 0, features.values["warm share"] * (item.launch.bytes_moved or 0)
            found.append(TimedCall(call, max(read - warm, 0.0), read, item.duration_us))
    return found


def measured(*names: str) -> list[MeasuredLaunch]:
    """The launches of these files of the H200."""
    return [item for name in names for item in read_launches(DATA / f"{name}_torch2.11.launches").launches]


def with_their_graphs(launches: list[MeasuredLaunch], families: Sequence[str]) -> list[MeasuredLaunch]:
    """The launches of graphs in which one of these families runs: what ran before tells what the cache holds."""
    kinds = {family.split("/")[0] for family in families}
    graphs = {
        (item.program, item.launch.graph) for item in launches if str(family_of(item.launch)).split("/")[0] in kinds
    }
    return [item for item in launches if (item.program, item.launch.graph) in graphs]


def products_of_a_sweep() -> list[MeasuredLaunch]:
    """Samples of products as the launches that they are."""
    samples = read_operator_samples([DATA / "operators_torch2.11.parquet"])
    return [item for item in launches_of_samples(samples) if family_of(item.launch) == "launch:gemm/any"]


def eager_launches() -> list[MeasuredLaunch]:
    """Products and convolutions that eager programs ask for, as the launches that they are; each found a cache that
    other work had swept. Which products of float32 people's scripts had rounded was not written down: they are left
    out."""
    found = []
    for file in EAGER:
        for place, row in enumerate(measured_calls(file)):
            launch = launch_of(call_of(row), "cuda:0")
            family = None if launch is None else str(family_of(launch))
            is_product = family == "launch:gemm/any"
            if launch is None or not (is_product or str(family).startswith("launch:convolution")):
                continue
            if is_product and file == "calls" and row["arguments"][0][1] == "float32":
                continue
            graph = f"{row['program']}_{file}_{place}"
            found.append(MeasuredLaunch(replace(launch, graph=graph), (row["us"],), row["program"]))
    return found


def main() -> None:
    """Fit, print the errors, write the model."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("-o", "--output", type=Path, required=True)
    parser.add_argument("--constants", type=Path)
    parser.add_argument("--families", nargs="*", default=FAMILIES, help="which are learned anew")
    parser.add_argument("--all", action="store_true", help="hold nothing out")
    parser.add_argument("--largest", type=float, metavar="SHARE")
    parser.add_argument("--fold", type=int, default=0)
    parser.add_argument("--seed", type=int)
    parser.add_argument("--own-constants", type=Path)
    parser.add_argument("--beside", type=Path, nargs="*", default=())
    arguments = parser.parse_args()
    model = find_model(arguments.model)
    if any(family.startswith("launch:fused") for family in arguments.families):
        # What fused kernels are learned beside is what is known of them now.
        model = replace(model, machine=replace(model.machine, networks=LATEST_NETWORKS))
    if arguments.own_constants is not None:
        own = read_constants(arguments.own_constants)
        model = replace(model, machine=replace(model.machine, own_constants=own))
    drawn = measured("attention", "library", "drawn_library", "drawn_convolutions", "further_convolutions")
    exact = measured("drawn_exact_convolutions", "further_exact_convolutions", "programs")
    rounded = measured("rounded_products", "programs_tf32")
    programs = sorted({item.program for item in [*drawn, *exact, *rounded]})
    if arguments.seed is not None:
        random.Random(arguments.seed).shuffle(programs)
    is_all = arguments.all or arguments.largest is not None
    held = set() if is_all else set(programs[arguments.fold :: 4])
    drawn, exact, rounded = (with_their_graphs(some, arguments.families) for some in (drawn, exact, rounded))
    more = [item for item in measured("fused", "rare_fused", "models") if not clips_as_no_model_does(item)]
    more += [*products_of_a_sweep(), *eager_launches()]
    more = with_their_graphs(more, arguments.families)
    learned = [item for item in drawn if item.program not in held] + more
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
    taught = tables(learned, model.machine, exact, rounded)
    own = set(taught)
    taught = join_families(taught, tables_beside(arguments.beside))
    for family, table in taught.items():
        if not family.startswith(tuple(arguments.families)):
            continue
        options = options_for(table)
        spread = 0.0 if family in own else SPREAD_WITHIN_GENERATION
        try:
            entries[family] = replace(fit_launch_table(table, options), spread=spread)
        except FitError as error:
            print(f"{family} stays as it is: {error}", flush=True)
            continue
        # What widened the intervals were programs that are among the learned now.
        extras.pop(f"{family} interval", None)
        if arguments.all and family.startswith(FITTED_BASELINES):
            unseen = np.isin(table.programs, programs[arguments.fold :: 4])
            extras[f"{family} interval"] = widening(
                fit_launch_table(rows_of(table, ~unseen), options), rows_of(table, unseen)
            )
            print(f"{family}: intervals {extras[f'{family} interval']:.2f} times as wide", flush=True)
        print(report(entries[family], asked[family]) if family in asked else family, flush=True)
    save_model(with_eager_costs(replace(model, entries=entries, extras=extras)), arguments.output, force=True)


if __name__ == "__main__":
    main()
