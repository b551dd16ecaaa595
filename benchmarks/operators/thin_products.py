"""How far prices of products with few rows and columns over long sums are off, with and without their sums.

``python -m benchmarks.operators.thin_products`` judges ``data/h200/thin_products_torch2.11.launches``, of
``drawn_library.py measure --kinds thin`` (products of float32 that are rounded for the tensor cores), and the eager
calls of ``fit_eager.py`` that have long sums, by what kernel runs them: all of them, and the half that ``--fit`` learns
nothing of. ``--fit`` prints what a step of each kernel takes by the other half, as ``long_sums`` of
``expecting/generations/hopper.json`` holds it. Needs no GPU.
"""

from __future__ import annotations

import argparse
import json
import math
import random
import statistics
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any
from unittest import mock

from benchmarks.shared.places import ROOT
from torchledger.expecting.constants import SumCosts
from torchledger.expecting.launch_features import features_of_launches
from torchledger.expecting.long_sums import LongSums, long_sums_of, sums_us
from torchledger.expecting.machine import Machine
from torchledger.fitting.time_model import TimeModel
from torchledger.nouns import Launch, Prediction
from torchledger.predicting.devices import find_model
from torchledger.predicting.eager_launches import launch_of
from torchledger.predicting.launches import predict_launches
from torchledger.store.launch_file import read_launches

NEEDS: tuple[str, ...] = ()
RUNS: tuple[tuple[str, ...], ...] = ((),)
DATA = ROOT / "data" / "h200" / "thin_products_torch2.11.launches"

SEEDS: Mapping[str, SumCosts] = {
    **{f"rounded/{layout}": SumCosts(4, 5, None, 3.2e6, crowd=0.1) for layout in ("nn", "nt", "tt")},
    "rounded/tn": SumCosts(3, 9, None, 3.5e6),
    "rounded/tn in waves": SumCosts(5, 7, None, 4e6),
    "rounded/nt narrow": SumCosts(8, 6, None, 3.4e6),
    "rounded/odd": SumCosts(4, 10, None, 2.4e6, rows=32, columns=32),
    "rounded/four rows": SumCosts(4, 6, 2.5, 1.8e6, columns=16, at_once=3),
    "rounded/sixteen rows": SumCosts(3, 11, 5, columns=16, at_once=2),
    "rounded/few rows across": SumCosts(3, 33, 15, 0.6e6, at_once=2),
    "rounded/split": SumCosts(6, 0, None, 2.4e6),
    "rounded/split odd": SumCosts(8, 0, None, 1.8e6),
    **{f"exact/{side}": SumCosts(4, 30, at_once=2.5, in_rounds=False) for side in (4, 16, "wide")},
    "exact/vector": SumCosts(3.5, 0.7, in_rounds=False),
    "half/vector": SumCosts(3.5, 1.1, in_rounds=False),
    "half/aligned": SumCosts(3.5, 1.4, at_once=2.5, in_rounds=False),
    "bfloat16/odd": SumCosts(3.5, 21.4, at_once=2.5, in_rounds=False),
    "bfloat16/even": SumCosts(3.5, 11.2, at_once=2.5, in_rounds=False),
    "float16/odd": SumCosts(3.5, 9.1, at_once=2.5, in_rounds=False),
    "float16/even": SumCosts(3.5, 6.5, at_once=2.5, in_rounds=False),
}
"""Where fits begin, and what stays where too few products teach (half precision, vectors: the least of a dozen eager
calls). Blocks, and whether a step is shorter in the L2, were read off the kernels' names and times."""

_LEAST_FITTED = 6
"""Products of a kernel that give it constants."""


@dataclass(frozen=True)
class Case:
    """A product over long sums, what it took, and whether constants are learned of it."""

    launch: Launch
    us: float
    near_share: float
    sums: LongSums
    is_taught: bool


def drawn_products(model: TimeModel) -> list[Case]:
    """Products of float32 that are rounded for the tensor cores, over factors that the cache holds and that it lost."""
    rows = [(each.launch, each.duration_us, each.program) for each in read_launches(DATA).launches]
    return _cases(model, rows, allow_tf32=True)


def eager_products(model: TimeModel) -> list[Case]:
    """Eager products that are not rounded, of calls at uneven sizes and of models' calls drawn again."""
    from benchmarks.models import fit_eager

    rows = []
    for order, row in enumerate(row for name in ("uneven", "model_calls") for row in fit_eager.measured(name)):
        launch = launch_of(replace(fit_eager.call_of(row, order), step=f"call_{order}"), "cuda:0")
        if launch is not None:
            rows.append((launch, row["us"], launch.launch_id))
    return _cases(model, rows, allow_tf32=False)


def _cases(
    model: TimeModel, rows: Sequence[tuple[Launch, float | None, str]], *, allow_tf32: bool, seed: int = 5
) -> list[Case]:
    described = features_of_launches([launch for launch, _, _ in rows], model.machine)
    pick = random.Random(seed)
    is_taught = {program: pick.random() < 0.5 for program in dict.fromkeys(program for *_, program in rows)}
    found = []
    for (launch, us, program), features in zip(rows, described, strict=True):
        sums = long_sums_of(launch, model.machine.num_multiprocessors, allow_tf32=allow_tf32)
        if sums is not None and us:
            share = 0.0 if features is None else features.values.get("warm share", 0.0)
            found.append(Case(launch, us, share, sums, is_taught[program]))
    return found


def fitted(kind: str, taught: Sequence[Case], machine: Machine) -> SumCosts:
    """What a kernel takes, by the least sum of logarithms' errors, those far off counting less."""
    from scipy.optimize import least_squares

    first = SEEDS[kind]
    names = [name for name in ("launch", "step", "near_step", "bytes_per_us", "crowd") if getattr(first, name)]
    if is_least := not kind.startswith("rounded"):
        names = ["step"]

    def costs(logs: Any) -> SumCosts:
        given: dict[str, Any] = {name: float(math.exp(value)) for name, value in zip(names, logs, strict=True)}
        return replace(first, **given)

    def errors(logs: Any) -> list[float]:
        own = costs(logs)
        return [math.log(sums_us(each.sums, own, machine, near_share=each.near_share) / each.us) for each in taught]

    found = least_squares(errors, [math.log(getattr(first, name)) for name in names], loss="soft_l1", f_scale=0.05)
    if is_least:
        return costs(found.x)
    off = sorted(abs(each) for each in errors(found.x))
    spread = math.exp(max(off[int(0.9 * len(off))], 0.05))
    return replace(costs(found.x), spread=spread)


def print_fit(model: TimeModel, cases: Sequence[Case]) -> None:
    """The constants of every kernel that enough products were run by."""
    by_kind: dict[str, list[Case]] = defaultdict(list)
    for each in cases:
        if each.is_taught:
            by_kind[each.sums.kind].append(each)
    found = {}
    for kind, taught in sorted(by_kind.items()):
        own = fitted(kind, taught, model.machine) if len(taught) >= _LEAST_FITTED else SEEDS[kind]
        plain = {name: value for name, value in asdict(own).items() if value != getattr(SumCosts(0, 0), name)}
        found[kind] = {
            name: float(f"{value:.3g}") if isinstance(value, float) else value for name, value in plain.items()
        }
    print(json.dumps(found, indent=2))


def print_errors(model: TimeModel, cases: Sequence[Case], *, allow_tf32: bool) -> None:
    """A line for each kernel: errors of the half that taught nothing, without sums and with them."""
    held = [each for each in cases if not each.is_taught]
    launches = [each.launch for each in held]
    with mock.patch("torchledger.predicting.whole_sums.costs_of_sums", return_value={}):
        without = predict_launches(model, launches, allow_tf32=allow_tf32)
    answers = (without, predict_launches(model, launches, allow_tf32=allow_tf32))
    prices = [{each.subject: each for each in said} for said in answers]
    print(
        "| kernel | times | without: mean error, % | in sum, % | with: mean error, % | in sum, % | intervals hold, % |"
    )
    print("|---|---|---|---|---|---|---|")
    for kind in [*sorted({each.sums.kind for each in held}), "all"]:
        mine = [each for each in held if kind in (each.sums.kind, "all")]
        cells = []
        for said in prices:
            pairs = [(said[each.launch.launch_id].duration_us, each.us) for each in mine]
            cells.append(f"{100 * statistics.mean(abs(price / us - 1) for price, us in pairs):.1f}")
            cells.append(f"{100 * (sum(price for price, _ in pairs) / sum(us for _, us in pairs) - 1):+.1f}")
        holds = statistics.mean(_holds(prices[1][each.launch.launch_id], each.us) for each in mine)
        print(f"| {kind} | {len(mine)} | {' | '.join(cells)} | {100 * holds:.0f} |")


def _holds(price: Prediction, us: float) -> bool:
    return price.low_us is not None and price.high_us is not None and price.low_us <= us <= price.high_us


def main() -> None:
    """Print errors, or constants."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="H200")
    parser.add_argument("--fit", action="store_true", help="print constants of one half")
    options = parser.parse_args()
    model = find_model(options.model)
    drawn, eager = drawn_products(model), eager_products(model)
    if options.fit:
        print_fit(model, [*drawn, *eager])
        return
    print_errors(model, drawn, allow_tf32=True)
    print()
    print_errors(model, eager, allow_tf32=False)


if __name__ == "__main__":
    main()
