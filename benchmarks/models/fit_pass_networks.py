"""Learn what an H200's library takes for a pass of any convolution: the networks of ``expecting/pass_networks.py``.

    python -m benchmarks.models.fit_pass_networks [--out FILE] [--check] [--quick] [--answers FILE] [--only half|single]
    python -m benchmarks.models.fit_pass_networks --answers FILE --teachers forward [--members 4]

The data are what ``benchmarks/operators/drawn_passes.py`` measured (``data/h200/passes_torch2.11.npz``, and layers of
networks over images in ``layers_torch2.11.npz``, most of ``operator_layers_torch2.11.npz`` as the operator conv2d is
drawn), in half precision ``benchmarks/operators/h200_kernels.py`` before it (``convolutions_torch2.11.npz``), and three
quarters of the labels of conv2d's forward. An eighth of the shapes is held out, and the error on them is said by kind
and precision. Each network is written as soon as it is learned; ``--check`` writes none, ``--answers`` writes what the
teachers of half precision say to the questions of ``fit_conv2d_networks.py``; with ``--teachers`` that is all, of one
pass.
"""

from __future__ import annotations

import argparse
import itertools
import sys
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.models.fit_convolution_network import drawn
from benchmarks.models.teach_convolutions import KernelTeacher, kernel_kinds, numbered
from benchmarks.models.teach_networks import HELD_OUT, MACHINE, ROOT, held_out, learn, parsed, write_networks
from benchmarks.operators.drawn_convolutions import ConvolutionCase
from benchmarks.operators.drawn_layers import draw_layers
from benchmarks.operators.drawn_passes import draw_passes
from torchledger.expecting.networks import Network, of_package
from torchledger.expecting.pass_networks import NETWORKS, PASSES, SIZES, Elements, pass_features

NEEDS: tuple[str, ...] = ()
RUNS: tuple[tuple[str, ...], ...] = (("--check",),)
QUICK: tuple[tuple[str, ...], ...] = (("--check", "--quick"),)

DATA = ROOT / "data/h200"
BEFORE = DATA / "convolutions_torch2.11.npz"
DRAWN = tuple(
    DATA / f"{name}_torch2.11.npz"
    for name in (
        "passes",
        "layers",
        "operator_layers",
        "single_layers",
        "further_operator_layers",
        "operator_gradients",
        "half_layers",
        "operator_passes",
        "further_half_layers",
    )
)
PARAMETERS = (
    *("n", "c_in", "height", "width", "c_out", "kernel", "kernel_height", "stride", "stride_height", "padding"),
    *("padding_height", "groups", "channels_last"),
)
_DOWN = ("kernel_height", "padding_height", "stride_height")
MEMBERS, TEACHER_WIDTH, TEACHER_EPOCHS = 2, 128, 26
WIDTH, HIDDEN, EPOCHS, ASKED = 320, 3, 36, 450_000
LEANING = 0.5
"""Half way between the middle of what is likely and what errs least relative to the time: errs less than either."""
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
         if name not in _DOWN}  # fmt: skip
    kind = np.full(len(found["time_us"]), "before", "U10") if is_before else found["kind"].astype("U10")
    none = np.zeros(len(kind), np.int32)
    p |= _heights(p, kind, *(found.get(name, none) for name in ("tall", "tall_padding", "tall_stride")))
    precision = found["dtype" if is_before else "precision"].astype("U8")
    rows = Rows(
        p, found["direction"], precision, kind, found["time_us"].astype(np.float64),
        found["kernel_names"].astype(str)[found["kernels"]].astype(object),
    )  # fmt: skip
    return rows.some(np.flatnonzero((found["spread"] < MOST_SPREAD) & (rows.time_us > 0)))


def square(p: Mapping[str, Any]) -> dict[str, Any]:
    """The parameters of filters that are as high as wide, and step down as far as across."""
    return {**p, "kernel_height": p["kernel"], "padding_height": p["padding"], "stride_height": p["stride"]}


def _heights(p: Mapping[str, Any], kind: Any, tall: Any, tall_padding: Any, tall_stride: Any) -> dict[str, Any]:
    """How high filters are, how much is padded above and how far they step down: as across, unless ``tall`` and
    ``tall_stride`` say else; filters are 1 high along one dimension."""
    is_flat = kind == "signal"
    return {
        "kernel_height": np.where(is_flat, 1.0, np.where(tall > 0, tall, p["kernel"])),
        "padding_height": np.where(is_flat, 0.0, np.where(tall > 0, tall_padding, p["padding"])),
        "stride_height": np.where(tall_stride > 0, tall_stride, p["stride"]).astype(np.float64),
    }


def elements_of(rows: Rows) -> Elements:
    """What the passes are of."""
    size = np.where(np.isin(rows.precision, _PRECISIONS["half"]), 2.0, 4.0)
    half, single = MACHINE.peak("bfloat16"), MACHINE.peak("float32")
    rounded = MACHINE.convolution_peak("float32")
    peak = np.where(size == 2.0, half, np.where(rows.precision == "tf32", rounded, single))
    return Elements(size, np.isin(rows.precision, ("float16", "float32")), peak)


def described(rows: Rows, one: str) -> tuple[Any, Any]:
    """Features of a pass and the logarithm of its expected time."""
    return pass_features(rows.p, one, elements_of(rows), MACHINE)


def precisions_of(size: str) -> tuple[str, str]:
    """The precisions of a size of element."""
    return _PRECISIONS[size]


def asked(count: int, precisions: tuple[str, str]) -> Rows:
    """Shapes that nobody measured: a third each of ``drawn_passes``, ``drawn_layers`` and ``h200_kernels``."""
    of_passes = (case for case in draw_passes(0) if case.precision in precisions)
    found = rows_of_cases(itertools.islice(of_passes, count // 3)).joined(layers_asked(count // 3, precisions))
    more, is_other = drawn(count // 3)
    more = square(more)
    nothing = np.zeros(len(is_other))
    other = "float16" if precisions[0] == "bfloat16" else "float32"
    plain = next(each for each in precisions if each != other)
    third = Rows(
        {name: more[name] for name in PARAMETERS}, nothing, np.where(is_other, other, plain), np.full(len(nothing), ""),
        nothing, nothing,
    )  # fmt: skip
    return found.joined(third)


def layers_asked(count: int, precisions: tuple[str, str], weights: Mapping[str, float] | None = None) -> Rows:
    """Layers of networks over images that nobody measured."""
    return rows_of_cases(itertools.islice((c for c in draw_layers(0, weights) if c.precision in precisions), count))


def rows_of_cases(drawn_cases: Iterator[ConvolutionCase]) -> Rows:
    """Drawn convolutions as passes that nobody measured."""
    cases = list(drawn_cases)
    names = {"n": "count"}
    p = {name: np.array([getattr(case, names.get(name, name), 0) for case in cases], np.float64) for name in PARAMETERS}
    kind = np.array([case.kind for case in cases])
    down = (np.array([getattr(case, name) for case in cases]) for name in ("tall", "tall_padding", "tall_stride"))
    p |= _heights(p, kind, *down)
    nothing = np.zeros(len(cases))
    return Rows(p, nothing, np.array([case.precision for case in cases]), kind, nothing, nothing)


class PassTeacher:
    """Says what a pass takes of one size of element, learned from some rows."""

    def __init__(self, rows: Rows, one: str, *, quick: bool, members: int = MEMBERS) -> None:
        seen, log_base = described(rows, one)
        self.one, self.kinds = one, kernel_kinds(rows.kernels)
        self.teacher = KernelTeacher(
            rows.p, one, seen, log_base, rows.time_us, numbered(rows.kernels, self.kinds),
            members=members, width=TEACHER_WIDTH, epochs=1 if quick else TEACHER_EPOCHS,
        )  # fmt: skip

    def log_us(self, rows: Rows) -> Any:
        """Logarithms of microseconds."""
        seen, log_base = described(rows, self.one)
        return log_base + self.teacher.answer(rows.p, seen, log_base, LEANING)

    def told_right(self, rows: Rows) -> float:
        """Of how many rows the likeliest kind of kernels is theirs; a share."""
        seen, _ = described(rows, self.one)
        likeliest = self.teacher.chances(rows.p, seen).argmax(axis=1)
        return float(np.mean(likeliest == numbered(rows.kernels, self.kinds)))


def learned_from(teacher: PassTeacher, rows: Rows, size: str, *, quick: bool) -> Network:
    """The small network of a pass and size of element: it answers as its teacher does."""
    questions = rows.joined(asked(1000 if quick else ASKED, _PRECISIONS[size]))
    seen, log_base = described(questions, teacher.one)
    goal = teacher.log_us(questions) - log_base
    return learn(seen, goal, width=WIDTH, hidden=HIDDEN, epochs=1 if quick else EPOCHS, is_rectified=True)


def all_rows() -> Rows:
    """Everything measured, and the labels of conv2d's forward that networks learn from."""
    from benchmarks.models.fit_conv2d_networks import read_labels

    labels, is_learned = read_labels()
    rows = labels.some(np.flatnonzero(is_learned))
    for path in (BEFORE, *DRAWN):
        rows = read_rows(path).joined(rows)
    return rows


def report(told: str, off: Any) -> None:
    """Print how far logarithms of times are off."""
    error = 100 * np.abs(np.expm1(off))
    print(f"  {told}: {len(off):,}, error {error.mean():.1f} % (median {np.median(error):.1f})", flush=True)


def say_errors(own: Rows, test: Any, by_teacher: Any, network: Network, one: str, size: str) -> None:
    """Print the errors on what was held out, by kind and precision."""
    asked_of, shown = own.some(np.flatnonzero(test)), np.log(own.time_us[test])
    seen, log_base = described(asked_of, one)
    report("the algorithms alone", log_base - shown)
    report("large networks", by_teacher - shown)
    off = log_base + network.predict(seen) - shown
    report("small network", off)
    for kind in np.unique(own.kind):
        for precision in _PRECISIONS[size]:
            cell = (asked_of.kind == kind) & (asked_of.precision == precision)
            if cell.sum() >= 10:
                report(f"  {kind}, {precision}", off[cell])


def only_answers(one: str, members: int, path: Path, *, quick: bool) -> None:
    """Write what the teacher of a pass in half precision says to the questions of conv2d's networks."""
    from benchmarks.models.fit_conv2d_networks import questions_of_conv2d

    rows = all_rows()
    held = held_out([*rows.p.values(), rows.precision == "tf32"], HELD_OUT)
    mine = (rows.direction == PASSES.index(one)) & np.isin(rows.precision, _PRECISIONS["half"])
    teacher = PassTeacher(rows.some(np.flatnonzero(mine & ~held)), one, quick=quick, members=members)
    test = rows.some(np.flatnonzero(mine & held))
    report("large networks", teacher.log_us(test) - np.log(test.time_us))
    asked_of = questions_of_conv2d(one, quick=quick).items()
    answers = {f"{one} {name}": teacher.log_us(questions).astype(np.float32) for name, questions in asked_of}
    np.savez_compressed(path, **answers)


def main() -> None:
    """Fit, and write or check."""
    parser = argparse.ArgumentParser(add_help=False)
    parser.add_argument("--answers", type=Path)
    parser.add_argument("--only", choices=tuple(SIZES.values()), help="size of element; the other stays as it is")
    parser.add_argument("--passes", choices=PASSES, nargs="+", default=PASSES, help="the others stay as they are")
    parser.add_argument("--teachers", choices=PASSES, help="of which pass teachers of half precision answer, no more")
    parser.add_argument("--members", type=int, default=MEMBERS)
    more, rest = parser.parse_known_args()
    sys.argv[1:] = rest
    arguments = parsed(__doc__, "broad_passes")
    from benchmarks.models.fit_conv2d_networks import questions_of_conv2d

    if more.teachers:
        only_answers(more.teachers, more.members, more.answers, quick=arguments.quick)
        return
    rows = all_rows()
    if arguments.quick:
        rows = rows.some(np.arange(0, len(rows.time_us), 12))
    held = held_out([*rows.p.values(), rows.precision == "tf32"], HELD_OUT)
    networks, answers = of_package("hopper_broad_passes.npz", NETWORKS), {}
    for size in (more.only,) if more.only else SIZES.values():
        for one in more.passes:
            started, number = time.monotonic(), PASSES.index(one)
            mine = np.flatnonzero((rows.direction == number) & np.isin(rows.precision, _PRECISIONS[size]))
            own, test = rows.some(mine), held[mine]
            taught = own.some(np.flatnonzero(~test))
            teacher = PassTeacher(taught, one, quick=arguments.quick)
            network = learned_from(teacher, taught, size, quick=arguments.quick)
            networks[f"{one} {size}"] = network
            print(f"{one} {size}: {(~test).sum():,} passes, {time.monotonic() - started:.0f} s", flush=True)
            held_rows = own.some(np.flatnonzero(test))
            print(
                f"  {len(teacher.kinds)} kinds of kernels, {teacher.told_right(held_rows):.1%} told right", flush=True
            )
            say_errors(own, test, teacher.log_us(held_rows), network, one, size)
            if more.answers is not None and size == "half":
                for name, questions in questions_of_conv2d(one, quick=arguments.quick).items():
                    answers[f"{one} {name}"] = teacher.log_us(questions).astype(np.float32)
                np.savez_compressed(more.answers, **answers)
            if not arguments.check:
                write_networks(networks, arguments.out)


if __name__ == "__main__":
    main()
