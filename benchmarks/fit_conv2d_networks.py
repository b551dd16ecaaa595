"""Learn what an H200's library takes for forwards of the operator conv2d, of passes alone and of the operator's labels.

    python benchmarks/fit_conv2d_networks.py [--out FILE] [--check] [--quick]

``fit_convolution_network.py`` learns from passes timed alone. This network learns from those, from the passes of images
in half precision that ``drawn_passes.py`` timed, and from three quarters of the labels of conv2d's forward in
``data/h200``. The last quarter is what ``fit_operators.py`` learns the operator's entry from, which must not see labels
of its own baseline; the error printed is of that quarter, too. (A backward's labels are sums of two passes. Networks
that learned of these sums were no better on the last quarter: 14.2 % as without.)
"""

from __future__ import annotations

import time
from typing import Any

import numpy as np
from fit_convolution_network import by_kind, costs_of_kinds, drawn, terms
from fit_operators import is_taught
from fit_pass_networks import BEFORE, Rows, read_rows
from teach_networks import MACHINE, ROOT, Teacher, kernel_classes, learn, parsed, write_networks

from torchledger.fitting.convolution_network import PASSES, convolution_features
from torchledger.fitting.tables import build_tables
from torchledger.sampling.dataset import read_samples

NEEDS: tuple[str, ...] = ()
RUNS: tuple[tuple[str, ...], ...] = (("--check",),)
QUICK: tuple[tuple[str, ...], ...] = (("--check", "--quick"),)

LABELS = ROOT / "data/h200/operators_torch2.11.parquet"
FORWARD = PASSES[0]
MEMBERS, TEACHER_WIDTH, TEACHER_EPOCHS = 5, 144, 45
WIDTH, HIDDEN, EPOCHS, ASKED = 144, 3, 50, 60_000


def described(rows: Rows) -> tuple[Any, Any]:
    """Features of forwards and the logarithm of the expected time."""
    count = len(rows.precision)
    half = np.full(count, MACHINE.peak("bfloat16"))
    return convolution_features(rows.p, FORWARD, np.full(count, 2.0), rows.precision == "float16", half, MACHINE)


def read_labels() -> tuple[Rows, Any]:
    """The training labels of conv2d's forward, and which of them networks learn from."""
    samples = [
        sample
        for sample in read_samples(LABELS)
        if (sample.operator, sample.direction, sample.group) == ("conv2d", "forward", "train")
    ]
    (table,) = build_tables(samples)[0].values()
    p = {name: column.astype(np.float64) for name, column in table.parameters.items()}
    p |= {"kernel_height": p["kernel"], "padding_height": p["padding"]}
    count, names = len(table), np.array([" + ".join(sample.kernels) for sample in samples], dtype=object)
    kind = np.full(count, "operator")
    return Rows(p, np.zeros(count), table.dtypes.astype("U8"), kind, table.times_us, names), is_taught(table.parameters)


def forwards_of_images(*, quick: bool) -> Rows:
    """Both files' forwards in half precision that have two dimensions."""
    rows = read_rows(ROOT / "data/h200/passes_torch2.11.npz").joined(read_rows(BEFORE))
    of_images = np.isin(rows.precision, ("bfloat16", "float16")) & (rows.kind != "signal")
    which = np.flatnonzero(of_images & (rows.direction == 0))
    return rows.some(which[::12] if quick else which)


def questions_asked(count: int) -> Rows:
    """Shapes that nobody measured."""
    p, is_float16 = drawn(count)
    nothing = np.zeros(count)
    p |= {"kernel_height": p["kernel"], "padding_height": p["padding"]}
    precision = np.where(is_float16, "float16", "bfloat16")
    return Rows(p, nothing, precision, np.full(count, "asked"), nothing, np.full(count, "", dtype=object))


def main() -> None:
    """Fit, say the error on the labels that no network saw, and write or check."""
    arguments = parsed(__doc__, "conv2d")
    quick, started = arguments.quick, time.monotonic()
    labels, learned = read_labels()
    rows = forwards_of_images(quick=quick).joined(labels.some(np.flatnonzero(learned)))
    seen, log_base = described(rows)
    given, kinds = terms(rows.p, FORWARD), kernel_classes(rows.kernels)
    costs = costs_of_kinds(given, rows.time_us, kinds)
    each = by_kind(costs, given, log_base)
    sizes = {"members": MEMBERS, "width": TEACHER_WIDTH, "epochs": 1 if quick else TEACHER_EPOCHS}
    teacher = Teacher(seen, np.log(rows.time_us) - log_base, kinds, each, **sizes)
    answers, questions = [teacher.answer(seen, each)], [seen]
    for more in (labels, questions_asked(1000 if quick else ASKED)):
        of_more, base = described(more)
        answers.append(teacher.answer(of_more, by_kind(costs, terms(more.p, FORWARD), base)))
        questions.append(of_more)
    epochs = 1 if quick else EPOCHS
    network = learn(np.concatenate(questions), np.concatenate(answers), width=WIDTH, hidden=HIDDEN, epochs=epochs)
    print(f"{len(rows.time_us):,} forwards, {learned.sum():,} of them labels, {time.monotonic() - started:.0f} s")
    own, base = described(labels)
    goal = np.log(labels.time_us) - base
    for told, said in (("large networks", answers[1]), ("small network", network.predict(own))):
        error = 100 * np.abs(np.expm1(said - goal))
        held = f"{error[~learned].mean():.2f} % (median {np.median(error[~learned]):.2f})"
        print(f"  {told}: {(~learned).sum():,} labels held out, error {held}; learned {error[learned].mean():.2f} %")
    if not arguments.check:
        write_networks({FORWARD: network}, arguments.out)


if __name__ == "__main__":
    main()
