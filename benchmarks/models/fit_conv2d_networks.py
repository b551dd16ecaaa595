"""Learn what an H200's library takes for the operator conv2d: forwards, and both gradients of backwards together.

    python -m benchmarks.models.fit_pass_networks --only half --answers ANSWERS.npz
    python -m benchmarks.models.fit_conv2d_networks ANSWERS.npz ... [--out FILE] [--check] [--only forward|backward]

Both networks learn to answer as the teachers of single passes in half precision do, on shapes drawn as the operator's
labels and as layers of networks are. Of several files the last that has an answer counts. The teachers saw three
quarters of the labels of conv2d's forward in ``data/h200``. The last quarter is what ``fit_operators.py`` learns the
operator's entry from, which must not see labels of its own baseline, nor be asked at shapes that its baseline was asked
of; the error printed is of that quarter, too.

A backward is asked of one network instead of one for each gradient, which takes less than half as long and errs alike.
Its labels teach nothing here: they are sums of two passes. (Networks that learned of these sums were no better on the
last quarter: 14.2 % as without.)
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.models.fit_convolution_network import drawn
from benchmarks.models.fit_operators import is_taught
from benchmarks.models.fit_pass_networks import BEFORE, DRAWN, Rows, layers_asked, read_rows, square
from benchmarks.models.teach_networks import MACHINE, ROOT, learn, parsed, report_errors, write_networks
from torchledger.expecting.convolution_network import backward_features, convolution_features
from torchledger.expecting.convolution_times import PASSES
from torchledger.expecting.networks import Network, of_package
from torchledger.fitting.tables import build_tables
from torchledger.sampling.dataset import read_samples

NEEDS: tuple[str, ...] = ()
RUNS: tuple[tuple[str, ...], ...] = (("{out}/answers.npz", "--check"),)

LABELS = ROOT / "data/h200/operators_torch2.11.parquet"
FORWARD, BACKWARD = PASSES[0], "backward"
BEFORE_THESE = "hopper_wide_conv2d.npz"
WIDTH, HIDDEN, EPOCHS, ASKED = 336, 3, {FORWARD: 60, BACKWARD: 70}, {FORWARD: 480_000, BACKWARD: 240_000}
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
    p = square(p)
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
    p = square(p)
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


def learn_forward(answers: Mapping[str, Any]) -> Network:
    """The network of forwards; prints its error on the labels that no network saw, nor was asked of."""
    labels, learned = read_labels()
    seen, goals = [], []
    for name, rows in questions_of_conv2d(FORWARD).items():
        own, base = described(rows)
        some = learned if name == "labels" else slice(None)
        seen.append(own[some])
        goals.append((answers[f"{FORWARD} {name}"] - base)[some])
    network = taught(FORWARD, seen, goals)
    say_errors(FORWARD, network, labels.some(np.flatnonzero(~learned)), answers[f"{FORWARD} labels"][~learned])
    return network


def learn_backward(answers: Mapping[str, Any]) -> Network:
    """The network of both gradients; prints its error on labels, of which it saw none."""
    seen, goals, asked = [], [], questions_of_conv2d(PASSES[1])
    together = {name: np.logaddexp(*(answers[f"{one} {name}"] for one in PASSES[1:])) for name in asked}
    for name, rows in asked.items():
        own, base = described_backward(rows)
        seen.append(own)
        goals.append(together[name] - base)
    network = taught(BACKWARD, seen, goals)
    say_errors(BACKWARD, network, asked["labels"], together["labels"])
    return network


def taught(direction: str, seen: Sequence[Any], goals: Sequence[Any]) -> Network:
    """A network that answers as was answered."""
    started, goal = time.monotonic(), np.concatenate(goals)
    network = learn(np.concatenate(seen), goal, width=WIDTH, hidden=HIDDEN, epochs=EPOCHS[direction], is_rectified=True)
    print(f"{direction}: {len(goal):,} answers, {time.monotonic() - started:.0f} s")
    return network


def say_errors(direction: str, network: Network, labels: Rows, answers: Any) -> None:
    """Print how far labels are off by the network of before, by what was answered, and by the network."""
    own, base = described(labels) if direction == FORWARD else described_backward(labels)
    before = of_package(BEFORE_THESE, [direction])[direction]
    for told, said in (
        ("network of before", base + before.predict(own)), ("teachers", answers),
        ("network", base + network.predict(own)),
    ):  # fmt: skip
        report_errors(f"{told}, {len(base):,} labels", said, np.log(labels.time_us))


def main() -> None:
    """Fit, say the error on labels that no network saw, and write or check."""
    parser = argparse.ArgumentParser(add_help=False)
    parser.add_argument("answers", type=Path, nargs="+")
    parser.add_argument("--only", choices=(FORWARD, BACKWARD))
    own, rest = parser.parse_known_args()
    sys.argv[1:] = rest
    arguments = parsed(__doc__, "broad_conv2d")
    answers: dict[str, Any] = {}
    for path in own.answers:
        with np.load(path, allow_pickle=False) as given:
            answers |= given
    networks = {}
    for direction, learn_it in ((FORWARD, learn_forward), (BACKWARD, learn_backward)):
        if own.only in (None, direction):
            networks[direction] = learn_it(answers)
        elif not arguments.check:
            networks |= of_package("hopper_broad_conv2d.npz", [direction])
    if not arguments.check:
        write_networks(networks, arguments.out)


if __name__ == "__main__":
    main()
