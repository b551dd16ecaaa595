"""Learn what an H200's library takes for float16 products whose rows are not aligned: ``fitting/product_network.py``.

    python benchmarks/fit_float16_products.py [--out FILE] [--check] [--quick]

The networks of ``fit_product_network.py`` do not see which of both half precisions a product is of. Where rows begin at
16 bytes that is all the same; where they do not, the library has other kernels for float16, and those networks, learned
mostly of bfloat16, say 7 to 17 % too much. These take their place there, and are added to their file.
"""

from __future__ import annotations

import time

import numpy as np
from fit_product_network import described, drawn
from teach_networks import HELD_OUT, Teacher, held_out, kernel_classes, learn, parsed, report_errors, write_networks

from torchledger.fitting.networks import of_package
from torchledger.fitting.product_network import CLASSES, FLOAT16_CLASSES, float16_name

NEEDS: tuple[str, ...] = ()
RUNS: tuple[tuple[str, ...], ...] = (("--check",),)
QUICK: tuple[tuple[str, ...], ...] = (("--check", "--quick"),)

MEMBERS, TEACHER_WIDTH, TEACHER_EPOCHS = 3, 144, 40
WIDTH, HIDDEN, EPOCHS, ASKED = 112, 3, 40, 60_000


def main() -> None:
    """Fit, say the error of an eighth held out, and write or check."""
    arguments = parsed(__doc__, "products")
    with np.load(arguments.data, allow_pickle=False) as found:
        rows = np.flatnonzero(found["dtype"] == "float16")[: 4000 if arguments.quick else None]
        layout, time_us = found["layout"][rows], found["time_us"][rows].astype(np.float64)
        sides = [found[name][rows].astype(np.float64) for name in ("b", "m", "n", "k")]
        names = found["kernel_names"].astype(str)[found["kernels"][rows]]
    features, log_base, kind = described(layout, sides, np.full(len(rows), 2.0))
    goal = np.log(time_us) - log_base
    held = held_out([layout, *sides], HELD_OUT if arguments.check else 0.0)
    more, _, more_kind = described(*drawn(2000 if arguments.quick else ASKED))
    networks = of_package(arguments.out.name, [str(one) for one in CLASSES])
    for one in FLOAT16_CLASSES:
        rest, started = np.flatnonzero((kind == one) & ~held), time.monotonic()
        # What the other half precision takes is the best first guess.
        usual = networks[str(one)]
        seen = np.column_stack([features, usual.predict(features)]).astype(np.float32)
        asked = np.column_stack([more, usual.predict(more)]).astype(np.float32)[more_kind == one]
        kernels = kernel_classes(names[rest])
        sizes = {"members": MEMBERS, "width": TEACHER_WIDTH, "epochs": 1 if arguments.quick else TEACHER_EPOCHS}
        teacher = Teacher(seen[rest], goal[rest], kernels, **sizes)
        questions = np.concatenate([features[rest], more[more_kind == one]])
        answers = teacher.answer(np.concatenate([seen[rest], asked]))
        epochs = 1 if arguments.quick else EPOCHS
        network = learn(questions, answers, width=WIDTH, hidden=HIDDEN, epochs=epochs)
        networks[float16_name(one)] = network
        print(f"rows at {one} bytes: {len(rest):,} products, {time.monotonic() - started:.0f} s", flush=True)
        if arguments.check:
            test = (kind == one) & held
            report_errors("networks of both half precisions", usual.predict(features[test]), goal[test])
            report_errors("large networks", teacher.answer(seen[test]), goal[test])
            report_errors("small network", network.predict(features[test]), goal[test])
    if not arguments.check:
        write_networks(networks, arguments.out)


if __name__ == "__main__":
    main()
