"""Learn what an H200's library takes for the operator conv2d: single passes and the operator's own labels together.

    python benchmarks/fit_conv2d_networks.py [--out FILE] [--check] [--quick]

``fit_convolution_network.py`` learns from passes timed alone. These networks learn from those, from the passes of
images in half precision that ``drawn_passes.py`` timed, and from three quarters of the labels of conv2d in
``data/h200``: a forward is a pass, and a backward is the sum of two, whose parts nobody timed. The last quarter is what
``fit_operators.py`` learns the operator's entry from, which must not see its own baseline's labels; the error printed
is of that quarter, too.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from fit_convolution_network import by_kind, costs_of_kinds, drawn, terms
from fit_operators import is_taught
from fit_pass_networks import BEFORE, Rows, read_rows
from teach_networks import BATCH, MACHINE, ROOT, Teacher, batches, kernel_classes, learn, parsed, write_networks

from torchledger.fitting.convolution_network import PASSES, convolution_features
from torchledger.fitting.networks import Network
from torchledger.fitting.tables import SampleTable, build_tables
from torchledger.sampling.dataset import read_samples

NEEDS: tuple[str, ...] = ()
RUNS: tuple[tuple[str, ...], ...] = (("--check",),)
QUICK: tuple[tuple[str, ...], ...] = (("--check", "--quick"),)

LABELS = ROOT / "data/h200/operators_torch2.11.parquet"
MEMBERS, TEACHER_WIDTH, TEACHER_EPOCHS = 5, 144, 45
WIDTH, HIDDEN, EPOCHS, ASKED = 144, 3, 50, 60_000
OF_SUMS = 64
"""Labels of sums beside each batch of passes: the operator's shapes are few, and the ones that are asked about."""


@dataclass(frozen=True)
class Taught:
    """Passes of one kind as a teacher sees them: features, the goal, kinds of kernels, a guess by each kind."""

    seen: Any
    goal: Any
    kinds: Any
    each: Any
    costs: Any


@dataclass(frozen=True)
class Sums:
    """Calls of which the time of some passes together is known: of each pass features, guesses by kind and the
    logarithm of the expected time; and the logarithm of the time."""

    seen: Mapping[str, Any]
    each: Mapping[str, Any]
    log_base: Mapping[str, Any]
    log_us: Any


def described(rows: Rows, one: str) -> tuple[Any, Any]:
    """Features of a pass and the logarithm of its expected time."""
    count = len(rows.precision)
    half = np.full(count, MACHINE.peak("bfloat16"))
    return convolution_features(rows.p, one, np.full(count, 2.0), rows.precision == "float16", half, MACHINE)


def read_labels() -> dict[str, tuple[Rows, Any]]:
    """The operator's training labels by direction, and which of them networks learn from."""
    samples = [sample for sample in read_samples(LABELS) if sample.operator == "conv2d" and sample.group == "train"]
    found = {}
    for table in build_tables(samples)[0].values():
        names = [" + ".join(sample.kernels) for sample in samples if sample.direction == table.direction]
        found[table.direction] = (_rows_of(table, names), is_taught(table.parameters))
    return found


def _rows_of(table: SampleTable, names: Sequence[str]) -> Rows:
    p = {name: column.astype(np.float64) for name, column in table.parameters.items()}
    p |= {"kernel_height": p["kernel"], "padding_height": p["padding"]}
    count = len(table)
    return Rows(
        p, np.zeros(count), table.dtypes.astype("U8"), np.full(count, "operator"), table.times_us,
        np.array(names, dtype=object),
    )  # fmt: skip


def prepared(rows: Rows, one: str) -> Taught:
    """What a teacher learns of passes timed alone."""
    seen, log_base = described(rows, one)
    given, kinds = terms(rows.p, one), kernel_classes(rows.kernels)
    costs = costs_of_kinds(given, rows.time_us, kinds)
    return Taught(seen, np.log(rows.time_us) - log_base, kinds, by_kind(costs, given, log_base), costs)


def sums_of(rows: Rows, taught: Mapping[str, Taught]) -> Sums:
    """Labels whose passes were timed together."""
    seen, each, log_base = {}, {}, {}
    for one, own in taught.items():
        seen[one], log_base[one] = described(rows, one)
        each[one] = by_kind(own.costs, terms(rows.p, one), log_base[one])
    return Sums(seen, each, log_base, np.log(rows.time_us))


class Together:
    """Teachers of some passes that learn at once, from each pass alone and from sums of all of them."""

    def __init__(self, taught: Mapping[str, Taught], sums: Sums | None, *, epochs: int, members: int) -> None:
        self.teachers = {
            one: Teacher(own.seen, own.goal, own.kinds, own.each, members=0, width=TEACHER_WIDTH, epochs=0)
            for one, own in taught.items()
        }
        for seed in range(members):
            self._learn(seed, taught, sums, epochs)

    def _learn(self, seed: int, taught: Mapping[str, Taught], sums: Sums | None, epochs: int) -> None:
        torch.manual_seed(seed)
        torch.set_num_threads(1)
        rows, parameters = {}, []
        for one, teacher in self.teachers.items():
            own = taught[one]
            rows[one] = teacher.tensors(own.seen, own.goal, own.kinds, own.each)
            teacher.members.append(teacher.made(own.seen.shape[1], int(own.kinds.max()) + 1, TEACHER_WIDTH))
            parameters += [p for part in teacher.members[-1] for p in part.parameters()]
        asked = {} if sums is None else {
            one: (*teacher.questions(sums.seen[one], sums.each[one]), torch.tensor(sums.log_base[one]).float())
            for one, teacher in self.teachers.items()
        }  # fmt: skip
        unit = float(np.mean([teacher.unit for teacher in self.teachers.values()]))
        fewest = min(len(own.goal) for own in taught.values())
        for some, step in batches(fewest, epochs, parameters):
            loss = torch.zeros(())
            for one, teacher in self.teachers.items():
                count = len(taught[one].goal)
                own_rows = some if count == fewest else torch.randint(count, (BATCH,))
                loss = loss + teacher.loss(teacher.members[-1], *(column[own_rows] for column in rows[one]))
            if sums is not None:
                few = torch.randint(len(sums.log_us), (OF_SUMS,))
                said = torch.stack([
                    self.teachers[one].said(self.teachers[one].members[-1], x[few], first[few]) + base[few]
                    for one, (x, first, base) in asked.items()
                ]).logsumexp(0)  # fmt: skip
                away = said - torch.tensor(sums.log_us)[few].float()
                loss = loss + Teacher.off(away) / unit
            step(loss)
        for part in (part for teacher in self.teachers.values() for part in teacher.members[-1]):
            part.eval()


def taught_network(
    teacher: Teacher, own: Taught, one: str, labels: Rows, asked: Rows, *, quick: bool
) -> tuple[Network, Any]:
    """The small network that answers as a pass's teachers do, and the teachers' answers for ``labels``."""
    answers, questions = [teacher.answer(own.seen, own.each)], [own.seen]
    for rows in (labels, asked):
        seen, log_base = described(rows, one)
        answers.append(teacher.answer(seen, by_kind(own.costs, terms(rows.p, one), log_base)))
        questions.append(seen)
    epochs = 1 if quick else EPOCHS
    network = learn(np.concatenate(questions), np.concatenate(answers), width=WIDTH, hidden=HIDDEN, epochs=epochs)
    return network, answers[1]


def passes_of_images(*, quick: bool) -> Rows:
    """Both files' passes in half precision that have two dimensions."""
    rows = read_rows(ROOT / "data/h200/passes_torch2.11.npz").joined(read_rows(BEFORE))
    which = np.flatnonzero(np.isin(rows.precision, ("bfloat16", "float16")) & (rows.kind != "signal"))
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
    quick, rows, labels = arguments.quick, passes_of_images(quick=arguments.quick), read_labels()
    asked = questions_asked(1000 if quick else ASKED)
    networks: dict[str, Network] = {}
    for direction, passes in (("forward", PASSES[:1]), ("backward", PASSES[1:])):
        started = time.monotonic()
        own_labels, learned = labels[direction]
        known = own_labels.some(np.flatnonzero(learned))
        taught = {}
        for one in passes:
            own = rows.some(np.flatnonzero(rows.direction == PASSES.index(one)))
            taught[one] = prepared(own.joined(known) if direction == "forward" else own, one)
        sums = None if direction == "forward" else sums_of(known, taught)
        together = Together(taught, sums, epochs=1 if quick else TEACHER_EPOCHS, members=1 if quick else MEMBERS)
        test, goal = ~learned, np.log(own_labels.time_us)
        large, small = [], []
        for one in passes:
            network, said = taught_network(together.teachers[one], taught[one], one, own_labels, asked, quick=quick)
            networks[one] = network
            seen, log_base = described(own_labels, one)
            large.append(said + log_base)
            small.append(network.predict(seen) + log_base)
        print(f"{direction}: {learned.sum():,} labels, {time.monotonic() - started:.0f} s", flush=True)
        for told, parts in (("large networks", large), ("small networks", small)):
            off = np.logaddexp.reduce(parts, axis=0) - goal
            error = 100 * np.abs(np.expm1(off))
            held = f"{error[test].mean():.2f} % (median {np.median(error[test]):.2f})"
            print(f"  {told}: {test.sum():,} labels held out, error {held}; learned {error[learned].mean():.2f} %")
    if not arguments.check:
        write_networks(networks, arguments.out)


if __name__ == "__main__":
    main()
