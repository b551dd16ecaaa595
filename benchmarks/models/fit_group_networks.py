"""Learn what an H200's library takes for passes in groups: the networks of ``expecting/group_networks.py``.

    python -m benchmarks.models.fit_group_networks [--out FILE] [--check] [--quick] [--only half|single]

Of the passes that ``fit_pass_networks.py`` learns from, those in groups of several channels; an eighth of the shapes,
the same as there, is held out, and the error on them is said beside that of the networks of any pass. Teachers learn
from these rows alone, as a library that runs groups one by one in some places and together in others is told by sizes
that matter nowhere else.
"""

from __future__ import annotations

import argparse
import itertools
import sys
import time
from typing import Any

import numpy as np

from benchmarks.models.fit_pass_networks import (
    LEANING,
    Rows,
    all_rows,
    described,
    elements_of,
    layers_asked,
    precisions_of,
    report,
    rows_of_cases,
)
from benchmarks.models.teach_convolutions import KernelTeacher, kernel_kinds, numbered
from benchmarks.models.teach_networks import HELD_OUT, held_out, learn, parsed, write_networks
from benchmarks.operators.drawn_passes import draw_passes
from torchledger.expecting.group_networks import OPEN, group_features, is_grouped
from torchledger.expecting.networks import Network, of_package
from torchledger.expecting.pass_networks import NETWORKS, PASSES, SIZES

NEEDS: tuple[str, ...] = ()
RUNS: tuple[tuple[str, ...], ...] = (("--check",),)
QUICK: tuple[tuple[str, ...], ...] = (("--check", "--quick"),)

MEMBERS, TEACHER_WIDTH, TEACHER_EPOCHS = 3, 128, 70
WIDTH, OPEN_WIDTH, HIDDEN, EPOCHS, OPEN_EPOCHS, ASKED = 192, 40, 3, 60, 25, 80_000
OF_TEACHER = 0.75
"""Of the answer that is learned, in logarithms; the rest is what the networks of any pass say, which saw more rows."""
_GROUPS_ALONE = {"groups": 1e6}


def seen_of(rows: Rows, one: str) -> tuple[Any, Any, Any]:
    """Features of passes in groups, those that any pass has, and the logarithm of the expected time."""
    seen, log_base = described(rows, one)
    return group_features(rows.p, seen, elements_of(rows).is_rounded), seen, log_base


def questions(count: int, precisions: tuple[str, str]) -> Rows:
    """Groups that nobody measured."""
    cases = (case for case in draw_passes(0) if case.precision in precisions and case.kind == "grouped")
    found = rows_of_cases(itertools.islice(cases, count // 3))
    found = found.joined(layers_asked(count - count // 3, precisions, _GROUPS_ALONE))
    return found.some(np.flatnonzero(is_grouped(found.p)))


class GroupTeacher:
    """Says what a pass in groups takes, and how far what may run instead lies from it."""

    def __init__(self, rows: Rows, one: str, before: Network, *, quick: bool) -> None:
        seen, _, log_base = seen_of(rows, one)
        kinds = kernel_kinds(rows.kernels)
        self.one, self.before = one, before
        self.teacher = KernelTeacher(
            rows.p, one, seen, log_base, rows.time_us, numbered(rows.kernels, kinds),
            members=MEMBERS, width=TEACHER_WIDTH, epochs=1 if quick else TEACHER_EPOCHS,
        )  # fmt: skip

    def answer(self, rows: Rows) -> tuple[Any, Any]:
        """The logarithm of the time over the expected one, and the standard deviation of its likely ones."""
        seen, plain, log_base = seen_of(rows, self.one)
        own = self.teacher.answer(rows.p, seen, log_base, LEANING)
        chance, times = self.teacher.chances(rows.p, seen), self.teacher.times(rows.p, seen, log_base)
        chance = chance / chance.sum(axis=1, keepdims=True)
        middle = (chance * times).sum(axis=1, keepdims=True)
        spread = np.sqrt((chance * (times - middle) ** 2).sum(axis=1))
        return OF_TEACHER * own + (1 - OF_TEACHER) * self.before.predict(plain), spread


def main() -> None:
    """Fit, and write or check."""
    parser = argparse.ArgumentParser(add_help=False)
    parser.add_argument("--only", choices=tuple(SIZES.values()), help="size of element; the file then has no other")
    more, rest = parser.parse_known_args()
    sys.argv[1:] = rest
    arguments = parsed(__doc__, "broad_groups")
    rows = all_rows()
    if arguments.quick:
        rows = rows.some(np.arange(0, len(rows.time_us), 6))
    held = held_out([*rows.p.values(), rows.precision == "tf32"], HELD_OUT)
    before, networks = of_package("hopper_further_passes.npz", NETWORKS), {}
    for size, (number, one) in itertools.product((more.only,) if more.only else SIZES.values(), enumerate(PASSES)):
        started = time.monotonic()
        precisions = precisions_of(size)
        mine = (rows.direction == number) & np.isin(rows.precision, precisions) & is_grouped(rows.p)
        taught, test = rows.some(np.flatnonzero(mine & ~held)), rows.some(np.flatnonzero(mine & held))
        name = f"{one} {size}"
        teacher = GroupTeacher(taught, one, before[name], quick=arguments.quick)
        asked = taught.joined(questions(900 if arguments.quick else ASKED, precisions))
        seen, _, _ = seen_of(asked, one)
        goal, spread = teacher.answer(asked)
        epochs, open_epochs = (1, 1) if arguments.quick else (EPOCHS, OPEN_EPOCHS)
        networks[name] = learn(seen, goal, WIDTH, HIDDEN, epochs, is_rectified=True)
        networks[f"{name} {OPEN}"] = learn(seen, spread, OPEN_WIDTH, 2, open_epochs)
        print(f"{name}: {len(taught.time_us):,} passes in groups, {time.monotonic() - started:.0f} s", flush=True)
        seen, plain, log_base = seen_of(test, one)
        off = log_base - np.log(test.time_us)
        said = off + networks[name].predict(seen)
        report("networks of any pass", off + before[name].predict(plain))
        report("large networks", off + teacher.answer(test)[0])
        report("small network", said)
        is_open = networks[f"{name} {OPEN}"].predict(seen)
        for told, some in (("third told surest", is_open <= np.quantile(is_open, 1 / 3)),
                           ("third told openest", is_open >= np.quantile(is_open, 2 / 3))):  # fmt: skip
            report(f"  {told}", said[some])
        if not arguments.check:
            write_networks(networks, arguments.out)


if __name__ == "__main__":
    main()
