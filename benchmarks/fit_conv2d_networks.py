"""Learn what an H200's library takes for the operator conv2d: forwards, and both gradients of backwards together.

    python benchmarks/fit_conv2d_networks.py [--out FILE] [--check] [--quick] [--only forward|backward]

``fit_convolution_network.py`` learns from passes timed alone. This network learns from those, from the passes of images
in half precision that ``drawn_passes.py`` timed, and from three quarters of the labels of conv2d's forward in
``data/h200``. The last quarter is what ``fit_operators.py`` learns the operator's entry from, which must not see labels
of its own baseline; the error printed is of that quarter, too.

A backward is asked of one network instead of one for each gradient, which takes less than half as long and errs alike.
It learned to answer as both: half (in logarithms) what the two of ``fit_convolution_network.py`` say, half what others
say that learned from the passes of ``drawn_passes.py`` too; labels teach nothing here. (A backward's labels are sums of
two passes. Networks that learned of these sums were no better on the last quarter: 14.2 % as without.)
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable
from typing import Any

import numpy as np
from fit_convolution_network import by_kind, costs_of_kinds, drawn, terms
from fit_operators import is_taught
from fit_pass_networks import BEFORE, Rows, read_rows
from teach_networks import MACHINE, ROOT, Teacher, kernel_classes, learn, parsed, write_networks

from torchledger.fitting.convolution_network import (
    PASSES,
    backward_features,
    convolution_features,
    learned_convolution_times,
)
from torchledger.fitting.networks import Network, of_package
from torchledger.fitting.tables import build_tables
from torchledger.sampling.dataset import read_samples

NEEDS: tuple[str, ...] = ()
RUNS: tuple[tuple[str, ...], ...] = (("--check",),)
QUICK: tuple[tuple[str, ...], ...] = (("--check", "--quick"),)

LABELS = ROOT / "data/h200/operators_torch2.11.parquet"
FORWARD, BACKWARD = PASSES[0], "backward"
MEMBERS, TEACHER_WIDTH, TEACHER_EPOCHS = 5, 144, 45
WIDTH, HIDDEN, EPOCHS, ASKED = 144, 3, 50, 60_000
BACKWARD_WIDTH, BACKWARD_EPOCHS = 112, 80


def facts(rows: Rows) -> tuple[Any, Any, Any]:
    """Bytes of an element, whether that is float16, and the rate of FLOP, of each row."""
    count = len(rows.precision)
    return np.full(count, 2.0), rows.precision == "float16", np.full(count, MACHINE.peak("bfloat16"))


def described(rows: Rows, one: str = FORWARD) -> tuple[Any, Any]:
    """Features of a pass and the logarithm of its expected time."""
    return convolution_features(rows.p, one, *facts(rows), MACHINE)


def described_backward(rows: Rows) -> tuple[Any, Any]:
    """Features of both gradients together and the logarithm of their expected time."""
    seen, times = backward_features(rows.p, *facts(rows), MACHINE)
    return seen, np.log(times["expected"])


def read_labels(direction: str = FORWARD) -> tuple[Rows, Any]:
    """The training labels of one of conv2d's directions, and which of them networks of forwards learn from."""
    samples = [
        sample
        for sample in read_samples(LABELS)
        if (sample.operator, sample.direction, sample.group) == ("conv2d", direction, "train")
    ]
    (table,) = build_tables(samples)[0].values()
    p = {name: column.astype(np.float64) for name, column in table.parameters.items()}
    p |= {"kernel_height": p["kernel"], "padding_height": p["padding"]}
    count, names = len(table), np.array([" + ".join(sample.kernels) for sample in samples], dtype=object)
    kind = np.full(count, "operator")
    return Rows(p, np.zeros(count), table.dtypes.astype("U8"), kind, table.times_us, names), is_taught(table.parameters)


def passes_of_images(number: int, *, quick: bool) -> Rows:
    """Both files' passes of a number among ``PASSES`` in half precision that have two dimensions."""
    rows = read_rows(ROOT / "data/h200/passes_torch2.11.npz").joined(read_rows(BEFORE))
    of_images = np.isin(rows.precision, ("bfloat16", "float16")) & (rows.kind != "signal")
    which = np.flatnonzero(of_images & (rows.direction == number))
    return rows.some(which[::12] if quick else which)


def questions_asked(count: int) -> Rows:
    """Shapes that nobody measured."""
    p, is_float16 = drawn(count)
    nothing = np.zeros(count)
    p |= {"kernel_height": p["kernel"], "padding_height": p["padding"]}
    precision = np.where(is_float16, "float16", "bfloat16")
    return Rows(p, nothing, precision, np.full(count, "asked"), nothing, np.full(count, "", dtype=object))


def teach(rows: Rows, one: str, *, quick: bool) -> Callable[[Rows], tuple[Any, Any, Any]]:
    """What says, of rows, their features, the logarithm of the expected time, and that of the time over it."""
    seen, log_base = described(rows, one)
    given, kinds = terms(rows.p, one), kernel_classes(rows.kernels)
    costs = costs_of_kinds(given, rows.time_us, kinds)
    each = by_kind(costs, given, log_base)
    sizes = {"members": MEMBERS, "width": TEACHER_WIDTH, "epochs": 1 if quick else TEACHER_EPOCHS}
    teacher = Teacher(seen, np.log(rows.time_us) - log_base, kinds, each, **sizes)

    def say(more: Rows) -> tuple[Any, Any, Any]:
        of_more, base = described(more, one)
        return of_more, base, teacher.answer(of_more, by_kind(costs, terms(more.p, one), base))

    return say


def learn_forward(*, quick: bool) -> Network:
    """The network of forwards; prints its error on the labels that no network saw."""
    started = time.monotonic()
    labels, learned = read_labels()
    rows = passes_of_images(0, quick=quick).joined(labels.some(np.flatnonzero(learned)))
    say = teach(rows, FORWARD, quick=quick)
    asked = [say(more) for more in (rows, labels, questions_asked(1000 if quick else ASKED))]
    questions, answers = (np.concatenate([one[place] for one in asked]) for place in (0, 2))
    network = learn(questions, answers, width=WIDTH, hidden=HIDDEN, epochs=1 if quick else EPOCHS)
    print(f"{len(rows.time_us):,} forwards, {learned.sum():,} of them labels, {time.monotonic() - started:.0f} s")
    own, base, by_teacher = asked[1]
    goal = np.log(labels.time_us) - base
    for told, said in (("large networks", by_teacher), ("small network", network.predict(own))):
        error = 100 * np.abs(np.expm1(said - goal))
        held = f"{error[~learned].mean():.2f} % (median {np.median(error[~learned]):.2f})"
        print(f"  {told}: {(~learned).sum():,} labels held out, error {held}; learned {error[learned].mean():.2f} %")
    return network


def learn_backward(*, quick: bool) -> Network:
    """The network of both gradients; prints its error on labels, of which it saw none."""
    started = time.monotonic()
    labels, _ = read_labels(BACKWARD)
    passes = [passes_of_images(number, quick=quick) for number in (1, 2)]
    asked = [questions_asked(1000 if quick else ASKED), labels, passes[0]]
    total_us = [np.zeros(len(more.precision)) for more in asked]
    for one, rows in zip(PASSES[1:], passes, strict=True):
        say = teach(rows, one, quick=quick)
        for place, more in enumerate(asked):
            _, base, said = say(more)
            total_us[place] += np.exp(base + said)
    seen = [described_backward(more) for more in asked]
    goals = []
    for (_, base), more, by_teachers in zip(seen, asked, total_us, strict=True):
        before = learned_convolution_times(more.p, BACKWARD, *facts(more), MACHINE)["learned"]
        goals.append(0.5 * (np.log(by_teachers) + np.log(before)) - base)
    questions = np.concatenate([own for own, _ in seen])
    epochs = 1 if quick else BACKWARD_EPOCHS
    network = learn(questions, np.concatenate(goals), width=BACKWARD_WIDTH, hidden=HIDDEN, epochs=epochs)
    print(f"{sum(len(rows.time_us) for rows in passes):,} gradients, {time.monotonic() - started:.0f} s")
    (own, base), goal = seen[1], goals[1]
    for told, said in (("large networks and those of before", goal), ("small network", network.predict(own))):
        error = 100 * np.abs(np.expm1(said + base - np.log(labels.time_us)))
        print(f"  {told}: {len(error):,} labels, error {error.mean():.2f} % (median {np.median(error):.2f})")
    return network


def main() -> None:
    """Fit, say the error on labels that no network saw, and write or check."""
    parser = argparse.ArgumentParser(add_help=False)
    parser.add_argument("--only", choices=(FORWARD, BACKWARD))
    own, rest = parser.parse_known_args()
    sys.argv[1:] = rest
    arguments = parsed(__doc__, "conv2d")
    networks = {}
    for direction, learn_it in ((FORWARD, learn_forward), (BACKWARD, learn_backward)):
        if own.only in (None, direction):
            networks[direction] = learn_it(quick=arguments.quick)
        elif not arguments.check:
            networks |= of_package("hopper_conv2d.npz", [direction])
    if not arguments.check:
        write_networks(networks, arguments.out)


if __name__ == "__main__":
    main()
