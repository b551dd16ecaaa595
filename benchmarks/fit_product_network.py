"""Learn which kernels an H200's library takes for matrix products: the networks of ``fitting/product_network.py``.

    python benchmarks/fit_product_network.py [--data data/h200/products_torch2.11.npz] [--out FILE]
        [--check] [--quick]

The data are what ``benchmarks/h200_kernels.py`` measured. ``--check`` holds an eighth of the products out, says the
error on them, and writes nothing. ``fit_float16_products.py`` then adds the networks of float16 to the file.
"""

from __future__ import annotations

import random
import time
from typing import Any

import numpy as np
from h200_kernels import LAYOUTS as DRAWN_LAYOUTS
from h200_kernels import draw_product
from teach_networks import (
    HELD_OUT,
    MACHINE,
    Teacher,
    held_out,
    kernel_classes,
    learn,
    parsed,
    report_errors,
    write_networks,
)

from torchledger.fitting.product_network import CLASSES, LAYOUTS, product_class, product_features

NEEDS: tuple[str, ...] = ()
RUNS: tuple[tuple[str, ...], ...] = (("--check",),)
QUICK: tuple[tuple[str, ...], ...] = (("--check", "--quick"),)

MEMBERS, TEACHER_WIDTH, TEACHER_EPOCHS = 4, 160, {2: 45, 4: 45, 16: 30, 0: 40}
WIDTH, HIDDEN, EPOCHS, ASKED = 112, 3, {2: 50, 4: 50, 16: 35, 0: 50}, 300_000


def described(layout: Any, sides: Any, item_size: Any) -> tuple[Any, Any, Any]:
    """Features of products, the logarithm of their tiles' time, and which of ``CLASSES`` each is of."""
    peak = np.where(item_size >= 4, MACHINE.peak("float32"), MACHINE.peak("bfloat16"))
    rows, log_base, kinds = None, np.empty(len(layout)), np.empty(len(layout), dtype=np.int64)
    for number, name in enumerate(LAYOUTS):
        some = layout == number
        own = tuple(side[some] for side in sides)
        kinds[some] = product_class(name, own, item_size[some])
        features, log_base[some] = product_features(name, own, item_size[some], peak[some], MACHINE, kinds[some])
        if rows is None:
            rows = np.empty((len(layout), features.shape[1]), dtype=np.float32)
        rows[some] = features
    return rows, log_base, kinds


def drawn(count: int) -> tuple[Any, Any, Any]:
    """Layouts, sides and sizes of products that nobody measured."""
    draw = random.Random(0)
    points = [draw_product(draw) for _ in range(count)]
    layouts, dtypes, *sides = zip(*points, strict=True)
    layout = np.array([DRAWN_LAYOUTS.index(name) for name in layouts])
    return layout, [np.array(side, dtype=np.float64) for side in sides], np.where(np.array(dtypes) == "float32", 4.0, 2)


def main() -> None:
    """Fit, and write or check."""
    arguments = parsed(__doc__, "products")
    with np.load(arguments.data, allow_pickle=False) as found:
        rows = slice(4000 if arguments.quick else None)
        layout, time_us = found["layout"][rows], found["time_us"][rows].astype(np.float64)
        sides = [found[name][rows].astype(np.float64) for name in ("b", "m", "n", "k")]
        item_size = np.where(found["dtype"][rows] == "float32", 4.0, 2.0)
        names = found["kernel_names"].astype(str)[found["kernels"][rows]]
    features, log_base, kind = described(layout, sides, item_size)
    goal = np.log(time_us) - log_base
    held = held_out([layout, *sides, item_size], HELD_OUT if arguments.check else 0.0)
    more, _, more_kind = described(*drawn(2000 if arguments.quick else ASKED))
    networks = {}
    for one in CLASSES:
        rest, started = np.flatnonzero((kind == one) & ~held), time.monotonic()
        kernels = kernel_classes(names[rest])
        sizes = {"members": MEMBERS, "width": TEACHER_WIDTH, "epochs": 1 if arguments.quick else TEACHER_EPOCHS[one]}
        teacher = Teacher(features[rest], goal[rest], kernels, **sizes)
        questions = np.concatenate([features[rest], more[more_kind == one]])
        answers = teacher.answer(questions)
        epochs = 1 if arguments.quick else EPOCHS[one]
        networks[str(one)] = learn(questions, answers, width=WIDTH, hidden=HIDDEN, epochs=epochs)
        told = f"rows at {one} bytes" if one else "single precision"
        seconds = time.monotonic() - started
        print(f"{told}: {len(rest):,} products of {kernels.max() + 1} kinds, {seconds:.0f} s", flush=True)
        if arguments.check:
            test = (kind == one) & held
            report_errors("tiles alone", 0 * goal[test], goal[test])
            report_errors("large networks", teacher.answer(features[test]), goal[test])
            report_errors("small network", networks[str(one)].predict(features[test]), goal[test])
    if not arguments.check:
        write_networks(networks, arguments.out)


if __name__ == "__main__":
    main()
