"""Learn what the networks of passes miss: the trees of ``expecting/pass_trees.py``, by scikit-learn.

    python -m benchmarks.models.fit_pass_trees [--out FILE] [--check] [--quick] [--unseen]

Those of conv2d are beside that operator's own networks, of its forward and of both gradients together, and fewer, as a
core is to ask them a hundred thousand times a second. Of an eighth of the shapes, held out, the error is said with and
without trees; what is written learned of all. The networks saw the shapes that are held out, trees of all but these did
not. ``--unseen`` learns without the files that were drawn after the networks, and says the errors over these.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.models.fit_pass_networks import MACHINE, Rows, all_rows, elements_of, precisions_of, read_rows, report
from benchmarks.models.teach_networks import HELD_OUT, ROOT, held_out
from torchledger.expecting.convolution_network import learned_convolution_times
from torchledger.expecting.convolution_times import PASSES, SIZES
from torchledger.expecting.pass_networks import time_passes
from torchledger.expecting.pass_trees import KINDS, kinds_of, to_file, tree_features
from torchledger.expecting.trees import MAX_LEAVES, TreeEnsemble
from torchledger.fitting.learning import checked_trees

NEEDS: tuple[str, ...] = ()
RUNS: tuple[tuple[str, ...], ...] = (("--check",), ("--unseen",))
QUICK: tuple[tuple[str, ...], ...] = (("--check", "--quick"), ("--unseen", "--quick"))

DRAWN = tuple(
    ROOT / f"data/h200/{name}_torch2.11.npz"
    for name in (
        *("grouped_layers", "positions", "more_layers", "more_passes"),
        *("narrow_layers", "stripe_layers", "uneven_steps"),
        *("large_layers", "large_passes", "lasting_layers", "full_layers", "more_full_layers"),
    )
)
"""What the networks have not seen."""
TREES, TREES_OF_CONV2D, RATE, LEAST = 1500, 400, 0.1, 8
_WITHOUT_TREES = replace(MACHINE, networks=12)


def said_by_networks(rows: Rows, one: str) -> Any:
    """Microseconds of a pass by its networks alone."""
    found = time_passes(rows.p, (one,), elements_of(rows), _WITHOUT_TREES)
    assert found is not None
    return found


def both_gradients(rows: Rows) -> Rows:
    """Of shapes whose two gradients were both timed, what they take together, as if these were one pass."""
    shapes = np.stack([*rows.p.values(), rows.precision == "float16"])
    _, number = np.unique(shapes, axis=1, return_inverse=True)
    number, count = number.ravel(), int(number.max()) + 1
    total, first = np.zeros(count), np.full(count, -1)
    for one in (PASSES.index("image"), PASSES.index("weight")):
        mine = np.flatnonzero(rows.direction == one)
        counted = np.bincount(number[mine], minlength=count)
        times = np.bincount(number[mine], rows.time_us[mine], count) / np.where(counted, counted, np.nan)
        total, first[number[mine]] = total + times, mine
    known = np.flatnonzero(np.isfinite(total) & (first >= 0))
    return replace(rows.some(first[known]), time_us=total[known])


def said_of_conv2d(rows: Rows, direction: str) -> Any:
    """Microseconds of the operator by its networks alone."""
    elements, networks = elements_of(rows), _WITHOUT_TREES.network_files.conv2d
    times = learned_convolution_times(
        rows.p, direction, elements.size, elements.is_other, elements.peak, _WITHOUT_TREES, networks
    )
    return times["learned"]


def taught(seen: Any, missed: Any, count: int, *, quick: bool) -> TreeEnsemble:
    """Trees that say what was missed, a logarithm."""
    from sklearn.ensemble import HistGradientBoostingRegressor

    model = HistGradientBoostingRegressor(
        loss="absolute_error", max_iter=20 if quick else count, learning_rate=RATE, max_leaf_nodes=MAX_LEAVES,
        min_samples_leaf=LEAST, l2_regularization=1.0, early_stopping=False, random_state=0,
    )  # fmt: skip
    return checked_trees(model.fit(seen, missed), seen[:2000].astype(np.float64))


def passes_of(rows: Rows) -> Iterator[tuple[str, Rows, Any]]:
    """The rows of each pass and size of element, and what its networks say."""
    for size in SIZES.values():
        for number, one in enumerate(PASSES):
            mine = (rows.direction == number) & np.isin(rows.precision, precisions_of(size))
            some = rows.some(np.flatnonzero(mine))
            yield f"{one} {size}", some, said_by_networks(some, one)


def seen_and_missed(rows: Rows, said: Any) -> tuple[Any, Any]:
    """What trees see of passes, and the logarithm of the time over what networks say."""
    return tree_features(rows.p, elements_of(rows).is_other, said), np.log(rows.time_us / said)


def say_unseen(before: Rows, *, quick: bool) -> None:
    """Trees without what was drawn after the networks, and how far both are off there."""
    later = {path.name.partition("_torch")[0]: list(passes_of(read_rows(path))) for path in DRAWN}
    found = dict[tuple[str, ...], list[tuple[Any, Any]]]()
    for number, (name, some, said) in enumerate(passes_of(before)):
        (seen, missed), kinds = seen_and_missed(some, said), kinds_of(some.p)
        for place, kind in enumerate(KINDS):
            rows = np.flatnonzero(kinds == place)
            trees = taught(seen[rows], missed[rows], TREES, quick=quick)
            for file, of_file in later.items():
                _, asked, by_networks = of_file[number]
                test = np.flatnonzero(kinds_of(asked.p) == place)
                if len(test):
                    seen_there, missed_there = seen_and_missed(asked.some(test), by_networks[test])
                    pair = -missed_there, trees.predict(seen_there.astype(np.float64)) - missed_there
                    found.setdefault((file, name.rpartition(" ")[2], kind), []).append(pair)
    for told, pairs in sorted(found.items()):
        print(", ".join(told))
        for what, errors in zip(("networks alone", "with trees"), zip(*pairs, strict=True), strict=True):
            report(what, np.concatenate(errors))


def main() -> None:
    """Fit, and write or check."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    generations = ROOT / "src/torchledger/expecting/generations"
    parser.add_argument("--out", type=Path, default=generations / "hopper_pass_trees.npz")
    parser.add_argument("--check", action="store_true")
    parser.add_argument("--quick", action="store_true", help="few rows and trees, to see that this runs")
    parser.add_argument("--unseen", action="store_true", help="errors where neither networks nor trees learned")
    arguments = parser.parse_args()
    rows = all_rows()
    if not arguments.unseen:
        for path in DRAWN:
            rows = read_rows(path).joined(rows)
    if arguments.quick:
        rows = rows.some(np.arange(0, len(rows.time_us), 12))
    if arguments.unseen:
        say_unseen(rows, quick=arguments.quick)
        return
    halves = rows.some(np.flatnonzero(np.isin(rows.precision, precisions_of("half"))))
    forwards = halves.some(np.flatnonzero(halves.direction == PASSES.index("forward")))
    asked: list[tuple[str, Rows, Any]] = [
        ("conv2d forward half", forwards, said_of_conv2d(forwards, "forward")),
        ("conv2d backward half", both := both_gradients(halves), said_of_conv2d(both, "backward")),
        *passes_of(rows),
    ]
    trees: dict[str, TreeEnsemble] = {}
    off: dict[str, list[Any]] = {"networks alone": [], "with trees": []}
    for name, some, said in asked:
        held, kinds = held_out([*some.p.values(), some.precision == "tf32"], HELD_OUT), kinds_of(some.p)
        seen, missed = seen_and_missed(some, said)
        count = TREES_OF_CONV2D if name.startswith("conv2d") else TREES
        for place, kind in enumerate(KINDS):
            started = time.monotonic()
            taken, test = np.flatnonzero((kinds == place) & ~held), np.flatnonzero((kinds == place) & held)
            learned = taught(seen[taken], missed[taken], count, quick=arguments.quick)
            of_test = learned.predict(seen[test].astype(np.float64)) - missed[test]
            if not arguments.check:
                every = np.flatnonzero(kinds == place)
                trees[f"{name} {kind}"] = taught(seen[every], missed[every], count, quick=arguments.quick)
            print(f"{name} {kind}: {len(taken):,}, {time.monotonic() - started:.0f} s", flush=True)
            for told, errors in zip(off, (-missed[test], of_test), strict=True):
                report(told, errors)
                if not name.startswith("conv2d"):
                    off[told].append(errors)
    print("all passes")
    for told, found in off.items():
        report(told, np.concatenate(found))
    if not arguments.check:
        arguments.out.write_bytes(to_file(trees))
        print(f"{arguments.out}: {arguments.out.stat().st_size / 1e6:.2f} MB")


if __name__ == "__main__":
    main()
