"""Learn what an H200's library takes for a pass of any convolution: the networks of ``fitting/pass_networks.py``.

    python benchmarks/fit_pass_networks.py [--data data/h200/passes_torch2.11.npz] [--out FILE] [--check] [--quick]

The data are what ``benchmarks/drawn_passes.py`` measured and, in half precision, ``benchmarks/h200_kernels.py`` before
it (``data/h200/convolutions_torch2.11.npz``). ``--check`` holds an eighth of the shapes out, says the error on them by
kind and precision, and writes nothing.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from drawn_convolutions import ConvolutionCase
from drawn_passes import draw_passes
from fit_convolution_network import by_kind, costs_of_kinds, drawn, terms
from teach_networks import HELD_OUT, MACHINE, ROOT, Teacher, held_out, kernel_classes, learn, parsed, write_networks

from torchledger.fitting.networks import Network
from torchledger.fitting.pass_networks import PASSES, SIZES, Elements, pass_features

NEEDS: tuple[str, ...] = ()
RUNS: tuple[tuple[str, ...], ...] = (("--check",),)
QUICK: tuple[tuple[str, ...], ...] = (("--check", "--quick"),)

BEFORE = ROOT / "data/h200/convolutions_torch2.11.npz"
PARAMETERS = (
    *("n", "c_in", "height", "width", "c_out", "kernel", "kernel_height", "stride", "padding", "padding_height"),
    *("groups", "channels_last"),
)
MEMBERS, TEACHER_WIDTH, TEACHER_EPOCHS = 3, 144, 36
WIDTH, HIDDEN, EPOCHS, ASKED = 144, 3, 40, 30_000
MOST_SPREAD = 1.25
_PRECISIONS = {"half": ("bfloat16", "float16"), "single": ("tf32", "float32")}


@dataclass(frozen=True)
class Rows:
    """Passes of convolutions: their parameters by name, and of each its pass, precision, kind, time and kernels."""

    p: Mapping[str, Any]
    direction: Any
    precision: Any
    kind: Any
    time_us: Any
    kernels: Any

    def some(self, which: Any) -> Rows:
        """Those of an index."""
        own = {name: value[which] for name, value in self.p.items()}
        return Rows(
            own, *(column[which] for column in (self.direction, self.precision, self.kind, self.time_us, self.kernels))
        )

    def joined(self, other: Rows) -> Rows:
        """These and others."""
        p = {name: np.concatenate([value, other.p[name]]) for name, value in self.p.items()}
        names = ("direction", "precision", "kind", "time_us", "kernels")
        return replace(
            self, p=p, **{name: np.concatenate([getattr(self, name), getattr(other, name)]) for name in names}
        )


def read_rows(path: Any) -> Rows:
    """The steady rows of a file of either script."""
    with np.load(path, allow_pickle=False) as given:
        found = dict(given)
    is_before = "precision" not in found
    p = {name: found["count" if name == "n" and not is_before else name].astype(np.float64) for name in PARAMETERS
         if name not in ("kernel_height", "padding_height")}  # fmt: skip
    kind = np.full(len(found["time_us"]), "before", "U10") if is_before else found["kind"].astype("U10")
    is_flat = kind == "signal"
    p["kernel_height"] = np.where(is_flat, 1.0, p["kernel"])
    p["padding_height"] = np.where(is_flat, 0.0, p["padding"])
    precision = found["dtype" if is_before else "precision"].astype("U8")
    rows = Rows(
        p, found["direction"], precision, kind, found["time_us"].astype(np.float64),
        found["kernel_names"].astype(str)[found["kernels"]].astype(object),
    )  # fmt: skip
    return rows.some(np.flatnonzero((found["spread"] < MOST_SPREAD) & (rows.time_us > 0)))


def described(rows: Rows, one: str) -> tuple[Any, Any]:
    """Features of a pass and the logarithm of its expected time."""
    size = np.where(np.isin(rows.precision, _PRECISIONS["half"]), 2.0, 4.0)
    half, single = MACHINE.peak("bfloat16"), MACHINE.peak("float32")
    rounded = MACHINE.convolution_peak("float32")
    peak = np.where(size == 2.0, half, np.where(rows.precision == "tf32", rounded, single))
    return pass_features(rows.p, one, Elements(size, np.isin(rows.precision, ("float16", "float32")), peak), MACHINE)


def asked(count: int, precisions: tuple[str, str]) -> Rows:
    """Shapes that nobody measured: of ``drawn_passes`` and, where that draws few, of ``h200_kernels``."""
    cases: list[ConvolutionCase] = []
    for case in draw_passes(0):
        if case.precision in precisions:
            cases.append(case)
        if len(cases) == count // 2:
            break
    names = {"n": "count"}
    p = {name: np.array([getattr(case, names.get(name, name), 0) for case in cases], np.float64) for name in PARAMETERS}
    kind = np.array([case.kind for case in cases])
    p["kernel_height"] = np.where(kind == "signal", 1.0, p["kernel"])
    p["padding_height"] = np.where(kind == "signal", 0.0, p["padding"])
    nothing = np.zeros(len(cases))
    found = Rows(p, nothing, np.array([case.precision for case in cases]), kind, nothing, nothing)
    more, is_other = drawn(count // 2)
    more = {**more, "kernel_height": more["kernel"], "padding_height": more["padding"]}
    nothing = np.zeros(len(is_other))
    other = "float16" if precisions[0] == "bfloat16" else "float32"
    plain = next(each for each in precisions if each != other)
    second = Rows(
        {name: more[name] for name in PARAMETERS}, nothing, np.where(is_other, other, plain), np.full(len(nothing), ""),
        nothing, nothing,
    )  # fmt: skip
    return found.joined(second)


def taught(rows: Rows, one: str, size: str, test: Any, *, quick: bool) -> tuple[Network, Any]:
    """The network of a pass and size of element, learned from what is not ``test``; and what teachers say of all."""
    seen, log_base = described(rows, one)
    goal, kinds, rest = np.log(rows.time_us) - log_base, kernel_classes(rows.kernels), ~test
    given = terms(rows.p, one)
    costs = costs_of_kinds(given[rest], rows.time_us[rest], kinds[rest])
    each = by_kind(costs, given, log_base)
    sizes = {"members": MEMBERS, "width": TEACHER_WIDTH, "epochs": 1 if quick else TEACHER_EPOCHS}
    teacher = Teacher(seen[rest], goal[rest], kinds[rest], each[rest], **sizes)
    questions = asked(1000 if quick else ASKED, _PRECISIONS[size])
    more, more_base = described(questions, one)
    answers = teacher.answer(more, by_kind(costs, terms(questions.p, one), more_base))
    said = teacher.answer(seen, each)
    network = learn(
        np.concatenate([seen[rest], more]),
        np.concatenate([said[rest], answers]),
        width=WIDTH,
        hidden=HIDDEN,
        epochs=1 if quick else EPOCHS,
    )
    return network, said


def report(told: str, off: Any) -> None:
    """Print how far logarithms of times are off."""
    error = 100 * np.abs(np.expm1(off))
    print(f"  {told}: {len(off):,}, error {error.mean():.1f} % (median {np.median(error):.1f})", flush=True)


def main() -> None:
    """Fit, and write or check."""
    arguments = parsed(__doc__, "passes")
    rows = read_rows(arguments.data).joined(read_rows(BEFORE))
    if arguments.quick:
        rows = rows.some(np.arange(0, len(rows.time_us), 12))
    held = held_out([*rows.p.values(), rows.precision == "tf32"], HELD_OUT)
    networks = {}
    for number, one in enumerate(PASSES):
        for size in SIZES.values():
            started = time.monotonic()
            mine = np.flatnonzero((rows.direction == number) & np.isin(rows.precision, _PRECISIONS[size]))
            own, test = rows.some(mine), held[mine]
            network, said = taught(own, one, size, test, quick=arguments.quick)
            networks[f"{one} {size}"] = network
            print(f"{one} {size}: {(~test).sum():,} passes, {time.monotonic() - started:.0f} s", flush=True)
            seen, log_base = described(own, one)
            goal = np.log(own.time_us) - log_base
            report("the algorithms alone", -goal[test])
            report("large networks", (said - goal)[test])
            off = network.predict(seen[test]) - goal[test]
            report("small network", off)
            for kind in np.unique(own.kind):
                for precision in _PRECISIONS[size]:
                    cell = (own.kind[test] == kind) & (own.precision[test] == precision)
                    if cell.sum() >= 10:
                        report(f"  {kind}, {precision}", off[cell])
    if not arguments.check:
        write_networks(networks, arguments.out)


if __name__ == "__main__":
    main()
