"""Steps by how fast their host was just then: ``python -m benchmarks.machines.host_pieces [PIECES]``.

PIECES (``data/h200/host_pieces_torch2.11.json``) is what ``host_steps.py measure`` wrote: programs that their host
decides, in pieces of 40 ms, with plain Python before and behind each. Prints each program's steps while its host was
quick, and while it was slow, beside what is predicted by the host that ``doctor`` measured between the programs.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.shared.places import ROOT
from torchledger.nouns import Host
from torchledger.predicting.host_steps import measured_host_us, slowness_of
from torchledger.predicting.overheads import StepShape

DATA = ROOT / "data/h200"
_SLOW = 1.5
"""A host is slow where plain Python takes so many times what it takes at best."""


def pieces_of(told: Mapping[str, Any]) -> dict[str, NDArray[np.float64]]:
    """By program: plain Python before and after each piece, and its step, in microseconds."""
    found: dict[str, list[tuple[float, float, float]]] = {}
    for name, answer in told.items():
        pieces = answer.get("pieces", ())
        for piece, after in pairwise(pieces):
            row = (piece["speed_us"], after["speed_us"], piece["issued_us"])
            found.setdefault(name.partition("#")[0], []).append(row)
    return {name: np.array(rows) for name, rows in found.items()}


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("pieces", nargs="?", type=Path, default=DATA / "host_pieces_torch2.11.json")
    told = json.loads(parser.parse_args().pieces.read_text())
    steps = {row["program"]: row for row in json.loads((DATA / "host_steps_torch2.11.json").read_text())["rows"]}
    known = {name: value for name, value in told["host"].items() if name in Host.__dataclass_fields__}
    slowness = slowness_of(Host(**known))
    assert slowness is not None
    found = pieces_of(told)
    best = min(float(rows[:, :2].min()) for rows in found.values())
    print(f"plain Python at best {best:.0f} us; the host measured between them: {slowness:.2f} times a usual one\n")
    print("| program | predicted, us | quick pieces | steps, us | error | slow pieces | steps, us | slow by |")
    print("|---|---|---|---|---|---|---|---|")
    errors = []
    for name, rows in found.items():
        slow = (rows[:, :2] > _SLOW * best).sum(1)
        quick_us, slow_us = (float(np.median(rows[slow == count, 2])) for count in (0, 2))
        facts = {key: value for key, value in steps[name].items() if key in StepShape.__dataclass_fields__}
        said = measured_host_us(StepShape(**facts), steps[name]["mode"], slowness, trains=steps[name]["trains"])
        errors.append(said / quick_us - 1)
        print(
            f"| {name} | {said:.0f} | {(slow == 0).sum()} | {quick_us:.0f} | {errors[-1]:+.1%} | "
            f"{(slow == 2).sum()} | {slow_us:.0f} | {slow_us / quick_us - 1:+.1%} |"
        )
    own = np.concatenate([np.log(rows[:, 2]) - np.log(rows[:, 2]).mean() for rows in found.values()])
    plain = [np.log(rows[:, :2]).mean(1) for rows in found.values()]
    speed = np.concatenate([each - each.mean() for each in plain])
    power = float(speed @ own / (speed @ speed))
    print(f"\nquick pieces: mean error {np.mean(np.abs(errors)):.1%}")
    print(f"steps go with the power {power:.2f} of plain Python")
    print(f"off from their program's mean: {own.std():.1%}, and beside that power {(own - power * speed).std():.1%}")


if __name__ == "__main__":
    main()
