"""What stands beside the regressors of a model: ``python -m benchmarks.models.fit_corrections MODEL FROM... -o NEW``.

FROM are folders that ``strangers_cuda.py`` wrote, the first one with ``states.json``. How far the expected times of
float32 convolutions are off comes of ``data/h200``; by how much intervals of launches and steps are to be widened of
the develop sets, each family alone, none made narrower; what a swept cache costs an operator of ``states.json``.
Printed beside it: what then holds there, with each program left out, and on the look set; errors of held-out points.
Nothing else in MODEL changes.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from benchmarks.shared.places import ROOT
from benchmarks.strangers.strangers_errors import Found, judge_set
from torchledger.fitting.convolution_factors import fit_convolution_factors
from torchledger.fitting.learning import COVERAGE
from torchledger.fitting.time_model import TimeModel
from torchledger.fitting.timing_states import (
    STATES,
    TimedTwice,
    family_of_operator,
    fit_states,
    swept_over_warm,
)
from torchledger.operators import find_operator
from torchledger.predicting.devices import find_model
from torchledger.predicting.model_file import save_model
from torchledger.store.launch_file import read_launches
from torchledger.work.element_sizes import ELEMENT_SIZES

DATA = ROOT / "data" / "h200"
_FEWEST_PROGRAMS = 3


@dataclass(frozen=True)
class Miss:
    """How far a prediction was off, in halves of its interval, and which factor would widen that."""

    program: str
    factor: str
    size: float


def misses_of(found: Iterable[Found]) -> list[Miss]:
    """Those of launches, and those of steps that the host decides."""
    misses = []
    for program in found:
        for family, predicted_us, high_us, us in program.launches:
            size = abs(math.log(us / predicted_us)) / math.log(high_us / predicted_us)
            misses.append(Miss(program.name, f"{family} interval", size))
        half_us = program.step_high_us - program.predicted_step_us
        decided = f"step interval {program.decides}"
        misses.append(Miss(program.name, decided, abs(program.step_us - program.predicted_step_us) / half_us))
    return misses


def factors_of(misses: Iterable[Miss]) -> dict[str, float]:
    """The least factor with which intervals hold ``COVERAGE`` of what was measured, where there are enough programs."""
    sizes: dict[str, dict[str, list[float]]] = {}
    for miss in misses:
        sizes.setdefault(miss.factor, {}).setdefault(miss.program, []).append(miss.size)
    return {
        factor: max(1.0, float(np.quantile([size for some in of.values() for size in some], COVERAGE)))
        for factor, of in sizes.items()
        if len(of) >= _FEWEST_PROGRAMS and "float32" not in factor and factor != "step interval device"
    }


def held(misses: Iterable[Miss], factors: Mapping[str, float], is_asked: Callable[[Miss], bool]) -> str:
    """The share of intervals that hold once they are widened."""
    sizes = [miss.size <= factors.get(miss.factor, 1.0) for miss in misses if is_asked(miss)]
    return f"{sum(sizes) / len(sizes):.1%} of {len(sizes)}"


def fit_intervals(model: TimeModel, sources: Sequence[Path]) -> dict[str, float]:
    """The factors of the develop sets; prints what holds with them."""
    plain = replace(model, extras={key: value for key, value in model.extras.items() if "interval" not in key})
    develop, look = (
        [
            miss
            for source in sources
            if (source / f"{name}.tar").exists()
            for miss in misses_of(judge_set(plain, source, name)[0])
        ]
        for name in ("develop", "look")
    )
    factors = factors_of(develop)
    for what, asked in (
        ("launches", lambda miss: miss.factor.startswith("launch:")),
        ("steps", lambda miss: miss.factor.startswith("step")),
    ):
        apart = [
            replace(miss, size=miss.size / factors_of(m for m in develop if m.program != program).get(miss.factor, 1.0))
            for program in sorted({miss.program for miss in develop})
            for miss in develop
            if miss.program == program
        ]
        print(
            f"{what}: develop {held(develop, {}, asked)} before, {held(develop, factors, asked)} after, "
            f"{held(apart, {}, asked)} by the other programs; look {held(look, {}, asked)} before, "
            f"{held(look, factors, asked)} after",
            flush=True,
        )
    return factors


def fit_swept(model: TimeModel, source: Path) -> dict[str, float]:
    """What a swept cache costs; prints errors of points that were held out, a fifth at a time."""
    rows, points = [], []
    for row in json.loads((source / "states.json").read_text()):
        if "warm_us" in row:
            name = row["operator"]
            operator = find_operator(name.removeprefix("guide."), prefer_guide=name.startswith("guide."))
            size = float(ELEMENT_SIZES[row["dtype"]])
            family = family_of_operator(operator, row["parameters"], row["direction"], size)
            rows.append(TimedTwice(family, *(statistics.median(row[f"{state}_us"]) for state in STATES)))
            points.append(row["point"])
    off = []
    for fold in range(5):
        held_out = set(sorted(set(points))[fold::5])
        learned = fit_states([row for row, point in zip(rows, points, strict=True) if point not in held_out])
        asked = replace(model, extras={**model.extras, **learned})
        for row, point in zip(rows, points, strict=True):
            if point in held_out:
                shift, width = swept_over_warm(asked, row.family, np.array([row.warm_us]))
                off.append((row.warm_us, math.log(row.swept_us / row.warm_us), float(shift[0]), float(width[0])))
    table = np.array(off)
    for least, most in ((0, 5), (5, 20), (20, 100), (100, math.inf)):
        some = table[(table[:, 0] >= least) & (table[:, 0] < most)]
        plain, left = some[:, 1], some[:, 1] - some[:, 2]
        print(
            f"swept, {least} to {most} us: {len(some)}, mean error as warm {np.mean(np.abs(np.expm1(-plain))):.1%}, "
            f"corrected {np.mean(np.abs(np.expm1(-left))):.1%}, widths hold {np.mean(np.abs(left) <= some[:, 3]):.0%}"
        )
    return fit_states(rows)


def main() -> None:
    """Fit, print, write the model."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("sources", type=Path, nargs="+")
    parser.add_argument("-o", "--output", type=Path, required=True)
    arguments = parser.parse_args()
    model = find_model(arguments.model)
    found = dict(fit_convolution_factors(read_launches(DATA / "fused_torch2.11.launches").launches, model.machine))
    model = replace(model, extras={**model.extras, **found})
    found |= fit_intervals(model, arguments.sources)
    found |= fit_swept(model, arguments.sources[0])
    for name, value in sorted(found.items()):
        print(f"{name}: {value:.3f}")
    save_model(replace(model, extras={**model.extras, **found}), arguments.output, force=True)


if __name__ == "__main__":
    main()
