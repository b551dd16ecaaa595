"""Learn which kernels an H200's library takes for matrix products: the networks of ``expecting/product_network.py``.

    python -m benchmarks.models.fit_product_network [--data FILE ...] [--out FILE] [--check [--judge FILE]] [--quick]

The data are what ``benchmarks/operators/h200_kernels.py`` measured, also with ``--odd``; a network for each of
``CLASSES``. ``--check`` holds an eighth of the products out, says the error on them beside that of ``--judge``, an
older file (which has learned from some of them), and writes nothing.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.models.teach_networks import HELD_OUT, MACHINE, ROOT, held_out, learn, report_errors, write_networks
from torchledger.expecting.networks import of_package
from torchledger.expecting.product_network import CLASSES, LAYOUTS, product_class, product_features

NEEDS: tuple[str, ...] = ()
RUNS: tuple[tuple[str, ...], ...] = (("--check",),)
QUICK: tuple[tuple[str, ...], ...] = (("--check", "--quick"),)

DATA = tuple(ROOT / f"data/h200/{name}_torch2.11.npz" for name in ("products", "odd_products", "more_products"))
OUT = ROOT / "src/torchledger/expecting/generations/hopper_further_products.npz"
WIDTH, HIDDEN = 224, 3
EPOCHS = {16: 60, 4: 90, 2: 90, 0: 90}
"""By class: those whose rows begin at 16 bytes err no less after more."""


def described(layout: Any, sides: Any, item_size: Any, is_float16: Any) -> tuple[Any, Any, Any]:
    """Features of products, the logarithm of their tiles' time, and which of ``CLASSES`` each is of."""
    peak = np.where(item_size >= 4, MACHINE.peak("float32"), MACHINE.peak("bfloat16"))
    rows, log_base, kinds = None, np.empty(len(layout)), np.empty(len(layout), dtype=np.int64)
    for number, name in enumerate(LAYOUTS):
        some = np.flatnonzero(layout == number)
        own = tuple(side[some] for side in sides)
        kinds[some] = product_class(name, own, item_size[some])
        features, log_base[some] = product_features(
            name, own, item_size[some], peak[some], MACHINE, kinds[some], is_float16=is_float16[some]
        )
        if rows is None:
            rows = np.empty((len(layout), features.shape[1]), dtype=np.float32)
        rows[some] = features
    return rows, log_base, kinds


def read(paths: list[Path], *, is_quick: bool) -> tuple[Any, Any, Any, Any, Any]:
    """Layouts, sides, sizes of elements, which are float16, and times in microseconds."""
    found: dict[str, list[Any]] = {name: [] for name in ("layout", "b", "m", "n", "k", "dtype", "time_us")}
    for path in paths:
        with np.load(path, allow_pickle=False) as data:
            for name, parts in found.items():
                parts.append(data[name][: 2000 if is_quick else None])
    all_of = {name: np.concatenate(parts) for name, parts in found.items()}
    sides = [all_of[name].astype(np.float64) for name in ("b", "m", "n", "k")]
    size = np.where(all_of["dtype"] == "float32", 4.0, 2.0)
    return all_of["layout"], sides, size, all_of["dtype"] == "float16", all_of["time_us"].astype(np.float64)


def main() -> None:
    """Fit, and write or check."""
    arguments = _arguments()
    layout, sides, item_size, is_float16, time_us = read(arguments.data, is_quick=arguments.quick)
    features, log_base, kind = described(layout, sides, item_size, is_float16)
    goal = np.log(time_us) - log_base
    held = held_out([layout, *sides, item_size], HELD_OUT if arguments.check else 0.0)
    networks = {}
    for one in arguments.only or CLASSES:
        rest, started = np.flatnonzero((kind == one) & ~held), time.monotonic()
        epochs = 1 if arguments.quick else EPOCHS[one]
        networks[str(one)] = learn(features[rest], goal[rest], WIDTH, HIDDEN, epochs, is_rectified=True)
        told = f"rows at {one} bytes" if one else "single precision"
        print(f"{told}: {len(rest):,} products, {time.monotonic() - started:.0f} s", flush=True)
        if arguments.check:
            before: Mapping[str, Any] = of_package(arguments.judge, [str(one)]) if arguments.judge else {}
            for dtype, of_dtype in (("not float16", ~is_float16), ("float16", is_float16)):
                test = (kind == one) & held & of_dtype
                if not test.any():
                    continue
                seen, true = features[test], goal[test]
                report_errors(dtype, networks[str(one)].predict(seen), true)
                for network in before.values():
                    said = network.predict(seen[:, : len(network.center)])
                    report_errors(f"{dtype}, that of {arguments.judge}", said, true)
    if not arguments.check:
        write_networks(networks, arguments.out)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, nargs="+", default=list(DATA))
    parser.add_argument("--out", type=Path, default=OUT)
    parser.add_argument("--check", action="store_true")
    parser.add_argument("--judge", help="a file of generations/, such as hopper_products.npz")
    parser.add_argument("--only", type=int, nargs="+", choices=CLASSES, help="with --check: some classes only")
    parser.add_argument("--quick", action="store_true", help="few rows and one pass, to see that this runs")
    return parser.parse_args()


if __name__ == "__main__":
    main()
