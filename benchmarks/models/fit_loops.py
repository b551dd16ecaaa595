"""What the instructions of fused kernels cost, by kind.

    python -m benchmarks.models.fit_loops H200 -o CONSTANTS.json

Fits ``Constants.loops`` (``expecting/kernel_details.py``) to fused kernels of random programs, models and drawn
programs in ``data/h200`` and writes the constants of the model's device with them. Every fourth program is held out;
errors of the time by its parts, as before, and by its instructions are printed over these.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import minimize

from benchmarks.models.fit_strangers import measured
from torchledger.expecting.constants import LoopCosts, write_constants
from torchledger.expecting.kernel_details import loop_time_us
from torchledger.expecting.launch_costs import FOLDS
from torchledger.expecting.launch_features import features_of_launches
from torchledger.expecting.machine import Machine
from torchledger.predicting.devices import find_model

Array = NDArray[np.float64]

BEGIN = LoopCosts(
    shares=dict.fromkeys(
        ("far", "warm", "lone", "load", "store", "near", "move", "divide", "turn", "row turn", "gather"), 1.0
    )
    | {f"fold {kind}": 1.0 for kind in FOLDS}
    | {"gathered": 0.1, "floor": 1.5, "mask": 25.0},
    instructions={
        "exponential": 6.0, "error function": 30.0, "tangent": 9.0, "logarithm": 10.0, "division": 7.0, "root": 5.0,
        "cast": 1.6, "scan": 20.0, "computed": 60.0, "circular": 40.0, "random": 90.0, "select": 1.5, "plain": 1.3,
    },
    power=2.5,
)  # fmt: skip
_PULL = 5e-4
_ROWS = 5000
_TURNS = 8


def numbers(costs: LoopCosts) -> Array:
    """The logarithms that are fitted."""
    return np.log([*costs.shares.values(), *costs.instructions.values(), costs.power - 1])


def costs_of(logarithms: Array) -> LoopCosts:
    """And back, to three digits."""
    values = [float(f"{value:.3g}") for value in np.exp(logarithms)]
    count = len(BEGIN.shares)
    return LoopCosts(
        dict(zip(BEGIN.shares, values[:count], strict=True)),
        dict(zip(BEGIN.instructions, values[count:-1], strict=True)),
        round(1 + values[-1], 4),
    )


def kernels(machine: Machine) -> dict[str, dict[str, Any]]:
    """By kind of kernel: parts of all launches as columns, with times, old baselines and programs. Alike ones of a
    program are one."""
    rows: dict[str, dict[tuple[Any, ...], list[Any]]] = {"pointwise": {}, "reduction": {}}
    for name in ("fused", "rare_fused", "models", "programs", "programs_tf32"):
        items = measured(name)
        described = features_of_launches(
            [item.launch for item in items], machine, traffic=[item.traffic for item in items]
        )
        for item, features in zip(items, described, strict=True):
            if features is None or features.parts_us is None or not item.duration_us or "far" not in features.parts_us:
                continue
            kind = features.family.rpartition("/")[2]
            key = (item.program, *(round(value, 2) for value in features.parts_us.values()))
            row = rows[kind].setdefault(key, [features.parts_us, features.baseline_us, item.program])
            row.append(item.duration_us)
    return {kind: as_columns(list(found.values())) for kind, found in rows.items()}


def as_columns(rows: Sequence[Sequence[Any]]) -> dict[str, Any]:
    """Parts by name, ``time``, ``before`` and ``program``."""
    names = rows[0][0].keys()
    return {name: np.array([row[0][name] for row in rows]) for name in names} | {
        "time": np.array([np.median(row[3:]) for row in rows]),
        "before": np.array([row[1] for row in rows]),
        "program": np.array([row[2] for row in rows]),
    }


def fit(columns: Mapping[str, Any], machine: Machine) -> LoopCosts:
    """The costs with the least mean error, in logarithms."""
    pick = np.random.default_rng(0).permutation(len(columns["time"]))[:_ROWS]
    own = {name: column[pick] for name, column in columns.items()}
    began = numbers(BEGIN)

    def loss(logarithms: Array) -> float:
        pull = _PULL * float(np.sum((logarithms - began) ** 2))
        return float(np.mean(np.abs(np.log(said(own, costs_of(logarithms), machine) / own["time"])))) + pull

    found = began
    for _ in range(_TURNS):
        found = minimize(loss, found, method="Powell", options={"maxiter": 2}).x
    return costs_of(found)


def said(columns: Mapping[str, Any], costs: LoopCosts, machine: Machine) -> Array:
    """Microseconds of these kernels."""
    return loop_time_us(columns, costs, move=machine.constants.kernels.move, floor_us=machine.floor_us)


def main() -> None:
    """Fit, print errors, write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("-o", "--output", type=Path, required=True)
    arguments = parser.parse_args()
    machine = find_model(arguments.model).machine
    loops, counts = {}, []
    for kind, columns in kernels(machine).items():
        held = np.isin(columns["program"], np.unique(columns["program"])[::4])
        learned, asked = ({name: column[rows] for name, column in columns.items()} for rows in (~held, held))
        loops[kind] = fit(learned, machine)
        before = np.mean(np.abs(np.log(asked["before"] / asked["time"])))
        now = np.mean(np.abs(np.log(said(asked, loops[kind], machine) / asked["time"])))
        print(
            f"{kind}: {held.sum():,} of {len(held):,} kernels held out, mean error {before:.3f}, {now:.3f} (logarithms)"
        )
        counts.append(int((~held).sum()))
    made_of = {**machine.constants.made_of, "loops": f"fitted to {sum(counts):,} kernels of {machine.device.name}"}
    write_constants(replace(machine.constants, loops=loops, made_of=made_of), arguments.output, force=True)


if __name__ == "__main__":
    main()
