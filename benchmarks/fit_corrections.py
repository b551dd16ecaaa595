"""What stands beside the regressors of a model: ``python benchmarks/fit_corrections.py MODEL FROM -o NEW``.

FROM is the folder that ``strangers_cuda.py`` wrote. How far the expected times of float32 convolutions are off comes of
``data/h200``; by how much intervals of launches and steps are to be widened of the develop set, each family alone, none
made narrower. Printed beside it: what then holds there, with each program left out, and on the look set. Nothing else in
MODEL changes.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from strangers_errors import Found, judge_set

from torchledger.fitting.convolution_factors import fit_convolution_factors
from torchledger.fitting.learning import COVERAGE
from torchledger.fitting.time_model import TimeModel
from torchledger.predicting.model_file import find_model, save_model
from torchledger.store.launch_file import read_launches

DATA = Path(__file__).resolve().parent.parent / "data" / "h200"
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


def fit_intervals(model: TimeModel, source: Path) -> dict[str, float]:
    """The factors of the develop set; prints what holds with them."""
    plain = replace(model, extras={key: value for key, value in model.extras.items() if "interval" not in key})
    develop, look = (misses_of(judge_set(plain, source, name)[0]) for name in ("develop", "look"))
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


def main() -> None:
    """Fit, print, write the model."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("source", type=Path)
    parser.add_argument("-o", "--output", type=Path, required=True)
    arguments = parser.parse_args()
    model = find_model(arguments.model)
    found = dict(fit_convolution_factors(read_launches(DATA / "fused_torch2.11.launches").launches, model.machine))
    model = replace(model, extras={**model.extras, **found})
    found |= fit_intervals(model, arguments.source)
    for name, value in sorted(found.items()):
        print(f"{name}: {value:.3f}")
    save_model(replace(model, extras={**model.extras, **found}), arguments.output, force=True)


if __name__ == "__main__":
    main()
