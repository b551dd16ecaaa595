"""How far launches of a file are off by kind of program: ``python -m benchmarks.launches.launch_errors MODEL FILE...``.

FILES are launches of drawn programs or calls. Printed are the errors by what was drawn and the family that was asked,
and of all together; ``--without FAMILY`` asks the model without the entries whose names hold that, ``--families`` keeps
launches whose own begin so.
"""

from __future__ import annotations

import argparse
from collections import defaultdict
from dataclasses import replace
from pathlib import Path

import numpy as np

from torchledger.expecting.launch_families import family_of
from torchledger.nouns import Prediction
from torchledger.predicting.devices import find_model
from torchledger.predicting.launches import predict_launches
from torchledger.store.launch_file import MeasuredLaunch, read_launches
from torchledger.work.views import launches_nothing

NEEDS: tuple[str, ...] = ()
RUNS: tuple[tuple[str, ...], ...] = (
    ("H100", "data/h100/turned_anew_torch2.11.launches", "--families", "launch:fused"),
)

Told = tuple[MeasuredLaunch, Prediction]


def told_of(path: Path, model_name: str, without: str | None, families: str) -> list[Told]:
    """Measured launches of a file, and what the model says of each."""
    model = find_model(model_name)
    if without is not None:
        model = replace(model, entries={key: one for key, one in model.entries.items() if without not in key})
    every = read_launches(path).launches
    asked = [item for item in every if item.launch.category != "nop" and not launches_nothing(item.launch)]
    said = predict_launches(model, [item.launch for item in every], convolution_tf32="exact" not in path.name)
    return [
        (item, prediction)
        for item, prediction in zip(asked, said, strict=True)
        if item.times_us and str(family_of(item.launch)).startswith(families)
    ]


def line(name: str, told: list[Told]) -> str:
    """Errors of some launches."""
    took = np.array([item.duration_us for item, _ in told], dtype=float)
    said = np.array([prediction.duration_us for _, prediction in told])
    hold = np.mean([one.low_us <= us <= one.high_us for (_, one), us in zip(told, took, strict=True)])
    off = np.abs(said / took - 1)
    return (
        f"{name}: {len(told):,}, mean error {off.mean():.1%}, median {np.median(off):.1%}, sum "
        f"{said.sum() / took.sum() - 1:+.1%}, intervals hold {hold:.0%}"
    )


def main() -> None:
    """Ask and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("files", type=Path, nargs="+")
    parser.add_argument("--without")
    parser.add_argument("--families", default="launch:")
    arguments = parser.parse_args()
    told = [
        each
        for path in arguments.files
        for each in told_of(path, arguments.model, arguments.without, arguments.families)
    ]
    groups: dict[str, list[Told]] = defaultdict(list)
    for item, prediction in told:
        drawn = item.program.partition("-")[0]
        groups[f"{drawn}, {prediction.model} {item.launch.category}"].append((item, prediction))
    for name, some in sorted(groups.items()):
        print(line(name, some))
    print(line("all", told))


if __name__ == "__main__":
    main()
