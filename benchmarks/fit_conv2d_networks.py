"""Learn what an H200's library takes for the operator conv2d: forwards, and both gradients of backwards together.

    python benchmarks/fit_pass_networks.py --answers ANSWERS.npz
    python benchmarks/fit_pass_networks.py --answers FORWARD.npz --teachers forward --members 4
    python benchmarks/fit_conv2d_networks.py ANSWERS.npz FORWARD.npz [--out FILE] [--check] [--only forward|backward]

Both networks learn to answer as the teachers of single passes in half precision do, blended with the networks of
before, which other teachers had (``hopper_conv2d.npz``): the blend errs less than either. Of several files the last
that has an answer counts. The teachers saw three quarters of the labels of conv2d's forward in ``data/h200``. The last
quarter is what ``fit_operators.py`` learns the operator's entry from, which must not see labels of its own baseline,
nor be asked at shapes that its baseline was asked of; the error printed is of that quarter, too.

A backward is asked of one network instead of one for each gradient, which takes less than half as long and errs alike.
Its labels teach nothing here: they are sums of two passes. (Networks that learned of these sums were no better on the
last quarter: 14.2 % as without.)
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from fit_convolution_network import drawn
from fit_operators import is_taught
from fit_pass_networks import BEFORE, DRAWN, Rows, layers_asked, read_rows
from teach_networks import MACHINE, ROOT, learn, parsed, write_networks

from torchledger.expecting.convolution_network import backward_features, convolution_features
from torchledger.expecting.convolution_times import PASSES
from torchledger.expecting.networks import Network, of_package
from torchledger.fitting.tables import build_tables
from torchledger.sampling.dataset import read_samples

NEEDS: tuple[str, ...] = ()
RUNS: tuple[tuple[str, ...], ...] = (("{out}/answers.npz", "--check"),)

LABELS = ROOT / "data/h200/operators_torch2.11.parquet"
FORWARD, BACKWARD = PASSES[0], "backward"
BEFORE_THESE = "hopper_conv2d.npz"
WIDTH, HIDDEN, EPOCHS, ASKED = 144, 3, 50, {FORWARD: 240_000, BACKWARD: 80_000}
BACKWARD_WIDTH, BACKWARD_EPOCHS = 112, 140
OF_TEACHER = 0.7
"""Of a blended answer, in logarithms; the rest is what the network of before says."""
LAYER_WEIGHTS = {"operator": 60}
"""Half of the layers that are asked are drawn as the operator's labels are."""


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


def passes_of_images(number: int) -> Rows:
    """The passes of a number among ``PASSES`` in half precision that have two dimensions."""
    rows = read_rows(BEFORE)
    for path in DRAWN:
        rows = rows.joined(read_rows(path))
    of_images = np.isin(rows.precision, ("bfloat16", "float16")) & (rows.kind != "signal")
    return rows.some(np.flatnonzero(of_images & (rows.direction == number)))


def questions_asked(count: int) -> Rows:
    """Shapes that nobody measured, as the operator is drawn and as networks have them."""
    p, is_float16 = drawn(count // 2)
    nothing = np.zeros(len(is_float16))
    p |= {"kernel_height": p["kernel"], "padding_height": p["padding"]}
    precision = np.where(is_float16, "float16", "bfloat16")
    empty = np.full(len(nothing), "", dtype=object)
    layers = layers_asked(count - len(nothing), ("bfloat16", "float16"), LAYER_WEIGHTS)
    return Rows(p, nothing, precision, np.full(len(nothing), "asked"), nothing, empty).joined(layers)


def questions_of_conv2d(one: str, *, quick: bool = False) -> dict[str, Rows]:
    """What the teacher of a pass is asked, by name; the same for each call."""
    direction = FORWARD if one == FORWARD else BACKWARD
    return {
        "asked": questions_asked(1000 if quick else ASKED[direction]),
        "labels": read_labels(direction)[0],
        "passes": passes_of_images(0),
    }


def blended(answer: Any, log_base: Any, before: Network, seen: Any) -> Any:
    """What a network learns to say: logarithms over the expected time."""
    return OF_TEACHER * (answer - log_base) + (1 - OF_TEACHER) * before.predict(seen)


def learn_forward(answers: Mapping[str, Any]) -> Network:
    """The network of forwards; prints its error on the labels that no network saw, nor was asked of."""
    started, before = time.monotonic(), of_package(BEFORE_THESE, [FORWARD])[FORWARD]
    labels, learned = read_labels()
    seen, goals = [], []
    for name, rows in questions_of_conv2d(FORWARD).items():
        own, base = described(rows)
        goal = blended(answers[f"{FORWARD} {name}"], base, before, own)
        some = learned if name == "labels" else slice(None)
        seen.append(own[some])
        goals.append(goal[some])
        if name == "labels":
            of_labels, blend = own, goal
    network = learn(np.concatenate(seen), np.concatenate(goals), width=WIDTH, hidden=HIDDEN, epochs=EPOCHS)
    shown = np.log(labels.time_us) - described(labels)[1]
    print(f"forward: {sum(map(len, goals)):,} answers, {time.monotonic() - started:.0f} s")
    said_by = {"network of before": before.predict(of_labels), "blend": blend, "network": network.predict(of_labels)}
    for told, said in said_by.items():
        error = 100 * np.abs(np.expm1(said - shown))
        held = f"{error[~learned].mean():.2f} % (median {np.median(error[~learned]):.2f})"
        print(f"  {told}: {(~learned).sum():,} labels held out, error {held}; learned {error[learned].mean():.2f} %")
    return network


def learn_backward(answers: Mapping[str, Any]) -> Network:
    """The network of both gradients; prints its error on labels, of which it saw none."""
    started, before = time.monotonic(), of_package(BEFORE_THESE, [BACKWARD])[BACKWARD]
    seen, goals, asked = [], [], questions_of_conv2d(PASSES[1])
    for name, rows in asked.items():
        own, times_base = described_backward(rows)
        together = np.logaddexp(*(answers[f"{one} {name}"] for one in PASSES[1:]))
        seen.append(own)
        goals.append(blended(together, times_base, before, own))
    every, goal = np.concatenate(seen), np.concatenate(goals)
    network = learn(every, goal, width=BACKWARD_WIDTH, hidden=HIDDEN, epochs=BACKWARD_EPOCHS)
    print(f"backward: {len(goal):,} answers, {time.monotonic() - started:.0f} s")
    own, base = described_backward(asked["labels"])
    for told, said in (
        ("network of before", before.predict(own)), ("blend", goals[1]), ("network", network.predict(own)),
    ):  # fmt: skip
        error = 100 * np.abs(np.expm1(said + base - np.log(asked["labels"].time_us)))
        print(f"  {told}: {len(error):,} labels, error {error.mean():.2f} % (median {np.median(error):.2f})")
    return network


def main() -> None:
    """Fit, say the error on labels that no network saw, and write or check."""
    parser = argparse.ArgumentParser(add_help=False)
    parser.add_argument("answers", type=Path, nargs="+")
    parser.add_argument("--only", choices=(FORWARD, BACKWARD))
    own, rest = parser.parse_known_args()
    sys.argv[1:] = rest
    arguments = parsed(__doc__, "blended_conv2d")
    answers: dict[str, Any] = {}
    for path in own.answers:
        with np.load(path, allow_pickle=False) as given:
            answers |= given
    networks = {}
    for direction, learn_it in ((FORWARD, learn_forward), (BACKWARD, learn_backward)):
        if own.only in (None, direction):
            networks[direction] = learn_it(answers)
        elif not arguments.check:
            networks |= of_package("hopper_blended_conv2d.npz", [direction])
    if not arguments.check:
        write_networks(networks, arguments.out)


if __name__ == "__main__":
    main()
