"""What eager calls cost, learned into a model: ``python -m benchmarks.models.fit_eager MODEL -o NEW``.

From ``data/h200``: calls in steps of programs and batteries (``calls_torch2.11.json.gz``), and drawn ones in every
layout (``eager_torch2.11.json.gz``, of ``eager_strangers_cuda.py``); from ``data/h100`` calls that models have in one
place and not in many. All else stays as it is in MODEL. ``--held-out`` writes nothing: it learns three quarters of the
drawn calls at a time and prints how far the fourth is off, ``--held-out-rare`` two of three seeds of the rare ones,
``--held-out-seeds FILE`` all but one of the seeds of a file, and ``--held-out-scripts`` three quarters of
the scripts of ``stranger_scripts``, whose sums it prints too, and ``--held-out-parts`` all but a quarter of the
programs, of calls whose algorithm has parts.
``--held-out-lists`` does so with calls over lists of tensors (optimizers), a quarter of the programs at a time, and
``--without sealed-9`` learns nothing of programs whose names begin so.
"""

from __future__ import annotations

import argparse
import random
import re
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from benchmarks.shared.places import ROOT
from torchledger.fitting.algorithm_costs import fit_algorithms, parts_of_row
from torchledger.fitting.call_costs import (
    LIKE_OTHERS,
    LIKE_OTHERS_ALONG,
    fit_call_costs,
    fit_rooflines,
    read_calls,
    tensors_of,
)
from torchledger.fitting.catalogue_calls import fit_beside_catalogue
from torchledger.fitting.picture_norms import fit_picture_norms
from torchledger.fitting.time_model import TimeModel
from torchledger.nouns import StepCall
from torchledger.predicting.call_parts import roofline_of
from torchledger.predicting.devices import find_model
from torchledger.predicting.eager_launches import launch_of
from torchledger.predicting.model_file import save_model
from torchledger.predicting.step_calls import is_of_catalogue, price_calls
from torchledger.work.categories import operator_name
from torchledger.work.list_costs import works_on_lists
from torchledger.work.settings import settings_from

DATA = ROOT / "data" / "h200"
_FOLDS = 4

Row = Mapping[str, Any]


FURTHER = DATA.parent / "h100" / "eager_further_torch2.11.json.gz"
"""Calls of ``eager_calls/further.py`` on an H100: those of which the memory's rate decides nothing are learned."""

_NOT_BY_MEMORY = ("topk", "scatter_", "cudnn_batch_norm", "cudnn_batch_norm_backward")


RARE = DATA.parent / "h100" / "eager_rare_torch2.11.json.gz"
"""Calls of ``eager_calls/rare.py`` on an H100: of the parts of algorithms, few of them the memory's, and of what the
H200's calls do not have."""


def measured(name: str) -> list[dict[str, Any]]:
    """The calls of a file of ``data/h200``; with the drawn ones (``"eager"``) those of an H100 that hold there, too."""
    rows = read_calls(DATA / f"{name}_torch2.11.json.gz")
    if name == "eager":
        rows += [row for row in read_calls(FURTHER) if row["name"].removeprefix("aten::") in _NOT_BY_MEMORY]
    return rows


MEASURED = (
    *("calls", "eager", "common", "libraries", "recurrent", "sharded", "seldom", "solvers", "decoding", "meeting"),
    *("model_calls", "uneven", "factors"),
)
"""The files of calls that costs are learned of."""


def all_measured() -> list[dict[str, Any]]:
    """All calls that costs are learned of, but for the rare ones."""
    return [row for name in MEASURED for row in measured(name)]


def rare_calls() -> list[dict[str, Any]]:
    """The rare calls, but for those with sparse matrices, whose bytes were not recorded."""
    rows = read_calls(RARE)
    return [row for row in rows if all(stride is not None for shape, _, stride, *_ in row["arguments"] if shape)]


def call_of(row: Row, order: int = 0) -> StepCall:
    """A row as the call that a step would have."""
    fields = {name: row[name] for name in ("kernels", "bytes_moved", "flops", "tensors", "elements")}
    return StepCall(
        step="",
        order=order,
        kind="operator",
        name=row["name"].removesuffix(" scaled"),
        phase="other",
        arguments=tuple(tensors_of(row)),
        samples_us=(row["us"],),
        settings=settings_from(row.get("settings")),
        **fields,
    )


def with_eager_costs(
    model: TimeModel, rows: Sequence[Row] | None = None, rare: Sequence[Row] | None = None
) -> TimeModel:
    """The model with the costs of eager calls learned of ``rows`` and, where these have none of a kind, of ``rare``
    ones; of all that was measured, if not given."""
    rows = all_measured() if rows is None else rows
    alone, rooflines = [], []
    for row in rows:
        if operator_name(row["name"])[1] in ("convolution", "convolution_backward") and row["flops"]:
            call = call_of(row)
            if launch_of(call, "cuda:0") is None:
                alone.append(row)
                rooflines.append(roofline_of(model, call) or 0.0)
    costs = fit_call_costs(rows, model.machine.bytes_per_us) | fit_rooflines(alone, rooflines)
    rare = rare_calls() if rare is None else rare
    further = fit_call_costs(rare, find_model("H100").machine.bytes_per_us)
    known = {_kind(name) for name in costs}
    costs |= {name: us for name, us in further.items() if _kind(name) not in known}
    print(f"{sum(name.endswith(' slowness') for name in costs)} kinds of eager calls", flush=True)
    costs |= fit_algorithms([*rare, *rows]) | fit_picture_norms(rows, model.machine.num_multiprocessors)
    # What is no longer learned of a call is not left over from the fit before.
    kept = {name: us for name, us in model.extras.items() if "::" not in name and not name.startswith(_ALIKE)}
    return _with_catalogue(replace(model, extras=kept | costs), rows)


def _kind(name: str) -> str:
    """The kind of calls whose cost a number belongs to."""
    return re.sub(r" (norm|kernels|reach|spread|slowness|(step|chunk|element|kernel) us)$", "", name)


def _with_catalogue(model: TimeModel, rows: Sequence[Row]) -> TimeModel:
    """The model with what calls in steps take beside what the catalogue says of their operators."""
    calls = [call_of(row, order) for order, row in enumerate(rows)]
    described = [call for call in calls if call.kernels == 1 and is_of_catalogue(call)]
    said = price_calls(model, described, ran_on_cpu=False)
    names = [call.name for call, _ in said]
    us, said_us = [call.samples_us[0] for call, _ in said], [each.duration_us for _, each in said]
    return replace(model, extras=dict(model.extras) | fit_beside_catalogue(names, us, said_us))


_ALIKE = (LIKE_OTHERS, LIKE_OTHERS_ALONG)


def judge(model: TimeModel, rows: Sequence[Row]) -> list[tuple[float, float, bool]]:
    """What each call took and was said to take, and whether its interval holds."""
    priced = price_calls(model, [call_of(row, order) for order, row in enumerate(rows)], ran_on_cpu=False)
    return [
        (call.samples_us[0], each.duration_us, each.low_us <= call.samples_us[0] <= each.high_us)
        for call, each in priced
    ]


def print_errors(what: str, found: Sequence[tuple[float, float, bool]]) -> None:
    """One line: mean and median error, and how many intervals hold."""
    errors = [abs(said / us - 1) for us, said, _ in found]
    held = statistics.mean(holds for _, _, holds in found)
    print(
        f"{what}: {len(found):,} calls, mean error {statistics.mean(errors):.1%}, median "
        f"{statistics.median(errors):.1%}, intervals hold {held:.0%}",
        flush=True,
    )


def held_out_lists(model: TimeModel) -> None:
    """How far calls over lists of tensors are off in programs that nothing was learned of, and their sums there."""
    rows = [row for row in measured("calls") if works_on_lists(row["name"]) and row["tensors"]]
    names = sorted({row["program"] for row in rows})
    random.Random(3).shuffle(names)
    found: list[tuple[str, float, float, bool]] = []
    for fold in range(_FOLDS):
        held = [row for row in rows if row["program"] in names[fold::_FOLDS]]
        costs = fit_call_costs([row for row in rows if row not in held], model.machine.bytes_per_us)
        kept = {name: us for name, us in model.extras.items() if "::" not in name}
        judged = judge(replace(model, extras=kept | costs), held)
        found += [(row["program"], *each) for row, each in zip(held, judged, strict=True)]
    print_errors("all calls over lists, held out", [each[1:] for each in found])
    of_programs = [each for each in found if not each[0].startswith("battery")]
    print_errors("those of programs", [each[1:] for each in of_programs])
    sums: dict[str, tuple[float, float, bool]] = {}
    for name, us, said, _ in of_programs:
        was_us, was_said, _ = sums.get(name, (0.0, 0.0, False))
        sums[name] = was_us + us, was_said + said, abs((was_said + said) / (was_us + us) - 1) < _NEAR
    print_errors(f"their sums by program (held: within {_NEAR:.0%})", list(sums.values()))


_NEAR = 0.1


def held_out_rare(model: TimeModel) -> None:
    """How far rare calls are off, a seed of them held out at a time."""
    _held_out_programs(model, rare_calls(), lambda others: with_eager_costs(model, rare=others))


def held_out_seeds(model: TimeModel, file: str) -> None:
    """How far calls of a file are off, one of the programs that drew them held out at a time."""
    known = [row for name in MEASURED if name != file for row in measured(name)]
    _held_out_programs(model, measured(file), lambda others: with_eager_costs(model, [*known, *others]))


def held_out_scripts(model: TimeModel) -> None:
    """How far calls of people's scripts are off, a quarter of the scripts held out at a time."""
    rows = [row for row in measured("calls") if row["program"].startswith(_SCRIPTS)]
    known = [row for row in all_measured() if not row["program"].startswith(_SCRIPTS)]
    _held_out_programs(model, rows, lambda others: with_eager_costs(model, [*known, *others]), folds=_FOLDS)


def held_out_parts(model: TimeModel) -> None:
    """How far calls with parts of an algorithm are off, a quarter of all programs held out at a time."""
    rows = [*all_measured(), *rare_calls()]
    rows = [row for row in rows if row["us"] > 0 and parts_of_row(row) is not None]
    kept = {name: value for name, value in model.extras.items() if not _OF_PARTS.search(name)}
    _held_out_programs(
        model, rows, lambda others: replace(model, extras=kept | fit_algorithms(others)), folds=_FOLDS
    )  # fmt: skip


_OF_PARTS = re.compile(r" part \d+ us$| parts spread$")


_SCRIPTS = "scripts-"


def _held_out_programs(
    model: TimeModel, rows: Sequence[Row], taught_by: Callable[[list[Row]], TimeModel], *, folds: int | None = None
) -> None:
    """Errors over rows, each program's by a model that others taught, those of the same of ``folds`` not (none: but
    itself); for each operator, and for each program's sum, the most time first."""
    before = judge(model, rows)
    now: list[tuple[float, float, bool]] = []
    order: list[Row] = []
    names = sorted({row["program"] for row in rows})
    for fold in range(folds or len(names)):
        mine = set(names[fold :: folds or len(names)])
        held = [row for row in rows if row["program"] in mine]
        now += judge(taught_by([row for row in rows if row["program"] not in mine]), held)
        order += held
    print_errors("by the model as it is", before)
    print_errors("held out", now)
    for field in ("program", "name"):
        grouped: dict[str, list[tuple[float, float, bool]]] = {}
        for row, each in zip(order, now, strict=True):
            grouped.setdefault(row[field], []).append(each)
        for name, found in sorted(grouped.items(), key=lambda pair: -sum(us for us, _, _ in pair[1])):
            of_sum = sum(said for _, said, _ in found) / sum(us for us, _, _ in found) - 1
            print_errors(f"{name}, sum {of_sum:+.1%}", found)


def main() -> None:
    """Learn them all, or say how far the held out are off."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("-o", "--output", type=Path)
    parser.add_argument("--held-out", action="store_true")
    parser.add_argument("--held-out-lists", action="store_true")
    parser.add_argument("--held-out-rare", action="store_true")
    parser.add_argument("--held-out-seeds", choices=("seldom", "solvers", "decoding", "factors"))
    parser.add_argument("--held-out-scripts", action="store_true")
    parser.add_argument("--held-out-parts", action="store_true")
    parser.add_argument("--without", metavar="PREFIX", help="programs to learn nothing of")
    arguments = parser.parse_args()
    model = find_model(arguments.model)
    if arguments.held_out_lists:
        held_out_lists(model)
        return
    if arguments.held_out_rare:
        held_out_rare(model)
        return
    if arguments.held_out_seeds:
        held_out_seeds(model, arguments.held_out_seeds)
        return
    if arguments.held_out_scripts:
        held_out_scripts(model)
        return
    if arguments.held_out_parts:
        held_out_parts(model)
        return
    if not arguments.held_out:
        if arguments.output is None:
            parser.error("say -o NEW, or --held-out")
        rows = all_measured()
        rows = [row for row in rows if not arguments.without or not row["program"].startswith(arguments.without)]
        save_model(with_eager_costs(model, rows), arguments.output, force=True)
        return
    known, drawn = measured("calls"), [*measured("eager"), *measured("common")]
    print_errors("by the model as it is", judge(model, drawn))
    random.Random(3).shuffle(drawn)
    found = []
    for fold in range(_FOLDS):
        others = [row for place, row in enumerate(drawn) if place % _FOLDS != fold]
        found += judge(with_eager_costs(model, [*known, *others]), drawn[fold::_FOLDS])
    print_errors("held out", found)


if __name__ == "__main__":
    main()
