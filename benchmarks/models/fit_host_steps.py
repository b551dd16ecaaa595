"""What each kind of work costs a host inside steps: ``python -m benchmarks.models.fit_host_steps [ROWS]``.

ROWS (``data/h200/host_steps_torch2.11.json``) hold drawn programs: what each step has for the host (counts), what its
kernels took in a profile, and the step by the program's own timer in a process without torchledger. Two machines have a
measured host; how slow the host of each other set was is a free number (sets of one day may share a machine). Prints
the costs (``STEP_COSTS`` of ``predicting/host_steps.py``), then errors: programs left out in sixths, sets left out one
at a time, and the two machines with a host, whose programs taught nothing, by what was measured of it.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import least_squares

from benchmarks.shared.places import ROOT
from torchledger.nouns import Host
from torchledger.predicting.host_steps import OVERLAP, STEP_COSTS, slowness_of, work_of_host
from torchledger.predicting.overheads import StepShape

ROWS = ROOT / "data/h200/host_steps_torch2.11.json"

Array = NDArray[np.float64]

START: Mapping[str, float] = {
    "step": 150.0,
    "trains": 700.0,
    "fused": 13.0,
    "library": 20.0,
    "convolutions": 30.0,
    "further_kernels": 8.0,
    "further_graphs": 200.0,
    "parameters": 7.0,
    "launching_calls": 12.0,
    "distinct_calls": 35.0,
    "fused_tensors": 4.0,
    "foreach_tensors": 5.0,
    "listed_tensors": 1.0,
    "optimizers": 80.0,
    "scalers": 300.0,
    "graphs step": 250.0,
    "graphs replays": 230.0,
    "graphs parameters": 5.0,
}
"""What profiled steps let one think, microseconds: the fit keeps to it where programs do not say otherwise."""

_PULL, _MACHINE_PULL, _USUAL_ERROR = 0.3, 1.0, 0.12
_SUSTAINED, _GAP_US, _GRAPHS_GAP_US = 1.012, 1.335, 0.35
"""By what a step of long runs exceeds its profiled kernels, and idle time behind each kernel."""

_HOST_DECIDES = 0.75
"""Where the kernels take less of a step than this, its host decides."""


class Programs:
    """Rows as arrays: amounts of work, device time, step, machine."""

    def __init__(self, rows: Sequence[Mapping[str, Any]]) -> None:
        self.rows = list(rows)
        self.names = list(STEP_COSTS)
        works = [self._work(row) for row in rows]
        self.work: Array = np.array([[work.get(name, 0.0) for name in self.names] for work in works])
        self.step_us: Array = np.array([row["step_us"] for row in rows])
        self.machines = sorted({row["machine"] for row in rows})
        self.machine = np.array([self.machines.index(row["machine"]) for row in rows])
        kernels = [
            row["fused"] + row["library"] + row["convolutions"] + row["further_kernels"] + row["launching_calls"]
            for row in rows
        ]
        self.is_graphs = np.array([row["mode"] == "graphs" for row in rows])
        self.kernels_us: Array = np.array([row["device_us"] for row in rows])
        gaps = np.where(self.is_graphs, _GRAPHS_GAP_US, _GAP_US) * np.array(kernels)
        self.device_us: Array = _SUSTAINED * self.kernels_us + gaps
        self.by_host = self.kernels_us < _HOST_DECIDES * self.step_us

    @staticmethod
    def _work(row: Mapping[str, Any]) -> dict[str, float]:
        fields = {name: value for name, value in row.items() if name in StepShape.__dataclass_fields__}
        return work_of_host(StepShape(**fields), row["mode"], trains=row["trains"])

    def steps(self, costs: Array, slowness: Array, which: NDArray[np.int_]) -> Array:
        """What the steps take, in microseconds."""
        host = (self.work[which] @ costs) * slowness
        longer = np.maximum(host, self.device_us[which])
        shares = (host / longer) ** OVERLAP + (self.device_us[which] / longer) ** OVERLAP
        found: Array = longer * shares ** (1 / OVERLAP)
        return found


def fit(programs: Programs, which: NDArray[np.int_], pull: float) -> tuple[Array, Array]:
    """The costs, and how slow each machine was, by the programs ``which``."""
    start = np.array([START[name] for name in programs.names])
    count = len(start)

    def off(logarithms: Array) -> Array:
        slowness = np.exp(logarithms[count:])[programs.machine[which]]
        said = programs.steps(start * np.exp(logarithms[:count]), slowness, which)
        errors = np.log(said / programs.step_us[which])
        return np.concatenate([errors, pull * logarithms[:count], _MACHINE_PULL * logarithms[count:]])

    unknowns = np.zeros(count + len(programs.machines))
    found = least_squares(off, unknowns, loss="soft_l1", f_scale=_USUAL_ERROR).x
    return start * np.exp(found[:count]), np.exp(found[count:])


def left_out(programs: Programs, which: NDArray[np.int_], pull: float, parts: int) -> Array:
    """Errors of programs, each by a fit without its part of them, with the slowness of its machine from the others."""
    errors = np.zeros(len(programs.rows))
    for part in range(parts):
        out = which[which % parts == part]
        costs, slowness = fit(programs, which[which % parts != part], pull)
        errors[out] = programs.steps(costs, slowness[programs.machine[out]], out) / programs.step_us[out] - 1
    return errors


def machine_left_out(programs: Programs, which: NDArray[np.int_], pull: float) -> Array:
    """Errors of programs by a fit without their machine, whose slowness alone is chosen by its own steps."""
    errors = np.zeros(len(programs.rows))
    for machine in sorted(set(programs.machine[which])):
        out = which[programs.machine[which] == machine]
        costs, _ = fit(programs, which[programs.machine[which] != machine], pull)
        tried = [programs.steps(costs, np.float64(each), out) / programs.step_us[out] - 1 for each in _SLOWNESSES]
        bound = programs.by_host[out]
        errors[out] = min(tried, key=lambda each: np.abs(each[bound] if bound.any() else each).mean())
    return errors


_SLOWNESSES = np.linspace(0.7, 1.6, 46)


def _said(errors: Array) -> str:
    if not len(errors):
        return "none"
    sizes = np.abs(errors)
    return (
        f"{len(errors)} programs, mean {sizes.mean():.1%}, median {np.median(sizes):.1%}, worst {sizes.max():.1%}, "
        f"signed {errors.mean():+.1%}, within 10 %: {int((sizes <= 0.1).sum())}"
    )


def _report(what: str, programs: Programs, errors: Array, which: NDArray[np.int_]) -> None:
    eager = which[programs.by_host[which] & ~programs.is_graphs[which]]
    graphs = which[programs.by_host[which] & programs.is_graphs[which]]
    device = which[~programs.by_host[which]]
    print(f"{what}\n  host decides: {_said(errors[eager])}")
    if len(graphs):
        print(f"  host decides, CUDA graphs: {_said(errors[graphs])}")
    print(f"  device decides: {_said(errors[device])}")


def main() -> None:
    """Fit and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("rows", nargs="?", type=Path, default=ROWS)
    parser.add_argument("--pull", type=float, default=_PULL, help="how strongly costs keep to what one would think")
    parser.add_argument("--each", action="store_true", help="print each program of the machines with a host")
    options = parser.parse_args()
    told = json.loads(options.rows.read_text())
    programs = Programs(told["rows"])
    hosts = {programs.machines.index(name): Host(**host) for name, host in told["hosts"].items()}
    others = np.array([place for place, machine in enumerate(programs.machine) if machine not in hosts])
    costs, slowness = fit(programs, others, options.pull)
    print("costs, us: " + ", ".join(f"{name} {cost:.1f}" for name, cost in zip(programs.names, costs, strict=True)))
    shown = ((name, slowness[place]) for place, name in enumerate(programs.machines) if place not in hosts)
    print("slowness: " + ", ".join(f"{name} {slow:.2f}" for name, slow in shown) + "\n")
    errors = programs.steps(costs, slowness[programs.machine[others]], others) / programs.step_us[others] - 1
    in_sample = np.zeros(len(programs.rows))
    in_sample[others] = errors
    _report("in sample", programs, in_sample, others)
    _report("a sixth of the programs left out", programs, left_out(programs, others, options.pull, 6), others)
    _report("a set left out", programs, machine_left_out(programs, others, options.pull), others)
    for place, host in hosts.items():
        slow = slowness_of(host)
        assert slow is not None
        which = np.flatnonzero(programs.machine == place)
        found = np.zeros(len(programs.rows))
        found[which] = programs.steps(costs, np.float64(slow), which) / programs.step_us[which] - 1
        _report(f"{programs.machines[place]}, {slow:.2f} times as slow as usual", programs, found, which)
        again = {at: programs.rows[at]["again_us"] for at in which if "again_us" in programs.rows[at]}
        bound = [at for at in again if programs.by_host[at]]
        repeated = np.array([again[at] / programs.step_us[at] - 1 for at in bound])
        print(f"  the same programs in another process, host decides: {_said(repeated)}")
        both = np.array(
            [(1 + found[at]) * programs.step_us[at] / np.sqrt(again[at] * programs.step_us[at]) - 1 for at in bound]
        )
        print(f"  beside the mean of both processes, host decides: {_said(both)}")
        for at in which if options.each else ():
            row = programs.rows[at]
            print(f"    {row['program']} {row['step_us']:.0f} us, again {again.get(at, 0):.0f}: {found[at]:+.1%}")


if __name__ == "__main__":
    main()
